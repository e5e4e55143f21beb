r"""How the kernel sees a pattern and its numbers: variables in slots, one for each row of a group of disjoint rows.

The largest group of rows with disjoint supports leads. Its rows have one slot each, which holds their variables and is
filled up with variables of no leading row; further slots hold the rest. So a tile of the kernel, some slots wide, knows
everything about its leading rows, and their block of the Hessian, which is diagonal, is eliminated tile by tile. Only
the matrix of the other rows is factored, in square blocks.

    place of a variable    slot * members + position
    position of a row      slot of a leading row; slots + number of another one
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from linsat.arrays.newton import MOST_GROUPS
from linsat.arrays.problem import Problem
from linsat.arrays.rows import RowMatrix
from linsat.objectives import KL, Entropy, Euclidean, Objective

Tensor = torch.Tensor
Array = np.ndarray

MOST_OTHER_ROWS = 256  # a factor of 512 KB an instance, read in blocks
MOST_POSITIONS = 8192  # of rows: vectors over all of them are held by one program
_MOST_ENTRIES = 1 << 28  # of the coefficients as the kernel reads them
_BLOCK = 32  # rows of a square block
_TILE = 2048  # numbers in a tile of coefficients: 16 of each thread
_MOST_PADDING = 4  # times the variables; rows of very different lengths do not lead
# What the kernels know, and the number by which they are compiled for each.
KNOWN: dict[type[Objective], int] = {Euclidean: 0, Entropy: 1, KL: 2}


@dataclass(frozen=True)
class Layout:
    """Sizes and index tables of one pattern, on one device."""

    variables: int
    rows: int
    slots: int
    members: int  # places in a slot
    others: int  # rows that do not lead
    positions: int  # of rows, rounded up to a power of two
    tile: tuple[int, int]  # slots and members of a tile
    block: int  # rows of a block, 0: there are no other rows
    blocks: int
    groups: int  # of disjoint rows, 0: too many for a sweep
    target: Tensor  # (nnz,) int64: where each coefficient goes in (1 + others, places)
    row_of: Tensor  # (positions,) int32: the user's row, -1: none
    variable_of: Tensor  # (places,) int32: the user's variable, -1: none
    group_of: Tensor  # (positions,) int32

    @property
    def places(self) -> int:
        return self.slots * self.members

    @property
    def work(self) -> int:
        """Numbers one program needs to work in; `evaluation.py` says what they are."""
        width = self.block * self.blocks
        return 11 * self.positions + 4 * self.places + self.slots * width + width * width

    def spread_rows(self, numbers: Tensor, padding: float) -> Tensor:
        """(., rows) by position, (., positions)."""
        return _spread(numbers, self.row_of, padding)

    def spread_variables(self, numbers: Tensor, padding: float) -> Tensor:
        """(., variables) by place, (., places)."""
        return _spread(numbers, self.variable_of, padding)

    def coefficients(self, values: Tensor) -> Tensor:
        """(., nnz) as the kernel reads them: those of leading rows first, then one line for each other row."""
        flat = values.new_zeros((values.shape[0], (1 + self.others) * self.places))
        return flat.index_add(1, self.target, values)


def _spread(numbers: Tensor, of: Tensor, padding: float) -> Tensor:
    """Those that ``of`` says, (., len(of)); where it is -1, padding."""
    spread, there = numbers.new_full((numbers.shape[0], len(of)), padding), of >= 0
    spread[:, there] = numbers[:, of[there].long()]
    return spread


def layout_of(rows: RowMatrix) -> Layout | str:
    """The layout of a pattern, found once, or the reason why the kernel cannot take it."""
    key = f"triton:{rows.row.device}"
    if key not in rows.cache:
        rows.cache[key] = _arrange(rows)
    return rows.cache[key]


def _arrange(rows: RowMatrix) -> Layout | str:
    k, l = rows.shape
    row, col = rows.row.cpu().numpy(), rows.col.cpu().numpy()
    groups = [group.cpu().numpy() for group in rows.groups()]
    lead = max(groups, key=len, default=np.zeros(0, dtype=np.int64))
    shape = _slots(np.bincount(row, minlength=k)[lead], k - len(lead), l)
    if shape is None:
        lead, shape = lead[:0], _slots(lead[:0], k, l)
    assert shape is not None
    others = np.setdiff1d(np.arange(k), lead)
    slots, members, tile = shape
    positions = max(16, _power_of_two(slots + len(others)))
    if len(others) > MOST_OTHER_ROWS:
        return f"{len(others)} rows share variables with other rows, more than {MOST_OTHER_ROWS}"
    if positions > MOST_POSITIONS or (1 + len(others)) * slots * members > _MOST_ENTRIES:
        return f"{k} rows of {l} variables are more than one program can hold"
    position = np.empty(k, dtype=np.int64)
    position[lead] = np.arange(len(lead))
    position[others] = slots + np.arange(len(others))
    place, line = _places(row, col, position, (slots, members), l), np.maximum(position - slots + 1, 0)
    group_of = np.full(positions, -1)
    for number, group in enumerate(groups):
        group_of[position[group]] = number

    def table(array: Array, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(array, dtype=dtype, device=rows.row.device)

    return Layout(
        variables=l,
        rows=k,
        slots=slots,
        members=members,
        others=len(others),
        positions=positions,
        tile=tile,
        block=min(_BLOCK, max(16, _power_of_two(len(others)))) if len(others) else 0,
        blocks=-(-_power_of_two(len(others)) // _BLOCK) if len(others) else 0,
        groups=len(groups) if len(groups) <= MOST_GROUPS else 0,
        target=table(line[row] * slots * members + place[col], torch.int64),
        row_of=table(_inverse(position, positions)),
        variable_of=table(_inverse(place, slots * members)),
        group_of=table(group_of),
    )


def _slots(lengths: Array, others: int, variables: int) -> tuple[int, int, tuple[int, int]] | None:
    """Slots, places in each and the tile, for leading rows of these lengths; None where most places would be empty."""
    longest = max(1, int(lengths.max(initial=0)) if len(lengths) else variables)
    # Places in a tile: with more, a few other rows would leave too few registers for the rest.
    width = min(64 if others else 128, max(16, _TILE // max(16, _power_of_two(others))))
    # As wide as leaves few places empty: neighbours in memory are read together.
    inner = next(w for w in (width >> s for s in range(16)) if w == 1 or -(-longest // w) * w <= 1.25 * longest)
    members = -(-longest // inner) * inner
    outer = width // inner
    slots = max(len(lengths), -(-variables // members), 1)
    slots = -(-slots // outer) * outer
    if len(lengths) and slots * members > _MOST_PADDING * variables + 16 * width:
        return None
    return slots, members, (outer, inner)


def _places(row: Array, col: Array, position: Array, shape: tuple[int, int], variables: int) -> Array:
    """Where each variable goes: those of a leading row to its slot, the others to what is left."""
    slots, members = shape
    place = np.full(variables, -1, dtype=np.int64)
    leads = position[row] < slots
    slot, owned = position[row][leads], col[leads]
    order = np.argsort(slot, kind="stable")
    slot, owned = slot[order], owned[order]
    start = np.searchsorted(slot, slot)  # where the slot's variables begin
    place[owned] = slot * members + np.arange(len(slot)) - start
    left = np.ones(slots * members, dtype=bool)
    left[place[place >= 0]] = False
    rest = np.flatnonzero(place < 0)
    place[rest] = np.flatnonzero(left)[: len(rest)]
    return place


def _inverse(position: Array, count: int) -> Array:
    inverse = np.full(count, -1)
    inverse[position] = np.arange(len(position))
    return inverse


def _power_of_two(count: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, count - 1).bit_length()


@dataclass(frozen=True)
class KernelData:
    """First dimensions are 1 where all instances share the numbers, else N."""

    coefficients: Tensor  # (., (1 + others) * places)
    rows: Tensor  # (., 6, positions): 1 / rho (0: not active), b, s, low, high of the dual, what a sweep may reach
    # (., 2, 4 or 5, places): the unit of p (0: fixed), x at p = 0; bounds of p, unless it is a share of the box;
    # weights (Euclidean)
    variables: Tensor

    def to(self, dtype: torch.dtype) -> KernelData:
        return KernelData(self.coefficients.to(dtype), self.rows.to(dtype), self.variables.to(dtype))


def kernel_data(problem: Problem, layout: Layout) -> KernelData:
    """The data of a problem; kept where its numbers never change."""
    kept = None if problem.cache is None else problem.cache.get("triton")
    own = getattr(problem.objective, "weights", None)
    if kept is None or kept[0] is not problem.presolved or own is not None:
        base = _base(problem)
        data = KernelData(
            layout.coefficients(problem.rows.values), _rows(problem, layout, base), _variables(problem, layout, base)
        )
        kept = (problem.presolved, data)
        if problem.cache is not None and own is None:  # numbers of the objective belong to a call, not to the set
            problem.cache["triton"] = kept
    return kept[1]


def _base(problem: Problem) -> Tensor:
    """x where p is 0: the bound where a fixed variable is; of a free one its lower bound, or 0 for a nearest point."""
    if isinstance(problem.objective, Euclidean):
        return problem.anchor()
    return torch.where(problem.presolved.free, problem.lower, problem.anchor())


def _rows(problem: Problem, layout: Layout, base: Tensor) -> Tensor:
    p, zero = problem.presolved, torch.zeros_like(problem.scale)
    low, high = problem.dual_bounds()
    taken, slack, whole = problem.rows.matvec_each(base), zero, zero
    if problem.objective.entropic_slack:
        taken = taken + torch.where(p.tight, problem.slack * p.tight_share, 0.0)
        slack = torch.where(p.active & ~p.tight, problem.slack / problem.scale, 0.0)
    b = torch.where(p.active, (problem.rhs - taken) / problem.scale, 0.0)
    if problem.objective.temperature is not None and layout.groups:
        least, most = problem.row_ranges()
        signed = problem.rows.row_sums((problem.rows.values < 0).to(least.dtype)) > 0
        whole = torch.where(p.active & ~signed, most - least, 0.0)
    inverse = torch.where(p.active, 1.0 / problem.scale, 0.0)
    parts = [(inverse, 0.0), (b, 0.0), (slack, 0.0), (low, -torch.inf), (high, torch.inf), (whole, 0.0)]
    return _together([layout.spread_rows(numbers, padding) for numbers, padding in parts])


def _variables(problem: Problem, layout: Layout, base: Tensor) -> Tensor:
    free = problem.presolved.free
    if isinstance(problem.objective, Entropy):
        parts = [(torch.where(free, problem.upper - problem.lower, 0.0), 0.0), (base, 0.0)]
    else:
        start = 0.0 if isinstance(problem.objective, Euclidean) else problem.lower  # where p is 0
        low, high = (torch.where(free, bound - start, 0.0) for bound in (problem.lower, problem.upper))
        parts = [(free.to(base.dtype), 0.0), (base, 0.0), (low, 0.0), (high, 0.0)]
        weights = getattr(problem.objective, "weights", None)
        if weights is not None:
            parts.append((weights, 1.0))
    return _together([layout.spread_variables(numbers, padding) for numbers, padding in parts])


def _together(parts: list[Tensor]) -> Tensor:
    """Lists of (1 or N, size) as one (1 or N, parts, size), contiguous."""
    count = max((part.shape[0] for part in parts), default=1) if all(part.shape[0] for part in parts) else 0
    return torch.stack([part.expand(count, -1) for part in parts], 1).contiguous()
