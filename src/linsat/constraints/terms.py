r"""`Terms`: what formulas add to the rows of a set that a matrix cannot say, weighted maxima of affine pieces.

    row_i(x) = a_i x + sum over its maxima m of  weight_m  max over the pieces p of m of  sign_p (T x - t)_base(p)

|w_j - w0_j| is the maximum over the signs of one base, w_j - w0_j. Weights are positive in ``<=`` rows and negative in
``>=`` rows, so that the set is convex. T and t are numbers like those of rows: they may differ per instance, or be
learned; t of a base with a name is given like the right-hand side of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from linsat._optional import is_tensor
from linsat.constraints.arrays import (
    Array,
    Numbers,
    Shape,
    as_array,
    broadcast_shapes,
    namespace,
    positions_on,
    read_right_side,
    side_by_side,
    spread,
)
from linsat.constraints.coefficients import Matrix, join, read_matrix
from linsat.constraints.text import terms_text

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints
    from linsat.constraints.maxima import Maxima
    from linsat.constraints.variables import Variable

_TERMS = 4  # of a base, in words


@dataclass(frozen=True)
class Terms:
    """The maxima of a set; pieces lie in the order of their maxima."""

    matrix: Matrix  # (bases, variables) T
    side: Numbers  # a scalar, (bases,) or (batch..., bases) t
    names: tuple[str, ...]  # of the bases; empty where a user gave none
    base: Array  # (pieces,)
    sign: Array  # (pieces,)
    of: Array  # (pieces,) the maximum of each piece
    row: Array  # (maxima,) the row of each maximum
    weight: Array  # (maxima,)
    kept: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # follows from all but T and t

    @staticmethod
    def made(T: Any, t: Any, names: Sequence[str], base: Any, sign: Any, of: Any, row: Any, weight: Any) -> Terms:
        matrix = read_matrix("T", T)
        whole = (np.asarray(part, dtype=np.int64) for part in (base, of, row))
        base, of, row = whole
        numbers = (np.asarray(part, dtype=np.float64) for part in (sign, weight))
        sign, weight = numbers
        return Terms(matrix, read_right_side("t", t, matrix), tuple(names), base, sign, of, row, weight)

    @staticmethod
    def of_weights(weights: sp.csr_array, maxima: Sequence[Maxima], order: Sequence[Variable]) -> Terms | None:
        """From the weights (rows, all maxima) of maxima one after the other; None where they are all zero."""
        weights = sp.csr_array(weights)
        weights.sum_duplicates()
        weights.eliminate_zeros()
        if not weights.nnz:
            return None
        places = sp.coo_array(weights)
        used = places.col
        starts = np.cumsum([0, *(m.bases.size for m in maxima)])
        offsets = np.cumsum([0, *(m.size for m in maxima)])
        base = np.concatenate([m.base + start for m, start in zip(maxima, starts, strict=False)])
        sign = np.concatenate([m.sign for m in maxima])
        of = np.concatenate([m.of + offset for m, offset in zip(maxima, offsets, strict=False)])
        first = np.searchsorted(of, np.arange(offsets[-1] + 1))
        counts = np.diff(first)[used]
        pieces = np.concatenate([np.arange(first[m], first[m + 1]) for m in used])
        blocks = [
            sp.hstack([m.bases.terms.get(v, sp.csr_array((m.bases.size, v.size))) for v in order]) for m in maxima
        ]
        T = sp.csr_array(sp.vstack(blocks))
        T.sum_duplicates()
        T.eliminate_zeros()
        t = 0.0 - np.concatenate([m.bases.constant for m in maxima])
        names = [name for m in maxima for name in m.names]
        kept, base = np.unique(base[pieces], return_inverse=True)
        return Terms.made(
            sp.csr_array(T[kept]),
            t[kept],
            [names[i] for i in kept],
            base,
            sign[pieces],
            np.repeat(np.arange(len(used)), counts),
            places.row,
            places.data,
        )

    @property
    def batch_shape(self) -> Shape:
        return broadcast_shapes(self.matrix.batch_shape, tuple(self.side.shape[:-1]))

    @cached_property
    def first(self) -> Array:
        """(maxima + 1,) where the pieces of each maximum begin."""
        return np.searchsorted(self.of, np.arange(len(self.row) + 1))

    def sides(self) -> Numbers:
        """t as (batch..., bases)."""
        return spread(self.side, (*self.side.shape[:-1], self.matrix.shape[0]))

    def sources(self) -> dict[str, Numbers]:
        return {"T": self.matrix.source, "t": self.side}

    def replaced(self, T: Any = None, t: Any = None) -> Terms:
        """The same with other numbers."""
        matrix = self.matrix if T is None else self.matrix.with_coefficients(T)
        return replace(self, matrix=matrix, side=self.side if t is None else read_right_side("t", t, matrix))

    def on_rows(self, rows: Array) -> Terms:
        """The same maxima in other rows: ``rows`` (old rows,) are their new positions."""
        return replace(self, row=rows[self.row], kept={})

    def instances(self, cut: Callable[[Numbers], Numbers]) -> Terms:
        matrix = self.matrix
        if matrix.batch_shape:
            matrix = matrix.with_coefficients(cut(matrix.stated()))
        return replace(self, matrix=matrix, side=cut(self.side))

    # ------------------------------------------------------------------ at a point, and in words

    def at(self, x: Numbers, count: int) -> tuple[Numbers, Numbers]:
        """What the maxima add to each of ``count`` rows at x (batch..., variables), and the sum of the terms' sizes."""
        xp = namespace(x)
        like = _like(x)
        values, side = like(self.matrix.values()), like(self.sides())
        row, col = positions_on(x, self.matrix.row), positions_on(x, self.matrix.col)
        bases = summed(x[..., col] * values, row, self.matrix.shape[0]) - side
        pieces = bases[..., positions_on(x, self.base)] * positions_on(x, self.sign)
        widest = int(np.diff(self.first).max())
        table = np.minimum(self.first[:-1, None] + np.arange(widest), self.first[1:, None] - 1)
        largest = xp.amax(pieces[..., positions_on(x, table)], -1)  # (batch..., maxima)
        added = largest * positions_on(x, self.weight)
        where = positions_on(x, self.row)
        sizes = abs(added.detach() if is_tensor(added) else added)
        return summed(added, where, count), summed(sizes, where, count)

    def text(self, maximum: int, entry: Callable[[int], str], of: Callable[[Numbers], Array]) -> str:
        """A maximum as a user writes it, a minimum where its weight is negative; ``of`` picks an instance's numbers."""
        values, side = of(self.matrix.values()), of(self.sides())
        low = self.weight[maximum] < 0
        pieces = range(self.first[maximum], self.first[maximum + 1])
        base, sign = self.base[pieces], self.sign[pieces]
        if len(base) == 2 and base[0] == base[1]:
            inner = self._base_text(int(base[0]), 1.0, values, side, entry)
            return f"{'-' if low else ''}abs({inner})"
        texts = [
            self._base_text(b, -s if low else s, values, side, entry)
            for b, s in zip(base.tolist(), sign.tolist(), strict=True)
        ]
        shown = texts if len(texts) <= _TERMS else [*texts[: _TERMS - 2], "...", texts[-1]]
        return f"{'minimum' if low else 'maximum'}({', '.join(shown)})"

    def _base_text(self, base: int, sign: float, values: Array, side: Array, entry: Callable[[int], str]) -> str:
        here = np.flatnonzero(self.matrix.row == base)
        if values.ndim > 1 or side.ndim > 1:
            own = [
                f"T[..., {i}]" if values.ndim > 1 else sign * v for i, v in zip(here, values[..., here].T, strict=True)
            ]
            left = terms_text(own, self.matrix.col[here].tolist(), entry, _TERMS)
            return f"{left} {'-' if sign > 0 else '+'} {self.names[base] or f't[..., {base}]'}"
        left = terms_text((sign * values[here]).tolist(), self.matrix.col[here].tolist(), entry, _TERMS)
        constant = 0.0 - sign * float(side[base])
        if not len(here):
            return f"{constant:g}"
        return left if constant == 0 else f"{left} {'+' if constant > 0 else '-'} {abs(constant):g}"


def _like(x: Numbers) -> Callable[[Numbers], Numbers]:
    """Numbers where x is."""
    if is_tensor(x):
        from linsat.constraints.arrays import to_tensor

        return lambda numbers: to_tensor(numbers, x.device)
    return as_array


def summed(terms: Numbers, place: Any, count: int) -> Numbers:
    """(batch..., n) summed over the entries of each place, (batch..., count): arrays of numpy, torch or JAX."""
    if is_tensor(terms):
        return terms.new_zeros((*terms.shape[:-1], count)).index_add(-1, place, terms)
    if not isinstance(terms, np.ndarray):
        return namespace(terms).zeros((*terms.shape[:-1], count), terms.dtype).at[..., place].add(terms)
    flat: Array = terms.reshape(-1, len(place)) if len(place) else np.zeros((int(np.prod(terms.shape[:-1])), 0))
    places = np.arange(len(flat))[:, None] * count + place
    sums = np.bincount(places.reshape(-1), flat.reshape(-1), minlength=len(flat) * count)
    return sums.reshape(*terms.shape[:-1], count)


def both(left: Terms | None, right: Terms | None) -> Terms | None:
    """The maxima of two sets over the same variables, in rows that are numbered together."""
    if left is None or right is None:
        return left or right
    bases, maxima = left.matrix.shape[0], len(left.row)
    return Terms(
        join("T", [left.matrix, right.matrix]),
        side_by_side([left.sides(), right.sides()]),
        left.names + right.names,
        np.append(left.base, right.base + bases),
        np.append(left.sign, right.sign),
        np.append(left.of, right.of + maxima),
        np.append(left.row, right.row),
        np.append(left.weight, right.weight),
    )


def lifted(constraints: Constraints) -> tuple[Constraints, Array]:
    """The set with a further variable for each maximum, and rows that keep it above its pieces; (rows,) whose they are.

    Its first variables are those of the set; its soft rows are soft.
    """
    from linsat.constraints.constraint_set import Constraints

    terms, l = constraints.terms, constraints.num_variables
    assert terms is not None
    assert l is not None
    count, k = len(terms.row), len(constraints)
    matrix = terms.matrix
    first = np.searchsorted(matrix.row, np.arange(matrix.shape[0] + 1))
    entries = np.concatenate([np.arange(first[b], first[b + 1]) for b in terms.base]).astype(np.int64)
    lengths = np.diff(first)[terms.base]
    of_entry = np.repeat(np.arange(len(terms.base)), lengths)
    values, side = as_array(matrix.values()), as_array(terms.sides())
    own = values[..., entries] * terms.sign[of_entry]
    blocks: dict[str, Any] = {}
    start = 0
    for name, block in constraints.blocks.items():
        rows = block.shape[0]
        here = (terms.row >= start) & (terms.row < start + rows)
        row = np.append(block.row, terms.row[here] - start)
        col = np.append(block.col, l + np.flatnonzero(here))
        given = as_array(block.values())
        weights = np.broadcast_to(terms.weight[here], (*given.shape[:-1], int(here.sum())))
        blocks[name] = (row, col, np.concatenate([given, weights], -1), rows)
        start += rows
    sides = {name: as_array(s) for name, s in constraints._sides().items()}
    pieces = len(terms.base)
    row = np.append(of_entry, np.arange(pieces))
    col = np.append(matrix.col[entries], l + terms.of)
    bound = np.broadcast_to(-1.0, (*own.shape[:-1], pieces))
    piece_rows = (row, col, np.concatenate([own, bound], -1), pieces)
    piece_side = side[..., terms.base] * terms.sign
    if "A" in blocks:
        a = blocks["A"]
        batch = np.broadcast_shapes(a[2].shape[:-1], piece_rows[2].shape[:-1])
        both_values = [np.broadcast_to(v, (*batch, v.shape[-1])) for v in (a[2], piece_rows[2])]
        blocks["A"] = (
            np.append(a[0], a[3] + row), np.append(a[1], col), np.concatenate(both_values, -1), a[3] + pieces
        )  # fmt: skip
        sides["b"] = side_by_side([sides["b"], piece_side])
    else:
        blocks = {"A": piece_rows} | blocks
        sides["b"] = piece_side
    plain_a = np.arange(constraints.blocks["A"].shape[0]) if "A" in constraints.blocks else np.zeros(0, np.int64)
    owner = np.concatenate([plain_a, terms.row[terms.of], np.arange(len(plain_a), k)])
    arguments: dict[str, Any] = {}
    for name, (row, col, data, rows) in blocks.items():
        placed = np.lexsort((col, row))
        arguments[name] = Matrix(name, (rows, l + count), row[placed], col[placed], data[..., placed], sparse=True)
    bounds = {n: as_array(b) for n, b in constraints._bounds().items()}
    for name, end in (("lower", -np.inf), ("upper", np.inf)):
        whole = np.broadcast_to(bounds[name], (*bounds[name].shape[:-1], l))
        arguments[name] = np.concatenate([whole, np.full((*whole.shape[:-1], count), end)], -1)
    names = [constraints.names[i] for i in owner]
    arguments |= sides
    made = Constraints(**arguments, names=names)
    price = constraints._price_of_all()
    if price is not None:
        whole = np.concatenate([as_array(price), np.full((*price.shape[:-1], 1), np.inf)], -1)
        is_piece = np.zeros(len(owner), dtype=bool)
        is_piece[len(plain_a) : len(plain_a) + pieces] = True
        made = made.with_full_price(whole[..., np.where(is_piece, k, owner)])
    return made, owner


def named_sides(terms: Terms, values: Mapping[str, Any]) -> dict[str, list[int]]:
    """The bases of each of these names, for those that are names of bases or of their families."""
    from linsat.constraints.names import families

    found: dict[str, list[int]] = {}
    for position, name in enumerate(terms.names):
        if name:
            found.setdefault(name, []).append(position)
    by_family = {name: places for name, places in families(list(terms.names)).items() if name}
    known = found | by_family
    return {name: known[name] for name in values if isinstance(name, str) and name in known}
