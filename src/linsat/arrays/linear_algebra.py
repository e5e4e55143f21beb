"""Solving with Hessians, which may be singular (dependent rows): by Cholesky, or by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

from linsat._array_namespace import Tensor, namespace
from linsat.arrays.newton import REFINED_RIDGE as REFINED_RIDGE
from linsat.arrays.newton import precision_of
from linsat.arrays.problem import Curvature

Product = Callable[[Tensor], Tensor]  # v (N, k) -> H v (N, k)

# Iterations of conjugate gradients between two looks at how far they are; a look at a device makes the host wait.
_LOOK_EVERY, _LOOK_AT_DEVICE_EVERY = 4, 32
# Up to this many rows (32 MB and 3e9 operations an instance) a dense factor is faster than iterations.
MOST_DENSE_ROWS = 2000
_STEPS_INEXACT = 400
_STEPS_REFINED = 3


def scaled_cholesky(H: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky factor of H scaled to a unit diagonal plus a ridge, the scaling, and which instances failed.

    H is (N, k, k), ridge (N, 1). The scaling makes the ridge relative to each row, so rows of very different curvature
    keep their accuracy. Where the ridge is too small for a singular matrix the factor is that of k times the identity,
    with which a step is one of scaled steepest descent. Never asks the device for a number.
    """
    xp = namespace(H)
    scaling = 1.0 / xp.sqrt(xp.at_least(xp.diagonal(H), xp.tiny(H)))  # (N, k)
    scaled = H * scaling[:, :, None] * scaling[:, None, :]
    eye = xp.eye(H.shape[-1], H)
    factor, failed = xp.cholesky(scaled + ridge[:, :, None] * eye)
    return xp.where(failed[:, None, None], H.shape[-1] ** 0.5 * eye, factor), scaling, failed


def cholesky_solve(factor: Tensor, scaling: Tensor, rhs: Tensor) -> Tensor:
    """Solve with the factor of `scaled_cholesky`; rhs is (N, k)."""
    return scaling * namespace(rhs).cholesky_solve(factor, scaling * rhs)


def solve_refined(H: Tensor, rhs: Tensor) -> Tensor:
    """Solve H q = rhs accurately for rhs in the range of H.

    Free of data-dependent branches, so that it can be differentiated and mapped; rhs is (N, k). Rows without any
    curvature (all their variables at bounds) get q = 0, the choice of least norm.
    """
    xp = namespace(H)
    diagonal = xp.diagonal(H)
    curved = diagonal > xp.tiny(H)
    scaling = xp.where(curved, 1.0 / xp.sqrt(xp.where(curved, diagonal, 1.0)), 0.0)
    scaled = H * scaling[:, :, None] * scaling[:, None, :]
    factor, _ = xp.cholesky(scaled + precision_of(H).refined_ridge * xp.eye(H.shape[-1], H))
    return scaling * undo_ridge(scaled, factor, scaling * rhs)


def undo_ridge(scaled: Tensor, factor: Tensor, target: Tensor) -> Tensor:
    """q with scaled q = target, by the factor of that with a ridge: by refinement and, where it does not arrive, by
    conjugate gradients.

    Rows that are nearly parallel are a few eigenvalues far below the ridge, a step or two each. Smaller ones are left:
    rounding makes them of rows that depend on each other.
    """
    xp = namespace(scaled)

    def times(v: Tensor) -> Tensor:
        return (scaled @ v[:, :, None])[:, :, 0]

    q = xp.cholesky_solve(factor, target)
    for _ in range(3):
        q = q + xp.cholesky_solve(factor, target - times(q))
    rest = target - times(q)
    direction = xp.cholesky_solve(factor, rest)
    slope = (rest * direction).sum(-1)[:, None]
    nothing = 1.35 * xp.eps(scaled) / precision_of(scaled).refined_ridge
    arrived = 1e-18 * (target * q).sum(-1)[:, None] + xp.tiny(scaled)
    for _ in range(_STEPS_REFINED):
        image = times(direction)
        curved = (direction * image).sum(-1)[:, None]
        goes_on = (slope > arrived) & (curved > nothing * slope)
        step = xp.where(goes_on, slope / xp.where(goes_on, curved, 1.0), 0.0)
        q, rest = q + step * direction, rest - step * image
        towards = xp.cholesky_solve(factor, rest)
        before, slope = xp.where(goes_on, slope, 1.0), (rest * towards).sum(-1)[:, None]
        direction = towards + xp.where(goes_on, slope / before, 0.0) * direction
    return q


def conjugate_gradients(product: Product, diagonal: Tensor, rhs: Tensor, tol: Tensor, max_steps: int) -> Tensor:
    """Solve H q = rhs (N, k) for rhs in the range of H, each instance to |residual| <= tol |rhs| or as far as it gets.

    The residual is measured in the norm of the preconditioner, the diagonal of H. Stopped early, q is still a direction
    of descent. Cost: one product with H per step, memory O(N k).
    """
    xp = namespace(rhs)
    tiny = xp.tiny(rhs)
    curved = diagonal > tiny
    inverse = xp.where(curved, 1.0 / xp.where(curved, diagonal, 1.0), 0.0)
    q, r = xp.zeros_like(rhs), rhs
    s = inverse * r
    direction, size = s, (r * s).sum(-1, keepdim=True)
    goal = tol[:, None] ** 2 * size
    look_every = _LOOK_EVERY if rhs.device.type == "cpu" else _LOOK_AT_DEVICE_EVERY
    for step in range(max_steps):
        if step % look_every == 0 and bool((size <= goal).all()):
            break
        image = product(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        # An instance that has converged, or whose curvature is lost to rounding, stays where it is.
        goes_on = (size > goal) & (curvature > 0)
        length = xp.where(goes_on, size / curvature.clamp_min(tiny), 0.0)
        q, r = q + length * direction, r - length * image
        s = inverse * r
        new_size = xp.where(goes_on, (r * s).sum(-1, keepdim=True), size)
        direction = xp.where(goes_on, s + new_size / size.clamp_min(tiny) * direction, 0.0)
        size = new_size
    return q


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
    direction = conjugate_gradients(product, diagonal, rhs, tol, _STEPS_INEXACT)
    return direction, tol < 0
