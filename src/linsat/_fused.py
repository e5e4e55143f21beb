"""The short way from scores to x on the CPU: shared rows, gradients to the scores, everything else done once.

Anything this does not cover (other devices, learned or per-instance numbers, function transforms, warm starts) takes
the general way in `linsat.projection`, which uses the same kernel where it can.
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


@dataclass(frozen=True)
class Lane:
    """One call's fixed part."""

    tables: Tables
    tau: np.ndarray  # (1,)
    tol: float
    max_steps: int
    report: Callable[[Solved, Tensor], None]  # raises or warns; called when some instance did not converge
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
    """The kernel's tables of a compiled set, built once; None where the kernel should not be used."""
    if "tables" not in system.memory:
        pattern = pattern_of(system.equalities.rows)
        if pattern is None or system.reduction is None:
            system.memory["tables"] = None
        else:
            system.memory["tables"] = build_tables(pattern, system.equalities, system.reduction)
    return system.memory["tables"]


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
