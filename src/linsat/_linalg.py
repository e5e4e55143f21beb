"""Solving with symmetric positive semi-definite matrices that may be singular (duplicate or dependent rows)."""

from __future__ import annotations

import torch

Tensor = torch.Tensor

_RIDGE = 1e-12
_REFINED_RIDGE = 1e-11


def scaled_cholesky(H: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factor of H scaled to a unit diagonal plus a tiny ridge, and the scaling; H is (N, k, k).

    The scaling makes the ridge relative to each row, so rows of very different curvature keep their accuracy. Where
    the ridge is too small for a singular matrix it grows, for that instance alone.
    """
    scaling = H.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(H.dtype).tiny).rsqrt()  # (N, k)
    scaled = H * scaling[:, :, None] * scaling[:, None, :]
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    ridge = torch.full((H.shape[0], 1, 1), _RIDGE, dtype=H.dtype, device=H.device)
    factor, info = torch.linalg.cholesky_ex(scaled + ridge * eye)
    for _ in range(6):
        failed = info > 0
        if not bool(failed.any()):
            break
        ridge = torch.where(failed[:, None, None], ridge * 100, ridge)
        factor, info = torch.linalg.cholesky_ex(scaled + ridge * eye)
    return factor, scaling


def cholesky_solve(factor: Tensor, scaling: Tensor, rhs: Tensor) -> Tensor:
    """Solve with the factor of `scaled_cholesky`; rhs is (N, k)."""
    return scaling * torch.cholesky_solve((scaling * rhs)[:, :, None], factor).squeeze(-1)


def solve_refined(H: Tensor, rhs: Tensor) -> Tensor:
    """Solve H q = rhs accurately for rhs in the range of H: the refinements undo the ridge.

    Free of data-dependent branches, so that it can be differentiated and mapped; rhs is (N, k).
    """
    scaling = H.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(H.dtype).tiny).rsqrt()
    scaled = H * scaling[:, :, None] * scaling[:, None, :]
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    factor, _ = torch.linalg.cholesky_ex(scaled + _REFINED_RIDGE * eye)
    target = (scaling * rhs)[:, :, None]
    q = torch.cholesky_solve(target, factor)
    for _ in range(3):
        q = q + torch.cholesky_solve(target - scaled @ q, factor)
    return scaling * q.squeeze(-1)
