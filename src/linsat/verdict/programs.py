"""The linear programs behind a verdict, solved by HiGHS through scipy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat.verdict.system import Array, Deadline, LinearSystem, time_left

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
_MARGIN = 1e-5  # how far from zero an entry of A'v has to be, for multipliers of sum 1


@dataclass(frozen=True)
class LeastViolation:
    """The point of the box whose worst scaled row violation is least, and the multipliers that show it is."""

    amount: float  # of the rows divided by their largest coefficient, and of multipliers with sum 1
    point: Array  # (l,)
    multipliers: Array  # (k,) of the rows in the user's units: > 0 on the upper end, < 0 on the lower end


def linear_program(cost: Array, deadline: Deadline | None = None, *, method: str = "highs", **program: Any) -> Any:
    """One linear program by HiGHS with tight tolerances, within the time that is left."""
    from scipy.optimize import OptimizeResult, linprog  # half a second to import, and most sets never need it

    if deadline is not None and deadline.passed:  # HiGHS does not keep a limit of almost nothing
        return OptimizeResult(status=1, x=None)
    options: dict[str, Any] = dict(TIGHT)
    seconds = min(time_left(), np.inf if deadline is None else deadline.remaining)
    if np.isfinite(seconds):
        options["time_limit"] = max(seconds, 1e-3)
    solved = linprog(cost, method=method, options=options, **program)
    if solved.status == 1:  # stopped by a limit: whose?
        time_left()
    return solved


def any_point(system: LinearSystem, deadline: Deadline) -> Array | None:
    """A point of the box that satisfies the rows to 1e-10; None where HiGHS finds none."""
    equal = system.row_lower == system.row_upper
    above = np.flatnonzero(np.isfinite(system.row_upper) & ~equal)
    below = np.flatnonzero(np.isfinite(system.row_lower) & ~equal)
    exact = np.flatnonzero(equal)
    solved = linear_program(
        np.zeros(len(system.lower)),
        deadline,
        A_ub=sp.csr_array(sp.vstack([system.matrix[above], -system.matrix[below]])),
        b_ub=np.append(system.row_upper[above], -system.row_lower[below]),
        A_eq=system.matrix[exact] if len(exact) else None,
        b_eq=system.row_lower[exact] if len(exact) else None,
        bounds=np.stack([system.lower, system.upper], axis=1),
    )
    return system.clip(solved.x) if solved.status == 0 else None


def least_violation(
    system: LinearSystem, deadline: Deadline, *, method: str = "highs-ds", of_all: bool = False
) -> LeastViolation | None:
    """Minimise t subject to ``row_lower - t <= a x <= row_upper + t`` for scaled rows; None: HiGHS gave up.

    The dual maximises the gap that multipliers with sum 1 prove, so few rows carry a multiplier: a good start for a
    minimal conflict. Rows are scaled by powers of two, which costs no rounding. ``of_all``: every row has a t of its
    own, and their sum is minimised: solved faster where there are thousands, but many rows may carry a multiplier.
    """
    scale = _row_scale(system)
    scaled = sp.csr_array(sp.diags(scale)) @ system.matrix
    above, below = np.flatnonzero(np.isfinite(system.row_upper)), np.flatnonzero(np.isfinite(system.row_lower))
    ends = np.concatenate([(scale * system.row_upper)[above], -(scale * system.row_lower)[below]])
    if len(ends) == 0:
        return LeastViolation(0.0, system.clip(np.zeros(len(system.lower))), np.zeros(system.num_rows))
    used = np.flatnonzero(np.diff(scaled.tocsc().indptr))  # variables outside the rows stay where they are
    rows = scaled[:, used]
    elastic = sp.diags(np.full(len(ends), -1.0)) if of_all else sp.csr_array(np.full((len(ends), 1), -1.0))
    matrix = sp.hstack([sp.vstack([rows[above], -rows[below]]), elastic])
    bounds = np.zeros((matrix.shape[1], 2))
    bounds[: len(used)] = np.stack([system.lower[used], system.upper[used]], axis=1)
    bounds[len(used) :, 1] = np.inf
    cost = np.zeros(matrix.shape[1])
    cost[len(used) :] = 1.0
    solved = linear_program(cost, deadline, method=method, A_ub=sp.csr_array(matrix), b_ub=ends, bounds=bounds)
    if solved.status != 0 or solved.x is None:
        return None
    weights = np.maximum(-solved.ineqlin.marginals, 0.0)
    multipliers = np.zeros(system.num_rows)
    multipliers[above] += weights[: len(above)]
    multipliers[below] -= weights[len(above) :]
    point = system.clip(np.zeros(len(system.lower)))
    point[used] = solved.x[: len(used)]
    amount = float(solved.fun) / max(1.0, float(weights.sum()))
    return LeastViolation(amount, system.clip(point), multipliers * scale)


def interior_multipliers(system: LinearSystem, amount: float, deadline: Deadline) -> Array | None:
    """Multipliers (k,) that prove infeasibility with room to spare: rounding does not change their signs.

    Where a bound is infinite, ``(A'v)_j`` needs a sign. Multipliers of a vertex have many such entries at zero, where
    rounding decides; these have as many of them as possible away from zero. ``amount`` is the gap that multipliers of
    sum 1 (of scaled rows) prove; half of it is kept. None: HiGHS gave up.
    """
    scale = _row_scale(system)
    scaled = sp.csr_array(sp.diags(scale)) @ system.matrix
    above, below = np.flatnonzero(np.isfinite(system.row_upper)), np.flatnonzero(np.isfinite(system.row_lower))
    used = np.flatnonzero(np.diff(scaled.tocsc().indptr))
    transposed = sp.csc_array(sp.vstack([scaled[above], -scaled[below]])[:, used].T)  # (variables, multipliers)
    lower, upper = system.lower[used], system.upper[used]
    with_lower, with_upper = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
    only_lower = np.flatnonzero(np.isfinite(lower) & np.isinf(upper))
    only_upper = np.flatnonzero(np.isinf(lower) & np.isfinite(upper))
    eye = sp.csc_array(sp.diags(np.ones(len(used))))
    # A'v = margin + positive part - negative part; a part exists where its bound is finite.
    parts = (-eye[:, only_lower], eye[:, only_upper], -eye[:, with_lower], eye[:, with_upper])
    matrix = sp.hstack([transposed, *parts])
    gains = np.concatenate(
        [
            -np.concatenate([(scale * system.row_upper)[above], -(scale * system.row_lower)[below]]),
            *(lower[only_lower], -upper[only_upper], lower[with_lower], -upper[with_upper]),
        ]
    )
    count, margins = transposed.shape[1], len(only_lower) + len(only_upper)
    cost, bounds = np.zeros(len(gains)), np.zeros((len(gains), 2))
    cost[count : count + margins], bounds[:, 1] = -1.0, np.inf
    bounds[count : count + margins, 1] = _MARGIN
    total = np.zeros(len(gains))
    total[:count] = 1.0
    solved = linear_program(
        cost,
        deadline,
        A_ub=sp.csr_array(np.stack([-gains / amount, total])),
        b_ub=np.array([-0.5, 2.0]),
        A_eq=sp.csr_array(matrix),
        b_eq=np.zeros(len(used)),
        bounds=bounds,
    )
    if solved.status != 0 or solved.x is None:
        return None
    multipliers = np.zeros(system.num_rows)
    multipliers[above] += solved.x[: len(above)]
    multipliers[below] -= solved.x[len(above) : count]
    return multipliers * scale


def _row_scale(system: LinearSystem) -> Array:
    """Powers of two that bring the largest coefficient of each row near 1."""
    return np.exp2(-np.clip(np.round(np.log2(system.row_sizes())), -1000, 1000))
