"""One instance as the interior-point method takes it: rows with two ends, a box, and the cost of each column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

Array = np.ndarray


@dataclass(frozen=True)
class Program:
    """One instance in the user's units; bounds of variables and rows may be infinite."""

    matrix: sp.csr_array  # (k, l)
    row_lower: Array  # (k,)
    row_upper: Array
    lower: Array  # (l,)
    upper: Array
    linear: Array  # (l,) c
    quadratic: Array  # (l,) q
    entropy: Array  # (l,) a
    row_entropy: Array  # (k,) a of the slacks


def violation(program: Program, x: Array) -> float:
    """By how much a point violates the worst row, relative to max(1, sum_j |a_ij x_j|)."""
    values, size = program.matrix @ x, np.maximum(1.0, abs(program.matrix) @ np.abs(x))
    outside = np.maximum(program.row_lower - values, values - program.row_upper) / size
    return float(outside.max(initial=0.0))


def equilibrate(matrix: Any) -> tuple[Array, Array]:
    """Powers of two that bring the largest entries of rows and columns close to one."""
    rows, columns = np.ones(matrix.shape[0]), np.ones(matrix.shape[1])
    sizes = sp.csr_array(abs(matrix))
    if sizes.nnz == 0:
        return rows, columns
    for _ in range(8):
        for axis, factors in ((1, rows), (0, columns)):
            largest = sizes.max(axis=axis).toarray().ravel()
            shrink = np.where(largest > 0, np.sqrt(np.where(largest > 0, largest, 1.0)), 1.0)
            factors /= shrink
            sizes = sp.csr_array(sp.diags(1 / shrink) @ sizes if axis == 1 else sizes @ sp.diags(1 / shrink))
    return 2.0 ** np.round(np.log2(rows)), 2.0 ** np.round(np.log2(columns))
