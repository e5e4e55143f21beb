"""Presolve by bounds: variables that a row at the edge of its range fixes, rows that cannot bind, plain contradictions.

Batched: every instance of a batch has its own right sides and bounds and gets its own verdict. What bounds alone cannot
see (two rows that fix a variable together) is left to the linear programme in `linsat.constraints.feasibility`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from linsat._equations import Equalities, Reduction, Tensor
from linsat.constraints.constraint_set import GREATER, LESS

# Relative to the size of a row: what is forced, what is a contradiction, what cannot bind.
_FORCED = 1e-10
_CONTRADICTION = 1e-9
_VACUOUS = 1e-12


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
    size = box_least.abs() + box_most.abs() + side.abs()
    while True:
        least, most = _activity_range(equalities, free, pinned)
        above, below = side - least, most - side  # room left under a cap, over a floor
        short = (caps & (above < -_CONTRADICTION * size)) | (floors & (below < -_CONTRADICTION * size))
        infeasible = infeasible | short.any(-1)
        at_least = caps & (above <= _FORCED * size)
        at_most = floors & (below <= _FORCED * size) & ~at_least
        down, up = _push(equalities, at_least, at_most)
        down, up = down & free, up & free & ~down
        if not bool((down | up).any()):
            break
        pinned = torch.where(up, 1.0, pinned)
        free = free & ~(down | up)
    # A row that holds on the whole box says nothing; dropped, its slack cannot distort the answer either.
    vacuous = (~floors & (side - box_most >= -_VACUOUS * size)) | (~caps & (box_least - side >= -_VACUOUS * size))
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


def _push(equalities: Equalities, at_least: Tensor, at_most: Tensor) -> tuple[Tensor, Tensor]:
    """Which variables the rows at an end of their range push to their lower and to their upper bound."""
    rows = equalities.rows
    positive, negative = rows.values > 0, rows.values < 0
    least, most = at_least[:, rows.row], at_most[:, rows.row]  # (N, nnz)
    down = (least & positive) | (most & negative)
    up = (least & negative) | (most & positive)
    blank = torch.zeros((down.shape[0], rows.shape[1]), device=down.device)
    pushed_down = blank.index_add(1, rows.col, down.to(blank.dtype)) > 0
    return pushed_down, blank.index_add(1, rows.col, up.to(blank.dtype)) > 0


def _count(equalities: Equalities, free: Tensor) -> Tensor:
    """How many free variables each row has."""
    rows = equalities.rows
    return _per_row(equalities, (free[:, rows.col] & (rows.values != 0)).to(torch.float64))
