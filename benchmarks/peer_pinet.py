"""Pinet's projection layer, a fixed number of Douglas-Rachford iterations in JAX, behind torch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from methods import Forward, Peer, Tensor
from problems import EUCLIDEAN, Problem


@dataclass(frozen=True)
class Pinet(Peer):
    """`pinet.Project`, compiled by JAX; 50 iterations is its guide's example, 100 its default limit.

    By default in JAX's single precision with 5 backward iterations, the package's default.
    """

    objectives: tuple[str, ...] = (EUCLIDEAN,)
    package: str = "pinet-hcnn"
    modules: tuple[str, ...] = ("pinet", "jax")
    compiles: bool = True
    iterations: int = 100
    backward_iterations: int = 5
    double: bool = False

    def prepare(self, problem: Problem) -> Forward:
        import jax

        jax.config.update("jax_enable_x64", self.double)
        from pinet import ProjectionInstance

        project = _projection(problem, self.double)
        counts = {"n_iter": self.iterations, "n_iter_bwd": self.backward_iterations}
        if project.is_single_simple_constraint:
            counts = {}  # its closed form

        def call(y: Any) -> Any:
            return project.call(y_raw=ProjectionInstance(x=y[:, :, None]), **counts)[0].x[:, :, 0]

        forward = jax.jit(lambda y: jax.vjp(call, y))
        backward = jax.jit(lambda pull, g: pull(g)[0])
        return lambda y: _Bridge.apply(y, forward, backward, np.float64 if self.double else np.float32)


def _projection(problem: Problem, double: bool) -> Any:
    import jax.numpy as jnp
    import pinet

    rows, width = problem.rows, problem.l
    dtype = jnp.float64 if double else jnp.float32

    def column(side: np.ndarray) -> Any:
        return jnp.asarray(side, dtype)[None, :, None]

    parts: dict[str, Any] = {}
    if len(rows.f):
        E = jnp.asarray(rows.E.toarray(), dtype)[None]
        parts["eq_constraint"] = pinet.EqualityConstraint(a_mat=E, b=column(rows.f), method=None)
    if len(rows.b) + len(rows.d):
        C = jnp.asarray(np.vstack([rows.A.toarray(), rows.C.toarray()]), dtype)[None]
        low = np.concatenate([np.full(len(rows.b), -np.inf), rows.d])
        high = np.concatenate([rows.b, np.full(len(rows.d), np.inf)])
        parts["ineq_constraint"] = pinet.AffineInequalityConstraint(c_mat=C, lb=column(low), ub=column(high))
    if rows.box:
        limits = pinet.BoxConstraintSpecification(lb=column(np.zeros(width)), ub=column(np.ones(width)))
        parts["box_constraint"] = pinet.BoxConstraint(limits)
    return pinet.Project(**parts)


class _Bridge(torch.autograd.Function):
    """x from JAX with the function that JAX made for the gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, run: Callable[..., Any], pull_back: Callable[..., Any], dtype: type) -> Tensor:
        x, ctx.pull = run(y.detach().numpy().astype(dtype, copy=False))
        ctx.pull_back, ctx.dtype = pull_back, y.dtype
        return torch.from_numpy(np.array(x))  # waits for the result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        gradient = ctx.pull_back(ctx.pull, grads[0].numpy())
        return torch.from_numpy(np.array(gradient)).to(ctx.dtype), None, None, None
