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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from linsat._senses import EQUAL
from linsat.constraints.arrays import (
    Array,
    Numbers,
    alike,
    is_jax,
    namespace,
    picked,
    positions_on,
    side_by_side,
    spread,
)
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


class Plain(NamedTuple):
    """The numbers of the linear rows, (batch..., .) each."""

    values: Numbers
    side: Numbers
    lower: Numbers
    upper: Numbers
    price: Numbers


@dataclass(frozen=True)
class _Sum:
    """Targets as sums over sources: ``coefficient * mask * source``."""

    target: Array
    source: Array
    coefficient: Array
    mask: Array  # column of the masks, of which the first is one
    count: int

    def of(self, sources: Numbers, masks: Numbers | None) -> Numbers:
        coefficients = self.coefficient if masks is None else self.coefficient * masks[..., self.mask]
        terms = sources[..., positions_on(sources, self.source)] * _as(coefficients, sources)
        return summed(terms, positions_on(terms, self.target), self.count)


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
        terms = constraints.terms
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

    def numbers(self, terms: Terms, stated: Stated, selection: Selection | None) -> Plain:
        """The numbers of the linear rows; (batch..., .) where there is a selection."""
        values, T = alike([stated.values, stated.T])
        side, t = alike([stated.side, stated.t])
        masks = None if selection is None else selection.masks
        joint = np.zeros(side.shape[-1], dtype=bool)
        joint[self.joint] = True
        side = namespace(side).where(_infinite(side) & positions_on(side, joint), 0.0, side)  # never binds
        lower, upper = stated.lower, stated.upper
        if selection is not None and self.by_bounds:
            lower, upper = (self.put(terms, stated, selection, bound) for bound in (lower, upper))
        return Plain(
            self.coefficients.of(side_by_side([values, T]), masks),
            self.sides.of(side_by_side([side, t]), masks),
            lower,
            upper,
            picked(side_by_side([stated.price, _as(np.full(1, np.inf), stated.price)]), self._priced()),
        )

    def put(self, terms: Terms, stated: Stated, selection: Selection, x: Numbers) -> Numbers:
        """x (batch..., l), or bounds, with variables that a tie holds where it says."""
        if not len(self.bound):
            return x
        at = self.places(terms, stated.T, stated.t)  # (batch..., B)
        fixed = summed(at * _as(selection.places, at), positions_on(at, self.bound_column), x.shape[-1])
        fixed, x = alike([fixed, x])
        return namespace(fixed, x).where(_as(selection.held, fixed) > 0, _as(fixed, x), x)

    def _priced(self) -> Array:
        """(k',) the row whose price a linear row has; one beyond the last is none."""
        return np.where(self.is_plain | self.is_joint, self.from_row, self.num_rows)

    def places(self, terms: Terms, T: Numbers, t: Numbers) -> Numbers:
        """Where the two pieces of each maximum in one variable are equal, (batch..., B)."""
        first = terms.first[self.bound]
        (T, t), xp = alike([T, t]), namespace(T, t)
        slopes = []
        for position in (0, 1):
            entry = self.bound_entries[:, position]
            slope = T[..., positions_on(T, np.maximum(entry, 0))] * positions_on(T, terms.sign[first + position])
            slopes.append(xp.where(positions_on(T, entry >= 0), slope, xp.zeros_like(slope)))
        levels = [
            t[..., positions_on(t, terms.base[first + p])] * positions_on(t, terms.sign[first + p]) for p in (0, 1)
        ]
        slope = slopes[1] - slopes[0]
        return (levels[1] - levels[0]) / xp.where(slope == 0, xp.ones_like(slope), slope)

    # ------------------------------------------------------------------ the linear set itself

    def template(self, constraints: Constraints) -> Constraints:
        """A set of these rows over the same variables, without their numbers; kept with the terms."""
        terms = constraints.terms
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
        made = Constraints(**arguments, lower=-np.inf, upper=np.inf, names=names, variables=constraints.layout)
        soft = constraints._soft_mask()
        if soft.any():
            price = np.append(np.where(soft, 1.0, np.inf), np.inf)
            made = made.with_full_price(price[self._priced()])
        return made

    def given(self, plain: Plain) -> dict[str, Numbers]:
        """The numbers by the names of the arguments that take them."""
        found: dict[str, Numbers] = {"lower": plain.lower, "upper": plain.upper}
        side_of = {name: side for name, side, _ in BLOCKS}
        row = entry = 0
        for name, rows, entries in self.shapes:
            found[name] = plain.values[..., entry : entry + entries]
            found[side_of[name]] = plain.side[..., row : row + rows]
            row, entry = row + rows, entry + entries
        return found

    def duals(self, duals: Numbers) -> Numbers:
        """The multipliers of the rows of the set from those of its linear rows."""
        kept = np.flatnonzero(~self.is_tie)
        own = duals[..., positions_on(duals, kept)]
        return summed(own, positions_on(own, self.from_row[kept]), self.num_rows)

    def start(self, duals: Numbers) -> Numbers:
        """Multipliers to begin with, from those of the rows of the set."""
        begun = picked(duals, self.from_row)
        return namespace(begun).where(positions_on(begun, self.is_plain | self.is_joint), begun, 0.0)


def stated_numbers(constraints: Constraints) -> Stated:
    """The numbers of a set as they are kept, (batch..., .)."""
    from linsat.constraints.numbers import _slot

    terms, width = constraints.terms, constraints.num_variables
    assert terms is not None
    parts: list[Any] = [_slot(constraints, name) for name in ("values", "side", "lower", "upper", "price")]
    for place in (2, 3):
        parts[place] = spread(parts[place], (*parts[place].shape[:-1], width or 0))
    return Stated._make([*parts, terms.matrix.values(), terms.sides()])


def _repeats(columns: Array) -> tuple[Array, ...]:
    """Positions by how often their column has occurred before."""
    order = np.argsort(columns, kind="stable")
    in_order = columns[order]
    before = np.arange(len(columns)) - np.searchsorted(in_order, in_order)
    return tuple(np.sort(order[before == times]) for times in range(int(before.max(initial=-1)) + 1))


def _infinite(numbers: Numbers) -> Numbers:
    return namespace(numbers).isinf(numbers)


def _as(array: Numbers, like: Numbers) -> Numbers:
    """An array of the host in the library, dtype and device of another."""
    if is_jax(like):
        return namespace(like).asarray(array, like.dtype)
    if isinstance(like, np.ndarray):
        return array
    return (positions_on(like, array) if isinstance(array, np.ndarray) else array).to(like.dtype)


def _made(constraints: Constraints, terms: Terms, soft: Array, entropic_slack: bool) -> PlainRows:
    pattern = constraints.structure
    k, l, senses = pattern.num_rows, constraints.num_variables or 0, pattern.senses
    nnz, maxima, pieces = len(pattern.row), len(terms.row), len(terms.base)
    own = np.bincount(terms.row, minlength=k)  # maxima of each row
    single = (own == 1) & ~soft
    joint = np.flatnonzero((own > 0) & ~single)
    joint_at = np.full(k, -1)
    joint_at[joint] = np.arange(len(joint))
    piece_row = terms.row[terms.of]
    is_single = single[piece_row]
    joint_pieces = ~is_single
    first, per = terms.first, np.diff(terms.first)
    # Entries of T by piece.
    T = terms.matrix
    starts = np.searchsorted(T.row, np.arange(T.shape[0] + 1))
    lengths = np.diff(starts)[terms.base]
    of_piece = np.repeat(np.arange(pieces), lengths)
    entry = np.concatenate([np.arange(starts[b], starts[b + 1]) for b in terms.base]).astype(np.int64)
    weight_sign = (terms.weight[terms.of] * terms.sign)[of_piece]
    # Maxima of two pieces in one variable: where they are equal, that variable is known.
    ends = np.searchsorted(of_piece, first)
    columns = [np.unique(T.col[entry[ends[m] : ends[m + 1]]]) for m in range(maxima)]
    bound = np.array(
        [m for m in range(maxima) if per[m] == 2 and len(columns[m]) == 1 and joint_pieces[first[m]]], dtype=np.int64
    )
    bound_entries = np.full((len(bound), 2), -1)
    for position, m in enumerate(bound):
        for p in (0, 1):
            base = terms.base[first[m] + p]
            if starts[base + 1] > starts[base]:
                bound_entries[position, p] = starts[base]
    bound_columns = np.array([columns[m][0] for m in bound], dtype=np.int64)
    whole = not entropic_slack or not (senses[(own == 0) | single] != EQUAL).any()
    by_bounds = np.zeros(maxima, dtype=bool)
    by_bounds[bound] = whole
    position_in = np.arange(pieces) - first[terms.of]
    ties = np.flatnonzero(joint_pieces & (position_in > 0) & ~by_bounds[terms.of])
    # Linear rows: those of the set, those of single maxima, then joint rows and ties among the equalities.
    plain = np.flatnonzero(own == 0)
    singles = np.flatnonzero(is_single)
    owners: list[Array] = []
    kinds: list[
        Array
    ] = []  # the piece of a single maximum, -1: a row of the set, -2: joint, -3 - p: the tie of piece p
    shapes_rows: dict[str, int] = {}
    for name, _, sense in BLOCKS:
        here = [plain[senses[plain] == sense]]
        own_kinds = [np.full(len(here[0]), -1)]
        if sense != EQUAL:
            mine = singles[senses[piece_row[singles]] == sense]
            here.append(piece_row[mine])
            own_kinds.append(mine)
        else:
            here += [joint, piece_row[ties]]
            own_kinds += [np.full(len(joint), -2), -3 - ties]
        shapes_rows[name] = sum(map(len, here))
        owners += here
        kinds += own_kinds
    from_row, kind = (np.concatenate(parts).astype(np.int64) for parts in (owners, kinds))
    count = len(from_row)
    plain_at = np.full(k, -1)
    plain_at[from_row[kind == -1]] = np.flatnonzero(kind == -1)
    joint_row = np.full(k, -1)
    joint_row[from_row[kind == -2]] = np.flatnonzero(kind == -2)
    single_at = np.full(pieces, -1)
    single_at[kind[kind >= 0]] = np.flatnonzero(kind >= 0)
    tie_at = np.full(pieces, -1)
    tie_at[ties] = np.flatnonzero(kind <= -3)
    # Masks: one; rows; leading pieces; tied pieces; pairs of a tied and a leading piece.
    row_mask = 1 + np.arange(len(joint))
    lead_mask = 1 + len(joint) + np.arange(pieces)
    tied_mask = lead_mask + pieces
    pair_first = 1 + len(joint) + 2 * pieces
    pair_tied, pair_lead = [], []
    for p in ties.tolist():
        for before in range(first[terms.of[p]], p):
            pair_tied.append(p)
            pair_lead.append(before)
    tied, lead = np.array(pair_tied, dtype=np.int64), np.array(pair_lead, dtype=np.int64)
    parts: list[tuple[Any, Any, Any, Any, Any]] = []  # row, column, source, coefficient, mask
    sides: list[tuple[Any, Any, Any, Any]] = []  # row, source, coefficient, mask

    def entries_of(which: Array) -> tuple[Array, Array]:
        """Entries of T of some pieces, and whose they are as positions in ``which``."""
        ends = np.searchsorted(of_piece, which), np.searchsorted(of_piece, which, side="right")
        found = np.concatenate([np.arange(a, b) for a, b in zip(*ends, strict=True)] or [np.zeros(0)]).astype(np.int64)
        return found, np.repeat(np.arange(len(which)), ends[1] - ends[0])

    ones = np.zeros(nnz, dtype=np.int64)
    entries = np.flatnonzero(own[pattern.row] == 0)
    parts.append(
        (plain_at[pattern.row[entries]], pattern.col[entries], entries, np.ones(len(entries)), ones[: len(entries)])
    )
    sides.append((plain_at[plain], plain, np.ones(len(plain)), np.zeros(len(plain), dtype=np.int64)))
    # Single maxima: the linear part with each piece.
    for p in singles.tolist():
        mine = np.flatnonzero(pattern.row == piece_row[p])
        parts.append((np.full(len(mine), single_at[p]), pattern.col[mine], mine, np.ones(len(mine)), ones[: len(mine)]))
    found = np.flatnonzero(is_single[of_piece])
    zeros = np.zeros(len(found), dtype=np.int64)
    parts.append((single_at[of_piece[found]], T.col[entry[found]], nnz + entry[found], weight_sign[found], zeros))
    none = np.zeros(len(singles), dtype=np.int64)
    sides.append((single_at[singles], piece_row[singles], np.ones(len(singles)), none))
    factor = terms.weight[terms.of] * terms.sign
    sides.append((single_at[singles], k + terms.base[singles], factor[singles], none))
    # Joint rows: the linear part with the leading pieces.
    mine = np.flatnonzero(joint_at[pattern.row] >= 0)
    parts.append(
        (
            joint_row[pattern.row[mine]],
            pattern.col[mine],
            mine,
            np.ones(len(mine)),
            row_mask[joint_at[pattern.row[mine]]],
        )
    )
    found = np.flatnonzero(joint_pieces[of_piece])
    parts.append(
        (
            joint_row[piece_row[of_piece[found]]],
            T.col[entry[found]],
            nnz + entry[found],
            weight_sign[found],
            lead_mask[of_piece[found]],
        )
    )
    sides.append((joint_row[joint], joint, np.ones(len(joint)), row_mask))
    mine = np.flatnonzero(joint_pieces)
    sides.append((joint_row[piece_row[mine]], k + terms.base[mine], factor[mine], lead_mask[mine]))
    # Ties: the tied piece minus the leading one.
    for which, rows, sign, mask in (
        (ties, tie_at[ties], terms.sign[ties], tied_mask[ties]),
        (lead, tie_at[tied], -terms.sign[lead], pair_first + np.arange(len(lead))),
    ):
        found, whose = entries_of(which)
        parts.append((rows[whose], T.col[entry[found]], nnz + entry[found], sign[whose], mask[whose]))
        sides.append((rows, k + terms.base[which], sign, mask))
    row, col, source, coefficient, mask = (np.concatenate([part[i] for part in parts]) for i in range(5))
    places, target = np.unique(row.astype(np.int64) * l + col.astype(np.int64), return_inverse=True)
    rows, cols = np.divmod(places, l)
    side_row, side_source, side_coefficient, side_mask = (np.concatenate([part[i] for part in sides]) for i in range(4))
    shapes = []
    begin = 0
    for name, height in shapes_rows.items():
        inside = int(((rows >= begin) & (rows < begin + height)).sum())
        if height:
            shapes.append((name, height, inside))
        begin += height
    return PlainRows(
        num_rows=k,
        joint=joint,
        joint_pieces=joint_pieces,
        joint_of=joint_at[piece_row],
        by_bounds=whole,
        bound=bound,
        bound_column=bound_columns,
        bound_repeats=_repeats(bound_columns),
        bound_entries=bound_entries,
        ties=ties,
        shapes=tuple(shapes),
        rows=rows,
        cols=cols,
        from_row=from_row,
        is_plain=kind == -1,
        is_tie=kind <= -3,
        is_joint=kind == -2,
        pairs=(tied, lead),
        coefficients=_Sum(target.reshape(-1), source.astype(np.int64), coefficient, mask.astype(np.int64), len(places)),
        sides=_Sum(side_row.astype(np.int64), side_source.astype(np.int64), side_coefficient, side_mask, count),
    )
