"""The coefficient matrix as an operator: A x, A' mu and A diag(d) A', dense or from its sparsity pattern."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from linsat._transforms import mapped, plain_tensors, transforming
from linsat.compile.groups import disjoint_groups as disjoint_groups

Tensor = torch.Tensor
Array = np.ndarray

# Up to this many entries the dense matrix (32 MB) beats gathers and scatters.
_DENSE_ENTRIES = 4_000_000
# Largest temporary, in entries, that one chunk of instances may need for A diag(d) A'.
_CHUNK_ENTRIES = 16_000_000
# Beyond so many rows, where fewer than this share of the pairs of rows have a variable in common, a sparse
# factorisation beats a dense one.
_SPARSE = {256: 0.2, 1000: 0.5}
# Beyond this many rows A D A' is never formed (it would have 4 million entries), nor are all pairs of rows looked at.
_MANY_ROWS = 2000
_LEAST_SAMPLE = 16  # rows whose partners are counted, however many rows there are
# A column in more than this share of many rows fills A D A' alone; but the sparse factorisation is of [D A'; A -E],
# where it is one column. As long as they are no more than this share of the rows, such columns do not count.
_FULL_COLUMN, _FEW_COLUMNS = 0.1, 0.01


class RowMatrix:
    """All rows of a constraint set, the values shared (1, nnz) or per instance (N, nnz); differentiable in its values.

    Costs per instance: ``matvec`` and ``rmatvec`` O(nnz); ``gram`` O(sum over variables of (rows containing it)^2),
    from pairs of rows that share a variable, or O(rows^2 variables) where the matrix is too full for that to pay.
    """

    def __init__(
        self, row: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int], cache: dict[str, Any] | None = None
    ) -> None:
        self.row, self.col, self.values, self.shape = row, col, values, shape
        # What is derived from the pattern alone, shared by every matrix of the same pattern.
        self.cache: dict[str, Any] = {} if cache is None else cache
        self._dense: Tensor | None = None

    @property
    def shared(self) -> bool:
        """Whether all instances have the same coefficients."""
        return self.values.shape[0] == 1

    @property
    def dense(self) -> Tensor | None:
        """(1 or N, k, l), or None where that would be too large."""
        k, l = self.shape
        if self._dense is not None or k * l * self.values.shape[0] > _DENSE_ENTRIES:
            return self._dense
        if self.values.requires_grad:  # one made without a graph must not serve where a graph is wanted
            return self._filled()
        if transforming() and not mapped(self.values):
            with plain_tensors():  # kept, and the transform may be over before the matrix is
                self._dense = self._filled()
        else:
            self._dense = self._filled()
        return self._dense

    def _filled(self) -> Tensor:
        k, l = self.shape
        flat = self.values.new_zeros((self.values.shape[0], k * l))
        return flat.index_add(1, self.row * l + self.col, self.values).reshape(len(flat), k, l)

    @property
    def sparse(self) -> bool:
        """Whether A D A' is so large and so empty that a sparse factorisation is the way to solve with it."""
        if "sparse" not in self.cache:
            limit = max((share for rows, share in _SPARSE.items() if self.shape[0] > rows), default=0.0)
            self.cache["sparse"] = limit > 0 and self._gram_density(limit) < limit
        return self.cache["sparse"]

    def _gram_density(self, enough: float = 1.0) -> float:
        """The share of pairs of rows with a variable in common: counted in a sample of many, or a bound of ``enough``."""
        row, col, k = self.row.cpu().numpy(), self.col.cpu().numpy(), self.shape[0]
        shares = np.bincount(col, minlength=self.shape[1]) / k
        full = shares > _FULL_COLUMN
        if k > _MANY_ROWS and full.sum() <= _FEW_COLUMNS * k:
            row, col, shares = row[~full[col]], col[~full[col]], shares[~full]
        least = float(shares.max(initial=0.0)) ** 2  # the rows of the fullest column are partners of each other
        if least >= enough:
            return least
        pattern = sp.csr_array((np.ones(len(row), dtype=np.float32), (row, col)), shape=self.shape)
        count = min(k, max(_LEAST_SAMPLE, _MANY_ROWS**2 // k))
        sample = np.random.default_rng(0).choice(k, count, replace=False)
        return (pattern[np.sort(sample)] @ pattern.T).nnz / (count * k)

    def matvec(self, x: Tensor) -> Tensor:
        """A x for x (N, l): (N, k)."""
        dense = self.dense
        if dense is None:
            return self.matvec_each(x)
        return x @ dense[0].T if self.shared else (dense @ x[:, :, None]).squeeze(-1)

    def matvec_each(self, x: Tensor) -> Tensor:
        """A x, summed coefficient by coefficient: to the last bit, no row of x depends on how many others there are.

        A product of matrices rounds differently for different numbers of rows.
        """
        terms = x[:, self.col] * self.values
        return terms.new_zeros((terms.shape[0], self.shape[0])).index_add(1, self.row, terms)

    def rmatvec(self, mu: Tensor) -> Tensor:
        """A' mu for mu (N, k): (N, l)."""
        dense = self.dense
        if dense is not None:
            return mu @ dense[0] if self.shared else (mu[:, None, :] @ dense).squeeze(-2)
        terms = mu[:, self.row] * self.values
        return terms.new_zeros((terms.shape[0], self.shape[1])).index_add(1, self.col, terms)

    def outer(self, mu: Tensor, x: Tensor) -> Tensor:
        """The gradient of <mu, A x> to the values: mu_i x_j at each, (N, nnz), or their sum, (1, nnz), where shared."""
        if self.shared and self.shape[0] * self.shape[1] <= _DENSE_ENTRIES:
            return (mu.T @ x)[self.row, self.col][None]
        terms = mu[:, self.row] * x[:, self.col]
        return terms.sum(0, keepdim=True) if self.shared else terms

    def row_sums(self, terms: Tensor) -> Tensor:
        """Sums over each row of one number per coefficient, (., nnz) -> (., k)."""
        return terms.new_zeros((terms.shape[0], self.shape[0])).index_add(1, self.row, terms)

    def gram_diagonal(self, weights: Tensor) -> Tensor:
        """The diagonal of A diag(weights) A' for weights (N, l): (N, k)."""
        return self.row_sums(weights[:, self.col] * self.values**2)

    def gram(self, weights: Tensor) -> Tensor:
        """A diag(weights) A' for weights (N, l): (N, k, k)."""
        num_rows = self.shape[0]
        pairs = self._shared_variables()
        per_instance = len(pairs[2])
        full = self.dense is not None and per_instance * 8 > num_rows * self.shape[1]
        size = num_rows * self.shape[1] if full else per_instance
        chunk = max(1, _CHUNK_ENTRIES // max(1, size))
        if weights.shape[0] <= chunk:
            return self._gram(weights, full, pairs)
        parts = torch.arange(weights.shape[0], device=weights.device).split(chunk)
        return torch.cat([self.select(part)._gram(weights[part], full, pairs) for part in parts])

    def _gram(self, weights: Tensor, full: bool, pairs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        num_rows = self.shape[0]
        if full:
            dense = self.dense
            assert dense is not None
            return (dense * weights[:, None, :]) @ dense.transpose(1, 2)
        first, second, col = pairs
        products = self.values[:, first] * self.values[:, second] * weights[:, col]  # (N, pairs)
        flat = products.new_zeros((products.shape[0], num_rows * num_rows))
        flat = flat.index_add(1, self.row[first] * num_rows + self.row[second], products)
        return flat.reshape(products.shape[0], num_rows, num_rows)

    def _shared_variables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every ordered pair of coefficients in the same column: positions of both, and the column."""
        if "pairs" not in self.cache:
            with plain_tensors():  # kept, so it must be plain tensors even inside a transform
                self.cache["pairs"] = self._find_pairs()
        return self.cache["pairs"]

    def _find_pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        order = torch.argsort(self.col, stable=True)
        counts = torch.bincount(self.col, minlength=self.shape[1])  # rows containing each variable
        partners = counts[self.col[order]]  # (nnz,) partners of each coefficient, itself included
        first = torch.repeat_interleave(order, partners)
        start = (torch.cumsum(counts, 0) - counts)[self.col[first]]
        within = torch.arange(len(first), device=first.device)
        within = within - torch.repeat_interleave(torch.cumsum(partners, 0) - partners, partners)
        return first, order[start + within], self.col[first]

    def groups(self) -> list[Tensor]:
        """The rows in groups of disjoint supports."""
        if "groups" not in self.cache:
            found = disjoint_groups(self.row.cpu().numpy(), self.col.cpu().numpy(), self.shape[0])
            with plain_tensors():
                self.cache["groups"] = [torch.tensor(members, device=self.row.device) for members in found]
        return self.cache["groups"]

    def with_values(self, values: Tensor) -> RowMatrix:
        """The same pattern with other values, (1 or N, nnz)."""
        return RowMatrix(self.row, self.col, values, self.shape, self.cache)

    def select(self, index: Tensor) -> RowMatrix:
        """The matrix of some instances."""
        return self if self.shared else self.with_values(self.values[index])
