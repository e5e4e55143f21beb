"""The short way from scores to x on the CPU: one kernel call each way, with gradients to the scores.

Anything this does not cover (other devices, learned numbers, function transforms, warm starts, instances with right
sides of their own that do not converge) takes the general way in `linsat.projection`, which uses the same kernel where
it can.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from linsat._compile import System
from linsat._equations import Tensor
from linsat._kernels import KernelBrokenError, load
from linsat._kernels.run import Solved, pull_back, solve_batch
from linsat._kernels.tables import Tables, build_tables, pattern_of
from linsat._transforms import transforming
from linsat.constraints.constraint_set import Constraints

_DTYPES = (torch.float32, torch.float64)


class GeneralWayError(Exception):
    """Some instance needs more than the short way does."""


@dataclass(frozen=True)
class Lane:
    """One call's fixed part. It does not hold the constraint set, which keeps it.

    Args:
        tables: gives the kernel's numbers. Where they differ between instances they are built again for the backward
            pass: they are several times as large as the solution, and an open graph would keep them.
        tau: (1,).
        tol, max_steps: the solver's.
        own_numbers: right sides or bounds differ between instances.
        report: called when some instance did not converge; warns, raises, or asks for the general way by
            `GeneralWayError`.
        again: the same projection by the general way, for gradients of gradients.
    """

    tables: Callable[[], Tables]
    tau: np.ndarray
    tol: float
    max_steps: int
    own_numbers: bool
    report: Callable[[Solved, Tensor], None]
    again: Callable[[Tensor, Constraints], Tensor]


def fits(y: Any, tau: Any) -> bool:
    """Whether scores and temperature allow the short way."""
    return (
        isinstance(y, torch.Tensor)
        and y.dtype in _DTYPES
        and y.device.type == "cpu"
        and y.layout == torch.strided
        and y.dim() > 0
        and isinstance(tau, (float, int))
        and 0 < tau <= sys.float_info.max
        and not transforming()
        and load().available
    )


def tables_of(system: System) -> Callable[[], Tables] | None:
    """Gives the kernel's tables of a compiled set, the same ones each time where all instances share its numbers.

    None where the kernel should not be used, or bounds alone show that some instance cannot hold its rows.
    """
    pattern = pattern_of(system.equalities.rows)
    if pattern is None:
        return None
    reduction = system.reduce(system.equalities)
    if bool(reduction.infeasible.any()):
        return None
    build = partial(build_tables, pattern, system.equalities, reduction)
    if not system.shared:
        return build
    if "tables" not in system.memory:
        system.memory["tables"] = build()
    return partial(system.memory.__getitem__, "tables")


class FusedProjection(torch.autograd.Function):
    """scores (..., l) -> x (..., l), one kernel call each way."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, lane: Lane, constraints: Constraints) -> Tensor:
        scores = y.detach().reshape(-1, y.shape[-1]) if y.numel() else y.detach().reshape(0, y.shape[-1])
        tables = lane.tables()
        solved = solve_batch(tables, scores.contiguous().numpy(), lane.tau, tol=lane.tol, max_steps=lane.max_steps)
        if solved.codes.any():
            lane.report(solved, scores)
        ctx.lane, ctx.constraints = lane, constraints
        ctx.save_for_backward(y, torch.from_numpy(solved.p), torch.from_numpy(solved.mu))
        # Rounded as the general way rounds it: which of the two serves must not show in the last bit.
        x = tables.lower + tables.width * solved.p if lane.own_numbers else solved.x
        # Reshaped by numpy: a view, as torch's own reshape would give, could not be changed in place.
        return torch.from_numpy(x.astype(scores.numpy().dtype, copy=False).reshape(y.shape))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        (grad,) = grads
        y, p, mu = ctx.saved_tensors
        if torch.is_grad_enabled() or transforming(grad):  # a gradient of this gradient is wanted, or many at once
            return _general_gradient(ctx, y, grad), None, None
        flat = grad.detach().reshape(p.shape).contiguous().numpy()
        try:
            found = pull_back(ctx.lane.tables(), p.numpy(), mu.numpy(), ctx.lane.tau, flat)
        except KernelBrokenError:
            return _general_gradient(ctx, y, grad), None, None
        return torch.from_numpy(found).reshape(grad.shape), None, None


def _general_gradient(ctx: Any, y: Tensor, grad: Tensor) -> Tensor:
    wanted = torch.is_grad_enabled()
    with torch.enable_grad():
        start = y if y.requires_grad else y.detach().requires_grad_()
        x = ctx.lane.again(start, ctx.constraints)
    return torch.autograd.grad(x, start, grad, create_graph=wanted)[0]
