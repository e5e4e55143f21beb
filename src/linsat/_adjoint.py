r"""Gradients: the duals as an implicit function of every number of the problem.

The duals solve r(mu, theta) = 0, so d mu / d theta = -H^{-1} dr/d theta with H = dr/d mu, the Hessian of the potential.
Given dL/d mu, the backward pass solves H q = dL/d mu once and pulls -q back through the residual. No iterate is kept:
memory is O(variables + rows^2) per instance, whatever the number of steps. x follows from mu by ordinary
differentiable operations outside, so gradients of x (and of the duals) to scores, coefficients, right sides, bounds and
temperature come from this one rule. The backward pass is itself differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from linsat._curvature import solve_exactly
from linsat._equations import Equalities, Program, Reduction, Tensor
from linsat._rows import RowMatrix
from linsat.errors import ConstraintError
from linsat.solvers.outcome import Outcome

# Position of the coefficient values among the tensors; they alone have no instance dimension.
_VALUES = 1


@dataclass(frozen=True)
class ImplicitCall:
    """What one solve needs besides tensors that may carry gradients."""

    pattern: RowMatrix  # the rows whose pattern (not values) is used
    shared: bool  # the reduction is the same for all instances
    # (rows, scores, tau) -> how it ended, shares, what presolve decided
    solve: Callable[[Equalities, Tensor, Tensor], tuple[Outcome, Tensor, Reduction]]

    def equalities(self, tensors: tuple[Tensor, ...]) -> Equalities:
        _, values, *rest = tensors
        return Equalities(self.pattern.with_values(values), *rest)

    def program(self, tensors: tuple[Tensor, ...], reduction: Reduction) -> Program:
        return self.equalities(tensors).program(tensors[0], reduction)


def implicit_duals(
    call: ImplicitCall, equalities: Equalities, scores: Tensor, tau: Tensor
) -> tuple[Outcome, Tensor, Reduction]:
    """Solve for the duals of scores (N, l) at temperatures tau (N,), with gradients to every tensor that wants them.

    The shares (N, l) beside them have none: they are the value of the solution, not a way to its derivatives.
    """
    e = equalities
    tensors = (scores, e.rows.values, e.lower, e.width, e.rhs, e.slack, e.scale)
    mu, p, codes, steps, *reduction = ImplicitDuals.apply(call, tau, *tensors)
    return Outcome(mu, codes, steps), p, Reduction(*reduction)


class ImplicitDuals(torch.autograd.Function):
    """(tau, scores, values, lower, width, rhs, slack, scale) -> duals, shares, codes, steps, reduction fields."""

    @staticmethod
    def forward(call: ImplicitCall, tau: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        outcome, p, reduction = call.solve(call.equalities(tensors), tensors[0], tau)
        return outcome.mu, p, outcome.codes, outcome.steps, *_fields(reduction)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, tau, *tensors = inputs
        ctx.call = call
        ctx.save_for_backward(tau, *tensors, output[0], *output[4:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tau, *saved = ctx.saved_tensors
        tensors, mu, reduction = tuple(saved[:7]), saved[7], Reduction(*saved[8:])
        program = ctx.call.program(tensors, reduction)
        weights = torch.where(reduction.active, grads[0], torch.zeros_like(grads[0]))
        q = solve_exactly(program, mu, tau[:, None], weights)

        def residual(tau: Tensor, *tensors: Tensor) -> Tensor:
            return ctx.call.program(tensors, reduction).residual(mu, tau[:, None])

        pull_back: Callable[..., Any] = torch.func.vjp(residual, tau, *tensors)[1]
        return None, *pull_back(-q)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], call: ImplicitCall, tau: Tensor, *tensors: Tensor) -> tuple[Any, Any]:
        """Mapped instances join the ordinary batch: the solver sees one batch of mapped x instances."""
        _, tau_dim, *dims = in_dims
        if dims[_VALUES] is not None:
            raise ConstraintError(
                "vmap over coefficients (A, C or E) is not supported: they are shared by all instances. "
                "Fix: vmap over the scores or tau, or loop over the sets."
            )
        mapped = info.batch_size
        count = (tensors[0] if dims[0] is None else tensors[0].movedim(dims[0], 0)[0]).shape[0]

        def join(tensor: Tensor, dim: int | None, *, may_share: bool) -> Tensor:
            if dim is None and may_share and tensor.shape[0] == 1:
                return tensor
            front = tensor.expand(mapped, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            return front.expand(mapped, count, *front.shape[2:]).reshape(mapped * count, *front.shape[2:])

        joined = [
            tensor if i == _VALUES else join(tensor, dims[i], may_share=i > _VALUES) for i, tensor in enumerate(tensors)
        ]
        outputs = ImplicitDuals.apply(call, join(tau, tau_dim, may_share=False), *joined)
        split = [output.reshape(mapped, count, *output.shape[1:]) for output in outputs[: 4 if call.shared else None]]
        shared = outputs[len(split) :]
        return (*split, *shared), (*[0] * len(split), *[None] * len(shared))


def _fields(reduction: Reduction) -> tuple[Tensor, ...]:
    return tuple(vars(reduction).values())
