r"""`PlainRows`: formulas with maxima as linear rows, once it is known which pieces of the maxima count.

    a x + sum_m w_m max_p p_m(x) <= r

A row with one maximum is a linear row for each of its pieces. A row with several (a sum of absolute values) binds at a
solution with a piece of each maximum, the leading one, and other pieces that are equal to it there, the tied ones. Near
that solution it is the same as

    a x + sum_m w_m lead_m(x) = r,     p(x) - lead_m(x) = 0  for the tied pieces,

linear equalities whose coefficients are linear in those of the formula; and nothing at all where it does not bind. So
every number of a formula has the gradient that linear rows have, also where terms are exactly zero, as most terms
w_j - w0_j of a turnover are: there x_j = w0_j is an equality, not a kink. A tie that says where one variable is
(x_j = w0_j) becomes a pair of equal bounds, so that it holds to the last bit.

A `Choice` says which pieces lead and tie; who makes it is `linsat.formulas`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from linsat._senses import EQUAL
from linsat.constraints import arrays, structure
from linsat.constraints.arrays import Array, Numbers
from linsat.constraints.coefficients import Matrix
from linsat.constraints.structure import BLOCKS
from linsat.constraints.terms import Terms, summed

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints


class Choice(NamedTuple):
    """Which pieces count, of N instances: numbers 0.0 and 1.0."""

    active: Array  # (N, joint rows) rows that bind
    leads: Array  # (N, pieces) the leading piece of each maximum of such a row
    tied: Array  # (N, pieces) the others that are equal to it


class Selection(NamedTuple):
    """A choice as the numbers that coefficients, sides and bounds are multiplied with, (batch..., .)."""

    masks: Numbers  # one; rows; leading pieces; tied pieces; pairs of a tied and a leading piece
    places: Numbers  # of the maxima in one variable, those that say where it is
    held: Numbers  # variables that are held so


class Stated(NamedTuple):
    """The numbers of a set, (batch..., .) each, in any library."""

    values: Numbers
    side: Numbers
    lower: Numbers
    upper: Numbers
    price: Numbers  # infinite where a row is hard
    T: Numbers
    t: Numbers


@dataclass(frozen=True)
class _Sum:
    """Targets as sums over sources: ``coefficient * mask * source``."""

    count: int
    target: Array
    source: Array
    coefficient: Array
    mask: Array  # column of the masks, of which the first is one

    def of(self, sources: Numbers, masks: Numbers | None) -> Numbers:
        coefficients = self.coefficient if masks is None else self.coefficient * masks[..., self.mask]
        terms = sources[..., arrays.positions_on(sources, self.source)] * _as(coefficients, sources)
        return summed(terms, arrays.positions_on(terms, self.target), self.count)


@dataclass(frozen=True)
class PlainRows:
    """Where every coefficient of the linear rows comes from; follows from the pattern of a set alone."""

    num_rows: int  # k of the set
    joint: Array  # (F,) rows with several maxima, which need a choice
    joint_pieces: Array  # (P,) bool: pieces of such rows
    joint_of: Array  # (P,) position in ``joint`` of the row of each piece, or -1
    by_bounds: bool  # whether ties in one variable are equal bounds, else rows
    bound: Array  # (B,) maxima of such rows with two pieces in one variable
    bound_column: Array  # (B,) that variable
    bound_repeats: tuple[Array, ...]  # positions among these, each variable once in each
    bound_entries: Array  # (B, 2) coefficients of both pieces in T; -1: the piece is a constant
    ties: Array  # (Q,) the piece that each row of a tie is about
    shapes: tuple[tuple[str, int, int], ...]  # block, rows and coefficients, of the blocks that there are
    rows: Array  # (nnz,) int64: row of each coefficient
    cols: Array  # (nnz,)
    from_row: Array  # (k',) the row that each linear row comes from
    is_plain: Array  # (k',) bool: a row of the set itself
    is_tie: Array  # (k',) bool
    is_joint: Array  # (k',) bool
    pairs: tuple[Array, Array]  # (R,) each: a piece that may tie, and one before it that may lead
    coefficients: _Sum
    sides: _Sum

    @staticmethod
    def of(constraints: Constraints, entropic_slack: bool) -> PlainRows:
        """Those of a set; kept with its terms.

        The paper's slack of an inequality depends on the box: then ties are rows, and x is put in its place later.
        """
        terms = constraints._terms
        assert terms is not None
        soft = constraints._soft_mask()
        key = "plain rows", soft.tobytes(), len(constraints), entropic_slack
        if key not in terms.kept:
            terms.kept[key] = _made(constraints, terms, soft, entropic_slack)
        return terms.kept[key]

    # ------------------------------------------------------------------ numbers

    @property
    def num_masks(self) -> int:
        return 1 + len(self.joint) + 2 * len(self.joint_pieces) + len(self.pairs[0])

    def selection(self, terms: Terms, choice: Choice, width: int, batch: tuple[int, ...]) -> Selection:
        """What a choice selects, for instances of a batch."""
        tied, lead = self.pairs
        parts = (choice.active, choice.leads * self.joint_pieces, choice.tied)
        masks = np.concatenate(
            [np.ones((len(choice.active), 1)), *parts, choice.tied[:, tied] * choice.leads[:, lead]], -1
        )
        # Of several ties in a variable one says where it is: the others say the same.
        ties = choice.tied[:, terms.first[self.bound] + 1] > 0  # (N, B)
        taken, once = np.zeros((len(ties), width)), np.zeros(ties.shape)
        for repeat in self.bound_repeats:
            column = self.bound_column[repeat]
            once[:, repeat] = ties[:, repeat] & (taken[:, column] == 0)
            taken[:, column] += once[:, repeat]
        return Selection(*(part.reshape(*batch, part.shape[-1]) for part in (masks, once, taken)))

    def numbers(self, terms: Terms, stated: Stated, selection: Selection | None) -> structure.Numbers:
        """The numbers of the linear rows; (batch..., .) where there is a selection."""
        values, T = arrays.alike([stated.values, stated.T])
        side, t = arrays.alike([stated.side, stated.t])
        masks = None if selection is None else selection.masks
        joint = np.zeros(side.shape[-1], dtype=bool)
        joint[self.joint] = True
        side = arrays.namespace(side).where(
            _infinite(side) & arrays.positions_on(side, joint), 0.0, side
        )  # never binds
        lower, upper = stated.lower, stated.upper
        if selection is not None and self.by_bounds:
            lower, upper = (self.put(terms, stated, selection, bound) for bound in (lower, upper))
        return structure.Numbers(
            self.coefficients.of(arrays.side_by_side([values, T]), masks),
            self.sides.of(arrays.side_by_side([side, t]), masks),
            lower,
            upper,
            arrays.picked(arrays.side_by_side([stated.price, _as(np.full(1, np.inf), stated.price)]), self._priced()),
        )

    def put(self, terms: Terms, stated: Stated, selection: Selection, x: Numbers) -> Numbers:
        """x (batch..., l), or bounds, with variables that a tie holds where it says."""
        if not len(self.bound):
            return x
        at = self.places(terms, stated.T, stated.t)  # (batch..., B)
        fixed = summed(at * _as(selection.places, at), arrays.positions_on(at, self.bound_column), x.shape[-1])
        fixed, x = arrays.alike([fixed, x])
        return arrays.namespace(fixed, x).where(_as(selection.held, fixed) > 0, _as(fixed, x), x)

    def _priced(self) -> Array:
        """(k',) the row whose price a linear row has; one beyond the last is none."""
        return np.where(self.is_plain | self.is_joint, self.from_row, self.num_rows)

    def places(self, terms: Terms, T: Numbers, t: Numbers) -> Numbers:
        """Where the two pieces of each maximum in one variable are equal, (batch..., B)."""
        first = terms.first[self.bound]
        (T, t), xp = arrays.alike([T, t]), arrays.namespace(T, t)
        slopes = []
        for position in (0, 1):
            entry = self.bound_entries[:, position]
            slope = T[..., arrays.positions_on(T, np.maximum(entry, 0))] * arrays.positions_on(
                T, terms.sign[first + position]
            )
            slopes.append(xp.where(arrays.positions_on(T, entry >= 0), slope, xp.zeros_like(slope)))
        levels = [
            t[..., arrays.positions_on(t, terms.base[first + p])] * arrays.positions_on(t, terms.sign[first + p])
            for p in (0, 1)
        ]
        slope = slopes[1] - slopes[0]
        return (levels[1] - levels[0]) / xp.where(slope == 0, xp.ones_like(slope), slope)

    # ------------------------------------------------------------------ the linear set itself

    def template(self, constraints: Constraints) -> Constraints:
        """A set of these rows over the same variables, without their numbers; kept with the terms."""
        terms = constraints._terms
        assert terms is not None
        key = "template", constraints._soft_mask().tobytes(), len(constraints), self.by_bounds
        if key not in terms.kept:
            terms.kept[key] = self._template(constraints)
        return terms.kept[key]

    def _template(self, constraints: Constraints) -> Constraints:
        from linsat.constraints.constraint_set import Constraints

        arguments: dict[str, Any] = {}
        start = 0
        offset = 0
        side_of = {name: side for name, side, _ in BLOCKS}
        for name, rows, entries in self.shapes:
            here = slice(offset, offset + entries)
            shape = (rows, constraints.num_variables or 0)
            arguments[name] = Matrix(
                name, shape, self.rows[here] - start, self.cols[here], np.ones(entries), sparse=True
            )
            arguments[side_of[name]] = np.zeros(rows)
            start, offset = start + rows, offset + entries
        names = [constraints.names[i] for i in self.from_row]
        made = Constraints(**arguments, lower=-np.inf, upper=np.inf, names=names, variables=constraints._layout)
        soft = constraints._soft_mask()
        if soft.any():
            price = np.append(np.where(soft, 1.0, np.inf), np.inf)
            made = made._with_full_price(price[self._priced()])
        return made

    def given(self, plain: structure.Numbers) -> dict[str, Numbers]:
        """The numbers by the names of the arguments that take them."""
        numbers: dict[str, Numbers] = {"lower": plain.lower, "upper": plain.upper}
        side_of = {name: side for name, side, _ in BLOCKS}
        row = entry = 0
        for name, rows, entries in self.shapes:
            numbers[name] = plain.values[..., entry : entry + entries]
            numbers[side_of[name]] = plain.side[..., row : row + rows]
            row, entry = row + rows, entry + entries
        return numbers

    def duals(self, duals: Numbers) -> Numbers:
        """The multipliers of the rows of the set from those of its linear rows."""
        kept = np.flatnonzero(~self.is_tie)
        own = duals[..., arrays.positions_on(duals, kept)]
        return summed(own, arrays.positions_on(own, self.from_row[kept]), self.num_rows)

    def start(self, duals: Numbers) -> Numbers:
        """Multipliers to begin with, from those of the rows of the set."""
        begun = arrays.picked(duals, self.from_row)
        return arrays.namespace(begun).where(arrays.positions_on(begun, self.is_plain | self.is_joint), begun, 0.0)


def stated_numbers(constraints: Constraints) -> Stated:
    """The numbers of a set as they are kept, (batch..., .)."""
    from linsat.constraints.numbers import _slot

    terms, width = constraints._terms, constraints.num_variables
    assert terms is not None
    parts: list[Any] = [_slot(constraints, name) for name in ("values", "side", "lower", "upper", "price")]
    for place in (2, 3):
        parts[place] = arrays.spread(parts[place], (*parts[place].shape[:-1], width or 0))
    return Stated._make([*parts, terms.matrix.values(), terms.sides()])


def _repeats(columns: Array) -> tuple[Array, ...]:
    """Positions by how often their column has occurred before."""
    order = np.argsort(columns, kind="stable")
    in_order = columns[order]
    before = np.arange(len(columns)) - np.searchsorted(in_order, in_order)
    return tuple(np.sort(order[before == times]) for times in range(int(before.max(initial=-1)) + 1))


def _infinite(numbers: Numbers) -> Numbers:
    return arrays.namespace(numbers).isinf(numbers)


def _as(array: Numbers, like: Numbers) -> Numbers:
    """An array of the host in the library, dtype and device of another."""
    if arrays.is_jax(like):
        return arrays.namespace(like).asarray(array, like.dtype)
    if isinstance(like, np.ndarray):
        return array
    return (arrays.positions_on(like, array) if isinstance(array, np.ndarray) else array).to(like.dtype)


# What a linear row is: a row of the set, a piece of a single maximum, a joint row, a tie.
_PLAIN, _SINGLE, _JOINT, _TIE = range(4)


def _made(constraints: Constraints, terms: Terms, soft: Array, entropic_slack: bool) -> PlainRows:
    pattern, T = constraints._structure, terms.matrix
    k, l, senses, pieces = pattern.num_rows, constraints.num_variables or 0, pattern.senses, len(terms.base)
    own = np.bincount(terms.row, minlength=k)  # maxima of each row
    single = (own == 1) & ~soft
    joint = np.flatnonzero((own > 0) & ~single)
    joint_at = np.full(k, -1)
    joint_at[joint] = np.arange(len(joint))
    piece_row = terms.row[terms.of]
    joint_pieces = ~single[piece_row]
    bound, bound_column, bound_entries = _in_one_variable(terms, joint_pieces)
    whole = not entropic_slack or not (senses[(own == 0) | single] != EQUAL).any()
    by_bounds = np.zeros(len(terms.row), dtype=bool)
    by_bounds[bound] = whole
    begin = terms.first[terms.of]  # (pieces,) the first piece of the same maximum
    ties = np.flatnonzero(joint_pieces & (np.arange(pieces) > begin) & ~by_bounds[terms.of])
    # Joint rows and ties are equalities. Of each linear row: its block, what it is, the row that it comes from, and
    # that row or the piece that it is about.
    table: list[tuple[str, int, Array, Array]] = []
    for name, _, sense in BLOCKS:
        plain = np.flatnonzero((own == 0) & (senses == sense))
        table.append((name, _PLAIN, plain, plain))
        if sense == EQUAL:
            table += [(name, _JOINT, joint, joint), (name, _TIE, piece_row[ties], ties)]
        else:
            mine = np.flatnonzero(~joint_pieces & (senses[piece_row] == sense))
            table.append((name, _SINGLE, piece_row[mine], mine))
    from_row, about = (np.concatenate([line[i] for line in table]).astype(np.int64) for i in (2, 3))
    kind = np.repeat([line[1] for line in table], [len(line[2]) for line in table])
    # Masks: one; rows; leading pieces; tied pieces; pairs of a tied and a leading piece.
    lead_mask = 1 + len(joint) + np.arange(pieces)
    pair_mask = 1 + len(joint) + 2 * pieces
    tied, lead = np.repeat(ties, ties - begin[ties]), arrays.ranges(begin[ties], ties)
    factor = terms.weight[terms.of] * terms.sign
    entries: list[Sequence[Array]] = []  # linear row, variable, source, coefficient, mask
    sides: list[Sequence[Array]] = []  # linear row, source, coefficient, mask

    def put_rows(into: Array, rows: Array, mask: Array | int) -> None:
        """Rows of the set into linear rows."""
        here, whose = arrays.spans(pattern.row, rows)
        mask = np.broadcast_to(mask, into.shape)
        entries.append(np.broadcast_arrays(into[whose], pattern.col[here], here, 1.0, mask[whose]))
        sides.append(np.broadcast_arrays(into, rows, 1.0, mask))

    def put_pieces(into: Array, which: Array, factor: Array, mask: Array | int) -> None:
        """Pieces, times factors, into linear rows."""
        here, whose = arrays.spans(T.row, terms.base[which])
        mask = np.broadcast_to(mask, into.shape)
        entries.append((into[whose], T.col[here], len(pattern.row) + here, factor[whose], mask[whose]))
        sides.append((into, k + terms.base[which], factor, mask))

    plain, singles, joints, tie_rows = (np.flatnonzero(kind == one) for one in (_PLAIN, _SINGLE, _JOINT, _TIE))
    put_rows(plain, from_row[plain], 0)
    put_rows(singles, from_row[singles], 0)
    put_pieces(singles, about[singles], factor[about[singles]], 0)
    put_rows(joints, joint, 1 + np.arange(len(joint)))  # with the leading pieces
    mine = np.flatnonzero(joint_pieces)
    put_pieces(joints[joint_at[piece_row[mine]]], mine, factor[mine], lead_mask[mine])
    put_pieces(tie_rows, ties, terms.sign[ties], lead_mask[ties] + pieces)  # less the leading piece
    put_pieces(np.repeat(tie_rows, ties - begin[ties]), lead, -terms.sign[lead], pair_mask + np.arange(len(lead)))
    row, col, *summands = (np.concatenate([part[i] for part in entries]) for i in range(5))
    places, target = np.unique(row * l + col, return_inverse=True)
    rows, cols = np.divmod(places, l)
    side_row, *side_summands = (np.concatenate([part[i] for part in sides]) for i in range(4))
    heights = [sum(len(line[2]) for line in table if line[0] == name) for name, _, _ in BLOCKS]
    ends = np.searchsorted(rows, np.cumsum([0, *heights]))
    blocks = zip(BLOCKS, heights, np.diff(ends).tolist(), strict=True)
    return PlainRows(
        num_rows=k,
        joint=joint,
        joint_pieces=joint_pieces,
        joint_of=joint_at[piece_row],
        by_bounds=whole,
        bound=bound,
        bound_column=bound_column,
        bound_repeats=_repeats(bound_column),
        bound_entries=bound_entries,
        ties=ties,
        shapes=tuple((block[0], height, count) for block, height, count in blocks if height),
        rows=rows,
        cols=cols,
        from_row=from_row,
        is_plain=kind == _PLAIN,
        is_tie=kind == _TIE,
        is_joint=kind == _JOINT,
        pairs=(tied, lead),
        coefficients=_Sum(len(places), target.reshape(-1), *summands),
        sides=_Sum(len(from_row), side_row, *side_summands),
    )


def _in_one_variable(terms: Terms, joint_pieces: Array) -> tuple[Array, Array, Array]:
    """Maxima of two pieces in one variable, which is known where they are equal; that variable; their entries of T.

    An entry of -1: the piece is a constant.
    """
    T = terms.matrix
    starts = np.searchsorted(T.row, np.arange(T.shape[0] + 1))
    two = np.flatnonzero((np.diff(terms.first) == 2) & joint_pieces[terms.first[:-1]])
    base = terms.base[terms.first[two][:, None] + [0, 1]]
    counts = starts[base + 1] - starts[base]
    column = np.where(counts > 0, np.append(T.col, -1)[starts[base]], -1)  # (two, 2)
    same = (column[:, 0] == column[:, 1]) | (counts.min(1) == 0)
    here = same & (counts.max(1) == 1)
    return two[here], column.max(1)[here], np.where(counts > 0, starts[base], -1)[here]
