"""The linear system of an interior-point step: sparse LDL', regularised as little as an accurate answer allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

Array = np.ndarray

# Regularisation of the rows, relative to the diagonal of A D^-1 A' + E; the least that solves accurately is used.
REGULARISATION = (1e-13, 1e-11, 1e-9, 1e-7, 1e-5)
_FIRST_LEVEL = 2
SMALLEST = 1e-300


class SparseSystem:
    """The linear system of a step, slacks eliminated, by a sparse LDL' factorisation with iterative refinement."""

    def __init__(self, matrix: sp.csr_array, slack_rows: Array) -> None:
        k, l = matrix.shape
        self.matrix, self.transposed, self.squares = (
            matrix,
            sp.csr_array(matrix.T),
            sp.csr_array(matrix.multiply(matrix)),
        )
        self.slack_rows, self.num_variables = slack_rows, l
        upper = sp.bmat([[sp.eye(l), matrix.T], [None, sp.eye(k)]], format="csc")
        upper.sort_indices()
        self.upper = upper
        self.diagonal = upper.indptr[1:] - 1  # the last entry of each column of an upper triangle
        self.solver: Any = None
        self.level, self.quality = _FIRST_LEVEL, 0.0

    def factor(self, curvature: Array) -> None:
        import qdldl

        l = self.num_variables
        self.curvature = curvature
        self.slack = np.zeros(self.matrix.shape[0])  # E
        self.slack[self.slack_rows] = 1.0 / curvature[l:]
        gram = self.squares @ (1.0 / curvature[:l]) + self.slack
        regularised = self.slack + REGULARISATION[self.level] * gram + SMALLEST
        self.upper.data[self.diagonal] = np.concatenate([curvature[:l] * (1 + 1e-14), -regularised])
        self.row_weight = 1.0 / np.sqrt(np.maximum(gram, SMALLEST))
        self.column_weight = 1.0 / np.sqrt(curvature[:l])
        if self.solver is None:
            self.solver = qdldl.Solver(self.upper, upper=True)
        else:
            self.solver.update(self.upper, upper=True)

    def solve(self, pull: Array, primal: Array) -> tuple[Array, Array]:
        """Columns and duals with D dx - A' dmu = pull and A dx = primal, slack columns included."""
        l, rows = self.num_variables, self.slack_rows
        first, second = pull[:l], primal.copy()
        second[rows] += pull[l:] / self.curvature[l:]
        found = self.solver.solve(np.concatenate([first, second]))

        def left(v: Array) -> tuple[Array, float]:
            e = first - self.curvature[:l] * v[:l] - self.transposed @ v[l:]
            g = second - self.matrix @ v[:l] + self.slack * v[l:]
            return np.concatenate([e, g]), self._size(e, g)

        whole = max(self._size(first, second), SMALLEST)
        rest, size = left(found)
        for _ in range(8):
            if size < 1e-14 * whole:
                break
            better = found + self.solver.solve(rest)
            new_rest, new_size = left(better)
            if not new_size < size:
                break
            slow = new_size > 0.7 * size
            found, rest, size = better, new_rest, new_size
            if slow:
                break
        self.quality = size / whole if np.isfinite(size) else np.inf
        dmu = -found[l:]
        return np.concatenate([found[:l], (pull[l:] - dmu[rows]) / self.curvature[l:]]), dmu

    def _size(self, e: Array, g: Array) -> float:
        columns = float((np.abs(e) * self.column_weight).max(initial=0.0))
        return max(columns, float((np.abs(g) * self.row_weight).max(initial=0.0)))
