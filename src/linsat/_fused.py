"""The short way from scores to x on the CPU: one kernel call each way, with gradients to the scores.

Anything this does not cover (other devices, learned numbers, function transforms, warm starts, instances with right
sides of their own that do not converge) takes the general way in `linsat.projection`, which uses the same kernel where
it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from linsat._compile import System
from linsat._equations import Tensor
from linsat._kernels import KernelBrokenError, load
from linsat._kernels.run import Solved, pull_back, solve_batch
from linsat._kernels.tables import Tables, build_tables, pattern_of
from linsat._transforms import transforming

_DTYPES = (torch.float32, torch.float64)


class GeneralWayError(Exception):
    """Some instance needs more than the short way does."""


@dataclass(frozen=True)
class Lane:
    """One call's fixed part."""

    tables: Tables
    tau: np.ndarray  # (1,)
    tol: float
    max_steps: int
    own_numbers: bool  # right sides or bounds differ between instances
    report: Callable[[Solved, Tensor], None]  # raises or warns; called when some instance did not converge
    # Raises GeneralWayError where the general way should look at such an instance again.
    again: Callable[[Tensor], Tensor]  # the same projection by the general way, for gradients of gradients


def fits(y: Any, tau: Any) -> bool:
    """Whether scores and temperature allow the short way."""
    return (
        isinstance(y, torch.Tensor)
        and y.dtype in _DTYPES
        and y.device.type == "cpu"
        and y.layout == torch.strided
        and y.dim() > 0
        and isinstance(tau, (float, int))
        and 0 < tau < math.inf
        and not transforming()
        and load().available
    )


def tables_of(system: System) -> Tables | None:
    """The kernel's tables of a compiled set, built once where all instances share its numbers.

    None where the kernel should not be used, or bounds alone show that some instance cannot hold its rows.
    """
    if not system.shared:
        return _build(system)
    if "tables" not in system.memory:
        system.memory["tables"] = _build(system)
    return system.memory["tables"]


def _build(system: System) -> Tables | None:
    pattern = pattern_of(system.equalities.rows)
    if pattern is None:
        return None
    reduction = system.reduce(system.equalities)
    if bool(reduction.infeasible.any()):
        return None
    return build_tables(pattern, system.equalities, reduction)


class FusedProjection(torch.autograd.Function):
    """scores (..., l) -> x (..., l), one kernel call each way."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, lane: Lane) -> Tensor:
        scores = y.detach().reshape(-1, y.shape[-1]) if y.numel() else y.detach().reshape(0, y.shape[-1])
        solved = solve_batch(lane.tables, scores.contiguous().numpy(), lane.tau, tol=lane.tol, max_steps=lane.max_steps)
        if solved.codes.any():
            lane.report(solved, scores)
        ctx.lane = lane
        ctx.save_for_backward(y, torch.from_numpy(solved.p), torch.from_numpy(solved.mu))
        if lane.own_numbers:
            # Rounded as the general way rounds it: which of the two serves must not show in the last bit.
            point = lane.tables.lower + lane.tables.width * solved.p
            return torch.from_numpy(point).to(y.dtype).reshape(y.shape)
        return torch.from_numpy(solved.x).reshape(y.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        (grad,) = grads
        y, p, mu = ctx.saved_tensors
        if torch.is_grad_enabled() or transforming(grad):  # a gradient of this gradient is wanted, or many at once
            return _general_gradient(ctx.lane, y, grad), None
        flat = grad.detach().reshape(p.shape).contiguous().numpy()
        try:
            found = pull_back(ctx.lane.tables, p.numpy(), mu.numpy(), ctx.lane.tau, flat)
        except KernelBrokenError:
            return _general_gradient(ctx.lane, y, grad), None
        return torch.from_numpy(found).reshape(grad.shape), None


def _general_gradient(lane: Lane, y: Tensor, grad: Tensor) -> Tensor:
    wanted = torch.is_grad_enabled()
    with torch.enable_grad():
        start = y if y.requires_grad else y.detach().requires_grad_()
        x = lane.again(start)
    return torch.autograd.grad(x, start, grad, create_graph=wanted)[0]
