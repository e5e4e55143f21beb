r"""A primal-dual interior-point method for one instance of any size and scale: what Newton does not solve comes here.

    minimise  sum_j [q_j x_j^2 / 2 - c_j x_j]  +  entropy
    subject to  A x = s,   x in [lower, upper],   s in [row_lower, row_upper]

The entropy of a variable of width w is a w [p log p + (1 - p) log(1 - p)], p its share of the box; a = 0 where there is
none, and the slack s of a row may have some. With t the distance to a bound and z >= 0 its multiplier, everything that
is not linear in the optimality conditions is one curve per bound,

    t z + a t (log(t / w) - 1) = 0        (t z = 0 where a = 0),

which the method follows as  t z + a t (log(t / w) - 1) = nu  with nu -> 0: a linear program's complementarity, bent by
the entropy. (The 1 cancels between the two bounds of a column and keeps z above zero.) So cold and wide problems are
solved as the linear programs that they nearly are. Mehrotra's predictor and corrector with Gondzio's further ones; rows
and columns equilibrated; each step one sparse LDL' factorisation of

    [ D   A' ]
    [ A  -E  ]          D = q + sum over bounds of (z + a log(t / w)) / t,   E the same of the slacks, inverted,

regularised as little as an accurate solution allows. References: Mehrotra, SIAM J. Optim. 2 (1992); Gondzio, Comput.
Optim. Appl. 6 (1996); Saunders, PDCO (for entropies).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from linsat.compile.system import time_left
from linsat.solvers.program import Program, equilibrate, violation
from linsat.solvers.sparse_system import SMALLEST, SparseSystem

Array = np.ndarray

_MAX_STEPS = 200
_PATIENCE = 20  # steps without progress
_PROGRESS = 0.9  # the worst of the three residuals, that of the rows, or in the end the gap falls to this share
_BEYOND, _PATIENCE_BEYOND = 1e-4, 1  # how far below the tolerance is aimed, and the patience there
_JAMMED = 1e-2  # a step this short is stopped by a bound that was approached too fast
_CORRECTORS = 2
_CAUTIOUS = 0.6  # share of the mean product that a cautious step aims at, at least
_TO_BOUNDARY = 0.995  # share of the way to the nearest bound that a step may go


@dataclass(frozen=True)
class Optimum:
    """What the method found: in the user's units, with the worst relative residuals."""

    x: Array  # (l,)
    duals: Array  # (k,) c - q x - entropy' + A' duals = 0 inside the box; 0 where a row does not bind
    steps: int
    infeasibility: float  # of rows and bounds, relative to max(1, sum_j |a_ij x_j|)
    stationarity: float  # relative to the terms
    gap: float  # relative to 1 + |objective|

    @property
    def error(self) -> float:
        return max(self.infeasibility, self.stationarity, self.gap)


def minimise(program: Program, tol: float = 1e-10) -> Optimum:
    """Solve one program to the relative tolerance, or as far as it gets; cost: one sparse factorisation a step."""
    away = np.abs(np.nan_to_num(program.lower, posinf=0, neginf=0))
    fixed = program.upper - program.lower <= 1e-13 * np.maximum(1.0, away)
    # Rows of fixed variables alone hold or do not; to the path, what rounding leaves of them is a contradiction.
    stated = np.isfinite(program.row_lower) | np.isfinite(program.row_upper)
    kept_rows = np.flatnonzero(stated & (abs(program.matrix) @ (~fixed).astype(np.float64) > 0))
    x = np.where(fixed, program.lower, 0.0)
    base = (program.matrix @ x)[kept_rows]
    matrix = program.matrix[kept_rows][:, np.flatnonzero(~fixed)]
    if matrix.shape == (0, 0):  # nothing to decide
        return Optimum(x, np.zeros(len(program.row_lower)), 0, violation(program, x), 0.0, 0.0)
    row_scale, column_scale = equilibrate(matrix)
    scaled = sp.csr_array(sp.diags(row_scale) @ matrix @ sp.diags(column_scale))
    free = ~fixed
    best, steps = _followed(
        Program(
            matrix=scaled,
            row_lower=(program.row_lower[kept_rows] - base) * row_scale,
            row_upper=(program.row_upper[kept_rows] - base) * row_scale,
            lower=program.lower[free] / column_scale,
            upper=program.upper[free] / column_scale,
            linear=program.linear[free] * column_scale,
            quadratic=program.quadratic[free] * column_scale**2,
            entropy=program.entropy[free] * column_scale,
            row_entropy=program.row_entropy[kept_rows] / row_scale,
        ),
        np.minimum(row_scale, 1.0),
        tol,
    )
    x[free] = np.clip(best.x * column_scale, program.lower[free], program.upper[free])
    duals = np.zeros(len(program.row_lower))
    duals[kept_rows] = best.duals * row_scale
    # The method measures in its own units; what is reported is in the user's.
    infeasibility = max(best.infeasibility, violation(program, x))
    return Optimum(x, duals, steps, infeasibility, best.stationarity, best.gap)


def _followed(program: Program, unit: Array, tol: float) -> tuple[_Scaled, int]:
    """The end of the path; where that is not good enough, of the path with orthogonal factorisations all the way.

    Last, close to its centre: between rows that are parallel but for an angle of 1e-8 there is so little room that a
    bold step ends at a bound from which no further one leads away.
    """
    path = _Path(program, unit)
    best, steps = path.follow(tol)
    for centring in (0.0, _CAUTIOUS):
        if best.error <= tol or not path.system.can_be_orthogonal:
            break
        path.system.orthogonal, path.least_centring = True, centring
        other, more = path.follow(tol)
        best, steps = min(best, other, key=lambda end: end.error), steps + more
    return best, steps


class _Side(NamedTuple):
    """One of the two bounds of every column: where there is one, and which way it faces (+1 lower, -1 upper)."""

    present: Array
    bound: Array
    sign: float


class _Point(NamedTuple):
    """An iterate: columns x (variables, then slacks of inequality rows), duals of rows, t and z of both sides."""

    x: Array
    mu: Array
    t: tuple[Array, Array]
    z: tuple[Array, Array]

    def moved(self, by: _Point, length: float) -> _Point:
        def go(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
            return a[0] + length * b[0], a[1] + length * b[1]

        return _Point(self.x + length * by.x, self.mu + length * by.mu, go(self.t, by.t), go(self.z, by.z))


class _Scaled(NamedTuple):
    x: Array
    duals: Array
    infeasibility: float
    stationarity: float
    gap: float
    lacks: float = 0.0  # what the gap leaves out, see `_Path._lacks`

    @property
    def error(self) -> float:
        return max(self.infeasibility, self.stationarity, self.gap)

    def is_better_than(self, other: _Scaled, tol: float) -> bool:
        """By the worst residual; below the tolerance, where rounding has ended the fall of the rows, by the gap."""
        if max(self.error, other.error) >= tol:
            return self.error < other.error
        if self.gap + self.lacks < other.gap + other.lacks:
            return True
        return self.error < other.error and self.lacks <= other.lacks + tol


class _Path:
    """The central path of one scaled program; ``unit``: what the 1 of max(1, sum_j |a_ij x_j|) is in it, at most 1."""

    def __init__(self, program: Program, unit: Array) -> None:
        self.unit = unit
        self.matrix, self.transposed = program.matrix, sp.csr_array(program.matrix.T)
        self.sizes = sp.csr_array(abs(program.matrix))
        k, l = program.matrix.shape
        self.num_rows, self.num_variables = k, l
        equal = program.row_lower == program.row_upper
        self.slack_rows = np.flatnonzero(~equal)
        self.rhs = np.where(equal, program.row_lower, 0.0)
        none = np.zeros(len(self.slack_rows))
        self.linear = np.concatenate([program.linear, none])
        self.quadratic = np.concatenate([program.quadratic, none])
        self.entropy = np.concatenate([program.entropy, program.row_entropy[self.slack_rows]])
        lower = np.concatenate([program.lower, program.row_lower[self.slack_rows]])
        upper = np.concatenate([program.upper, program.row_upper[self.slack_rows]])
        self.sides = tuple(
            _Side(np.isfinite(bound), np.where(np.isfinite(bound), bound, 0.0), sign)
            for bound, sign in ((lower, 1.0), (upper, -1.0))
        )
        both = self.sides[0].present & self.sides[1].present
        self.width = np.where(both, self.sides[1].bound - self.sides[0].bound, 1.0)
        self.num_bounds = int(sum(side.present.sum() for side in self.sides))
        self.system = SparseSystem(program.matrix, self.slack_rows)
        self.least_centring = 0.0
        curved = (self.quadratic > 0) | (self.entropy > 0)
        self.curved = curved if curved[:l].any() else ~curved

    def _bend(self, t: Array) -> Array:
        """a (log(t / w) - 1)."""
        return self.entropy * (np.log(np.maximum(t, SMALLEST) / self.width) - 1.0)

    def _products(self, point: _Point) -> tuple[Array, Array]:
        """t z + a t (log(t / w) - 1) of both sides, 0 where there is no bound."""
        found = (
            np.where(side.present, t * (z + self._bend(t)), 0.0)
            for side, t, z in zip(self.sides, point.t, point.z, strict=True)
        )
        return next(found), next(found)

    def _start(self) -> _Point:
        """The least squares point, moved inside by as much as it lies outside."""
        count = sum(side.present.astype(float) for side in self.sides)
        curvature = self.quadratic + count
        curvature[self.num_variables :] = np.maximum(curvature[self.num_variables :], 1.0)
        self.system.factor(curvature)
        pull = self.linear + sum(side.bound for side in self.sides)
        x, mu = self.system.solve(pull, self.rhs)
        t = tuple(np.where(side.present, side.sign * (x - side.bound), 1.0) for side in self.sides)
        z = tuple(np.where(side.present, -distance, 0.0) for side, distance in zip(self.sides, t, strict=True))
        reach = max(1.0, float(np.abs(x).max(initial=0.0)))
        return _Point(x, mu, self._inside(t, reach), self._inside(z, reach))

    def _inside(self, values: tuple[Array, ...], reach: float) -> tuple[Array, Array]:
        least = min(v[side.present].min(initial=np.inf) for side, v in zip(self.sides, values, strict=True))
        shift = 1.0 + max(0.0, -least) if least <= 1e-8 * reach else 0.0
        moved = [np.where(side.present, v + shift, v) for side, v in zip(self.sides, values, strict=True)]
        return moved[0], moved[1]

    def follow(self, tol: float) -> tuple[_Scaled, int]:
        """Steps until the worst residual is far below the tolerance or no longer falls; the best point on the way.

        The distance to the optimum is the root of the gap: a few more steps, while they help, turn a gap of 1e-10 into
        an x of ten digits.
        """
        aim = _BEYOND * tol
        point, length = self._start(), 1.0
        nothing = np.zeros(self.num_variables), np.zeros(self.num_rows)
        best = _Scaled(*nothing, np.inf, np.inf, np.inf)
        since = steps = 0
        mark: tuple[float, ...] = (np.inf, np.inf, np.inf)
        while steps < _MAX_STEPS:
            time_left()
            residuals = self._residuals(point)
            measured = self._measure(point, residuals)
            if not np.isfinite(measured.error):
                break
            if measured.is_better_than(best, tol):
                best = measured
            since += 1
            now = (best.error, measured.infeasibility, measured.gap if best.error < tol else np.inf)
            if any(value < _PROGRESS * least for value, least in zip(now, mark, strict=True)):
                since, mark = 0, tuple(map(min, now, mark))
            patience = _PATIENCE_BEYOND if best.error < tol else _PATIENCE
            self.least_centring = 0.0 if best.error < tol else self.least_centring
            if measured.error < aim or since > patience or (length < 1e-8 and since > 2):
                break
            direction, length = self._direction(point, residuals, measured.gap < aim, aim)
            if not np.isfinite(length):
                break
            point, steps = point.moved(direction, length), steps + 1
            if length < _JAMMED:
                point = self._freed(point)
        return best, steps

    def _freed(self, point: _Point) -> _Point:
        """The same point with larger multipliers where a product far below the others has stopped the steps."""
        products = self._products(point)
        least = 0.1 * sum(np.abs(p).sum() for p in products) / max(self.num_bounds, 1)
        z = [
            np.where(side.present, np.maximum(z, least / t - self._bend(t)), z)
            for side, t, z in zip(self.sides, point.t, point.z, strict=True)
        ]
        return point._replace(z=(z[0], z[1]))

    def _lacks(self, point: _Point) -> tuple[Array, Array]:
        """How much farther from each bound z asks a column with entropy to be than t, where that is far more.

        The curve t (z + a (log(t / w) - 1)) = 0 has a branch t = 0, where z is too small to hold x. Columns that rows
        force to a bound end there, whatever z; the others must not.
        """
        a = np.where(self.entropy > 0, self.entropy, 1.0)
        found = []
        for side, t, z in zip(self.sides, point.t, point.z, strict=True):
            asked = self.width * np.exp(np.minimum(1.0 - z / a, 0.0))
            found.append(np.where(side.present & (self.entropy > 0) & (t < 0.1 * asked), asked - t, 0.0))
        return found[0], found[1]

    def _residuals(self, point: _Point) -> tuple[Array, Array, tuple[Array, Array]]:
        """What is left of stationarity, rows and the definition of t."""
        x, l = point.x, self.num_variables
        pulled = np.concatenate([self.transposed @ point.mu, -point.mu[self.slack_rows]])
        dual = self.linear - self.quadratic * x + pulled + point.z[0] - point.z[1]
        primal = self.rhs - self.matrix @ x[:l]
        primal[self.slack_rows] += x[l:]
        off = [
            np.where(side.present, side.sign * (x - side.bound) - t, 0.0)
            for side, t in zip(self.sides, point.t, strict=True)
        ]
        return dual, primal, (off[0], off[1])

    def _measure(self, point: _Point, residuals: tuple[Array, Array, tuple[Array, Array]]) -> _Scaled:
        dual, primal, off = residuals
        x, mu, l = point.x, point.mu, self.num_variables
        room = np.maximum(self.unit, self.sizes @ np.abs(x[:l]))
        outside = max(float((np.abs(o) / np.maximum(1.0, np.abs(x))).max(initial=0.0)) for o in off)
        weight = np.concatenate([self.sizes.T @ np.abs(mu), np.abs(mu[self.slack_rows])])
        weight += 1.0 + np.abs(self.linear) + np.abs(self.quadratic * x) + point.z[0] + point.z[1]
        value = 1.0 + self._value(x)
        return _Scaled(
            x=x[:l],
            duals=self._snapped(point),
            infeasibility=max(float((np.abs(primal) / room).max(initial=0.0)), outside),
            stationarity=float((np.abs(dual) / weight).max(initial=0.0)),
            gap=float(sum(np.abs(p).sum() for p in self._products(point)) / value),
            lacks=float(sum((self.entropy * lacks).sum() for lacks in self._lacks(point)) / value),
        )

    def _value(self, x: Array) -> float:
        """The size of the objective, without columns that have a price only: what soft rows lack may be any amount."""
        return float(np.abs(self.quadratic * x * x / 2 - self.linear * x)[self.curved].sum())

    def _snapped(self, point: _Point) -> Array:
        """The duals of the rows, 0 for inequalities without entropy whose distance to the bound exceeds their dual."""
        l = self.num_variables
        t = np.minimum(*(np.where(side.present, t, np.inf)[l:] for side, t in zip(self.sides, point.t, strict=True)))
        duals = point.mu.copy()
        idle = (self.entropy[l:] == 0) & (t > np.abs(duals[self.slack_rows]))
        duals[self.slack_rows[idle]] = 0.0
        return duals

    def _direction(
        self, point: _Point, residuals: tuple[Array, Array, tuple[Array, Array]], closed: bool, tol: float
    ) -> tuple[_Point, float]:
        """Predictor, corrector and further correctors; and how far to go along their sum."""
        dual, primal, off = residuals
        products = self._products(point)
        gap = sum(np.abs(p).sum() for p in products)
        average = gap / max(self.num_bounds, 1)
        # Where the curve bends up too early its slope would turn negative; the entropy's own is then the right one.
        slopes = [
            np.maximum(z + self._bend(t) + self.entropy, self.entropy) for t, z in zip(point.t, point.z, strict=True)
        ]
        curvature = self.quadratic.copy()
        for side, t, slope in zip(self.sides, point.t, slopes, strict=True):
            curvature += np.where(side.present, slope / t, 0.0)
        curvature[self.num_variables :] = np.maximum(curvature[self.num_variables :], 1e-14)

        def towards(targets: tuple[Array, Array]) -> _Point:
            pull = dual.copy()
            for side, t, slope, o, target in zip(self.sides, point.t, slopes, off, targets, strict=True):
                pull += np.where(side.present, side.sign * (target - slope * o) / t, 0.0)
            dx, dmu = self.system.solve(pull, primal)
            dt, dz = [], []
            for side, t, slope, o, target in zip(self.sides, point.t, slopes, off, targets, strict=True):
                dt.append(np.where(side.present, side.sign * dx + o, 0.0))
                dz.append(np.where(side.present, (target - slope * dt[-1]) / t, 0.0))
            return _Point(dx, dmu, (dt[0], dt[1]), (dz[0], dz[1]))

        predictor = self.system.accurately(curvature, lambda: towards((-products[0], -products[1])))
        length = self._longest(point, predictor)
        ahead = sum(np.abs(p).sum() for p in self._products(point.moved(predictor, length)))
        centring = min(1.0, max((ahead / max(gap, SMALLEST)) ** 3, 1e-8))
        nu = max(centring, self.least_centring) * average
        if closed:  # the gap is small enough: shrinking it further would only cost accuracy
            nu = max(nu, 1e-3 * tol * (1.0 + self._value(point.x)) / max(self.num_bounds, 1))
        targets = tuple(nu - p - dt * dz for p, dt, dz in zip(products, predictor.t, predictor.z, strict=True))
        direction = towards((targets[0], targets[1]))
        length = self._longest(point, direction)
        for _ in range(_CORRECTORS):
            tried = point.moved(direction, min(1.0, 1.5 * length + 0.1))
            aimed = tuple(t + _recentre(p, nu) for t, p in zip(targets, self._products(tried), strict=True))
            other = towards((aimed[0], aimed[1]))
            longer = self._longest(point, other)
            if not longer >= length + 0.01:
                break
            direction, length, targets = other, longer, aimed
        if not self.num_bounds:
            return direction, 1.0
        return direction, min(0.9995, _TO_BOUNDARY * length if length < 1 else 1.0)

    def _longest(self, point: _Point, direction: _Point) -> float:
        """How far t and z stay positive, at most 1."""
        length = 1.0
        for value, change in zip((*point.t, *point.z), (*direction.t, *direction.z), strict=True):
            falling = change < 0
            length = min(length, float((-value[falling] / change[falling]).min(initial=np.inf)))
        return length


def _recentre(products: Array, nu: float) -> Array:
    """What brings products that are far from nu back to within a factor of ten."""
    off = np.where(products < 0.1 * nu, 0.1 * nu - products, np.where(products > 10 * nu, 10 * nu - products, 0.0))
    return np.clip(off, -10 * nu, 10 * nu)
