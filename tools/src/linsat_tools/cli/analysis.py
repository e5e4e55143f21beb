"""What can be said about a constraint set before anything is projected onto it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from linsat.arrays import Newton
from linsat.constraints.constraint_set import Constraints
from linsat.objectives import Entropy
from linsat.plan import plan_of
from linsat.projection import solve
from linsat.verdict.diagnosis import linear_system
from linsat.verdict.system import Deadline, OutOfTime, time_limit

Array = np.ndarray

_TAUS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_SAMPLES = 8  # score vectors that the temperature range is tried on
_INDIFFERENT, _DECIDED = 0.1, 0.9  # share of the way to the decided answer below and above which tau teaches little
_LARGEST_DENSE = 4_000_000  # numbers in the matrix whose rank is taken
_SAME = 1e-7  # a row may be exceeded by this share of its size and still follows from the others


@dataclass(frozen=True)
class Forced:
    """A variable that has the same value at every feasible point."""

    variable: int
    value: float
    by_bounds: bool  # its lower bound is its upper bound


@dataclass(frozen=True)
class Temperatures:
    """Where the scores decide neither everything nor nothing, for scores of this spread."""

    lowest: float | None
    highest: float | None
    spread: float
    from_objective: bool
    fails_below: float | None  # below this temperature some trial did not converge


def forced_variables(constraints: Constraints, deadline: Deadline | None = None) -> list[Forced] | None:
    """Variables with one possible value, of a feasible set with shared right-hand sides in a finite box; None: too
    large to say, or the deadline has passed.

    Ends of the box come from presolve. Between the ends, a variable is forced where its unit vector lies in the span
    of the rows that always hold with equality: one singular value decomposition.
    """
    try:
        with time_limit(deadline or Deadline()):
            return _forced(constraints)
    except OutOfTime:
        return None


def _forced(constraints: Constraints) -> list[Forced] | None:
    plan = plan_of(constraints, Entropy(), Newton(), constraints.num_variables or 1)
    assert plan.numbers is not None
    presolved = plan.unpack(plan.decided(), plan.form(plan.numbers))
    lower, upper = plan.numbers.lower[0], plan.numbers.upper[0]
    free, at_upper = presolved.free[0], presolved.at_upper[0]
    values = np.where(at_upper, upper, lower)
    fixed = ~free
    if free.any() and len(constraints):
        inside = _forced_inside(constraints, presolved.tight[0], free)
        if inside is None:
            return None
        if inside.any():
            scores = torch.zeros(len(free), dtype=torch.float64)
            values = np.where(inside, solve(scores, constraints, on_failure="ignore").x.numpy(), values)
            fixed = fixed | inside
    return [Forced(int(i), float(values[i]), bool(upper[i] == lower[i])) for i in np.flatnonzero(fixed)]


def _forced_inside(constraints: Constraints, tight: Array, free: Array) -> Array | None:
    equal = (np.array([sense == "==" for sense in constraints.senses]) & ~constraints.soft.numpy()) | tight
    matrix = linear_system(constraints).matrix[np.flatnonzero(equal)][:, np.flatnonzero(free)]
    found = np.zeros(len(free), dtype=bool)
    if matrix.shape[0] == 0:
        return found
    if matrix.shape[0] * matrix.shape[1] > _LARGEST_DENSE:
        return None
    dense = matrix.toarray()
    dense = dense / np.maximum(np.abs(dense).max(1, keepdims=True), 1e-300)
    _, sizes, directions = np.linalg.svd(dense, full_matrices=False)
    span = directions[sizes > 1e-10 * sizes.max(initial=0.0)]
    found[np.flatnonzero(free)] = np.square(span).sum(0) > 1 - 1e-9
    return found


def redundant_rows(constraints: Constraints, seconds: float, progress: Callable[[int, int], None]) -> list[int] | None:
    """Rows that follow from the others and the bounds: all of them can go at once and the feasible set stays the same.

    Soft rows neither follow nor imply anything. Two linear programs per row at most, first to last, each without the
    rows already found. None where ``seconds`` do not suffice.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    system = linear_system(constraints)
    matrix = system.matrix
    low: Any = system.row_lower  # scipy has no types, and its defaults make type checkers expect numbers
    high: Any = system.row_upper
    lower: Any = system.lower
    upper: Any = system.upper
    side = np.where(np.isfinite(low), low, high)
    place = np.repeat(np.arange(len(side)), np.diff(matrix.indptr))
    at_low, at_high = matrix.data * lower[matrix.indices], matrix.data * upper[matrix.indices]
    least = np.bincount(place, np.minimum(at_low, at_high), minlength=len(side))
    most = np.bincount(place, np.maximum(at_low, at_high), minlength=len(side))
    terms = np.where(np.isfinite(at_low), np.abs(at_low), 0.0) + np.where(np.isfinite(at_high), np.abs(at_high), 0.0)
    reach = np.bincount(place, terms, minlength=len(side)) + np.abs(side)
    kept = np.ones(len(side), dtype=bool)
    soft = constraints.soft.tolist()
    stop = time.monotonic() + seconds

    def extreme(row: int, sign: float) -> float:
        """The largest value of ``sign`` times a row over the others, inf where HiGHS gives no answer."""
        index = np.flatnonzero(kept & (np.arange(len(side)) != row))
        rows = [LinearConstraint(matrix[index], low[index], high[index])] if len(index) else []
        remaining = stop - time.monotonic()
        if remaining <= 0:
            return np.inf
        found = milp(
            -sign * matrix[[row]].toarray()[0],
            constraints=rows,
            bounds=Bounds(lower, upper),
            options={"time_limit": max(remaining, 1e-3)},
        )
        return float(-found.fun) if found.status == 0 else np.inf

    for row in range(len(side)):
        if time.monotonic() > stop:
            return None
        if soft[row]:
            continue
        slight = _SAME * max(float(reach[row]), 1e-300)
        holds_above = high[row] == np.inf or most[row] <= high[row] + slight or extreme(row, 1.0) <= high[row] + slight
        kept[row] = not (
            holds_above
            and (low[row] == -np.inf or least[row] >= low[row] - slight or extreme(row, -1.0) <= slight - low[row])
        )
        progress(row + 1, len(side))
    if time.monotonic() > stop:  # the last row may not have been decided
        return None
    return [int(i) for i in np.flatnonzero(~kept)]


def temperatures(constraints: Constraints, scores: Array | None, seconds: float) -> Temperatures | None:
    """Between which temperatures x depends on the scores without being decided by them; None: nothing is free, or late.

    Solving stops within an instance when the time is over.

    Tried on the scores of an objective, or on unit normal scores: how far x has moved from where it is at scores 0
    towards where it is at the lowest temperature, between 0.1 and 0.9 of the way.
    """
    try:
        with time_limit(Deadline(seconds)):
            return _temperatures(constraints, scores, time.monotonic() + seconds)
    except OutOfTime:
        return None


def _temperatures(constraints: Constraints, scores: Array | None, stop: float) -> Temperatures | None:
    count = constraints.num_variables or 1
    generator = torch.Generator().manual_seed(0)
    trial = torch.randn((_SAMPLES, count), generator=generator, dtype=torch.float64)
    spread, from_objective = 1.0, False
    if scores is not None and float(np.std(scores)) > 0:
        spread, from_objective = float(np.std(scores)), True
        trial = torch.from_numpy(np.array(scores, dtype=np.float64))[None]
    width = (constraints.upper - constraints.lower).detach()
    middle = solve(torch.zeros(count, dtype=torch.float64), constraints, tau=1.0, on_failure="ignore").x
    moved: dict[float, float] = {}
    failed: list[float] = []
    for tau in _TAUS:
        if time.monotonic() > stop:
            return None
        solution = solve(trial, constraints, tau=tau * spread, on_failure="ignore")
        way = (solution.x - middle) / torch.where(width > 0, width, 1.0)
        if bool(solution.converged.all()):
            moved[tau] = float(way.norm(dim=-1).mean())
        else:
            failed.append(tau)
    furthest = max(moved.values(), default=0.0)
    if furthest < 1e-6:
        return None
    useful = [tau for tau, way in moved.items() if _INDIFFERENT <= way / furthest <= _DECIDED]
    return Temperatures(
        lowest=min(useful) * spread if useful else None,
        highest=max(useful) * spread if useful else None,
        spread=spread,
        from_objective=from_objective,
        fails_below=max(failed) * spread if failed else None,
    )
