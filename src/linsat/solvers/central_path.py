r"""The central path of a program, followed by Mehrotra's predictor and corrector with Gondzio's further ones.

    t z + a t (log(t / w) - 1) = nu,   nu -> 0

together with the other conditions of `linsat.solvers.optimality`, by Newton's method: each step is one factorisation of
the matrix of `linsat.solvers.sparse_system`, with D = q + sum over bounds of (z + a log(t / w)) / t.

References: Mehrotra, SIAM J. Optim. 2 (1992); Gondzio, Comput. Optim. Appl. 6 (1996); Saunders, PDCO (for entropies).
"""

from __future__ import annotations

import numpy as np

from linsat.compile.system import time_left
from linsat.solvers.active_set import can_settle, settle
from linsat.solvers.optimality import Conditions, Measured, Point, Residuals
from linsat.solvers.sparse_system import SMALLEST

Array = np.ndarray

_MAX_STEPS = 400
_PATIENCE = 20  # steps without progress
_PROGRESS = 0.9  # the worst of the three residuals, that of the rows, or in the end the gap falls to this share
_BEYOND, _PATIENCE_BEYOND = 1e-4, 1  # how far below the tolerance is aimed, and the patience there
_FINE = 1e-2  # of the tolerance: rows that hold to this need not hold any better
_CLOSE = 1e-4  # the worst residual of a point that may say which bounds bind
_JAMMED = 1e-2  # a step this short is stopped by a bound that was approached too fast
_CORRECTORS = 2
_SHORT = 0.3  # a step shorter than this is worth further correctors
_TO_BOUNDARY = 0.995  # share of the way to the nearest bound that a step may go
_LEAST_CURVATURE = 1e-14  # of a slack


class Path:
    """The path of one scaled program."""

    def __init__(self, kkt: Conditions) -> None:
        self.kkt, self.least_centring = kkt, 0.0

    def follow(self, tol: float) -> tuple[Measured, int]:
        """Steps until the worst residual is far below the tolerance or no longer falls; the best point on the way.

        The distance to the optimum is the root of the gap: a few more steps, while they help, turn a gap of 1e-10 into
        an x of ten digits. Guesses of the bounds that bind, before the first step and once close to the end, may be
        faster. The second number is that of linear systems factored.
        """
        kkt, aim = self.kkt, _BEYOND * tol
        guesses = can_settle(kkt) and not (kkt.system.careful or kkt.system.orthogonal or kkt.system.pivoting)
        best = Measured(kkt.origin(), np.inf, np.inf, np.inf)
        since = steps = 0
        mark: tuple[float, ...] = (np.inf, np.inf, np.inf)
        try:
            if guesses:
                settled, steps = settle(kkt, None, tol)
                if settled is not None:
                    return settled, steps
            point, length = self._start(), 1.0
            while steps < _MAX_STEPS and kkt.seconds() > 0:
                residuals = kkt.residuals(point)
                products = kkt.bounds.products(point.t, point.z)
                measured = kkt.measure(point, residuals, products)
                if not np.isfinite(measured.error):
                    break
                if measured.is_better_than(best, tol):
                    best = measured
                if guesses and measured.error < _CLOSE:
                    settled, more = settle(kkt, point, tol)
                    guesses, steps = False, steps + more
                    if settled is not None:
                        return settled, steps
                since += 1
                now = (
                    max(best.error, aim),
                    max(measured.infeasibility, _FINE * tol),
                    max(measured.gap, aim) if best.error < tol else np.inf,
                )
                if any(value < _PROGRESS * least for value, least in zip(now, mark, strict=True)):
                    since, mark = 0, tuple(map(min, now, mark))
                patience = _PATIENCE_BEYOND if best.error < tol else _PATIENCE
                self.least_centring = 0.0 if best.error < tol else self.least_centring
                if measured.error < aim or since > patience or (length < 1e-8 and since > 2):
                    break
                direction, length = self._direction(point, residuals, products, measured.gap < aim, aim)
                if not np.isfinite(length):
                    break
                point, steps = point.moved(direction, length), steps + 1
                if length < _JAMMED:
                    point = self._freed(point)
        except TimeoutError:
            time_left()  # raises where it was the time of the block around this call
        return best, steps

    def _start(self) -> Point:
        """The least squares point, moved inside by as much as it lies outside."""
        kkt, bounds, l = self.kkt, self.kkt.bounds, self.kkt.num_variables
        curvature, pull = kkt.quadratic.copy(), kkt.linear.copy()
        bounds.into(curvature, np.ones(bounds.count))
        bounds.into(pull, bounds.at)
        curvature[l:] = np.maximum(curvature[l:], 1.0)
        kkt.system.factor(curvature)
        x, mu = kkt.system.solve(pull, kkt.rhs)
        reach, t = max(1.0, float(np.abs(x).max(initial=0.0))), bounds.distance(x)
        t, z = _inside(t, reach), _inside(-t, reach)
        if bounds.signed is not None:
            z = np.where(bounds.signed, -bounds.bend(t), z)
        return Point(x, mu, t, z)

    def _freed(self, point: Point) -> Point:
        """The same point with larger multipliers where a product far below the others has stopped the steps."""
        bounds = self.kkt.bounds
        least = 0.1 * np.abs(bounds.products(point.t, point.z)).sum() / max(bounds.count, 1)
        return point._replace(z=np.maximum(point.z, least / point.t - bounds.bend(point.t)))

    def _direction(
        self, point: Point, residuals: Residuals, products: Array, closed: bool, aim: float
    ) -> tuple[Point, float]:
        """Predictor, corrector and further correctors; and how far to go along their sum."""
        kkt, bounds, l = self.kkt, self.kkt.bounds, self.kkt.num_variables
        (dual, primal, off), t = residuals, point.t
        gap, count = np.abs(products).sum(), max(bounds.count, 1)
        slope = point.z
        if bounds.bent:  # where the curve bends up too early its slope would turn negative: the entropy's own is right
            slope = np.maximum(point.z + bounds.bend(t) + bounds.entropy, bounds.entropy)
        over_t, slope_off = 1.0 / t, slope * off
        curvature = kkt.quadratic.copy()
        bounds.into(curvature, slope * over_t)
        curvature[l:] = np.maximum(curvature[l:], _LEAST_CURVATURE)

        def towards(target: Array) -> Point:
            pull = dual.copy()
            bounds.pull(pull, (target - slope_off) * over_t)
            dx, dmu = kkt.system.solve(pull, primal)
            dt = bounds.inwards(dx)
            dt += off
            return Point(dx, dmu, dt, (target - slope * dt) * over_t)

        predictor = kkt.system.accurately(curvature, lambda: towards(-products))
        length = self._longest(point, predictor)
        ahead = np.abs(bounds.products(t + length * predictor.t, point.z + length * predictor.z)).sum()
        centring = min(1.0, max((ahead / max(gap, SMALLEST)) ** 3, 1e-8))
        nu = max(centring, self.least_centring) * gap / count
        if closed:  # the gap is small enough: shrinking it further would only cost accuracy
            nu = max(nu, 0.1 * aim * (1.0 + kkt.value(point.x)) / count)
        # A product below 0 is far from its curve, t being too small: to second order nothing is known there, and what
        # brings t back in a few steps would be lost.
        target = nu - products - np.where(products > 0, predictor.t * predictor.z, 0.0)
        direction = towards(target)
        length = self._longest(point, direction)
        for _ in range(_CORRECTORS if length < _SHORT or kkt.system.careful else 0):
            reach = min(1.0, 1.5 * length + 0.1)
            aimed = target + _recentre(bounds.products(t + reach * direction.t, point.z + reach * direction.z), nu)
            other = towards(aimed)
            longer = self._longest(point, other)
            if not longer >= length + 0.01:
                break
            direction, length, target = other, longer, aimed
        if not bounds.count:
            return direction, 1.0
        return direction, min(0.9995, _TO_BOUNDARY * length if length < 1 else 1.0)

    def _longest(self, point: Point, direction: Point) -> float:
        """How far t, and z where it has a sign, stay positive, at most 1."""
        fastest = max(1.0, float((-direction.t / point.t).max(initial=0.0)))
        falls = -direction.z / point.z
        if self.kkt.bounds.signed is not None:
            falls[self.kkt.bounds.signed] = 0.0
        return 1.0 / max(fastest, float(falls.max(initial=0.0)))


def _inside(values: Array, reach: float) -> Array:
    least = float(values.min(initial=np.inf))
    return values + 1.0 + max(0.0, -least) if least <= 1e-8 * reach else values


def _recentre(products: Array, nu: float) -> Array:
    """What brings products that are far from nu back to within a factor of ten."""
    return np.clip(np.clip(products, 0.1 * nu, 10 * nu) - products, -10 * nu, 10 * nu)
