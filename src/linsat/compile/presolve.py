"""Presolve by bounds: variables that a row at the edge of its range fixes, rows that cannot bind, plain contradictions.

Batched: every instance of a batch has its own right-hand sides and bounds and gets its own verdict. What bounds alone
cannot see (two rows that fix a variable together) is left to the linear program in `linsat.compile.feasibility`.
Objectives that reach their bounds need none of this (`everything_free`). Soft rows force and contradict nothing.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from linsat.compile.problem import Presolved, StandardForm, Tensor
from linsat.constraints.structure import EQUAL, GREATER, LESS

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
    device = form.rhs.device
    num_rows, num_variables = form.rows.shape
    return Presolved(
        free=torch.ones((1, num_variables), dtype=torch.bool, device=device),
        at_upper=torch.zeros((1, num_variables), dtype=torch.bool, device=device),
        active=torch.ones((1, num_rows), dtype=torch.bool, device=device),
        tight=torch.zeros((1, num_rows), dtype=torch.bool, device=device),
        tight_share=torch.zeros((1, num_rows), dtype=torch.float64, device=device),
        infeasible=torch.zeros(1, dtype=torch.bool, device=device),
    )


def propagate(form: StandardForm, senses: Tensor) -> Presolved:
    """Fix what single rows force until nothing changes; mark rows that cannot bind and instances that cannot hold."""
    side = row_sides(form, senses)
    width = form.upper - form.lower
    batch = max(side.shape[0], width.shape[0], form.rows.values.shape[0])
    hard = ~form.soft
    caps, floors = (senses != GREATER) & hard, (senses != LESS) & hard  # bound their activity from above / from below
    free = (width > 0).expand(batch, -1).clone()
    at_upper = torch.zeros_like(free)
    infeasible = torch.zeros(batch, dtype=torch.bool, device=free.device)
    box_least, box_most = _activity_range(form, free, at_upper)
    rounding = ROUNDING * (box_least.abs() + box_most.abs() + side.abs())
    reach = box_most - box_least
    least, most = box_least, box_most
    while True:
        above, below = side - least, most - side  # room left under a cap, over a floor
        lacking = -(CONTRADICTION * reach + rounding)
        short = (caps & (above < lacking)) | (floors & (below < lacking))
        infeasible = infeasible | short.any(-1)
        room_above = torch.where(caps, above - rounding, torch.inf)
        room_below = torch.where(floors, below - rounding, torch.inf)
        # No coefficient times the width of its variable exceeds the reach of its row.
        if bool((torch.minimum(room_above, room_below) > FORCED * reach).all()):
            break
        down, up = _push(form, width, room_above, room_below)
        down, up = down & free, up & free & ~down
        if not bool((down | up).any()):
            break
        at_upper = at_upper | up
        free = free & ~(down | up)
        least, most = _activity_range(form, free, at_upper)
    # A row that holds on the whole box says nothing; dropped, its slack cannot distort the answer either.
    slight = VACUOUS * reach + rounding
    vacuous = ((senses == LESS) & (side - box_most >= -slight)) | ((senses == GREATER) & (box_least - side >= -slight))
    live = _count(form, free) > 0
    blank = everything_free(form)
    return replace(
        blank,
        free=free,
        at_upper=at_upper,
        active=(live & ~vacuous).expand(batch, -1),
        tight=blank.tight.expand(batch, -1),
        tight_share=blank.tight_share.expand(batch, -1),
        infeasible=infeasible,
    )


def has_even_interior(form: StandardForm, senses: Tensor) -> bool:
    """Whether the point with the same share of every variable's box satisfies all rows, inequalities with room.

    True of most families; then nothing is forced, and there is no need to look further. Shared numbers only.
    """
    rows, width = form.rows, form.upper - form.lower
    if not bool((width > 0).all()):
        return False
    reach, goal, exact = rows.matvec_each(width)[0], row_sides(form, senses)[0], senses == EQUAL
    if bool(form.lower.any()):
        goal = goal - rows.matvec_each(form.lower)[0]
    used = reach != 0
    shares, sign = goal[used] / reach[used], torch.where(senses == GREATER, -1.0, 1.0)
    if bool(exact[used].any()):
        share = float(shares[exact[used]][0])
    else:  # half way between what the rows allow
        caps = sign[used] * reach[used] > 0
        share = 0.5 * (float(shares[~caps].clamp_min(0).amax()) if bool((~caps).any()) else 0.0)
        share += 0.5 * (float(shares[caps].clamp_max(1).amin()) if bool(caps.any()) else 1.0)
    room = sign * (goal - share * reach)
    rounding = _ROUNDED * (goal.abs() + (share * reach).abs())
    holds = torch.where(exact, room.abs() <= rounding, room > _EVEN * form.scale[0] + rounding)
    return _EVEN < share < 1 - _EVEN and bool(holds.all())


def row_sides(form: StandardForm, senses: Tensor) -> Tensor:
    """The right-hand sides as the user wrote them, (., k)."""
    return torch.where(senses == GREATER, form.rhs - form.slack, form.rhs)


def _activity_range(form: StandardForm, free: Tensor, at_upper: Tensor) -> tuple[Tensor, Tensor]:
    rows = form.rows
    low = torch.where(free | ~at_upper, form.lower, form.upper)
    high = torch.where(free | at_upper, form.upper, form.lower)
    at_low, at_high = low[:, rows.col] * rows.values, high[:, rows.col] * rows.values
    return rows.row_sums(torch.minimum(at_low, at_high)), rows.row_sums(torch.maximum(at_low, at_high))


def _push(form: StandardForm, width: Tensor, room_above: Tensor, room_below: Tensor) -> tuple[Tensor, Tensor]:
    """Which variables have no room left in some row, and so sit at their lower or at their upper bound."""
    rows = form.rows
    positive, negative = rows.values > 0, rows.values < 0
    # Never more than this share of one unit: in a wide box what is small beside the box is not nothing.
    needed = FORCED * rows.values.abs() * width[:, rows.col].clamp_max(1.0)  # (., nnz)
    no_room_above, no_room_below = room_above[:, rows.row] <= needed, room_below[:, rows.row] <= needed
    down = (no_room_above & positive) | (no_room_below & negative)
    up = (no_room_above & negative) | (no_room_below & positive)
    return _any_per_column(form, down), _any_per_column(form, up)


def _any_per_column(form: StandardForm, marked: Tensor) -> Tensor:
    blank = torch.zeros((marked.shape[0], form.rows.shape[1]), dtype=torch.float64, device=marked.device)
    return blank.index_add(1, form.rows.col, marked.to(torch.float64)) > 0


def _count(form: StandardForm, free: Tensor) -> Tensor:
    """How many free variables with a non-zero coefficient each row has."""
    rows = form.rows
    return rows.row_sums((free[:, rows.col] & (rows.values != 0)).to(torch.float64))
