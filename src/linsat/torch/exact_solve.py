"""Solving exactly with the Hessian of a batch of problems, differentiably: the solve of the implicit gradient."""

from __future__ import annotations

from typing import Any

import torch

from linsat._transforms import transforming
from linsat.arrays.linear_algebra import MOST_DENSE_ROWS, conjugate_gradients, is_dense, solve_refined
from linsat.arrays.problem import Curvature, Tensor
from linsat.errors import ConstraintError

_STEPS_EXACT = 4000
_EXACT = 1e-13


def solve_exactly(curvature: Curvature, rhs: Tensor) -> Tensor:
    """H^{-1} rhs for rhs (N, k) in the range of H; differentiable in the problem and rhs."""
    num_rows = rhs.shape[-1]
    if is_dense(num_rows):
        return solve_refined(curvature.dense(), rhs)
    if transforming(rhs):
        raise ConstraintError(
            f"function transforms (vmap, jacrev) and forward mode (jvp, jacfwd) need a dense Hessian, which {num_rows} "
            f"rows are too many for (limit: {MOST_DENSE_ROWS}). "
            f"Fix: call backward or torch.autograd.grad once per output."
        )
    with torch.no_grad():
        solution = _by_iteration(curvature, rhs)
    return solution + _Correction.apply(rhs - curvature.product(solution), curvature)


class _Correction(torch.autograd.Function):
    """H^{-1} of a residual that is zero, and so zero; but its derivative, H^{-1} of the residual's, is not."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, curvature: Curvature) -> Tensor:
        ctx.curvature = curvature
        return torch.zeros_like(residual)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _by_iteration(ctx.curvature, grad), None


def _by_iteration(curvature: Curvature, rhs: Tensor) -> Tensor:
    tol = torch.full_like(rhs[:, 0], _EXACT)
    return conjugate_gradients(curvature.product, curvature.diagonal(), rhs, tol, _STEPS_EXACT)
