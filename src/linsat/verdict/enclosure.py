"""Proofs of infeasibility in floating-point arithmetic, rounded outwards: they show less than exact ones, but faster.

Multipliers v refute rows over a box where the smallest value of (A'v) x in the box exceeds what the rows allow. Where a
bound is infinite, the entry of A'v has to be exactly zero (or of one sign), which no rounded number is. But some rows B
of large weight can be changed by d so that it is:

    A_B' d = -(A'v)        in the columns that need it,        |d| <= |R| |A'v| / (1 - |I - R A_B'|)

with R a rounded inverse of A_B'. Such a d exists if the last norm is below 1, whatever it is exactly. So the rows are
refuted if v + d keeps its signs, and refutes them, for every d within that bound and all rounding of the sums.
"""

from __future__ import annotations

import numpy as np

from linsat.verdict.system import Array, LinearSystem

_UNIT = 2.0**-52  # twice the rounding of one operation
_LARGEST = 250_000  # coefficients
_TINY = 1e-30  # share of the largest below which multipliers are left out
_SMALLEST = 1e-200  # coefficients this far from one, or beyond, might underflow or overflow
_CANCELS = 1e-5  # entries of A'v below this share of their terms are to be zero
_INDEPENDENT = 1e-10  # pivot share of columns that are independent
_UPWARD = 1.0 + 1e-10  # factor that covers the rounding of a bound itself
_MARGIN = 1e-12  # by which share of its terms the gap must exceed zero besides


def refutes_rounded(system: LinearSystem, multipliers: Array) -> bool:
    """Whether multipliers next to these (k,) refute the rows; False proves nothing. Cost: some 0.2 ms for 30 rows."""
    size = float(np.abs(multipliers).max(initial=0.0))
    rows = np.flatnonzero(np.abs(multipliers) > _TINY * size)
    if not 0.0 < size < np.inf or system.matrix.shape[1] * len(rows) > _LARGEST:
        return False
    part = system.matrix[rows]
    if not ((np.abs(part.data) > _SMALLEST) & (np.abs(part.data) < 1.0 / _SMALLEST)).all():
        return False
    v, matrix = multipliers[rows] / size, part.toarray()
    used = np.flatnonzero(matrix.any(axis=0))
    matrix, lower, upper = matrix[:, used], system.lower[used], system.upper[used]
    ends = np.where(v > 0, system.row_upper[rows], system.row_lower[rows])
    if not np.isfinite(ends).all():
        return False
    sums, terms = v @ matrix, np.abs(v) @ np.abs(matrix)
    off = _rounding(len(rows)) * terms
    no_lower, no_upper = np.isinf(lower), np.isinf(upper)
    zero = (no_lower & no_upper) | ((no_lower | no_upper) & (np.abs(sums) <= _CANCELS * terms))
    change = _change(matrix[:, zero], v, np.abs(sums[zero]) + off[zero])
    if change is None:
        return False
    off = (off + change @ np.abs(matrix)) * _UPWARD
    rest = ~zero
    least, most = (sums - off)[rest], (sums + off)[rest]
    if (no_upper[rest] & (least < 0)).any() or (no_lower[rest] & (most > 0)).any():
        return False
    low, high = np.where(no_lower, upper, lower)[rest], np.where(no_upper, lower, upper)[rest]
    products = np.stack([least * low, least * high, most * low, most * high])
    reach, reach_size = products.min(axis=0).sum(), np.abs(products).max(axis=0).sum()
    allowed = v @ ends + change @ np.abs(ends)
    size = (reach_size + np.abs(v) @ np.abs(ends) + change @ np.abs(ends)) * _UPWARD
    return bool(reach - allowed > (_rounding(len(rows) + len(used)) + _MARGIN) * size)


def _rounding(count: int) -> float:
    """Of a sum of so many products, relative to the sum of their sizes."""
    return (count + 4) * _UNIT


def _change(matrix: Array, v: Array, sums: Array) -> Array | None:
    """(k,) how much each multiplier may have to change to make the sums of these columns, at most ``sums``, zero.

    None where no such change is certain to exist, or a multiplier might change its sign.
    """
    from scipy.linalg import qr

    count = matrix.shape[1]
    change = np.zeros(len(v))
    if not count:
        return change
    unit = np.exp2(np.round(np.log2(np.abs(v))))  # powers of two: products with them are exact
    if count > len(v):
        return None
    triangle, order = qr((matrix * unit[:, None]).T, mode="r", pivoting=True, check_finite=False)
    pivots = np.abs(np.diag(triangle))
    if not (pivots > _INDEPENDENT * pivots[0]).all():
        return None
    basis = order[:count]
    square = (matrix[basis] * unit[basis, None]).T
    inverse = np.linalg.inv(square)
    sizes = np.abs(inverse) @ np.abs(square)
    left = np.abs(np.eye(count) - inverse @ square) + _rounding(count) * (sizes + 1.0)
    norm = left.sum(axis=1).max() * _UPWARD
    if not norm < 0.5:
        return None
    share = float((np.abs(inverse) @ sums).max()) * (1.0 + _rounding(count)) * _UPWARD / (1.0 - norm)
    change[basis] = share * unit[basis]
    return change if (change < np.abs(v) * (1.0 - _UNIT)).all() else None
