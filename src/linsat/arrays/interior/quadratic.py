r"""Full quadratics without the native core: large sparse programs, and what its method has not solved; in numpy.

Solved by the interior-point method, instance by instance. Gradients as in native/quadratic.h, by one sparse system

    [ P    M_W' ] [ v ]   [ dL/dx      ]
    [ M_W  0    ] [ w ] = [ -dL/dduals ]

over the variables that do not bind and the rows W that do, regularised and refined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from linsat.arrays.hard_rows import one
from linsat.arrays.interior.instances import solve as solve_programs
from linsat.arrays.interior.program import Program
from linsat.arrays.newton import Newton
from linsat.arrays.problem import Problem
from linsat.arrays.result import Claim, Stop
from linsat.objectives.quadratic import Matrix, Metric

Array = np.ndarray
_EXACT = 1e-12  # what may be left of an equation, relative to its terms
_SHIFT = 1e-9  # of the largest entries: on the diagonals of the saddle matrix
_REFINEMENTS = 12


def with_matrix(program: Program, objective: Matrix, instance: int, y: Array) -> Program:
    """A program of rows and box with the cost of an instance of the objective, at scores y (l,)."""
    P = objective.of_instance(instance, len(y))
    linear = P @ y if isinstance(objective, Metric) else y
    return replace(program, P=P, linear=np.asarray(linear, dtype=np.float64), quadratic=np.zeros(len(y)))


def solve(problem: Problem, objective: Matrix, solver: Newton) -> Claim:
    """Every instance; the problem is that of rows and box, with any objective."""

    def cost(program: Program, instance: int) -> Program:
        return with_matrix(program, objective, instance, problem.scores[instance])

    claim = solve_programs(problem, solver, lambda *_: None, cost)
    for n in np.flatnonzero(claim.stops == Stop.ARRIVED).tolist():
        better = _settled(problem, objective, n, claim.x[n], claim.mu[n] / one(problem.scale, n))
        if better is not None:
            claim.x[n], claim.mu[n] = better[0], better[1] * one(problem.scale, n)
        claim.x[n] = _snapped(problem, n, claim.x[n])
    return claim


def _snapped(problem: Problem, n: int, x: Array) -> Array:
    """x exactly at bounds from which only rounding keeps it, where no row with a large coefficient sees the change."""
    rows, values, share = problem.rows, np.abs(one(problem.rows.values, n)), np.ones(len(x))
    sizes = np.bincount(rows.row, values * np.abs(x[rows.col]), rows.shape[0])
    np.maximum.at(share, rows.col, values / np.maximum(1.0, sizes)[rows.row])
    for bound in (one(problem.lower, n), one(problem.upper, n)):
        x = np.where(share * np.abs(x - bound) <= _EXACT * (1.0 + np.abs(x)), bound, x)
    return x


@np.errstate(all="ignore")  # infinite bounds
def _settled(problem: Problem, objective: Matrix, n: int, x: Array, duals: Array) -> tuple[Array, Array] | None:
    """x and duals as what binds determines them, exactly at the bounds; None where that is not the optimum."""
    k, l = problem.rows.shape
    P, y = objective.of_instance(n, l), problem.scores[n]
    A = sp.csr_array((one(problem.rows.values, n), (problem.rows.row, problem.rows.col)), shape=(k, l))
    c = P @ y if isinstance(objective, Metric) else y
    lower, upper, side = (one(array, n) for array in (problem.lower, problem.upper, problem.rhs))
    least, most = one(problem.dual_lower, n), one(problem.dual_upper, n)
    z = P @ x - c - A.T @ duals
    at_low, at_high = (z > x - lower) | (lower == upper), -z > upper - x
    off = A @ x - side
    # A soft row is at its price where its dual is closer to that than the row to its side.
    duals = np.where(duals - least < off, least, np.where(most - duals < -off, most, duals))
    equal = np.isneginf(least) & np.isposinf(most)
    active = (duals > least) & (duals < most) & (equal | (np.abs(duals) > np.abs(off)))
    kept = np.where(active | (np.abs(duals) != np.maximum(-least, most)), 0.0, duals)  # those at their price
    free = ~(at_low | at_high)
    point = np.where(free, 0.0, np.where(at_low, lower, upper))
    v, w = _adjoint(P, A, free, active, c + A.T @ kept - P @ point, np.where(active, A @ point - side, 0.0))
    point, own = point + v, np.where(active, -w, kept)
    left, size = P @ point - c - A.T @ own, 1.0 + np.abs(c) + abs(P) @ np.abs(point) + abs(A).T @ np.abs(own)
    excess = np.maximum(np.where(least < 0, A @ point - side, 0.0), np.where(most > 0, side - A @ point, 0.0))
    room = _EXACT * (1.0 + np.abs(side) + abs(A) @ np.abs(point))
    # A row at its price is broken, or just about to be; any other holds.
    priced = np.where(own == least, A @ point - side, side - A @ point)
    holds = not np.where(~active & (kept != 0), priced < -room, excess > room).any()
    signs = ((own >= least) & (own <= most)).all()
    inside = ((point >= lower - _EXACT) & (point <= upper + _EXACT)).all()
    pushed = np.where(at_low, np.minimum(left, 0.0), np.where(at_high, np.maximum(left, 0.0), left))
    pushed = np.where(lower == upper, 0.0, pushed)
    if not (holds and signs and inside and (np.abs(pushed) <= _EXACT * size).all()):
        return None
    return point, own


def decided(problem: Problem, x: Array, duals: Array) -> Array:
    """What binds at x and duals, as the native core writes it, (N, 2 l + 2 k) uint8."""
    lower, upper = problem.lower, problem.upper
    inside = (duals > problem.dual_lower) & (duals < problem.dual_upper)
    equal = np.isneginf(problem.dual_lower) & np.isposinf(problem.dual_upper)
    free = (x > lower) & (x < upper)
    parts = free, (x >= upper) & ~free & (upper > lower), inside & (equal | (duals != 0)), np.zeros_like(inside)
    return np.concatenate([np.broadcast_to(part, (len(x), part.shape[1])) for part in parts], -1).astype(np.uint8)


def point(problem: Problem, objective: Matrix, duals: Array, binds: Array) -> Array:
    """x (N, l) again, from what binds."""
    l, k, pattern = problem.rows.shape[1], problem.rows.shape[0], problem.rows
    x = np.zeros_like(problem.scores)
    for n in range(len(x)):
        P, y = objective.of_instance(n, l), problem.scores[n]
        A = sp.csr_array((one(pattern.values, n), (pattern.row, pattern.col)), shape=(k, l))
        free, upper, active = binds[n, :l] > 0, binds[n, l : 2 * l] > 0, binds[n, 2 * l : 2 * l + k] > 0
        x[n] = np.where(free, 0.0, np.where(upper, one(problem.upper, n), one(problem.lower, n)))
        c = (P @ y if isinstance(objective, Metric) else y) + A.T @ np.where(active, 0.0, duals[n])
        side = np.where(active, one(problem.rhs, n), 0.0)
        x[n] += _adjoint(P, A, free, active, c - P @ x[n], A @ x[n] - side)[0]
    return x


def pull_back(
    problem: Problem,
    objective: Matrix,
    x: Array,
    duals: Array,
    binds: Array,
    grad_x: Array,
    grad_duals: Array,
    wanted: Sequence[tuple[int, ...] | None],
) -> tuple[Array, list[Array | None]]:
    """Gradients to the scores (N, l), and those of the shapes wanted: `Numbers`, then the matrix; zero: not solved."""
    count, l = x.shape
    k, pattern = problem.rows.shape[0], problem.rows
    to_scores, made = np.zeros((count, l)), [None if shape is None else np.zeros(shape) for shape in wanted]
    for n in range(count):
        if not (grad_x[n].any() or grad_duals[n].any()):
            continue
        P = objective.of_instance(n, l)
        A = sp.csr_array((one(pattern.values, n), (pattern.row, pattern.col)), shape=(k, l))
        free, upper, active = (binds[n, :l] > 0), (binds[n, l : 2 * l] > 0), (binds[n, 2 * l : 2 * l + k] > 0)
        v, w = _adjoint(P, A, free, active, grad_x[n], grad_duals[n])
        e = grad_x[n] - P @ v - A.T @ w  # what a change of a bound is worth
        y = problem.scores[n]
        to_scores[n] = P @ v if isinstance(objective, Metric) else v
        priced = (duals[n] != 0) & ~active
        way = np.where(priced & np.isfinite(problem.dual_upper - problem.dual_lower)[0], np.sign(duals[n]), 0.0)
        own = (
            duals[n][pattern.row] * v[pattern.col] - w[pattern.row] * x[n][pattern.col],
            w,
            np.where(~free & ~upper, e, 0.0),
            np.where(~free & upper, e, 0.0),
            way * (A @ v + grad_duals[n]),
            _to_matrix(objective, v, y - x[n] if isinstance(objective, Metric) else -x[n]),
        )
        for gradient, part in zip(made, own, strict=True):
            if gradient is not None:
                gradient[min(n, gradient.shape[0] - 1)] += part
    return to_scores, made


def _to_matrix(objective: Matrix, v: Array, other: Array) -> Array:
    """(v o' + o v') / 2 at the places of the matrix."""
    if objective.sparsity is not None:
        row, col = objective.sparsity
        return (v[row] * other[col] + other[row] * v[col]) / 2
    whole = np.outer(v, other)
    return ((whole + whole.T) / 2).ravel()


def _adjoint(
    P: sp.csr_array, A: sp.csr_array, free: Array, active: Array, g: Array, to_duals: Array
) -> tuple[Array, Array]:
    """v (l,), zero where a bound binds, and w (k,), zero where a row does not."""
    inside, rows = np.flatnonzero(free), np.flatnonzero(active)
    v, w = np.zeros(len(g)), np.zeros(A.shape[0])
    if not len(inside):
        return v, w
    own, bound = sp.csc_array(P[inside][:, inside]), sp.csr_array(A[rows][:, inside])
    size = len(inside)
    exact = sp.csc_array(sp.block_array([[own, bound.T], [bound, None]]) if len(rows) else own)
    first, second = (float(abs(part).max()) if part.nnz else 1.0 for part in (own, bound))
    lift = np.concatenate([np.full(size, _SHIFT * max(first, 1e-300)), np.full(len(rows), -_SHIFT * second)])
    factor = splu(sp.csc_array(exact + sp.diags_array(lift)), permc_spec="COLAMD")
    rhs = np.concatenate([g[inside], -to_duals[rows]])
    solution, last = np.zeros(len(rhs)), np.inf
    for _ in range(_REFINEMENTS):
        rest = rhs - exact @ solution
        left = float(np.abs(rest).max(initial=0.0))
        if not left < 0.5 * last:
            break
        last, solution = left, solution + factor.solve(rest)
    v[inside], w[rows] = solution[:size], solution[size:]
    return v, w
