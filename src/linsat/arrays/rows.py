"""The coefficient matrix as an operator: A x, A' mu and A diag(d) A', on arrays of torch, JAX or numpy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat._array_namespace import Tensor, namespace
from linsat._optional import is_tensor
from linsat._transforms import mapped, plain_tensors, transforming

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
_FULL = 2**64 - 1  # a word of bits


def disjoint_groups(row: Array, col: Array, num_rows: int) -> list[list[int]]:
    """Rows in order, each put into the first group none of whose rows shares a variable with it."""
    order = np.argsort(row, kind="stable")
    columns, ends = col[order], np.cumsum(np.bincount(row, minlength=num_rows))
    # Bit g of word w at a column: group 64 w + g has a row with that variable.
    taken = [np.zeros(int(col.max(initial=-1)) + 1, dtype=np.uint64)]
    groups: list[list[int]] = []
    for i in range(num_rows):
        support = columns[ends[i - 1] if i else 0 : ends[i]]
        used = [int(np.bitwise_or.reduce(words[support], initial=0)) for words in taken]
        word = next((w for w, bits in enumerate(used) if bits != _FULL), len(taken))
        if word == len(taken):
            taken.append(np.zeros_like(taken[0]))
            used.append(0)
        bit = (~used[word] & (used[word] + 1)).bit_length() - 1  # the lowest that is not set
        taken[word][support] |= np.uint64(1 << bit)
        group = 64 * word + bit
        if group == len(groups):
            groups.append([])
        groups[group].append(i)
    return groups


class RowPattern:
    """Where the non-zeros of all rows are, and what follows from that alone; every matrix of the pattern shares it."""

    def __init__(self, row: Array, col: Array, shape: tuple[int, int]) -> None:
        self.places = {"row": row, "col": col}  # (nnz,) int64
        self.shape = shape
        self.cache: dict[Any, Any] = {}  # what back ends derive from the pattern

    def on(self, name: str, like: Tensor) -> Any:
        """Places by name as an index of arrays like this one.

        JAX gets int32, which it has with and without float64: it remembers what it made of an array of int64, and
        cannot use that in the other precision.
        """
        if is_tensor(like):
            key = name, str(like.device)
            if key not in self.cache:
                with plain_tensors():  # kept, so also where a function transform runs
                    self.cache[key] = namespace(like).from_numpy(self.places[name], like)
            return self.cache[key]
        if isinstance(like, np.ndarray):
            return self.places[name]
        if ("narrow", name) not in self.cache:
            self.cache["narrow", name] = self.places[name].astype(np.int32)
        return self.cache["narrow", name]

    @functools.cached_property
    def sparse(self) -> bool:
        """Whether A D A' is so large and so empty that a sparse factorisation is the way to solve with it."""
        limit = max((share for rows, share in _SPARSE.items() if self.shape[0] > rows), default=0.0)
        return limit > 0 and self._gram_density(limit) < limit

    def _gram_density(self, enough: float = 1.0) -> float:
        """The share of pairs of rows with a variable in common: counted in a sample, or a bound of ``enough``."""
        row, col, k = self.places["row"], self.places["col"], self.shape[0]
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

    def pairs(self) -> tuple[str, str, str]:
        """Every ordered pair of coefficients in the same column: names of the places of both, and of the column."""
        names = "first", "second", "shared"
        if "first" not in self.places:
            col = self.places["col"]
            order = np.argsort(col, kind="stable")
            counts = np.bincount(col, minlength=self.shape[1])  # rows containing each variable
            partners = counts[col[order]]  # (nnz,) partners of each coefficient, itself included
            first = np.repeat(order, partners)
            start = (np.cumsum(counts) - counts)[col[first]]
            within = np.arange(len(first)) - np.repeat(np.cumsum(partners) - partners, partners)
            self.places |= zip(names, (first, order[start + within], col[first]), strict=True)
        return names

    def groups(self, like: Tensor) -> list[Any]:
        """The rows in groups of disjoint supports."""
        if "groups" not in self.cache:
            groups = disjoint_groups(self.places["row"], self.places["col"], self.shape[0])
            self.places |= {f"group {g}": np.array(members, dtype=np.int64) for g, members in enumerate(groups)}
            self.cache["groups"] = len(groups)
        return [self.on(f"group {g}", like) for g in range(self.cache["groups"])]


class RowMatrix:
    """All rows of a constraint set, the values shared (1, nnz) or per instance (N, nnz); differentiable in its values.

    Costs per instance: ``matvec`` and ``rmatvec`` O(nnz); ``gram`` O(sum over variables of (rows containing it)^2),
    from pairs of rows that share a variable, or O(rows^2 variables) where the matrix is too full for that to pay.
    """

    def __init__(self, pattern: RowPattern, values: Tensor) -> None:
        self.pattern, self.values, self.shape = pattern, values, pattern.shape
        self.cache = pattern.cache
        self.xp = namespace(values)
        self._dense: Tensor | None = None
        if not is_tensor(values) and not isinstance(values, np.ndarray):
            _ = self.dense  # of JAX: what a loop makes while it is traced must not be kept for others

    @property
    def row(self) -> Any:
        return self.pattern.on("row", self.values)

    @property
    def col(self) -> Any:
        return self.pattern.on("col", self.values)

    @property
    def shared(self) -> bool:
        """Whether all instances have the same coefficients."""
        return self.values.shape[0] == 1

    @property
    def sparse(self) -> bool:
        return self.pattern.sparse

    def groups(self) -> list[Any]:
        return self.pattern.groups(self.values)

    @property
    def dense(self) -> Tensor | None:
        """(1 or N, k, l), or None where that would be too large."""
        k, l = self.shape
        if self._dense is not None or k * l * self.values.shape[0] > _DENSE_ENTRIES:
            return self._dense
        if is_tensor(self.values):
            if self.values.requires_grad:  # one made without a graph must not serve where a graph is wanted
                return self._filled()
            if transforming() and not mapped(self.values):
                with plain_tensors():  # kept, and the transform may be over before the matrix is
                    self._dense = self._filled()
                return self._dense
        self._dense = self._filled()
        return self._dense

    def _filled(self) -> Tensor:
        k, l = self.shape
        flat = self.xp.zeros((self.values.shape[0], k * l), self.values)
        return self.xp.index_add(flat, self.row * l + self.col, self.values).reshape(len(flat), k, l)

    def matvec(self, x: Tensor) -> Tensor:
        """A x for x (N, l): (N, k)."""
        dense = self.dense
        if dense is None:
            return self.matvec_each(x)
        return x @ dense[0].T if self.shared else (dense @ x[:, :, None])[:, :, 0]

    def matvec_each(self, x: Tensor) -> Tensor:
        """A x, summed coefficient by coefficient: to the last bit, no row of x depends on how many others there are.

        A product of matrices rounds differently for different numbers of rows.
        """
        return self.row_sums(x[:, self.col] * self.values)

    def rmatvec(self, mu: Tensor) -> Tensor:
        """A' mu for mu (N, k): (N, l)."""
        dense = self.dense
        if dense is not None:
            return mu @ dense[0] if self.shared else (mu[:, None, :] @ dense)[:, 0, :]
        return self.column_sums(mu[:, self.row] * self.values)

    def row_sums(self, terms: Tensor) -> Tensor:
        """Sums over each row of one number per coefficient, (., nnz) -> (., k)."""
        return self.xp.index_add(self.xp.zeros((terms.shape[0], self.shape[0]), terms), self.row, terms)

    def column_sums(self, terms: Tensor) -> Tensor:
        """Sums over each variable of one number per coefficient, (., nnz) -> (., l)."""
        return self.xp.index_add(self.xp.zeros((terms.shape[0], self.shape[1]), terms), self.col, terms)

    def gram_diagonal(self, weights: Tensor) -> Tensor:
        """The diagonal of A diag(weights) A' for weights (N, l): (N, k)."""
        return self.row_sums(weights[:, self.col] * self.values**2)

    def gram(self, weights: Tensor) -> Tensor:
        """A diag(weights) A' for weights (N, l): (N, k, k)."""
        k, l = self.shape
        pairs = [self.pattern.on(name, self.values) for name in self.pattern.pairs()]
        full = self.dense is not None and len(pairs[2]) * 8 > k * l
        chunk = max(1, _CHUNK_ENTRIES // max(1, k * l if full else len(pairs[2])))
        if weights.shape[0] <= chunk:
            return self._gram(weights, full, pairs)
        starts = range(0, weights.shape[0], chunk)
        parts = [self.select(slice(s, s + chunk))._gram(weights[s : s + chunk], full, pairs) for s in starts]
        return self.xp.concatenate(parts)

    def _gram(self, weights: Tensor, full: bool, pairs: list[Any]) -> Tensor:
        k = self.shape[0]
        if full:
            dense = self.dense
            assert dense is not None
            return (dense * weights[:, None, :]) @ dense.swapaxes(1, 2)
        first, second, col = pairs
        products = self.values[:, first] * self.values[:, second] * weights[:, col]  # (N, pairs)
        flat = self.xp.zeros((products.shape[0], k * k), products)
        flat = self.xp.index_add(flat, self.row[first] * k + self.row[second], products)
        return flat.reshape(products.shape[0], k, k)

    def with_values(self, values: Tensor) -> RowMatrix:
        """The same pattern with other values, (1 or N, nnz)."""
        return RowMatrix(self.pattern, values)

    def select(self, index: Any) -> RowMatrix:
        """The matrix of some instances."""
        return self if self.shared else self.with_values(self.values[index])
