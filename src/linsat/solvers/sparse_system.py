"""The linear system of an interior-point step: sparse LDL', regularised as little as an accurate answer allows.

Rows that are parallel but for an angle of 1e-8 have a singular A D^-1 A' in doubles, however it is factored. Where the
matrix is small enough, an orthogonal factorisation of D^-1/2 A' takes over then, which resolves angles down to 1e-15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

Array = np.ndarray
Found = TypeVar("Found")

# Regularisation of the rows, relative to the diagonal of A D^-1 A' + E; the least that solves accurately is used.
REGULARISATION = (1e-13, 1e-11, 1e-9, 1e-7, 1e-5)
_FIRST_LEVEL = 2
LARGEST_DENSE = 250_000  # entries of the matrix that is factored by rows and columns, slacks included
_RANK = 1e-14  # of the largest column of a triangular factor: smaller ones are rows that depend on others
SMALLEST = 1e-300
_ACCURATE, _INACCURATE = 1e-9, 1e-6  # relative residual of the linear system


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
        self.orthogonal = False  # whether D^-1/2 A' is factored in place of the whole matrix
        self.can_be_orthogonal = k * (l + len(slack_rows)) <= LARGEST_DENSE

    def factor(self, curvature: Array) -> None:
        l = self.num_variables
        self.curvature = curvature
        self.slack = np.zeros(self.matrix.shape[0])  # E
        self.slack[self.slack_rows] = 1.0 / curvature[l:]
        gram = self.squares @ (1.0 / curvature[:l]) + self.slack
        self.row_weight = 1.0 / np.sqrt(np.maximum(gram, SMALLEST))
        self.column_weight = 1.0 / np.sqrt(curvature[:l])
        if self.orthogonal:
            self._factor_orthogonal()
        else:
            self._factor_sparse(gram)

    def accurately(self, curvature: Array, solve: Callable[[], Found]) -> Found:
        """Factor with as little regularisation as leaves the solution of the first system accurate."""
        if self.quality < _ACCURATE:
            self.level = max(self.level - 1, 0)
        self.factor(curvature)
        found = solve()
        if self.quality <= _INACCURATE or self.orthogonal:
            return found
        # Too little regularisation loses digits to rounding, too much keeps refinement from converging: try the others.
        reached = {self.level: self.quality}
        for level in sorted(
            range(len(REGULARISATION)), key=lambda level: (level < self.level, abs(level - self.level))
        ):
            if level in reached:
                continue
            self.level = level
            self.factor(curvature)
            found = solve()
            reached[level] = self.quality
            if self.quality <= _INACCURATE:
                return found
        self.orthogonal = self.can_be_orthogonal
        self.level = min(reached, key=lambda level: reached[level] if np.isfinite(reached[level]) else np.inf)
        self.factor(curvature)
        return solve()

    def _factor_sparse(self, gram: Array) -> None:
        import qdldl

        l, curvature = self.num_variables, self.curvature
        regularised = self.slack + REGULARISATION[self.level] * gram + SMALLEST
        self.upper.data[self.diagonal] = np.concatenate([curvature[:l] * (1 + 1e-14), -regularised])
        if self.solver is None:
            self.solver = qdldl.Solver(self.upper, upper=True)
        else:
            self.solver.update(self.upper, upper=True)

    def _factor_orthogonal(self) -> None:
        """Q R of [D^-1/2 A'; E^1/2] with columns of norm one, its largest rows first: their sizes differ by decades."""
        from scipy.linalg import qr

        rows = np.vstack(
            [(self.matrix * self.column_weight).T.toarray(), np.diag(np.sqrt(self.slack))[self.slack_rows]]
        )
        rows = rows * self.row_weight
        self.rank = 0
        if not np.isfinite(rows).all():
            return
        order = np.argsort(-np.abs(rows).max(1, initial=0.0), kind="stable")
        q, self.r, self.pivots = qr(rows[order], mode="economic", pivoting=True, check_finite=False)
        self.q = np.empty_like(q)
        self.q[order] = q
        sizes = np.abs(np.diag(self.r))
        self.rank = int((sizes > _RANK * sizes.max(initial=0.0)).sum())

    def _solve_orthogonal(self, rest: Array) -> Array:
        """dx = D^-1/2 [(I - Q Q') D^-1/2 pull + Q R^-T primal],  dmu = R^-1 [R^-T primal - Q' D^-1/2 pull]."""
        from scipy.linalg import solve_triangular

        l, rank = self.num_variables, self.rank
        pull, primal = self.column_weight * rest[:l], (self.row_weight * rest[l:])[self.pivots[:rank]]
        if not rank:
            return np.concatenate([self.column_weight * pull, np.zeros(self.matrix.shape[0])])
        q, r = self.q[:l, :rank], self.r[:rank, :rank]
        gained = solve_triangular(r, primal, trans="T", check_finite=False) - q.T @ pull
        duals = np.zeros(self.matrix.shape[0])
        duals[self.pivots[:rank]] = solve_triangular(r, gained, check_finite=False)
        return np.concatenate([self.column_weight * (pull + q @ gained), -self.row_weight * duals])

    def _once(self, rest: Array) -> Array:
        return self._solve_orthogonal(rest) if self.orthogonal else self.solver.solve(rest)

    def solve(self, pull: Array, primal: Array) -> tuple[Array, Array]:
        """Columns and duals with D dx - A' dmu = pull and A dx = primal, slack columns included."""
        l, rows = self.num_variables, self.slack_rows
        first, second = pull[:l], primal.copy()
        second[rows] += pull[l:] / self.curvature[l:]
        found = self._once(np.concatenate([first, second]))

        def left(v: Array) -> tuple[Array, float]:
            e = first - self.curvature[:l] * v[:l] - self.transposed @ v[l:]
            g = second - self.matrix @ v[:l] + self.slack * v[l:]
            return np.concatenate([e, g]), self._size(e, g)

        whole = max(self._size(first, second), SMALLEST)
        rest, size = left(found)
        for _ in range(8):
            if size < 1e-14 * whole:
                break
            better = found + self._once(rest)
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
