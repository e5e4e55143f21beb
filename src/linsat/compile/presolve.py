"""Presolve by bounds: variables that a row at the edge of its range fixes, rows that cannot bind, plain contradictions.

Batched: every instance of a batch has its own right-hand sides and bounds and gets its own verdict. What bounds alone
cannot see (two rows that fix a variable together) is left to the linear program in `linsat.compile.feasibility`.
Objectives that reach their bounds need none of this (`everything_free`). Soft rows force and contradict nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from linsat._array_namespace import Tensor, namespace
from linsat._senses import EQUAL, GREATER, LESS
from linsat.compile.problem import Presolved, StandardForm

# Relative to how far a row can move within the box: what is a contradiction, what cannot bind.
CONTRADICTION = 1e-9
VACUOUS = 1e-12
# A variable is forced to its end where the room a row leaves it is less than this share of its box, or of one unit.
FORCED = 1e-10
# How far inside, in shares of the box and of what a row can reach, a point must be to prove an interior.
_EVEN = 1e-6
_ROUNDED = 1e-14  # of an equality at such a point
# Rounding of a row's activity, relative to its terms.
ROUNDING = 1e-15


def everything_free(form: StandardForm) -> Presolved:
    """Every variable free and every row active."""
    xp, like = namespace(form.rhs), form.rhs
    num_rows, num_variables = form.rows.shape
    columns, rows = xp.zeros((1, num_variables), like), xp.zeros((1, num_rows), like)
    return Presolved(
        free=columns == 0,
        at_upper=columns != 0,
        active=rows == 0,
        tight=rows != 0,
        tight_share=rows,
        infeasible=xp.zeros((1,), like) != 0,
    )


class _Found(NamedTuple):
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
    sizes = (side.shape[0], width.shape[0], form.rows.values.shape[0])
    batch = max(sizes) if 0 not in sizes else 0
    free = xp.broadcast_to(width > 0, (batch, width.shape[1]))
    box_least, box_most = _activity_range(form, free, ~free & free)
    rounding = _no_less(ROUNDING, side) * (abs(box_least) + abs(box_most) + abs(side))
    reach = box_most - box_least
    bounds = _Room(form, senses, side, width, reach, rounding)
    first = _Found(free, ~free & free, xp.zeros((batch,), side) != 0, xp.zeros((), side) == 0)
    found = xp.repeat_while(first, bounds.tighten)
    # A row that holds on the whole box says nothing; dropped, its slack cannot distort the answer either.
    slight = _no_less(VACUOUS, side) * reach + rounding
    vacuous = ((senses == LESS) & (side - box_most >= -slight)) | ((senses == GREATER) & (box_least - side >= -slight))
    live = _count(form, found.free) > 0
    blank = everything_free(form)
    num_rows = side.shape[1]
    return replace(
        blank,
        free=found.free,
        at_upper=found.at_upper,
        active=xp.broadcast_to(live & ~vacuous, (batch, num_rows)),
        tight=xp.broadcast_to(blank.tight, (batch, num_rows)),
        tight_share=xp.broadcast_to(blank.tight_share, (batch, num_rows)),
        infeasible=found.infeasible,
    )


class _Room(NamedTuple):
    """What does not change while variables are fixed."""

    form: StandardForm
    senses: Tensor
    side: Tensor
    width: Tensor
    reach: Tensor
    rounding: Tensor

    def tighten(self, now: _Found) -> _Found:
        """One pass over all rows."""
        form, xp = self.form, namespace(self.side)
        hard = ~form.soft
        caps, floors = (self.senses != GREATER) & hard, (self.senses != LESS) & hard  # of the activity
        least, most = _activity_range(form, now.free, now.at_upper)
        above, below = self.side - least, most - self.side  # room left under a cap, over a floor
        lacking = -(_no_less(CONTRADICTION, self.side) * self.reach + self.rounding)
        short = (caps & (above < lacking)) | (floors & (below < lacking))
        room_above = xp.where(caps, above - self.rounding, xp.inf)
        room_below = xp.where(floors, below - self.rounding, xp.inf)
        # No coefficient times the width of its variable exceeds the reach of its row.
        near = xp.minimum(room_above, room_below) <= _no_less(FORCED, self.side) * self.reach
        checked = _Found(now.free, now.at_upper, now.infeasible | short.any(-1), now.goes_on & False)

        def push(here: _Found) -> _Found:
            down, up = _push(form, self.width, room_above, room_below)
            down, up = down & here.free, up & here.free & ~down
            changed = (down | up).any()
            return _Found(here.free & ~(down | up), here.at_upper | up, here.infeasible, changed)

        return xp.if_any(near, push, checked, True)


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


def _activity_range(form: StandardForm, free: Tensor, at_upper: Tensor) -> tuple[Tensor, Tensor]:
    rows, xp = form.rows, namespace(form.rows.values)
    low = xp.where(free | ~at_upper, form.lower, form.upper)
    high = xp.where(free | at_upper, form.upper, form.lower)
    at_low, at_high = low[:, rows.col] * rows.values, high[:, rows.col] * rows.values
    return rows.row_sums(xp.minimum(at_low, at_high)), rows.row_sums(xp.maximum(at_low, at_high))


def _push(form: StandardForm, width: Tensor, room_above: Tensor, room_below: Tensor) -> tuple[Tensor, Tensor]:
    """Which variables have no room left in some row, and so sit at their lower or at their upper bound."""
    rows, xp = form.rows, namespace(form.rows.values)
    positive, negative = rows.values > 0, rows.values < 0
    # Never more than this share of one unit: in a wide box what is small beside the box is not nothing.
    needed = _no_less(FORCED, width) * abs(rows.values) * xp.at_most(width[:, rows.col], 1.0)  # (., nnz)
    no_room_above, no_room_below = room_above[:, rows.row] <= needed, room_below[:, rows.row] <= needed
    down = (no_room_above & positive) | (no_room_below & negative)
    up = (no_room_above & negative) | (no_room_below & positive)
    return _any_per_column(form, down), _any_per_column(form, up)


def _any_per_column(form: StandardForm, marked: Tensor) -> Tensor:
    xp, values = namespace(form.rows.values), form.rows.values
    blank = xp.zeros((marked.shape[0], form.rows.shape[1]), values)
    return xp.index_add(blank, form.rows.col, xp.cast(marked, values)) > 0


def _count(form: StandardForm, free: Tensor) -> Tensor:
    """How many free variables with a non-zero coefficient each row has."""
    rows = form.rows
    return rows.row_sums(namespace(rows.values).cast(free[:, rows.col] & (rows.values != 0), rows.values))
