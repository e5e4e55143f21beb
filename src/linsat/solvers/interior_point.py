r"""A primal-dual interior-point method for one program of any size and scale: what Newton does not solve comes here.

    minimise  x'Px / 2  +  sum_j [q_j x_j^2 / 2 - c_j x_j]  +  entropies          (`linsat.solvers.program`)
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

from linsat.compile.system import Deadline
from linsat.solvers.central_path import Path
from linsat.solvers.optimality import Conditions
from linsat.solvers.program import Program, equilibrate, violation
from linsat.solvers.sparse_system import Analyses

Array = np.ndarray

_CAUTIOUS = 0.6  # share of the mean product that a cautious step aims at, at least
_NOTHING = 1e-17  # of the largest cost: a dual that no cost can be told to have
_NEARLY = 1e-3  # infeasibility of an end that a more accurate factorisation may bring down
_LOOSENED = 8.0  # times the tolerance: by how much inequalities of a band may be loosened


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
