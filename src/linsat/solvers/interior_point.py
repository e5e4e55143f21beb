r"""A primal-dual interior-point method for one program of any size and scale: what Newton does not solve comes here.

    minimise  x'Px / 2  +  sum_j [q_j x_j^2 / 2 - c_j x_j]  +  entropies          (`linsat.solvers.program`)
    subject to  A x = s,   x in [lower, upper],   s in [row_lower, row_upper]

With t the distance to a bound and z its multiplier, everything that is not linear in the optimality conditions is one
curve per bound,

    t z + a t (log(t / w) - 1) = 0        (t z = 0 where a = 0),

which the method follows as  t z + a t (log(t / w) - 1) = nu  with nu -> 0: a linear program's complementarity, bent by
the entropy. So cold and wide problems are solved as the linear programs that they nearly are. A two-sided entropy has
the curve at both bounds, w being the width; the 1 cancels between them and keeps z above zero. One at the lower bound
alone has it there, w being the prior; then z may have any sign, and the 1 is taken from c. Mehrotra's predictor and
corrector with Gondzio's further ones; rows and columns equilibrated; each step one sparse LDL' factorisation of

    [ P + D   A' ]
    [ A      -E  ]      D = q + sum over bounds of (z + a log(t / w)) / t,   E the same of the slacks, inverted,

regularised as little as an accurate solution allows. References: Mehrotra, SIAM J. Optim. 2 (1992); Gondzio, Comput.
Optim. Appl. 6 (1996); Saunders, PDCO (for entropies).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from linsat.compile.system import Deadline, time_left
from linsat.solvers.program import Program, equilibrate, violation
from linsat.solvers.sparse_system import SMALLEST, Analyses, SparseSystem, places

Array = np.ndarray

_MAX_STEPS = 400
_PATIENCE = 20  # steps without progress
_PROGRESS = 0.9  # the worst of the three residuals, that of the rows, or in the end the gap falls to this share
_BEYOND, _PATIENCE_BEYOND = 1e-4, 1  # how far below the tolerance is aimed, and the patience there
_FINE = 1e-2  # of the tolerance: rows that hold to this need not hold any better
_JAMMED = 1e-2  # a step this short is stopped by a bound that was approached too fast
_CORRECTORS = 2
_SHORT = 0.3  # a step shorter than this is worth further correctors
_CAUTIOUS = 0.6  # share of the mean product that a cautious step aims at, at least
_NEARLY = 1e-3  # infeasibility of an end that a more accurate factorisation may bring down
_LOOSENED = 8.0  # times the tolerance: by how much inequalities of a band may be loosened
_TO_BOUNDARY = 0.995  # share of the way to the nearest bound that a step may go
_FARTHEST = 50.0  # largest exponent of how far from a bound a multiplier asks x to be


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
    duals[kept_rows] = best.duals * row_scale
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


def _followed(
    program: Program, unit: Array, tol: float, deadline: Deadline, analyses: Analyses | None
) -> Optimum:
    """The end of the path; where that is not good enough, of the same path with more care.

    First with smaller regularisation and more correctors. Then, where the program is small, by orthogonal
    factorisations, last close to the centre of the path: between rows that are parallel but for an angle of 1e-8 there
    is so little room that a bold step ends at a bound from which no further one leads away.

    Bands, such as differences of higher order along a chain, are factored with pivoting; last with inequalities loosened
    by what the tolerance allows, without which multipliers may have to be so large that nothing can be said of x.
    """
    path = _Path(program, unit, deadline, analyses)
    system, best = path.system, path.follow(tol)

    def again(path: _Path) -> Optimum:
        other = path.follow(tol)
        return replace(min(best, other, key=lambda end: end.error), steps=best.steps + other.steps)

    if best.error > tol and not system.pivoting:
        system.careful = True
        best = again(path)
    for loosened in (0.0, _LOOSENED * tol):
        if best.error > tol and system.can_pivot and best.infeasibility < _NEARLY:
            room = loosened * unit * (program.row_lower < program.row_upper)
            loose = replace(program, row_lower=program.row_lower - room, row_upper=program.row_upper + room)
            path = _Path(loose, unit, deadline, analyses)
            path.system.pivoting = True
            best = again(path)
    for centring in (0.0, _CAUTIOUS):
        if best.error > tol and system.can_be_orthogonal:
            system.orthogonal, path.least_centring = True, centring
            best = again(path)
    return best


class _Point(NamedTuple):
    """An iterate: columns x (variables, then slacks of inequality rows), duals of rows, t and z of every bound."""

    x: Array
    mu: Array
    t: Array
    z: Array

    def moved(self, by: _Point, length: float) -> _Point:
        return _Point(*(here + length * change for here, change in zip(self, by, strict=True)))


class _Residuals(NamedTuple):
    """What is left of stationarity, of the rows, and of the definition of t."""

    dual: Array
    primal: Array
    off: Array


class _Measured(NamedTuple):
    """A point, and how far from optimal it is."""

    point: _Point
    infeasibility: float
    stationarity: float
    gap: float
    lacks: float = 0.0  # what the gap leaves out, see `_Path._lacks`

    @property
    def error(self) -> float:
        return max(self.infeasibility, self.stationarity, self.gap)

    def is_better_than(self, other: _Measured, tol: float) -> bool:
        """By the worst residual; below the tolerance, where rounding has ended the fall of the rows, by the gap."""
        if max(self.error, other.error) >= tol:
            return self.error < other.error
        if self.gap + self.lacks < other.gap + other.lacks:
            return True
        return self.error < other.error and self.lacks <= other.lacks + tol


class _Bounds:
    """Every bound of a column, lower ones first: which column, where, and its entropy."""

    def __init__(self, lower: Array, upper: Array, entropy: Array, prior: Array) -> None:
        self.columns = places(np.isfinite(lower)), places(np.isfinite(upper))
        low, high = self.columns
        self.at = np.concatenate([lower[low], upper[high]])
        self.split, self.count, self.size = len(lower[low]), len(self.at), len(lower)
        one_sided = (prior > 0) & (entropy > 0)
        both = np.isfinite(lower) & np.isfinite(upper)
        width = np.where(both, upper - np.where(both, lower, 0.0), 1.0)
        self.entropy = np.concatenate([entropy[low], np.where(one_sided, 0.0, entropy)[high]])
        self.width = np.concatenate([np.where(one_sided, prior, width)[low], width[high]])
        self.bent = bool(self.entropy.any())
        signed = np.concatenate([one_sided[low], np.zeros(self.count - self.split, dtype=bool)])
        self.signed = signed if signed.any() else None  # multipliers of any sign

    def of(self, columns: Array) -> Array:
        """What belongs to the column of each bound; not to be written to."""
        low, high = self.columns
        return np.concatenate([columns[low], columns[high]]) if self.split < self.count else columns[low]

    def into(self, columns: Array, values: Array) -> None:
        """Add one number per bound to those of the columns."""
        low, high = self.columns
        columns[low] += values[: self.split]
        if self.split < self.count:
            columns[high] += values[self.split :]

    def pulled(self, columns: Array, values: Array) -> None:
        """The same with the way that each bound faces: lower ones up, upper ones down."""
        low, high = self.columns
        columns[low] += values[: self.split]
        if self.split < self.count:
            columns[high] -= values[self.split :]

    def inside(self, columns: Array) -> Array:
        """Numbers per column, with the way that each bound faces: how they change its distance."""
        values = np.array(self.of(columns))
        values[self.split :] *= -1.0
        return values

    def bend(self, t: Array) -> Array | float:
        """a (log(t / w) - 1)."""
        if not self.bent:
            return 0.0
        return self.entropy * (np.log(np.maximum(t, SMALLEST) / self.width) - 1.0)

    def products(self, t: Array, z: Array) -> Array:
        """t z + a t (log(t / w) - 1)."""
        return t * (z + self.bend(t)) if self.bent else t * z


class _Path:
    """The central path of one scaled program; ``unit``: what the 1 of max(1, sum_j |a_ij x_j|) is in it, at most 1."""

    def __init__(self, program: Program, unit: Array, deadline: Deadline, analyses: Analyses | None) -> None:
        self.unit, self.deadline = unit, deadline
        self.matrix, self.transposed = program.matrix, sp.csr_array(program.matrix.T)
        self.sizes, self.sizes_transposed = abs(self.matrix), abs(self.transposed)
        self.P, self.P_sizes = program.P, None if program.P is None else abs(program.P)
        k, l = program.matrix.shape
        self.num_rows, self.num_variables = k, l
        equal = program.row_lower == program.row_upper
        self.slack_rows = places(~equal)
        self.rhs = np.where(equal, program.row_lower, 0.0)
        none = np.zeros(int((~equal).sum()))
        one_sided = program.one_sided
        self.linear = np.concatenate([program.linear - np.where(one_sided, program.entropy, 0.0), none])
        self.quadratic = np.concatenate([program.quadratic, none])
        entropy = np.concatenate([program.entropy, program.row_entropy[self.slack_rows]])
        self.bounds = _Bounds(
            np.concatenate([program.lower, program.row_lower[self.slack_rows]]),
            np.concatenate([program.upper, program.row_upper[self.slack_rows]]),
            entropy,
            np.concatenate([np.zeros(l) if program.prior is None else program.prior, none]),
        )
        bare = ~(np.isfinite(program.lower) | np.isfinite(program.upper) | (program.quadratic > 0))
        self.system = SparseSystem(
            self.matrix, self.transposed, self.slack_rows, P=program.P, bare=bare, analyses=analyses, seconds=self._seconds
        )
        self.idle_slack = entropy[l:] == 0
        self.linear_sizes = 1.0 + np.abs(self.linear)
        self.least_centring = 0.0
        curved = (self.quadratic > 0) | (entropy > 0)
        if program.P is not None:
            curved[:l] |= program.P.diagonal() > 0
        self.curved = curved if curved[:l].any() else ~curved

    def _seconds(self) -> float:
        return min(time_left(), self.deadline.remaining)

    def _start(self) -> _Point:
        """The least squares point, moved inside by as much as it lies outside."""
        bounds = self.bounds
        curvature = self.quadratic.copy()
        bounds.into(curvature, np.ones(bounds.count))
        curvature[self.num_variables :] = np.maximum(curvature[self.num_variables :], 1.0)
        self.system.factor(curvature)
        pull = self.linear.copy()
        bounds.into(pull, bounds.at)
        x, mu = self.system.solve(pull, self.rhs)
        reach = max(1.0, float(np.abs(x).max(initial=0.0)))
        t = bounds.of(x) - bounds.at
        t[bounds.split :] *= -1.0
        z = _inside(-t, reach)
        t = _inside(t, reach)
        if bounds.signed is not None:
            z = np.where(bounds.signed, -bounds.bend(t), z)
        return _Point(x, mu, t, z)

    def follow(self, tol: float) -> Optimum:
        """Steps until the worst residual is far below the tolerance or no longer falls; the best point on the way.

        The distance to the optimum is the root of the gap: a few more steps, while they help, turn a gap of 1e-10 into
        an x of ten digits.
        """
        aim = _BEYOND * tol
        nothing, no_duals = np.zeros(len(self.linear)), np.zeros(self.num_rows)
        best = _Measured(_Point(nothing, no_duals, *np.ones((2, self.bounds.count))), np.inf, np.inf, np.inf)
        since = steps = 0
        mark: tuple[float, ...] = (np.inf, np.inf, np.inf)
        try:
            point, length = self._start(), 1.0
            while steps < _MAX_STEPS and self._seconds() > 0:
                residuals = self._residuals(point)
                products = self.bounds.products(point.t, point.z)
                measured = self._measure(point, residuals, products)
                if not np.isfinite(measured.error):
                    break
                if measured.is_better_than(best, tol):
                    best = measured
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
        x, duals = best.point.x[: self.num_variables], self._duals(best.point)
        return Optimum(x, duals, steps, best.infeasibility, best.stationarity, best.gap)

    def _freed(self, point: _Point) -> _Point:
        """The same point with larger multipliers where a product far below the others has stopped the steps."""
        bounds = self.bounds
        least = 0.1 * np.abs(bounds.products(point.t, point.z)).sum() / max(bounds.count, 1)
        return point._replace(z=np.maximum(point.z, least / point.t - bounds.bend(point.t)))

    def _lacks(self, point: _Point) -> float:
        """How much farther from each bound z asks a column with entropy to be than t, where that is far more; times a.

        The curve t (z + a (log(t / w) - 1)) = 0 has a branch t = 0, where z is too small to hold x. Columns that rows
        force to a bound end there, whatever z; the others must not.
        """
        bounds = self.bounds
        if not bounds.bent:
            return 0.0
        a, most = bounds.entropy, 0.0 if bounds.signed is None else np.where(bounds.signed, _FARTHEST, 0.0)
        asked = bounds.width * np.exp(np.minimum(1.0 - point.z / np.where(a > 0, a, 1.0), most))
        return float((a * np.where((a > 0) & (point.t < 0.1 * asked), asked - point.t, 0.0)).sum())

    def _residuals(self, point: _Point) -> _Residuals:
        x, l, bounds = point.x, self.num_variables, self.bounds
        dual = self.linear - self.quadratic * x
        dual[:l] += self.transposed @ point.mu
        if self.P is not None:
            dual[:l] -= self.P @ x[:l]
        dual[l:] -= point.mu[self.slack_rows]
        bounds.pulled(dual, point.z)
        primal = self.rhs - self.matrix @ x[:l]
        primal[self.slack_rows] += x[l:]
        off = bounds.of(x) - bounds.at
        off[bounds.split :] *= -1.0
        off -= point.t
        return _Residuals(dual, primal, off)

    def _measure(self, point: _Point, residuals: _Residuals, products: Array) -> _Measured:
        x, mu, l, bounds = point.x, point.mu, self.num_variables, self.bounds
        sizes = np.abs(x)
        room = np.maximum(self.unit, self.sizes @ sizes[:l])
        outside = np.abs(residuals.off) / np.maximum(1.0, bounds.of(sizes))
        weight = self.linear_sizes + self.quadratic * sizes
        weight[:l] += self.sizes_transposed @ np.abs(mu)
        if self.P_sizes is not None:
            weight[:l] += self.P_sizes @ sizes[:l]
        weight[l:] += np.abs(mu[self.slack_rows])
        bounds.into(weight, np.abs(point.z))
        value = 1.0 + self._value(x)
        return _Measured(
            point=point,
            infeasibility=max(
                float((np.abs(residuals.primal) / room).max(initial=0.0)), float(outside.max(initial=0.0))
            ),
            stationarity=float((np.abs(residuals.dual) / weight).max(initial=0.0)),
            gap=float(np.abs(products).sum() / value),
            lacks=self._lacks(point) / value,
        )

    def _value(self, x: Array) -> float:
        """The size of the objective, without columns that have a price only: what soft rows lack may be any amount."""
        cost = self.quadratic * x / 2 - self.linear
        if self.P is not None:
            cost[: self.num_variables] += self.P @ x[: self.num_variables] / 2
        return float(np.abs(cost * x)[self.curved].sum())

    def _duals(self, point: _Point) -> Array:
        """The duals of the rows, 0 for inequalities without entropy whose distance to the bound exceeds their dual."""
        l, bounds = self.num_variables, self.bounds
        t = np.full(bounds.size, np.inf)
        low, high = bounds.columns
        t[low] = point.t[: bounds.split]
        t[high] = np.minimum(t[high], point.t[bounds.split :])
        duals = point.mu.copy()
        own = duals[self.slack_rows]
        duals[self.slack_rows] = np.where(self.idle_slack & (t[l:] > np.abs(own)), 0.0, own)
        return duals

    def _direction(
        self, point: _Point, residuals: _Residuals, products: Array, closed: bool, tol: float
    ) -> tuple[_Point, float]:
        """Predictor, corrector and further correctors; and how far to go along their sum."""
        bounds, (dual, primal, off), t = self.bounds, residuals, point.t
        gap = np.abs(products).sum()
        average = gap / max(bounds.count, 1)
        slope = point.z
        if bounds.bent:  # where the curve bends up too early its slope would turn negative: the entropy's own is right
            slope = np.maximum(point.z + bounds.bend(t) + bounds.entropy, bounds.entropy)
        over_t, slope_off = 1.0 / t, slope * off
        curvature = self.quadratic.copy()
        bounds.into(curvature, slope * over_t)
        curvature[self.num_variables :] = np.maximum(curvature[self.num_variables :], 1e-14)

        def towards(target: Array) -> _Point:
            pull = dual.copy()
            bounds.pulled(pull, (target - slope_off) * over_t)
            dx, dmu = self.system.solve(pull, primal)
            dt = bounds.inside(dx)
            dt += off
            return _Point(dx, dmu, dt, (target - slope * dt) * over_t)

        predictor = self.system.accurately(curvature, lambda: towards(-products))
        length = self._longest(point, predictor)
        ahead = np.abs(bounds.products(t + length * predictor.t, point.z + length * predictor.z)).sum()
        centring = min(1.0, max((ahead / max(gap, SMALLEST)) ** 3, 1e-8))
        nu = max(centring, self.least_centring) * average
        if closed:  # the gap is small enough: shrinking it further would only cost accuracy
            nu = max(nu, 0.1 * tol * (1.0 + self._value(point.x)) / max(bounds.count, 1))
        target = nu - products - predictor.t * predictor.z
        direction = towards(target)
        length = self._longest(point, direction)
        for _ in range(_CORRECTORS if length < _SHORT or self.system.careful else 0):
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

    def _longest(self, point: _Point, direction: _Point) -> float:
        """How far t, and z where it has a sign, stay positive, at most 1."""
        fastest = max(1.0, float((-direction.t / point.t).max(initial=0.0)))
        falls = -direction.z / point.z
        if self.bounds.signed is not None:
            falls[self.bounds.signed] = 0.0
        return 1.0 / max(fastest, float(falls.max(initial=0.0)))


def _inside(values: Array, reach: float) -> Array:
    least = float(values.min(initial=np.inf))
    return values + 1.0 + max(0.0, -least) if least <= 1e-8 * reach else values


def _recentre(products: Array, nu: float) -> Array:
    """What brings products that are far from nu back to within a factor of ten."""
    return np.clip(np.clip(products, 0.1 * nu, 10 * nu) - products, -10 * nu, 10 * nu)
