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
from linsat.constraints import arrays
from linsat.constraints.arrays import Array, Numbers, Shape
from linsat.constraints.coefficients import Matrix, join, read_matrix
from linsat.constraints.soft import full_price
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
        base, of, row = (np.asarray(part, dtype=np.int64) for part in (base, of, row))
        sign, weight = (np.asarray(part, dtype=np.float64) for part in (sign, weight))
        return Terms(matrix, arrays.read_right_side("t", t, matrix), tuple(names), base, sign, of, row, weight)

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
        pieces = arrays.ranges(first[used], first[used + 1])
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
        return arrays.broadcast_shapes(self.matrix.batch_shape, tuple(self.side.shape[:-1]))

    @cached_property
    def first(self) -> Array:
        """(maxima + 1,) where the pieces of each maximum begin."""
        return np.searchsorted(self.of, np.arange(len(self.row) + 1))

    def sides(self) -> Numbers:
        """t as (batch..., bases)."""
        return arrays.spread(self.side, (*self.side.shape[:-1], self.matrix.shape[0]))

    def sources(self) -> dict[str, Numbers]:
        return {"T": self.matrix.source, "t": self.side}

    def replaced(self, T: Any = None, t: Any = None) -> Terms:
        """The same with other numbers."""
        matrix = self.matrix if T is None else self.matrix.with_stated(T)
        return replace(self, matrix=matrix, side=self.side if t is None else arrays.read_right_side("t", t, matrix))

    def on_rows(self, rows: Array) -> Terms:
        """The same maxima in other rows: ``rows`` (old rows,) are their new positions."""
        return replace(self, row=rows[self.row], kept={})

    def instances(self, cut: Callable[[Numbers], Numbers]) -> Terms:
        matrix = self.matrix
        if matrix.batch_shape:
            matrix = matrix.with_stated(cut(matrix.stated()))
        return replace(self, matrix=matrix, side=cut(self.side))

    # ------------------------------------------------------------------ at a point, and in words

    def at(self, x: Numbers, count: int) -> tuple[Numbers, Numbers]:
        """What the maxima add to each of ``count`` rows at x (batch..., variables), and the sum of the terms' sizes."""
        xp = arrays.namespace(x)
        values, side = self.matrix.values(), self.sides()
        if is_tensor(x):
            values, side = arrays.to_tensor(values, x.device), arrays.to_tensor(side, x.device)
        else:
            values, side = arrays.as_array(values), arrays.as_array(side)
        row, col = arrays.positions_on(x, self.matrix.row), arrays.positions_on(x, self.matrix.col)
        bases = summed(x[..., col] * values, row, self.matrix.shape[0]) - side
        pieces = bases[..., arrays.positions_on(x, self.base)] * arrays.positions_on(x, self.sign)
        widest = int(np.diff(self.first).max())
        table = np.minimum(self.first[:-1, None] + np.arange(widest), self.first[1:, None] - 1)
        largest = xp.amax(pieces[..., arrays.positions_on(x, table)], -1)  # (batch..., maxima)
        added = largest * arrays.positions_on(x, self.weight)
        where = arrays.positions_on(x, self.row)
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


def summed(terms: Numbers, place: Any, count: int) -> Numbers:
    """(batch..., n) summed over the entries of each place, (batch..., count): arrays of numpy, torch or JAX."""
    if is_tensor(terms):
        return terms.new_zeros((*terms.shape[:-1], count)).index_add(-1, place, terms)
    if not isinstance(terms, np.ndarray):
        return arrays.namespace(terms).zeros((*terms.shape[:-1], count), terms.dtype).at[..., place].add(terms)
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
        arrays.side_by_side([left.sides(), right.sides()]),
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

    terms, l = constraints._terms, constraints.num_variables
    assert terms is not None
    assert l is not None
    count, k, pieces = len(terms.row), len(constraints), len(terms.base)

    def block(name: str, height: int, *parts: tuple[Array, Array, Array]) -> Matrix:
        """Coefficients with their rows and variables, put together row by row."""
        row, col = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        order = np.lexsort((col, row))
        values = arrays.side_by_side([part[2] for part in parts])[..., order]
        return Matrix(name, (height, l + count), row[order], col[order], values, sparse=True)

    arguments: dict[str, Any] = {name: arrays.as_array(side) for name, side in constraints._sides().items()}
    start = 0
    for name, given in constraints._matrices.items():
        height = given.shape[0]
        here = np.flatnonzero((terms.row >= start) & (terms.row < start + height))
        maxima = (terms.row[here] - start, l + here, terms.weight[here])
        arguments[name] = block(name, height, (given.row, given.col, arrays.as_array(given.values())), maxima)
        start += height
    entries, of = arrays.spans(terms.matrix.row, terms.base)
    own = arrays.as_array(terms.matrix.values())[..., entries] * terms.sign[of]
    bound = (np.arange(pieces), l + terms.of, np.full(pieces, -1.0))
    above = block("A", pieces, (of, terms.matrix.col[entries], own), bound)
    side = arrays.as_array(terms.sides())[..., terms.base] * terms.sign
    first = arguments["A"].shape[0] if "A" in arguments else 0  # rows before those of the pieces
    arguments["A"] = join("A", [arguments["A"], above]) if "A" in arguments else above
    arguments["b"] = arrays.side_by_side([arguments["b"], side]) if "b" in arguments else side
    for name, end in (("lower", -np.inf), ("upper", np.inf)):
        known = arrays.as_array(constraints._bounds()[name])
        arguments[name] = arrays.side_by_side([np.broadcast_to(known, (*known.shape[:-1], l)), np.full(count, end)])
    owner = np.concatenate([np.arange(first), terms.row[terms.of], np.arange(first, k)])
    made = Constraints(**arguments, names=[constraints.names[i] for i in owner])
    price = full_price(constraints._soft, k)
    if price is not None:
        from_row = np.concatenate([np.arange(first), np.full(pieces, k), np.arange(first, k)])  # k: none, it is hard
        made = made._with_full_price(arrays.side_by_side([arrays.as_array(price), np.full(1, np.inf)])[..., from_row])
    return made, owner


def named_sides(terms: Terms, values: Mapping[str, Any]) -> dict[str, list[int]]:
    """The bases of each of these names, for those that are names of bases or of their families."""
    from linsat.constraints.names import families

    exact: dict[str, list[int]] = {}
    for position, name in enumerate(terms.names):
        if name:
            exact.setdefault(name, []).append(position)
    by_family = {name: places for name, places in families(list(terms.names)).items() if name}
    known = exact | by_family
    return {name: known[name] for name in values if isinstance(name, str) and name in known}
