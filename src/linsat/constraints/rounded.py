"""Equalities whose right-hand sides contradict each other by no more than the rounding of their dtype.

Row and column sums from two softmaxes in float32 differ by 1e-7 in their totals. Where rows of E depend on each other,
N' E = 0, some x satisfies E x = f only if N' f = 0. Of sides given in less than float64 the nearest that do are meant:

    f + g,   g = -W N (N' W N)^+ N' f,   W = diag(f^2):   the least sum of squares of relative changes g_i / f_i,

as long as no change exceeds what rounding explains. A side of zero stays; so do sides given in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from linsat._optional import is_tensor
from linsat._transforms import constant_in_graphs
from linsat.constraints.arrays import Array, Numbers, namespace, to_tensor

if TYPE_CHECKING:
    from linsat.constraints.coefficients import Matrix

EXPLAINED = 4.0  # relative change of a side, in units of the rounding of its dtype, that still is rounding
EXACT = 1e-14  # relative change that rounding in float64 explains: nothing to say
_MOST_ROWS = 1000  # whose dependencies are looked for: the cost is cubic, once for each matrix
_DEPENDENT, _CANCELS = 1e-12, 1e-13  # an eigenvalue of E E' with rows of norm one, and what is left of N' E


def rounding_of(value: Any) -> float:
    """The unit of rounding of the numbers as they were given: 1.2e-7 for float32, 0 for float64 and whole numbers."""
    if is_tensor(value):
        import torch

        narrow = value.is_floating_point() and value.dtype is not torch.float64
        return float(torch.finfo(value.dtype).eps) if narrow else 0.0
    dtype: Any = getattr(value, "dtype", None)
    if dtype is None and isinstance(value, list | tuple):
        dtype = np.asarray(value).dtype
    narrow = getattr(dtype, "kind", "") == "f" and dtype.itemsize < 8
    return float(np.finfo(dtype).eps) if narrow else 0.0


@constant_in_graphs
def keep_dependencies(matrix: Matrix) -> str:
    """Find `dependencies` once, also while torch.compile traces; returns the name of the attribute of `Matrix.kept`."""
    name = "dependencies"
    if not hasattr(matrix.kept, name):
        setattr(matrix.kept, name, dependencies(matrix))
    return name


def dependencies(matrix: Matrix) -> Array:
    """N (rows, p): an orthonormal basis of the combinations of rows that cancel; p = 0 where none is sought."""
    count = matrix.shape[0]
    none = np.zeros((count, 0))
    if matrix.live or matrix.batch_shape or is_tensor(matrix.source) or not 1 < count <= _MOST_ROWS:
        return none
    rows = sp.csr_array((matrix.source, (matrix.row, matrix.col)), shape=matrix.shape)
    norms = np.sqrt(rows.multiply(rows).sum(1))
    if not (norms > 0).all():
        return none
    unit = sp.csr_array(sp.diags(1.0 / norms) @ rows)
    sizes, vectors = np.linalg.eigh((unit @ unit.T).toarray())
    null = vectors[:, sizes <= _DEPENDENT * count]
    if not null.shape[1] or np.abs(unit.T @ null).max() > _CANCELS * count:
        return none
    return np.linalg.qr(null / norms[:, None])[0]


def consistent(side: Numbers, N: Array, rounding: float) -> tuple[Numbers, Numbers]:
    """Sides (batch..., rows) with N' side = 0, and the largest relative change of each instance, (batch...).

    Unchanged, and 0, where they are consistent already or rounding does not explain the difference. The change counts
    as a constant: gradients reach the sides as given.
    """
    xp = namespace(side)
    now = side.detach() if is_tensor(side) else side
    basis = to_tensor(N, side.device) if is_tensor(side) else N
    now = now.double() if is_tensor(now) else now
    missing = now @ basis  # (batch..., p)
    gram = basis.T @ (now[..., :, None] ** 2 * basis)  # (batch..., p, p)
    solved = (xp.linalg.pinv(gram) @ missing[..., None])[..., 0]
    share = -now * (solved @ basis.T)  # g_i / f_i
    largest = abs(share).max(-1).values if is_tensor(share) else abs(share).max(-1)
    meant = (largest > EXACT) & (largest <= EXPLAINED * rounding)
    change = xp.where(meant[..., None], now * share, xp.zeros_like(share))
    given = side.double() if is_tensor(side) else side
    return given + change, xp.where(meant, largest, xp.zeros_like(largest))
