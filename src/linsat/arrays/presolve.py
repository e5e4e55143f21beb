"""Presolve by bounds: variables that a row at the edge of its range fixes, rows that cannot bind, plain contradictions.

Batched: every instance of a batch has its own right-hand sides and bounds and gets its own verdict. What bounds alone
cannot see (two rows that fix a variable together) is left to the linear program in `linsat.arrays.forced`.
Objectives that reach their bounds need none of this (`everything_free`). Soft rows force and contradict nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from linsat._array_namespace import Tensor, namespace
from linsat._senses import EQUAL, GREATER, LESS
from linsat.arrays.problem import Presolved, StandardForm

# What is a contradiction and what cannot bind: relative to max(1, the terms of the row at that end), as a violation is,
# or to how far the row can move within the box, whichever is less.
CONTRADICTION = 1e-9
VACUOUS = 1e-12
# A variable is forced to its end where the room a row leaves it is less than this share of its box, or of one unit, and
# moves no row by more than so many units: in a box of 1e9 a share of 1e-9 is not nothing, nor with a factor of 1e9.
FORCED = 1e-10
UNNOTICED = 1e-13
# How far inside, in shares of the box and of what a row can reach, a point must be to prove an interior.
_EVEN = 1e-6
_ROUNDED = 1e-14  # of an equality at such a point
_SMALLEST = 1e-30  # in place of 0, in single precision too
# Rounding of a row's activity, relative to its terms at that end of its range.
ROW_ROUNDING = 1e-15


def everything_free(form: StandardForm) -> Presolved:
    """Every variable free, and every row active that an instance has."""
    absent = form.absent
    if namespace(absent).known_false(absent):
        return _nothing_decided(form, 1)
    blank = _nothing_decided(form, absent.shape[0])
    return replace(blank, active=blank.active & ~absent)


def _nothing_decided(form: StandardForm, count: int) -> Presolved:
    xp, like = namespace(form.rhs), form.rhs
    num_rows, num_variables = form.rows.shape
    columns, rows = xp.zeros((count, num_variables), like), xp.zeros((count, num_rows), like)
    return Presolved(
        free=columns == 0,
        at_upper=columns != 0,
        active=rows == 0,
        tight=rows != 0,
        tight_share=rows,
        infeasible=xp.zeros((count,), like) != 0,
    )


class _Forced(NamedTuple):
    """What the rows have forced so far."""

    free: Tensor  # (N, l)
    at_upper: Tensor  # (N, l)
    infeasible: Tensor  # (N,)
    goes_on: Tensor  # whether the last pass changed anything


def propagate(form: StandardForm, senses: Tensor) -> Presolved:
    """Fix what single rows force until nothing changes; mark rows that cannot bind and instances that cannot hold."""
    xp = namespace(form.rhs)
    side = row_sides(form, senses)
    width = form.upper - form.lower
    counts = (side.shape[0], width.shape[0], form.rows.values.shape[0])
    batch = max(counts) if 0 not in counts else 0
    free = xp.broadcast_to(width > 0, (batch, width.shape[1]))
    box_least, box_most, *sizes = _activity_range(form, free, ~free & free)
    reach = box_most - box_least
    # The largest coefficient of a variable, bounded by their sum, which takes no further pass.
    heaviest = form.rows.column_sums(abs(form.rows.values))
    slightest = _no_less(FORCED, side) * xp.at_most(width, 1.0)
    slightest = xp.minimum(slightest, _no_less(UNNOTICED, side) / xp.at_least(heaviest, _SMALLEST))
    room = _Room(form, senses, side, slightest, reach)
    first = _Forced(free, ~free & free, xp.zeros((batch,), side) != 0, xp.zeros((), side) == 0)
    forced = xp.repeat_while(first, room.tighten)
    # A row that holds on the whole box says nothing; dropped, its slack cannot distort the answer either.
    at_least, at_most = (room.slight(VACUOUS, size) for size in sizes)
    holds = ((senses == LESS) & (side - box_most >= -at_most)) | ((senses == GREATER) & (box_least - side >= -at_least))
    rows = form.rows
    live = rows.row_sums(xp.cast(forced.free[:, rows.col] & (rows.values != 0), rows.values)) > 0
    blank = _nothing_decided(form, 1)
    num_rows = side.shape[1]
    return replace(
        blank,
        free=forced.free,
        at_upper=forced.at_upper,
        active=xp.broadcast_to(live & ~holds, (batch, num_rows)),
        tight=xp.broadcast_to(blank.tight, (batch, num_rows)),
        tight_share=xp.broadcast_to(blank.tight_share, (batch, num_rows)),
        infeasible=forced.infeasible,
    )


class _Room(NamedTuple):
    """What does not change while variables are fixed."""

    form: StandardForm
    senses: Tensor
    side: Tensor
    slightest: Tensor  # (., l) move of a variable that counts as none
    reach: Tensor

    def rounding(self, size: Tensor) -> Tensor:
        """Of the distance of a side from an end of the row's range, whose terms are of this size."""
        return _no_less(ROW_ROUNDING, self.side) * (size + abs(self.side))

    def slight(self, share: float, size: Tensor) -> Tensor:
        """A share of a row at that end, or of its reach, beyond rounding."""
        xp = namespace(self.side)
        amount = _no_less(share, self.side) * xp.minimum(self.reach, xp.at_least(size, 1.0)) + self.rounding(size)
        return xp.where(xp.isfinite(size), amount, 0.0)  # an end that is infinite is out of reach

    def tighten(self, now: _Forced) -> _Forced:
        """One pass over all rows."""
        form, xp = self.form, namespace(self.side)
        hard = ~form.soft
        caps, floors = (self.senses != GREATER) & hard, (self.senses != LESS) & hard  # of the activity
        least, most, *sizes = _activity_range(form, now.free, now.at_upper)
        above, below = self.side - least, most - self.side  # room left under a cap, over a floor
        lacks_above, lacks_below = (-self.slight(CONTRADICTION, size) for size in sizes)
        short = (caps & (above < lacks_above)) | (floors & (below < lacks_below))
        room_above = xp.where(caps, above - self.rounding(sizes[0]), xp.inf)
        room_below = xp.where(floors, below - self.rounding(sizes[1]), xp.inf)
        # No coefficient times the width of its variable exceeds the reach of its row.
        near = xp.minimum(room_above, room_below) <= _no_less(FORCED, self.side) * self.reach
        checked = _Forced(now.free, now.at_upper, now.infeasible | short.any(-1), now.goes_on & False)

        def push(here: _Forced) -> _Forced:
            down, up = self._push(room_above, room_below)
            down, up = down & here.free, up & here.free & ~down
            changed = (down | up).any()
            return _Forced(here.free & ~(down | up), here.at_upper | up, here.infeasible, changed)

        return xp.if_any(near, push, checked, True)

    def _push(self, room_above: Tensor, room_below: Tensor) -> tuple[Tensor, Tensor]:
        """Which variables have no room left in some row, and so sit at their lower or at their upper bound."""
        rows = self.form.rows
        positive, negative = rows.values > 0, rows.values < 0
        needed = abs(rows.values) * self.slightest[:, rows.col]  # (., nnz)
        no_room_above, no_room_below = room_above[:, rows.row] <= needed, room_below[:, rows.row] <= needed
        down = (no_room_above & positive) | (no_room_below & negative)
        up = (no_room_above & negative) | (no_room_below & positive)
        cast = namespace(rows.values).cast
        return rows.column_sums(cast(down, rows.values)) > 0, rows.column_sums(cast(up, rows.values)) > 0


def _no_less(share: float, like: Tensor) -> float:
    """A share that is no less than what rounding hides."""
    return max(share, 4 * namespace(like).eps(like))


def has_even_interior(form: StandardForm, senses: Tensor) -> bool:
    """Whether the point with the same share of every variable's box satisfies all rows, inequalities with room.

    True of most families; then nothing is forced, and there is no need to look further. Shared numbers only.
    """
    xp = namespace(form.rhs)
    rows, width = form.rows, form.upper - form.lower
    if not bool((width > 0).all()):
        return False
    reach, goal, exact = rows.matvec_each(width)[0], row_sides(form, senses)[0], senses == EQUAL
    if bool(form.lower.any()):
        goal = goal - rows.matvec_each(form.lower)[0]
    used = reach != 0
    shares, sign = goal[used] / reach[used], xp.where(senses == GREATER, -1.0, 1.0)
    if bool(exact[used].any()):
        share = float(shares[exact[used]][0])
    else:  # half way between what the rows allow
        caps = sign[used] * reach[used] > 0
        share = 0.5 * (float(xp.at_least(shares[~caps], 0).max()) if bool((~caps).any()) else 0.0)
        share += 0.5 * (float(xp.at_most(shares[caps], 1).min()) if bool(caps.any()) else 1.0)
    room = sign * (goal - share * reach)
    rounding = _ROUNDED * (abs(goal) + abs(share * reach))
    holds = xp.where(exact, abs(room) <= rounding, room > _EVEN * form.scale[0] + rounding)
    return _EVEN < share < 1 - _EVEN and bool(holds.all())


def row_sides(form: StandardForm, senses: Tensor) -> Tensor:
    """The right-hand sides as the user wrote them, (., k)."""
    return namespace(form.rhs).where(senses == GREATER, form.rhs - form.slack, form.rhs)


def _activity_range(form: StandardForm, free: Tensor, at_upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The least and the largest activity of each row, and the size of the terms that add up to each."""
    rows, xp = form.rows, namespace(form.rows.values)
    low = xp.where(free | ~at_upper, form.lower, form.upper)
    high = xp.where(free | at_upper, form.upper, form.lower)
    used = rows.values != 0  # a coefficient of 0 times an infinite bound is 0
    at_low, at_high = (xp.where(used, end[:, rows.col] * rows.values, 0.0) for end in (low, high))
    least, most = xp.minimum(at_low, at_high), xp.maximum(at_low, at_high)
    return rows.row_sums(least), rows.row_sums(most), rows.row_sums(abs(least)), rows.row_sums(abs(most))
