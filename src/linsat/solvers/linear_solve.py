"""Solving with the Hessian of a batch of problems: by Cholesky, or by conjugate gradients for thousands of rows."""

from __future__ import annotations

from linsat._array_namespace import Tensor, namespace
from linsat.compile.problem import Curvature
from linsat.solvers.linear_algebra import cholesky_solve, conjugate_gradients, scaled_cholesky

# Up to this many rows (32 MB and 3e9 operations an instance) a dense factor is faster than iterations.
MOST_DENSE_ROWS = 2000
_STEPS_INEXACT = 400


def is_dense(num_rows: int) -> bool:
    """Whether the Hessian of so many rows is small enough to be formed."""
    return num_rows <= MOST_DENSE_ROWS


def newton_direction(curvature: Curvature, damping: Tensor, ridge: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
    """Solve (H + damping I) d = rhs well enough for a step, and say for which instances the factor failed.

    damping and ridge are (N, 1); the ridge is relative to the diagonal of H. Conjugate gradients stop the earlier the
    farther the residual is from zero: accuracy there would be wasted.
    """
    if is_dense(rhs.shape[-1]):
        xp = namespace(rhs)
        H = curvature.dense() + xp.diagonal_matrix(xp.broadcast_to(damping, rhs.shape))
        factor, scaling, failed = scaled_cholesky(H, ridge)
        return cholesky_solve(factor, scaling, rhs), failed
    diagonal = curvature.diagonal() + damping

    def product(v: Tensor) -> Tensor:
        return curvature.product(v) + damping * v

    tol = rhs.abs().amax(-1).clamp(1e-3, 0.1)
    found = conjugate_gradients(product, diagonal, rhs, tol, _STEPS_INEXACT)
    return found, tol < 0
