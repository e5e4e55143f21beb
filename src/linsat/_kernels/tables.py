"""What the kernel reads: the pattern of the rows (once per set) and its numbers in shares of the box."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from linsat._equations import Equalities, Reduction, Tensor
from linsat._kernels import load, running
from linsat._rows import RowMatrix, disjoint_groups

Array = np.ndarray

# Beyond these sizes dense Cholesky in plain loops loses against the torch path's LAPACK.
_LARGEST_FACTOR = 256
_LARGEST_TABLE = 4_000_000
# A sweep over the rows evaluates everything once per group of disjoint rows; beyond this many a Newton step is cheaper.
_MOST_GROUPS = 4
_ROOM = 64


@dataclass(frozen=True)
class Pattern:
    """Index arrays of the kernel (unsigned, which spares it the check for negative indices).

    Rows are permuted so that ``leading`` rows with disjoint supports come first.
    """

    order: Array  # (k,) original row at each permuted position
    leading: int
    variable_rows: Array  # (most rows of a variable, l)
    variable_entries: Array  # the same, positions among the coefficients; -1 is padding
    row_start: Array  # (k + 1,)
    row_cols: Array  # (nnz,)
    row_entries: Array  # (nnz,)
    pair_target: Array  # (pairs,) where the product of two coefficients of one variable goes in the Hessian
    pair_col: Array
    pair_first: Array
    pair_second: Array
    group_start: Array  # (groups + 1,) bounds of the groups of disjoint rows within group_rows; empty where too many
    group_rows: Array

    @property
    def seconds(self) -> float:
        """Rough time to solve one instance, to decide about threads."""
        k, rest = len(self.order), len(self.order) - self.leading
        flops = 12 * self.row_cols.size + 6 * self.pair_col.size + k * rest * rest / 4 + rest**3 / 6
        return 1.5e-8 * flops


def pattern_of(rows: RowMatrix) -> Pattern | None:
    """The pattern, built once per row matrix; None where the kernel should not be used."""
    if "kernel" not in rows.memory:
        rows.memory["kernel"] = _build_pattern(rows)
    return rows.memory["kernel"]


def _build_pattern(rows: RowMatrix) -> Pattern | None:
    k, l = rows.shape
    row, col = rows.row.cpu().numpy(), rows.col.cpu().numpy()
    counts = np.bincount(col, minlength=l) if len(col) else np.zeros(l, dtype=np.int64)
    most = int(counts.max()) if l else 0
    if k == 0 or k > 4096 or most * l > _LARGEST_TABLE or int((counts**2).sum()) > _LARGEST_TABLE:
        return None
    groups = disjoint_groups(row, col, k)
    lead = max(groups, key=len)
    if k - len(lead) > _LARGEST_FACTOR:
        return None
    sweeps = len(groups) <= _MOST_GROUPS
    others = sorted(set(range(k)) - set(lead))
    order = np.array([*lead, *others], dtype=np.int64)
    position = np.empty(k, dtype=np.int64)
    position[order] = np.arange(k)
    at = position[row]  # permuted row of each coefficient
    by_col = np.lexsort((at, col))
    slot = np.arange(len(col)) - np.repeat(np.cumsum(counts) - counts, counts)
    variable_entries = np.full((most, l), -1, dtype=np.int64)
    variable_entries[slot, col[by_col]] = by_col
    variable_rows = np.where(variable_entries >= 0, at[variable_entries], 0)
    by_row = np.lexsort((col, at))
    row_start = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=k))])
    target, first, second = _pairs(at, col, by_col, counts, len(lead), k)
    return Pattern(
        order=order,
        leading=len(lead),
        variable_rows=np.ascontiguousarray(variable_rows, dtype=np.uint32),
        variable_entries=variable_entries,
        row_start=row_start.astype(np.int64),
        row_cols=col[by_row].astype(np.uint32),
        row_entries=by_row,
        pair_target=target.astype(np.uint32),
        pair_col=col[first].astype(np.uint32),
        pair_first=first,
        pair_second=second,
        group_start=np.cumsum([0, *map(len, groups)]).astype(np.int64) if sweeps else np.zeros(1, dtype=np.int64),
        group_rows=np.concatenate([position[group] for group in groups]).astype(np.uint32),
    )


def _pairs(at: Array, col: Array, by_col: Array, counts: Array, leading: int, k: int) -> tuple[Array, Array, Array]:
    """Pairs of coefficients of one variable and their place: [leading diagonal | leading x rest | rest x rest]."""
    partners = counts[col[by_col]]
    first = np.repeat(by_col, partners)
    starts = (np.cumsum(counts) - counts)[col[first]]
    within = np.arange(len(first)) - np.repeat(np.cumsum(partners) - partners, partners)
    second = by_col[starts + within]
    i, g = at[first], at[second]
    keep = i <= g  # the upper triangle
    first, second, i, g = first[keep], second[keep], i[keep], g[keep]
    rest = k - leading
    target = np.where(
        g < leading,
        i,
        np.where(
            i < leading,
            leading + i * rest + (g - leading),
            leading + leading * rest + (i - leading) * rest + (g - leading),
        ),
    )
    return target, first, second


@dataclass(frozen=True)
class Tables:
    """The numbers of a compiled set in shares of the box; arrays with a first dimension of 1 are shared."""

    pattern: Pattern
    lower: Array  # (., l)
    width: Array  # (., l)
    free: Array  # (., l)
    pinned: Array  # (., l)
    slack: Array  # (., k) permuted
    rhs: Array  # (., k) permuted
    variable_values: Array  # (., most, l)
    row_values: Array  # (., nnz)
    pair_values: Array  # (., pairs)
    totals: Array  # (., k) permuted: sum of coefficients and slack, 0 for rows with negative coefficients

    def arrays(self) -> tuple:
        """The part of the kernel's arguments that forward and backward share, in order."""
        t = self.pattern
        return (
            t.variable_rows,
            self.variable_values,
            t.row_start,
            t.row_cols,
            self.row_values,
            t.leading,
            t.pair_target,
            t.pair_col,
            self.pair_values,
            t.group_start,
            t.group_rows,
            self.totals,
        )


def build_tables(pattern: Pattern, equalities: Equalities, reduction: Reduction) -> Tables:
    """Fold scales, widths, pinned variables, tight and inactive rows into coefficients and right sides."""
    rows = equalities.rows
    free, active, pinned = _numpy(reduction.free), _numpy(reduction.active), _numpy(reduction.pinned)
    if len(free) > 1 and all((found == found[:1]).all() for found in (free, active, pinned)):
        free, active, pinned = free[:1], active[:1], pinned[:1]  # decisions that agree keep the coefficients shared
    width, scale = _numpy(equalities.width), _numpy(equalities.scale)
    with torch.no_grad():
        linear = _numpy(equalities.program(equalities.lower[:1], reduction).linear_term())
    tight = _numpy(reduction.tight) | ~_numpy(reduction.active)
    slack = np.where(tight, 0.0, _numpy(equalities.slack) / scale)
    slack, linear = np.broadcast_arrays(slack, linear)
    coefficients = max(len(width), len(scale), len(free))  # instances whose coefficients differ
    made = {
        "variable_values": roomy((coefficients, *pattern.variable_entries.shape)),
        "row_values": roomy((coefficients, len(pattern.row_entries))),
        "pair_values": roomy((coefficients, len(pattern.pair_first))),
        "totals": roomy((max(coefficients, len(slack)), slack.shape[1])),
    }
    numbers = (_numpy(rows.row), _numpy(rows.col), _numpy(rows.values), width, scale, free, active, slack)
    places = (pattern.order, pattern.variable_entries, pattern.row_entries, pattern.pair_first, pattern.pair_second)
    arrays = [np.ascontiguousarray(array) for array in (*numbers, *places)]
    with running():
        load().fold(*arrays, *made.values())
    return Tables(
        pattern=pattern,
        lower=_contiguous(_numpy(equalities.lower)),
        width=_contiguous(width),
        free=_contiguous(free),
        pinned=_contiguous(pinned),
        slack=_contiguous(slack[:, pattern.order]),
        rhs=_contiguous(linear[:, pattern.order]),
        **made,
    )


def _numpy(tensor: Tensor) -> Array:
    return tensor.detach().numpy()


def roomy(shape: tuple[int, ...], dtype: np.typing.DTypeLike = np.float64) -> Array:
    """An uninitialised contiguous array with room behind it (see `linsat._kernels.newton._vector`)."""
    size = math.prod(shape)
    return np.empty(size + _ROOM, dtype=dtype)[:size].reshape(shape)


def _contiguous(array: Array) -> Array:
    copy = roomy(array.shape, array.dtype)
    copy[...] = array
    return copy
