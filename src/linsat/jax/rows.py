"""The coefficient matrix on JAX arrays (and on numpy's, for presolve): A x, A' mu and A diag(d) A'."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np

from linsat._array_namespace import namespace
from linsat.compile.groups import disjoint_groups

Array = Any

# A gathered number costs about as much as this many of a product of matrices.
_GATHER = 4
# Beyond this many entries A is not formed as a dense matrix: gathers and sums take its place.
_DENSE_ENTRIES = 4_000_000


class Pattern:
    """Where the non-zeros are, and what follows from that: static while JAX traces.

    Positions are int32, which JAX has with and without float64: it remembers what it made of an array of int64, and
    cannot use that in the other precision.
    """

    def __init__(self, row: np.ndarray, col: np.ndarray, shape: tuple[int, int]) -> None:
        self.row, self.col, self.shape = row.astype(np.int32), col.astype(np.int32), shape

    @functools.cached_property
    def groups(self) -> list[np.ndarray]:
        """The rows in groups of disjoint supports."""
        return [np.array(members, np.int32) for members in disjoint_groups(self.row, self.col, self.shape[0])]

    @property
    def small(self) -> bool:
        return self.shape[0] * self.shape[1] <= _DENSE_ENTRIES

    @functools.cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Non-zeros of two different rows that share a variable, (k k, m) each, for every ordered pair of rows.

        Positions of both coefficients and the variable. The table is padded to the largest number m of variables that
        two rows share; the padding points behind the last coefficient, at a zero.
        """
        k, nnz = self.shape[0], len(self.row)
        order = np.argsort(self.col, kind="stable")
        counts = np.bincount(self.col, minlength=self.shape[1])
        partners = counts[self.col[order]]
        first = np.repeat(order, partners)
        start = (np.cumsum(counts) - counts)[self.col[first]]
        within = np.arange(len(first)) - np.repeat(np.cumsum(partners) - partners, partners)
        second = order[start + within]
        other = self.row[first] != self.row[second]
        first, second = first[other], second[other]
        target = self.row[first] * k + self.row[second]
        by_target = np.argsort(target, kind="stable")
        first, second, target = first[by_target], second[by_target], target[by_target]
        found = np.bincount(target, minlength=k * k)
        place = np.arange(len(target)) - (np.cumsum(found) - found)[target]
        tables = [np.full((k * k, max(1, int(found.max(initial=1)))), nnz, np.int32) for _ in range(2)]
        for table, position in zip(tables, (first, second), strict=True):
            table[target, place] = position
        return tables[0], tables[1], self._variables(tables[0])

    @functools.cached_property
    def gathers(self) -> bool:
        """Whether the Hessian is cheaper from pairs of rows than as a product of matrices."""
        shared = np.bincount(self.col, minlength=self.shape[1])
        if not self.small or not len(self.row):
            return not self.small
        if int((shared.astype(np.int64) ** 2).sum()) > self.shape[0] * self.shape[1]:
            return False
        return _GATHER * self.pairs[0].shape[1] < self.shape[1]

    @functools.cached_property
    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the coefficients of each row, (k, m), padded with one behind the last; and their variables."""
        counts = np.bincount(self.row, minlength=self.shape[0])
        table = np.full((self.shape[0], max(1, int(counts.max(initial=1)))), len(self.row), np.int32)
        order = np.argsort(self.row, kind="stable")
        within = np.arange(len(order)) - (np.cumsum(counts) - counts)[self.row[order]]
        table[self.row[order], within] = order
        return table, self._variables(table)

    def _variables(self, table: np.ndarray) -> np.ndarray:
        """The variables of coefficients by position, 0 of those behind the last."""
        return np.append(self.col, np.int32(0))[table]


class PatternRows:
    """All rows, the values shared (1, nnz) or per instance (N, nnz); what `linsat.compile.rows.RowMatrix` is to torch.

    Made outside of loops: what is derived from the values is computed here, once.
    """

    def __init__(self, pattern: Pattern, values: Array) -> None:
        self.pattern, self.values, self.shape = pattern, values, pattern.shape
        self.row, self.col = pattern.row, pattern.col
        self.shared = values.shape[0] == 1
        self.xp = namespace(values)
        self._dense = self._make_dense() if pattern.small else None
        self._coefficients = None
        if pattern.gathers:
            padded = self._padded_values()
            first, second, _ = pattern.pairs
            self._coefficients = padded[:, first] * padded[:, second]  # (1 or N, k k, m)

    def to(self, dtype: Any) -> PatternRows:
        """The same rows as constants of a JAX computation."""
        import jax.numpy as jnp

        found = copy.copy(self)
        for name in ("values", "_dense", "_coefficients"):
            array = getattr(self, name)
            setattr(found, name, None if array is None else jnp.asarray(array, dtype))
        found.xp = namespace(found.values)
        return found

    def _padded_values(self) -> Array:
        return self.xp.module.concatenate([self.values, self.xp.zeros((len(self.values), 1), self.values)], -1)

    def _make_dense(self) -> Array:
        k, l = self.shape
        flat = self.xp.zeros((self.values.shape[0], k * l), self.values)
        return self.xp.index_add(flat, self.row * l + self.col, self.values).reshape(len(self.values), k, l)

    def groups(self) -> list[np.ndarray]:
        return self.pattern.groups

    def with_values(self, values: Array) -> PatternRows:
        return PatternRows(self.pattern, values)

    def matvec(self, x: Array) -> Array:
        """A x for x (N, l): (N, k)."""
        if self._dense is None:
            return self.matvec_each(x)
        return x @ self._dense[0].T if self.shared else (self._dense @ x[:, :, None])[:, :, 0]

    def matvec_each(self, x: Array) -> Array:
        return self.row_sums(x[:, self.col] * self.values)

    def rmatvec(self, mu: Array) -> Array:
        """A' mu for mu (N, k): (N, l)."""
        if self._dense is not None:
            return mu @ self._dense[0] if self.shared else (mu[:, None, :] @ self._dense)[:, 0, :]
        terms = mu[:, self.row] * self.values
        return self.xp.index_add(self.xp.zeros((len(terms), self.shape[1]), terms), self.col, terms)

    def row_sums(self, terms: Array) -> Array:
        """Sums over each row of one number per coefficient, (., nnz) -> (., k)."""
        return self.xp.index_add(self.xp.zeros((len(terms), self.shape[0]), terms), self.row, terms)

    def gram_diagonal(self, weights: Array) -> Array:
        if self._dense is None:
            return self.row_sums(weights[:, self.col] * self.values**2)
        squares = self._dense**2
        return weights @ squares[0].T if self.shared else (squares @ weights[:, :, None])[:, :, 0]

    def gram(self, weights: Array) -> Array:
        """A diag(weights) A' for weights (N, l): (N, k, k)."""
        if self._coefficients is None:
            dense = self._dense
            assert dense is not None
            return (dense * weights[:, None, :]) @ dense.swapaxes(1, 2)
        k = self.shape[0]
        apart = (self._coefficients * weights[:, self.pattern.pairs[2]]).sum(-1).reshape(-1, k, k)
        return apart + self.xp.diagonal_matrix(self.gram_diagonal(weights))
