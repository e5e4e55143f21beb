"""Presolve by linear programs: what every feasible point of one instance has in common, in terms of its rows.

Variables that are at an end of their box everywhere, and inequalities that always hold with equality, are found by
HiGHS in the unit box of what single rows leave of each variable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat._array_namespace import Tensor, namespace, to_numpy
from linsat._senses import EQUAL, GREATER, LESS
from linsat.arrays.hard_rows import one
from linsat.arrays.presolve import row_sides
from linsat.arrays.problem import Presolved, StandardForm
from linsat.verdict.programs import least_violation, linear_program
from linsat.verdict.system import Deadline, LinearSystem

Array = np.ndarray

_HELD = 1e-10  # violation of a row that holds when all its variables are fixed, relative to its size
_SMALLEST = 1e-12  # unit of a variable, relative to where it is
_PASSES = 10  # over all rows, to tighten the bounds
# Beyond this many coefficients and variables the program takes minutes; callers then go without and say so.
_LARGEST_PROGRAM = 200_000
_INFEASIBLE_BY = 1e-9  # violation of scaled rows that counts as infeasible
_THICKNESS_SCALE = 1e6  # how far the cone of `_implied` may be stretched to show a thin interior
_FORCED_BELOW = 1e-3  # stretched share below which a variable (or slack) counts as forced to its end
_MOST_PROGRAMS = 20  # what these have not shown to be forced counts as free
_SECONDS = 10.0  # for all of them together; after that nothing counts as forced


@dataclass(frozen=True)
class _Rows:
    """One instance in the unit box: ``matrix`` p (sense) ``side``, 0 <= p <= 1, rows of comparable size.

    An end of the unit box that is no bound of the variable is none of p either.
    """

    matrix: sp.csr_array  # (k, l)
    side: Array  # (k,)
    senses: Array  # (k,) LESS, EQUAL, GREATER
    has_lower: Array  # (l,) bool
    has_upper: Array  # (l,) bool

    @property
    def size(self) -> int:
        return int(self.matrix.nnz + sum(self.matrix.shape))


@dataclass(frozen=True)
class _Implied:
    """What every feasible point has in common."""

    at_lower: Array  # (l,) bool: share 0 everywhere
    at_upper: Array  # (l,) bool: share 1 everywhere
    tight: Array  # (k,) bool: inequality rows that always hold with equality


def presolve_by_program(form: StandardForm, senses: Tensor, here: Presolved) -> Presolved:
    """What is decided (1, .) for numbers that all share, after a linear program has looked for all that is forced.

    Unchanged where the program would be too large or took too long, all rows are soft, or a row whose variables would
    all be fixed does not hold then: what is small to the program is not nothing to that row.
    """
    xp = namespace(form.rhs)
    system = _system(form, senses, here)
    hard = ~to_numpy(form.soft)[0]
    rows = _unit_rows(system.take(np.flatnonzero(hard)), to_numpy(senses)[hard])
    if rows.size > _LARGEST_PROGRAM or not len(rows.side):
        return here
    implied = _implied(rows)
    if implied is None:
        return replace(here, infeasible=xp.ones_like(here.infeasible))
    free = to_numpy(here.free)[0]
    at_lower, at_upper = implied.at_lower & free, implied.at_upper & ~implied.at_lower & free
    free = free & ~(at_lower | at_upper)
    x = np.where(at_upper, system.upper, system.lower)  # of what is fixed
    left = abs(system.matrix) @ free.astype(np.float64) > 0
    size = np.maximum(1.0, abs(system.matrix) @ np.abs(np.where(free, 0.0, x)))
    if (system.outside(np.where(free, 0.0, x)) > _HELD * size)[hard & ~left].any():
        return here
    tight = np.zeros(here.active.shape, dtype=bool)
    tight[:, hard] = implied.tight
    tight = xp.from_numpy(tight, here.free) & here.active
    return replace(
        here,
        free=xp.from_numpy(free[None], here.free),
        at_upper=here.at_upper | xp.from_numpy(at_upper[None], here.free),
        active=here.active & xp.from_numpy(left[None], here.free),
        tight=tight,
        tight_share=xp.cast(tight & (senses == GREATER), form.rhs),
    )


def _system(form: StandardForm, senses: Tensor, here: Presolved) -> LinearSystem:
    """The rows in the box that presolve has left, which is a point where a variable is fixed."""
    rows, sense, side = form.rows, to_numpy(senses), one(row_sides(form, senses), 0)
    matrix = sp.csr_array((one(rows.values, 0), (to_numpy(rows.row), to_numpy(rows.col))), shape=rows.shape)
    matrix.eliminate_zeros()
    lower, upper = one(form.lower, 0), one(form.upper, 0)
    free, at_upper = to_numpy(here.free)[0], to_numpy(here.at_upper)[0]
    return LinearSystem(
        matrix,
        row_lower=np.where(sense == LESS, -np.inf, side),
        row_upper=np.where(sense == GREATER, np.inf, side),
        lower=np.where(free | ~at_upper, lower, upper),
        upper=np.where(free | at_upper, upper, lower),
    )


def _unit_rows(system: LinearSystem, senses: Array) -> _Rows:
    """The rows with every variable in units of what single rows leave of its box, as the linear programs want them.

    In a box that is far wider than what the rows allow, a share of the box would say nothing about what is forced.
    """
    low, high = _tightened(system)
    # A bound is an end of the unit box if it is within reach of what the rows allow: half as far again.
    spare = np.where(np.isfinite(high - low), np.maximum(high - low, 0.0) / 2, np.inf)
    has_lower, has_upper = (np.isfinite(end) for end in (system.lower, system.upper))
    has_lower &= ~(low - spare > system.lower)
    has_upper &= ~(high + spare < system.upper)
    base = np.where(has_lower, system.lower, np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0.0)))
    top = np.where(has_upper, system.upper, np.where(np.isfinite(high), high + spare, np.inf))
    unit = np.where(np.isfinite(top), top - base, np.maximum(1.0, np.abs(base)))
    unit = np.where(system.upper > system.lower, np.maximum(unit, _SMALLEST * np.maximum(1.0, np.abs(base))), 0.0)
    matrix = sp.csr_array(system.matrix @ sp.diags(unit))
    counts = np.maximum(np.diff(system.matrix.indptr), 1)
    scale = np.asarray(abs(matrix).sum(1)).ravel() / counts
    scale = np.where(scale > 0, scale, 1.0)
    side = np.where(senses == GREATER, system.row_lower, system.row_upper)
    side = (side - system.matrix @ base) / scale
    return _Rows(sp.csr_array(sp.diags(1 / scale) @ matrix), side, senses, has_lower, has_upper)


def _tightened(system: LinearSystem) -> tuple[Array, Array]:
    """Bounds that follow from one row at a time, given the bounds of its other variables, in a few passes.

    Only their size counts: rounding makes them no worse a unit.
    """
    matrix = system.matrix.tocoo()
    row, col, value = matrix.row, matrix.col, matrix.data
    low, high = system.lower.copy(), system.upper.copy()
    up = value > 0
    for _ in range(_PASSES):
        least, most = value * np.where(up, low[col], high[col]), value * np.where(up, high[col], low[col])
        others_least, others_most = (_others(terms, row, len(system.row_lower)) for terms in (least, most))
        with np.errstate(invalid="ignore"):
            at_most = (system.row_upper[row] - others_least) / value  # a bound above where the coefficient is positive
            at_least = (system.row_lower[row] - others_most) / value
        above, below = np.where(up, at_most, at_least), np.where(up, at_least, at_most)
        new_low, new_high = low.copy(), high.copy()
        np.fmax.at(new_low, col, below)
        np.fmin.at(new_high, col, above)
        crossed = new_low > new_high  # by rounding, or because the rows contradict each other: not for this to say
        new_low, new_high = np.where(crossed, low, new_low), np.where(crossed, high, new_high)
        if (new_low == low).all() and (new_high == high).all():
            break
        low, high = new_low, new_high
    return low, high


def _others(terms: Array, row: Array, count: int) -> Array:
    """For each term the sum of the others of its row, infinite where one of those is."""
    finite = np.isfinite(terms)
    known = np.where(finite, terms, 0.0)
    infinite = np.bincount(row, np.where(finite, 0.0, np.sign(terms)), minlength=count)[row]
    total = np.bincount(row, known, minlength=count)[row] - known
    others = infinite - np.where(finite, 0.0, np.sign(terms))
    return np.where(others == 0, total, np.inf * np.where(others == 0, 1.0, others))


# scipy 1.11 has neither eye_array nor diags_array.
def _diagonal(entries: Array) -> Any:
    return sp.csr_array(sp.diags(entries))


def _identity(size: int) -> Any:
    return _diagonal(np.ones(size))


def _is_feasible(rows: _Rows, deadline: Deadline) -> bool:
    """Whether some point of the box satisfies all rows, up to rounding; True also where HiGHS gives no answer."""
    low = np.where(rows.senses == LESS, -np.inf, rows.side)
    high = np.where(rows.senses == GREATER, np.inf, rows.side)
    box = np.where(rows.has_lower, 0.0, -np.inf), np.where(rows.has_upper, 1.0, np.inf)
    least = least_violation(LinearSystem(rows.matrix, low, high, *box), deadline)
    return least is None or not least.amount > _INFEASIBLE_BY


def _implied(rows: _Rows) -> _Implied | None:
    """Variables that every feasible point has at an end of the box, and rows it holds with equality; None: infeasible.

    Over the cone of scaled points (P, alpha), P = alpha p, as many distances to the ends as possible are raised to one
    at once: max sum t, t <= P, t <= alpha - P, t <= alpha b - a P, 0 <= t <= 1, alpha >= 1. What stays zero may be
    forced, or may have lost a row's little room to others: it is asked again without them, until nothing new is raised.
    The points found so far have a mean, in which everything is off its end that was so in one of them.
    """
    deadline = Deadline(_SECONDS)
    k, l = rows.matrix.shape
    equal = rows.senses == EQUAL
    loose = np.flatnonzero(~equal)
    sign = np.where(rows.senses == GREATER, -1.0, 1.0)
    eye, none = _identity(l), sp.csr_array((l, l))
    ones = sp.csr_array(np.ones((l, 1)))
    blank = sp.csr_array((l, len(loose)))
    # Columns: P (l), alpha (1), t_lower (l), t_upper (l), t_row (len(loose)).
    to_lower = sp.csr_array(sp.hstack([-eye, sp.csr_array((l, 1)), eye, none, blank]))[rows.has_lower]
    to_upper = sp.csr_array(sp.hstack([eye, -ones, none, eye, blank]))[rows.has_upper]
    flipped = (_diagonal(sign) @ rows.matrix)[loose]
    side = sp.csr_array(-(sign * rows.side)[loose][:, None])
    to_row = sp.hstack([flipped, side, sp.csr_array((len(loose), 2 * l)), _identity(len(loose))])
    upper = sp.vstack([to_lower, to_upper, to_row]) if len(loose) else sp.vstack([to_lower, to_upper])
    exact = sp.hstack(
        [rows.matrix[equal], sp.csr_array(-rows.side[equal][:, None]), sp.csr_array((equal.sum(), 2 * l + len(loose)))]
    )
    distances = 2 * l + len(loose)
    forced = np.concatenate([rows.has_lower, rows.has_upper, np.ones(len(loose), dtype=bool)])
    ends = [(0.0 if has else None, None) for has in rows.has_lower]
    for _ in range(_MOST_PROGRAMS):
        solved = linear_program(
            np.concatenate([np.zeros(l + 1), -forced.astype(float)]),
            deadline,
            A_ub=upper,
            b_ub=np.zeros(upper.shape[0]),
            A_eq=exact if equal.any() else None,
            b_eq=np.zeros(int(equal.sum())) if equal.any() else None,
            bounds=ends + [(1.0, _THICKNESS_SCALE)] + [(0.0, 1.0)] * distances,
        )
        if solved.status != 0:
            return None if not _is_feasible(rows, deadline) else _Implied(*(np.zeros(n, dtype=bool) for n in (l, l, k)))
        raised = forced & (solved.x[l + 1 :] >= _FORCED_BELOW)
        forced &= ~raised
        if not raised.any() or not forced.any():
            break
    else:
        forced[:] = False
    tight = np.zeros(k, dtype=bool)
    tight[loose] = forced[2 * l :]
    return _Implied(forced[:l], forced[l : 2 * l], tight)
