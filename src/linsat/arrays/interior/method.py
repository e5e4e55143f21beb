r"""A primal-dual interior-point method for one program of any size and scale: what Newton does not solve comes here.

    minimise  x'Px / 2  +  sum_j [q_j x_j^2 / 2 - c_j x_j]  +  entropies          (`linsat.arrays.interior.program`)
    subject to  A x = s,   x in [lower, upper],   s in [row_lower, row_upper]

With t the distance to a bound and z its multiplier, everything that is not linear in the optimality conditions is one
curve per bound,

    t z + a t (log(t / w) - 1) = 0        (t z = 0 where a = 0),

which the method follows as  t z + a t (log(t / w) - 1) = nu  with nu -> 0: a linear program's complementarity, bent by
the entropy. So cold and wide problems are solved as the linear programs that they nearly are. A two-sided entropy has
the curve at both bounds, w being the width; the 1 cancels between them and keeps z above zero. One at the lower bound
alone has it there, w being the prior; the 1 is taken from c, and where t may exceed w, z may have any sign. Mehrotra's
predictor and corrector with Gondzio's further ones; rows and columns equilibrated; each step one sparse LDL'
factorisation of

    [ P + D   A' ]
    [ A      -E  ]      D = q + sum over bounds of (z + a log(t / w)) / t,   E the same of the slacks, inverted,

regularised as little as an accurate solution allows. References: Mehrotra, SIAM J. Optim. 2 (1992); Gondzio, Comput.
Optim. Appl. 6 (1996); Saunders, PDCO (for entropies).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from linsat.arrays.interior.active_set import can_settle, settle
from linsat.arrays.interior.optimality import Conditions, Measured, Point, Residuals
from linsat.arrays.interior.program import Program, equilibrate, violation
from linsat.arrays.interior.sparse_system import SMALLEST, Analyses
from linsat.verdict.system import Deadline, time_left

Array = np.ndarray

_CAUTIOUS = 0.6  # share of the mean product that a cautious step aims at, at least
_NOTHING = 1e-17  # of the largest cost: a dual that no cost can be told to have
_NEARLY = 1e-3  # infeasibility of an end that a more accurate factorisation may bring down
_LOOSENED = 8.0  # times the tolerance: by how much inequalities of a band may be loosened
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


@dataclass(frozen=True)
class Optimum:
    """What the method found: in the user's units, with the worst relative residuals."""

    x: Array  # (l,)
    duals: Array  # (k,) c - q x - P x - entropy' + A' duals = 0 inside the box; 0 where a row does not bind
    steps: int
    infeasibility: float  # of rows and bounds, relative to max(1, sum_j |a_ij x_j|)
    stationarity: float  # relative to the terms
    gap: float  # relative to 1 + |objective|
    out_of_time: bool = False  # the seconds were over first

    @property
    def error(self) -> float:
        return max(self.infeasibility, self.stationarity, self.gap)


def minimise(
    program: Program, tol: float = 1e-10, *, deadline: Deadline | None = None, analyses: Analyses | None = None
) -> Optimum:
    """Solve one program to the relative tolerance, or as far as it gets until the deadline.

    Cost: one sparse factorisation a step, 10 to 40 steps. What is known of patterns is kept in ``analyses``.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _minimise(program, tol, Deadline() if deadline is None else deadline, analyses)


def _minimise(program: Program, tol: float, deadline: Deadline, analyses: Analyses | None) -> Optimum:
    if deadline.passed:
        x, duals = np.clip(0.0, program.lower, program.upper), np.zeros(len(program.row_lower))
        return Optimum(x, duals, 0, np.inf, np.inf, np.inf, out_of_time=True)
    away = np.abs(np.nan_to_num(program.lower, posinf=0, neginf=0))
    fixed = program.upper - program.lower <= 1e-13 * np.maximum(1.0, away)
    # Rows of fixed variables alone hold or do not; to the path, what rounding leaves of them is a contradiction.
    stated = np.isfinite(program.row_lower) | np.isfinite(program.row_upper)
    kept_rows = np.flatnonzero(stated & (abs(program.matrix) @ (~fixed).astype(np.float64) > 0))
    x = np.where(fixed, program.lower, 0.0)
    free, duals = np.flatnonzero(~fixed), np.zeros(len(program.row_lower))
    if not len(free):  # nothing to decide
        return Optimum(x, duals, 0, violation(program, x), 0.0, 0.0)
    scaled, row_scale, column_scale = _scaled(program, x, kept_rows, free)
    best = _followed(scaled, np.minimum(row_scale, 1.0), tol, deadline, analyses)
    x[free] = np.clip(best.x * column_scale, program.lower[free], program.upper[free])
    nothing = _NOTHING * float(np.abs(scaled.linear).max(initial=0.0))
    duals[kept_rows] = np.where(np.abs(best.duals) <= nothing, 0.0, best.duals) * row_scale
    # The method measures in its own units; what is reported is in the user's.
    infeasibility = max(best.infeasibility, violation(program, x))
    return replace(best, x=x, duals=duals, infeasibility=infeasibility, out_of_time=deadline.passed)


def _scaled(program: Program, at: Array, rows: Array, free: Array) -> tuple[Program, Array, Array]:
    """The program of some rows and the free columns, the others where they are, equilibrated; and the scales."""
    base, matrix = (program.matrix @ at)[rows], program.matrix[rows][:, free]
    P = None if program.P is None else sp.csr_array(program.P[free][:, free])
    row_scale, column_scale = equilibrate(matrix, P)
    scaled = Program(
        matrix=_rescaled(matrix, row_scale, column_scale),
        row_lower=(program.row_lower[rows] - base) * row_scale,
        row_upper=(program.row_upper[rows] - base) * row_scale,
        lower=program.lower[free] / column_scale,
        upper=program.upper[free] / column_scale,
        linear=(program.linear - program.gradient_of_P(at))[free] * column_scale,
        quadratic=program.quadratic[free] * column_scale**2,
        entropy=program.entropy[free] * column_scale,
        row_entropy=program.row_entropy[rows] / row_scale,
        P=None if P is None else _rescaled(P, column_scale, column_scale),
        prior=None if program.prior is None else program.prior[free] / column_scale,
    )
    return scaled, row_scale, column_scale


def _rescaled(matrix: sp.csr_array, rows: Array, columns: Array) -> sp.csr_array:
    data = matrix.data * np.repeat(rows, np.diff(matrix.indptr)) * columns[matrix.indices]
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _followed(program: Program, unit: Array, tol: float, deadline: Deadline, analyses: Analyses | None) -> Optimum:
    """The end of the path; where that is not good enough, of the same path with more care.

    First with smaller regularisation and more correctors. Then, where the program is small, by orthogonal
    factorisations, last close to the centre of the path: between rows that are parallel but for an angle of 1e-8 there
    is so little room that a bold step ends at a bound from which no further one leads away.

    Bands, such as differences of higher order along a chain, are factored with pivoting; last with inequalities
    loosened by what the tolerance allows: else multipliers may have to be so large that nothing can be said of x.
    """

    def end_of(path: Path) -> Optimum:
        end, steps = path.follow(tol)
        x, duals = end.point.x[: path.kkt.num_variables], path.kkt.duals(end.point)
        return Optimum(x, duals, steps, end.infeasibility, end.stationarity, end.gap)

    def again(path: Path) -> Optimum:
        other = end_of(path)
        return replace(min(best, other, key=lambda end: end.error), steps=best.steps + other.steps)

    path = Path(Conditions(program, unit, deadline, analyses))
    system, best = path.kkt.system, end_of(path)
    if best.error > tol and not system.pivoting:
        system.careful = True
        best = again(path)
    for loosened in (0.0, _LOOSENED * tol):
        if best.error > tol and system.can_pivot and best.infeasibility < _NEARLY:
            room = loosened * unit * (program.row_lower < program.row_upper)
            loose = replace(program, row_lower=program.row_lower - room, row_upper=program.row_upper + room)
            path = Path(Conditions(loose, unit, deadline, analyses))
            path.kkt.system.pivoting = True
            best = again(path)
    for centring in (0.0, _CAUTIOUS):
        if best.error > tol and system.can_be_orthogonal:
            system.orthogonal, path.least_centring = True, centring
            best = again(path)
    return best


class Path:
    """The central path of one scaled program: its curves and the other conditions, by Newton's method."""

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
