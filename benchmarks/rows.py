"""Rows of every family, written independently of `linsat.constraints` as scipy.sparse matrices, and their judge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

import linsat


@dataclass(frozen=True, eq=False)
class Rows:
    """``A x <= b``, ``C x >= d``, ``E x = f`` over the box [0, 1], or over all of space; a block may have no rows."""

    A: sp.csr_array
    b: np.ndarray
    C: sp.csr_array
    d: np.ndarray
    E: sp.csr_array
    f: np.ndarray
    box: bool = True

    @property
    def num_variables(self) -> int:
        return int(self.E.shape[1])

    @property
    def count(self) -> int:
        return int(self.A.shape[0] + self.C.shape[0] + self.E.shape[0])

    def blocks(self) -> dict[str, tuple[sp.csr_array, np.ndarray]]:
        """The blocks that have rows: name of the matrix -> (matrix, right-hand side)."""
        every = {"A": (self.A, self.b), "C": (self.C, self.d), "E": (self.E, self.f)}
        return {name: block for name, block in every.items() if block[0].shape[0]}

    def dense(self) -> dict[str, np.ndarray]:
        """``{"E": (rows, l), "f": (rows,), ...}`` for the blocks that have rows."""
        sides = {"A": "b", "C": "d", "E": "f"}
        arrays: dict[str, np.ndarray] = {}
        for name, (matrix, side) in self.blocks().items():
            arrays |= {name: matrix.toarray(), sides[name]: side}
        return arrays

    def sparse_constraints(self) -> linsat.Constraints:
        """The set built from the sparse matrices instead of from a family."""
        sides = {"A": "b", "C": "d", "E": "f"}
        given = {name: matrix for name, (matrix, _) in self.blocks().items()}
        given |= {sides[name]: side for name, (_, side) in self.blocks().items()}
        return linsat.Constraints(**given, **self._bounds())

    def dense_constraints(self) -> linsat.Constraints:
        return linsat.Constraints(**self.dense(), **self._bounds())

    def _bounds(self) -> dict[str, float]:
        return {"lower": 0.0, "upper": 1.0} if self.box else {"lower": -np.inf, "upper": np.inf}

    def violation(self, x: np.ndarray) -> float:
        """Worst violation of any row or bound by any instance of x (batch, l), relative to its size; nan where x is."""
        point = np.asarray(x, dtype=np.float64).T
        if not np.isfinite(point).all():
            return float("nan")
        worst = [0.0]
        if self.box:
            worst.append(float((np.maximum(-point, point - 1) / np.maximum(1.0, np.abs(point))).max()))
        if self.A.shape[0]:
            worst.append(float(((self.A @ point - self.b[:, None]) / _sizes(self.A, point)).max()))
        if self.C.shape[0]:
            worst.append(float(((self.d[:, None] - self.C @ point) / _sizes(self.C, point)).max()))
        if self.E.shape[0]:
            worst.append(float((np.abs(self.E @ point - self.f[:, None]) / _sizes(self.E, point)).max()))
        return max(worst)


def _sizes(matrix: sp.csr_array, point: np.ndarray) -> np.ndarray:
    """max(1, sum_j |a_ij x_j|)."""
    return np.maximum(1.0, abs(matrix) @ np.abs(point))


def _rows(width: int, *, box: bool = True, **blocks: tuple[sp.sparray, np.ndarray]) -> Rows:
    empty = (sp.csr_array((0, width)), np.zeros(0))
    parts = [blocks.get(name, empty) for name in ("A", "C", "E")]
    flat = [item for matrix, side in parts for item in (_plain(matrix), np.asarray(side, float))]
    return Rows(*flat, box=box)


def _plain(matrix: sp.sparray) -> sp.csr_array:
    """Without the zeros that `scipy.sparse.kron` stores."""
    plain = sp.csr_array(matrix)
    plain.eliminate_zeros()
    return plain


def _row_and_column_sums(n1: int, n2: int) -> sp.csr_array:
    across = sp.kron(sp.eye_array(n1), np.ones((1, n2)))
    down = sp.kron(np.ones((1, n1)), sp.eye_array(n2))
    return sp.csr_array(sp.vstack([across, down]))


def _indicator(columns: list[int], width: int) -> sp.csr_array:
    return sp.csr_array((np.ones(len(columns)), (np.zeros(len(columns), int), columns)), shape=(1, width))


def doubly_stochastic(n: int) -> Rows:
    return _rows(n * n, E=(_row_and_column_sums(n, n), np.ones(2 * n)))


def tour(n: int, start: int, end: int, priority: int, within: int) -> Rows:
    """TSP-PRI: doubly stochastic, X[start, 0] = 1, X[end, n-1] = 1, sum X[priority, 0..within] = 1."""
    first = [priority * n + step for step in range(within + 1)]
    picked = [_indicator(cells, n * n) for cells in ([start * n], [end * n + n - 1], first)]
    matrix = sp.vstack([_row_and_column_sums(n, n), *picked])
    return _rows(n * n, E=(matrix, np.ones(2 * n + 3)))


def matching(n1: int, n2: int, at_most: float) -> Rows:
    total = np.ones((1, n1 * n2))
    sides = np.append(np.ones(n1 + n2), at_most)
    return _rows(n1 * n2, A=(sp.vstack([_row_and_column_sums(n1, n2), sp.csr_array(total)]), sides))


def portfolio(n: int, preferred: list[int], at_least: float) -> Rows:
    return _rows(n, C=(_indicator(preferred, n), [at_least]), E=(sp.csr_array(np.ones((1, n))), [1.0]))


def simplex(n: int) -> Rows:
    return _rows(n, E=(sp.csr_array(np.ones((1, n))), [1.0]))


def experts(tokens: int, bins: int, capacity: float) -> Rows:
    """Every token goes to one expert, no expert takes more than its capacity."""
    sums = _row_and_column_sums(tokens, bins)
    return _rows(tokens * bins, A=(sums[tokens:], np.full(bins, capacity)), E=(sums[:tokens], np.ones(tokens)))


def random_dense(n: int, equalities: int, inequalities: int) -> Rows:
    """Dense normal rows, feasible as in DC3 (Donti et al. 2021): x = E^+ f keeps every inequality; no box."""
    draw = np.random.default_rng(0)
    E, A = draw.normal(size=(equalities, n)), draw.normal(size=(inequalities, n))
    f = draw.uniform(-1, 1, equalities)
    b = np.abs(A @ np.linalg.pinv(E)).sum(axis=1)
    return _rows(n, box=False, A=(sp.csr_array(A), b), E=(sp.csr_array(E), f))
