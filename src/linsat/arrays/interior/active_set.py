r"""The end of a quadratic program at once, by guesses of which bounds bind: a primal-dual active set method.

Where the bounds that bind are known, the optimum solves one linear system: that of an interior-point step, with a
curvature that is next to infinite at those bounds and none at the others. Its solution says which guesses were wrong:
a bound that binds with a negative multiplier does not, one that is passed does. Guess again, while ever fewer are
wrong.

From a good guess that takes two or three systems; for chains and grids often a dozen from no guess at all, and then the
central path is never followed. Where the wrong ones do not become fewer it gives up. What it finds is exact: x is at
the bounds that bind, not close to them.

Reference: Hintermueller, Ito, Kunisch, SIAM J. Optim. 13 (2002): a semi-smooth Newton method.
"""

from __future__ import annotations

import numpy as np

from linsat.arrays.interior.optimality import Conditions, Measured, Point

Array = np.ndarray

_MOST = 40  # guesses
_FEWER = 0.8  # of the wrong ones may be wrong again
_STIFF = 1e12  # curvature at a bound that binds, times the largest of the columns
_LEAST = 1e-14  # curvature of a slack whose bounds do not bind
_REPEATS = 4  # solves with the last system, for what is left of its rows
_FINE = 1e-3  # of the tolerance: what is left need not be less
_INACCURATE = 1e-6  # relative residual of a linear system whose solution says nothing


def can_settle(kkt: Conditions) -> bool:
    """Whether a program has a linear system for every guess: each column is curved, and by nothing but a quadratic."""
    return not kkt.bounds.bent and bool((kkt.quadratic[: kkt.num_variables] + kkt.system.own > 0).all())


def settle(kkt: Conditions, point: Point | None, tol: float) -> tuple[Measured | None, int]:
    """The optimum to the tolerance, or None; and the number of systems factored. A point is where to guess from."""
    bounds, l, system = kkt.bounds, kkt.num_variables, kkt.system
    x, mu = np.zeros(bounds.size), np.zeros(kkt.num_rows)
    binds, wrong, none = np.zeros(bounds.count, dtype=bool), np.inf, np.zeros(bounds.count)
    z = none
    if point is not None:
        x, mu, binds = point.x, point.mu, point.z > point.t
    stiff = _STIFF * max(1.0, float((kkt.quadratic[:l] + system.own).max(initial=0.0)))
    for steps in range(1, _MOST + 1):
        curvature = kkt.quadratic.copy()
        bounds.into(curvature, np.where(binds, stiff, 0.0))
        curvature[l:] = np.maximum(curvature[l:], _LEAST)
        system.factor(curvature)
        best = None
        for _ in range(_REPEATS):
            dual, primal, distance = kkt.residuals(Point(x, mu, none, np.where(binds, z, 0.0)))
            bounds.pull(dual, np.where(binds, -stiff * distance, 0.0))
            dx, dmu = system.solve(dual, primal)
            if not system.quality <= _INACCURATE:
                return None, steps
            x, mu = bounds.put(x + dx, binds), mu + dmu
            dual, _, distance = kkt.residuals(Point(x, mu, none, none))
            z = np.where(binds, -bounds.inwards(dual), 0.0)
            now = np.where(binds, z >= 0, distance < 0)
            changes = int((now != binds).sum())
            if changes:
                break
            measured = _measured(kkt, Point(x, mu, np.where(binds, 0.0, distance), z))
            if best is not None and measured.error >= best.error:
                break
            best = measured
            if best.error <= _FINE * tol:
                break
        if best is not None and best.error <= tol:
            return best, steps
        if not changes or changes > _FEWER * wrong + 1:
            break
        binds, wrong = now, changes
    return None, steps


def _measured(kkt: Conditions, point: Point) -> Measured:
    """Stationarity without what multipliers allow: rows that depend on each other may let them grow without need."""
    residuals = kkt.residuals(point)
    measured = kkt.measure(point, residuals, np.zeros(kkt.bounds.count))
    left = np.abs(residuals.dual) / (kkt.linear_sizes + kkt.quadratic * np.abs(point.x))
    return measured._replace(stationarity=float(left.max(initial=0.0)))
