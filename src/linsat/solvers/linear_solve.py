"""Solving with the Hessian of a batch of problems: by Cholesky, or by conjugate gradients for thousands of rows."""

from __future__ import annotations

from typing import Any

import torch

from linsat._transforms import transforming
from linsat.compile.problem import Curvature, Tensor
from linsat.errors import ConstraintError
from linsat.solvers.linear_algebra import cholesky_solve, conjugate_gradients, scaled_cholesky, solve_refined

# Up to this many rows (32 MB and 3e9 operations an instance) a dense factor is faster than iterations.
MOST_DENSE_ROWS = 2000
_STEPS_INEXACT, _STEPS_EXACT = 400, 4000
_EXACT = 1e-13


def is_dense(num_rows: int) -> bool:
    """Whether the Hessian of so many rows is small enough to be formed."""
    return num_rows <= MOST_DENSE_ROWS


def newton_direction(curvature: Curvature, damping: Tensor, ridge: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
    """Solve (H + damping I) d = rhs well enough for a step, and say for which instances the factor failed.

    damping and ridge are (N, 1); the ridge is relative to the diagonal of H. Conjugate gradients stop the earlier the
    farther the residual is from zero: accuracy there would be wasted.
    """
    if is_dense(rhs.shape[-1]):
        H = curvature.dense() + torch.diag_embed(damping.expand(rhs.shape))
        factor, scaling, failed = scaled_cholesky(H, ridge)
        return cholesky_solve(factor, scaling, rhs), failed
    diagonal = curvature.diagonal() + damping

    def product(v: Tensor) -> Tensor:
        return curvature.product(v) + damping * v

    tol = rhs.abs().amax(-1).clamp(1e-3, 0.1)
    found = conjugate_gradients(product, diagonal, rhs, tol, _STEPS_INEXACT)
    return found, torch.zeros_like(tol, dtype=torch.bool)


def solve_exactly(curvature: Curvature, rhs: Tensor) -> Tensor:
    """H^{-1} rhs for rhs (N, k) in the range of H; differentiable in the problem and rhs."""
    num_rows = rhs.shape[-1]
    if is_dense(num_rows):
        return solve_refined(curvature.dense(), rhs)
    if transforming(rhs):
        raise ConstraintError(
            f"function transforms (vmap, jacrev) need a dense Hessian, which {num_rows} rows are too many "
            f"for (limit: {MOST_DENSE_ROWS}). Fix: call backward or torch.autograd.grad once per output."
        )
    with torch.no_grad():
        found = _by_iteration(curvature, rhs)
    return found + _Correction.apply(rhs - curvature.product(found), curvature)


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
