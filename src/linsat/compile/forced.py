"""Presolve by a linear program: what every feasible point of one instance has in common, in terms of its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from linsat._array_namespace import Tensor, namespace, to_numpy
from linsat._senses import GREATER, LESS
from linsat.compile.implied import LARGEST_PROGRAM, Rows, implied
from linsat.compile.presolve import row_sides
from linsat.compile.problem import Presolved, StandardForm
from linsat.compile.system import LinearSystem

_HELD = 1e-10  # violation of a row that holds when all its variables are fixed, relative to its size
_SMALLEST = 1e-12  # unit of a variable, relative to where it is
_PASSES = 10  # over all rows, to tighten the bounds


def presolve_by_program(form: StandardForm, senses: Tensor, presolved: Presolved, instance: int) -> Presolved:
    """What is decided (1, .) for one instance after a linear program has looked for everything that is forced.

    Unchanged where the program would be too large or took too long, all rows are soft, or a row whose variables would
    all be fixed does not hold then: what is small to the program is not nothing to that row.
    """
    xp = namespace(form.rhs)
    here = presolved.select([min(instance, presolved.free.shape[0] - 1)])
    system = _system(form, senses, here, instance)
    hard = ~to_numpy(form.soft)[0]
    rows = _unit_rows(system.take(np.flatnonzero(hard)), to_numpy(senses)[hard])
    if rows.size > LARGEST_PROGRAM or not len(rows.side):
        return here
    found = implied(rows)
    if found is None:
        return replace(here, infeasible=xp.ones_like(here.infeasible))
    free = to_numpy(here.free)[0]
    at_lower, at_upper = found.at_lower & free, found.at_upper & ~found.at_lower & free
    free = free & ~(at_lower | at_upper)
    x = np.where(at_upper, system.upper, system.lower)  # of what is fixed
    left = abs(system.matrix) @ free.astype(np.float64) > 0
    size = np.maximum(1.0, abs(system.matrix) @ np.abs(np.where(free, 0.0, x)))
    if (system.outside(np.where(free, 0.0, x)) > _HELD * size)[hard & ~left].any():
        return here
    tight = np.zeros(here.active.shape, dtype=bool)
    tight[:, hard] = found.tight
    tight = xp.from_numpy(tight, here.free) & here.active
    return replace(
        here,
        free=xp.from_numpy(free[None], here.free),
        at_upper=here.at_upper | xp.from_numpy(at_upper[None], here.free),
        active=here.active & xp.from_numpy(left[None], here.free),
        tight=tight,
        tight_share=xp.cast(tight & (senses == GREATER), form.rhs),
    )


def _system(form: StandardForm, senses: Tensor, here: Presolved, instance: int) -> LinearSystem:
    """The rows of one instance in the box that presolve has left, which is a point where a variable is fixed."""

    def of(tensor: Tensor) -> np.ndarray:
        return to_numpy(tensor[min(instance, tensor.shape[0] - 1)])

    rows, sense, side = form.rows, to_numpy(senses), of(row_sides(form, senses))
    matrix = sp.csr_array((of(rows.values), (to_numpy(rows.row), to_numpy(rows.col))), shape=rows.shape)
    matrix.eliminate_zeros()
    lower, upper, free, at_upper = of(form.lower), of(form.upper), to_numpy(here.free)[0], to_numpy(here.at_upper)[0]
    return LinearSystem(
        matrix,
        row_lower=np.where(sense == LESS, -np.inf, side),
        row_upper=np.where(sense == GREATER, np.inf, side),
        lower=np.where(free | ~at_upper, lower, upper),
        upper=np.where(free | at_upper, upper, lower),
    )


def _unit_rows(system: LinearSystem, senses: np.ndarray) -> Rows:
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
    return Rows(sp.csr_array(sp.diags(1 / scale) @ matrix), side, senses, has_lower, has_upper)


def _tightened(system: LinearSystem) -> tuple[np.ndarray, np.ndarray]:
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


def _others(terms: np.ndarray, row: np.ndarray, count: int) -> np.ndarray:
    """For each term the sum of the others of its row, infinite where one of those is."""
    finite = np.isfinite(terms)
    known = np.where(finite, terms, 0.0)
    infinite = np.bincount(row, np.where(finite, 0.0, np.sign(terms)), minlength=count)[row]
    total = np.bincount(row, known, minlength=count)[row] - known
    others = infinite - np.where(finite, 0.0, np.sign(terms))
    return np.where(others == 0, total, np.inf * np.where(others == 0, 1.0, others))
