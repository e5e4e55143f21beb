"""The optimality conditions of a scaled program with slacks as columns, and how far from them a point is.

With t the distance to a bound and z its multiplier, the letters of `linsat.arrays.interior.method`:

    c - q x - P x + A' mu + (z of lower bounds) - (z of upper ones) = 0      stationarity
    A x - s = 0,   rows with equal ends without a slack                      rows
    t = x - lower,   t = upper - x                                           distances
    t z + a t (log(t / w) - 1) = 0                                           products

A column may have an entropy at both bounds, w being its width, or at the lower one alone, w being its prior: then 1 is
taken from c, and where t may exceed w, z has any sign.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from linsat.arrays.interior.program import Program
from linsat.arrays.interior.sparse_system import SMALLEST, Analyses, SparseSystem, places
from linsat.verdict.system import Deadline, time_left

Array = np.ndarray

_FARTHEST = 50.0  # largest exponent of how far from a bound a multiplier asks x to be


class Point(NamedTuple):
    """An iterate: columns x (variables, then slacks of inequality rows), duals of rows, t and z of every bound."""

    x: Array
    mu: Array
    t: Array
    z: Array

    def moved(self, by: Point, length: float) -> Point:
        return Point(*(here + length * change for here, change in zip(self, by, strict=True)))


class Residuals(NamedTuple):
    """What is left of stationarity, of the rows, and of the definition of t."""

    dual: Array
    primal: Array
    off: Array


class Measured(NamedTuple):
    """A point, and how far from optimal it is."""

    point: Point
    infeasibility: float
    stationarity: float
    gap: float
    lacks: float = 0.0  # what the gap leaves out, see `Conditions._lacks`

    @property
    def error(self) -> float:
        return max(self.infeasibility, self.stationarity, self.gap)

    def is_better_than(self, other: Measured, tol: float) -> bool:
        """By the worst residual; below the tolerance, where rounding has ended the fall of the rows, by the gap."""
        if max(self.error, other.error) >= tol:
            return self.error < other.error
        if self.gap + self.lacks < other.gap + other.lacks:
            return True
        return self.error < other.error and self.lacks <= other.lacks + tol


class Bounds:
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
        self.bent, self.one_sided = bool(self.entropy.any()), bool(one_sided.any())
        beyond = one_sided & ~(both & (prior >= width))
        signed = np.concatenate([beyond[low], np.zeros(self.count - self.split, dtype=bool)])
        self.signed = signed if signed.any() else None  # multipliers of any sign: t may exceed w

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

    def pull(self, columns: Array, values: Array) -> None:
        """The same the way that each bound faces: added at lower ones, taken away at upper ones."""
        low, high = self.columns
        columns[low] += values[: self.split]
        if self.split < self.count:
            columns[high] -= values[self.split :]

    def inwards(self, columns: Array) -> Array:
        """What belongs to the column of each bound, counted away from it."""
        values = np.array(self.of(columns))
        values[self.split :] *= -1.0
        return values

    def distance(self, x: Array) -> Array:
        """t at x: how far inside of each bound."""
        t = self.of(x) - self.at
        t[self.split :] *= -1.0
        return t

    def put(self, x: Array, binds: Array) -> Array:
        """x with the columns of bounds that bind at these."""
        for place, at, here in zip(self.columns, *(np.split(v, [self.split]) for v in (self.at, binds)), strict=True):
            x[place] = np.where(here, at, x[place])
        return x

    def bend(self, t: Array) -> Array | float:
        """a (log(t / w) - 1)."""
        if not self.bent:
            return 0.0
        return self.entropy * (np.log(np.maximum(t, SMALLEST) / self.width) - 1.0)

    def products(self, t: Array, z: Array) -> Array:
        """t z + a t (log(t / w) - 1)."""
        return t * (z + self.bend(t)) if self.bent else t * z


class Conditions:
    """Those of one scaled program; ``unit``: what the 1 of max(1, sum_j |a_ij x_j|) is in it, at most 1."""

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
        self.bounds = Bounds(
            np.concatenate([program.lower, program.row_lower[self.slack_rows]]),
            np.concatenate([program.upper, program.row_upper[self.slack_rows]]),
            entropy,
            np.concatenate([np.zeros(l) if program.prior is None else program.prior, none]),
        )
        bare = ~(np.isfinite(program.lower) | np.isfinite(program.upper) | (program.quadratic > 0))
        self.system = SparseSystem(
            self.matrix,
            self.transposed,
            self.slack_rows,
            P=program.P,
            bare=bare,
            analyses=analyses,
            seconds=self.seconds,
        )
        self.idle_slack = entropy[l:] == 0
        self.linear_sizes = 1.0 + np.abs(self.linear)
        curved = (self.quadratic > 0) | (entropy > 0)
        if program.P is not None:
            curved[:l] |= program.P.diagonal() > 0
        self.curved = curved if curved[:l].any() else ~curved

    def seconds(self) -> float:
        """What is left of the time."""
        return min(time_left(), self.deadline.remaining)

    def origin(self) -> Point:
        """Zeros, at a distance of one from every bound."""
        ones = np.ones(self.bounds.count)
        return Point(np.zeros(self.bounds.size), np.zeros(self.num_rows), ones, ones)

    def residuals(self, point: Point) -> Residuals:
        """What is left of each condition."""
        x, l, bounds = point.x, self.num_variables, self.bounds
        dual = self.linear - self.quadratic * x
        dual[:l] += self.transposed @ point.mu
        if self.P is not None:
            dual[:l] -= self.P @ x[:l]
        dual[l:] -= point.mu[self.slack_rows]
        bounds.pull(dual, point.z)
        primal = self.rhs - self.matrix @ x[:l]
        primal[self.slack_rows] += x[l:]
        return Residuals(dual, primal, bounds.distance(x) - point.t)

    def measure(self, point: Point, residuals: Residuals, products: Array) -> Measured:
        """How far from optimal a point is."""
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
        value = 1.0 + self.value(x)
        gap, lacks = float(np.abs(products).sum()), self._lacks(point)
        if self.bounds.one_sided:  # rows force none of these columns: presolve has taken those out
            gap, lacks = gap + lacks, 0.0
        return Measured(
            point=point,
            infeasibility=max(
                float((np.abs(residuals.primal) / room).max(initial=0.0)), float(outside.max(initial=0.0))
            ),
            stationarity=float((np.abs(residuals.dual) / weight).max(initial=0.0)),
            gap=gap / value,
            lacks=lacks / value,
        )

    def _lacks(self, point: Point) -> float:
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

    def value(self, x: Array) -> float:
        """The size of the objective, without columns that have a price only: what soft rows lack may be any amount."""
        cost = self.quadratic * x / 2 - self.linear
        if self.P is not None:
            cost[: self.num_variables] += self.P @ x[: self.num_variables] / 2
        return float(np.abs(cost * x)[self.curved].sum())

    def duals(self, point: Point) -> Array:
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
