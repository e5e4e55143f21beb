"""Presolve by bounds: variables that a row at the edge of its range fixes, rows that cannot bind, plain contradictions.

Batched: every instance of a batch has its own right sides and bounds and gets its own verdict. What bounds alone cannot
see (two rows that fix a variable together) is left to the linear program in `linsat.compile.implied`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from linsat._equations import Equalities, Reduction, Tensor
from linsat._kernels import KernelBrokenError, load, running
from linsat.constraints.structure import GREATER, LESS

# Relative to how far a row can move within the box: what is a contradiction, what cannot bind.
_CONTRADICTION = 1e-9
_VACUOUS = 1e-12
# A variable is forced to its end where the room a row leaves it is less than this share of its box.
_FORCED = 1e-10
# Rounding of a row's activity, relative to its terms.
_ROUNDING = 1e-15


def no_reduction(equalities: Equalities) -> Reduction:
    """Every variable free and every row active, as the published package solves."""
    device = equalities.rhs.device
    num_rows, num_variables = equalities.rows.shape
    return Reduction(
        free=torch.ones((1, num_variables), dtype=torch.bool, device=device),
        pinned=torch.zeros((1, num_variables), dtype=torch.float64, device=device),
        active=torch.ones((1, num_rows), dtype=torch.bool, device=device),
        tight=torch.zeros((1, num_rows), dtype=torch.bool, device=device),
        tight_share=torch.zeros((1, num_rows), dtype=torch.float64, device=device),
        infeasible=torch.zeros(1, dtype=torch.bool, device=device),
    )


def propagate(equalities: Equalities, senses: Tensor) -> Reduction:
    """Fix what single rows force until nothing changes; mark rows that cannot bind and instances that cannot hold."""
    side = row_sides(equalities, senses)
    batch = torch.broadcast_shapes(side.shape[:1], equalities.width.shape[:1])[0]
    caps, floors = senses != GREATER, senses != LESS  # rows that bound their activity from above / from below
    free = (equalities.width > 0).expand(batch, -1).clone()
    pinned = torch.zeros(free.shape, dtype=torch.float64, device=free.device)
    infeasible = torch.zeros(batch, dtype=torch.bool, device=free.device)
    box_least, box_most = _activity_range(equalities, free, pinned)
    rounding = _ROUNDING * (box_least.abs() + box_most.abs() + side.abs())
    reach = box_most - box_least
    while True:
        least, most = _activity_range(equalities, free, pinned)
        above, below = side - least, most - side  # room left under a cap, over a floor
        lacking = -(_CONTRADICTION * reach + rounding)
        short = (caps & (above < lacking)) | (floors & (below < lacking))
        infeasible = infeasible | short.any(-1)
        room_above = torch.where(caps, above - rounding, torch.inf)
        room_below = torch.where(floors, below - rounding, torch.inf)
        down, up = _push(equalities, room_above, room_below)
        down, up = down & free, up & free & ~down
        if not bool((down | up).any()):
            break
        pinned = torch.where(up, 1.0, pinned)
        free = free & ~(down | up)
    # A row that holds on the whole box says nothing; dropped, its slack cannot distort the answer either.
    slight = _VACUOUS * reach + rounding
    vacuous = (~floors & (side - box_most >= -slight)) | (~caps & (box_least - side >= -slight))
    live = _count(equalities, free) > 0
    blank = no_reduction(equalities)
    return replace(
        blank,
        free=free,
        pinned=pinned,
        active=(live & ~vacuous).expand(batch, -1),
        tight=blank.tight.expand(batch, -1),
        tight_share=blank.tight_share.expand(batch, -1),
        infeasible=infeasible,
    )


def propagate_each(equalities: Equalities, senses: Tensor) -> Reduction:
    """`propagate`, by compiled code where that can be had: for numbers that come anew with every call."""
    state = load()
    if state.available and equalities.rhs.device.type == "cpu":
        try:
            return _compiled(state.propagate, equalities, senses)
        except KernelBrokenError:
            pass
    return propagate(equalities, senses)


def _compiled(run: Callable[..., None], equalities: Equalities, senses: Tensor) -> Reduction:
    rows = equalities.rows
    side = row_sides(equalities, senses)
    batch = torch.broadcast_shapes(side.shape[:1], equalities.width.shape[:1])[0]
    found = Reduction(
        free=torch.empty((batch, rows.shape[1]), dtype=torch.bool),
        pinned=torch.empty((batch, rows.shape[1]), dtype=torch.float64),
        active=torch.empty((batch, rows.shape[0]), dtype=torch.bool),
        tight=torch.zeros((1, rows.shape[0]), dtype=torch.bool).expand(batch, -1),
        tight_share=torch.zeros((1, rows.shape[0]), dtype=torch.float64).expand(batch, -1),
        infeasible=torch.empty(batch, dtype=torch.bool),
    )
    numbers = (rows.row, rows.col, rows.values, senses, equalities.lower, equalities.width, side)
    filled = (found.free, found.pinned, found.active, found.infeasible)
    arrays = [t.detach().contiguous().numpy() for t in (*numbers, *filled)]
    with running():
        run(*arrays)
    return found


def row_sides(equalities: Equalities, senses: Tensor) -> Tensor:
    """The right sides as the user wrote them, (., k)."""
    return torch.where(senses == GREATER, equalities.rhs - equalities.slack, equalities.rhs)


def _per_row(equalities: Equalities, terms: Tensor) -> Tensor:
    rows = equalities.rows
    return terms.new_zeros((terms.shape[0], rows.shape[0])).index_add(1, rows.row, terms)


def _activity_range(equalities: Equalities, free: Tensor, pinned: Tensor) -> tuple[Tensor, Tensor]:
    col, values = equalities.rows.col, equalities.rows.values
    low = equalities.lower + equalities.width * torch.where(free, 0.0, pinned)
    high = equalities.lower + equalities.width * torch.where(free, 1.0, pinned)
    at_low, at_high = low[:, col] * values, high[:, col] * values
    least = _per_row(equalities, torch.minimum(at_low, at_high))
    return least, _per_row(equalities, torch.maximum(at_low, at_high))


def _push(equalities: Equalities, room_above: Tensor, room_below: Tensor) -> tuple[Tensor, Tensor]:
    """Which variables have no room left in some row, and so sit at their lower or at their upper bound."""
    rows = equalities.rows
    positive, negative = rows.values > 0, rows.values < 0
    needed = _FORCED * rows.values.abs() * equalities.width[:, rows.col]  # (., nnz)
    least, most = room_above[:, rows.row] <= needed, room_below[:, rows.row] <= needed
    down = (least & positive) | (most & negative)
    up = (least & negative) | (most & positive)
    blank = torch.zeros((down.shape[0], rows.shape[1]), device=down.device)
    pushed_down = blank.index_add(1, rows.col, down.to(blank.dtype)) > 0
    return pushed_down, blank.index_add(1, rows.col, up.to(blank.dtype)) > 0


def _count(equalities: Equalities, free: Tensor) -> Tensor:
    """How many free variables each row has."""
    rows = equalities.rows
    return _per_row(equalities, (free[:, rows.col] & (rows.values != 0)).to(torch.float64))
