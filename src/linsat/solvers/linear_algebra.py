"""Solving with symmetric positive semi-definite matrices that may be singular (duplicate or dependent rows)."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor
Product = Callable[[Tensor], Tensor]  # v (N, k) -> H v (N, k)

FIRST_RIDGE, LARGEST_RIDGE = 1e-12, 1e-2
REFINED_RIDGE = 1e-11
# Iterations of conjugate gradients between two looks at how far they are; a look at a device makes the host wait.
_LOOK_EVERY, _LOOK_AT_DEVICE_EVERY = 4, 32


def scaled_cholesky(H: Tensor, ridge: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky factor of H scaled to a unit diagonal plus a ridge, the scaling, and which instances failed.

    H is (N, k, k), ridge (N, 1). The scaling makes the ridge relative to each row, so rows of very different curvature
    keep their accuracy. Where the ridge is too small for a singular matrix the factor is that of k times the identity,
    with which a step is one of scaled steepest descent. Never asks the device for a number.
    """
    scaling = H.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(H.dtype).tiny).rsqrt()  # (N, k)
    scaled = H * scaling[:, :, None] * scaling[:, None, :]
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    factor, info = torch.linalg.cholesky_ex(scaled + ridge[:, :, None] * eye)
    failed = info > 0
    return torch.where(failed[:, None, None], H.shape[-1] ** 0.5 * eye, factor), scaling, failed


def cholesky_solve(factor: Tensor, scaling: Tensor, rhs: Tensor) -> Tensor:
    """Solve with the factor of `scaled_cholesky`; rhs is (N, k)."""
    return scaling * torch.cholesky_solve((scaling * rhs)[:, :, None], factor).squeeze(-1)


def solve_refined(H: Tensor, rhs: Tensor) -> Tensor:
    """Solve H q = rhs accurately for rhs in the range of H: the refinements undo the ridge.

    Free of data-dependent branches, so that it can be differentiated and mapped; rhs is (N, k). Rows without any
    curvature (all their variables at bounds) get q = 0, the choice of least norm.
    """
    diagonal = H.diagonal(dim1=-2, dim2=-1)
    curved = diagonal > torch.finfo(H.dtype).tiny
    scaling = torch.where(curved, torch.where(curved, diagonal, 1.0).rsqrt(), 0.0)
    scaled = H * scaling[:, :, None] * scaling[:, None, :]
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    factor, _ = torch.linalg.cholesky_ex(scaled + REFINED_RIDGE * eye)
    target = (scaling * rhs)[:, :, None]
    q = torch.cholesky_solve(target, factor)
    for _ in range(3):
        q = q + torch.cholesky_solve(target - scaled @ q, factor)
    return scaling * q.squeeze(-1)


def conjugate_gradients(product: Product, diagonal: Tensor, rhs: Tensor, tol: Tensor, max_steps: int) -> Tensor:
    """Solve H q = rhs (N, k) for rhs in the range of H, each instance to |residual| <= tol |rhs| or as far as it gets.

    The residual is measured in the norm of the preconditioner, the diagonal of H. Stopped early, q is still a direction
    of descent. Cost: one product with H per step, memory O(N k).
    """
    curved = diagonal > torch.finfo(rhs.dtype).tiny
    inverse = torch.where(curved, 1.0 / torch.where(curved, diagonal, 1.0), 0.0)
    q, r = torch.zeros_like(rhs), rhs
    s = inverse * r
    direction, size = s, (r * s).sum(-1, keepdim=True)
    goal = tol[:, None] ** 2 * size
    look_every = _LOOK_EVERY if rhs.device.type == "cpu" else _LOOK_AT_DEVICE_EVERY
    for step in range(max_steps):
        if step % look_every == 0 and bool((size <= goal).all()):
            break
        image = product(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        # An instance that has arrived, or whose curvature is lost to rounding, stays where it is.
        goes_on = (size > goal) & (curvature > 0)
        length = torch.where(goes_on, size / curvature.clamp_min(torch.finfo(rhs.dtype).tiny), 0.0)
        q, r = q + length * direction, r - length * image
        s = inverse * r
        new_size = torch.where(goes_on, (r * s).sum(-1, keepdim=True), size)
        direction = torch.where(goes_on, s + new_size / size.clamp_min(torch.finfo(rhs.dtype).tiny) * direction, 0.0)
        size = new_size
    return q
