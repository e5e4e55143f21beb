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

from linsat.backends.interior_point import solve as solve_programs
from linsat.compile.problem import Problem
from linsat.objectives.quadratic import Matrix, Metric
from linsat.solvers.newton import Newton
from linsat.solvers.program import Program
from linsat.solvers.result import SolverResult

Array = np.ndarray
_SHIFT = 1e-9  # of the largest entries: on the diagonals of the saddle matrix
_REFINEMENTS = 12


def solve(problem: Problem, objective: Matrix, solver: Newton) -> SolverResult:
    """Every instance; the problem is that of rows and box, with any objective."""
    l = problem.rows.shape[1]

    def with_matrix(program: Program, instance: int) -> Program:
        P, y = objective.of_instance(instance, l), problem.scores[instance]
        linear = P @ y if isinstance(objective, Metric) else y
        return replace(program, P=P, linear=np.asarray(linear, dtype=np.float64), quadratic=np.zeros(l))

    return solve_programs(problem, solver, lambda *_: None, with_matrix)


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

    def of(array: Array, n: int) -> Array:
        return array[min(n, array.shape[0] - 1)]

    for n in range(len(x)):
        P, y = objective.of_instance(n, l), problem.scores[n]
        A = sp.csr_array((of(pattern.values, n), (pattern.row, pattern.col)), shape=(k, l))
        free, upper, active = binds[n, :l] > 0, binds[n, l : 2 * l] > 0, binds[n, 2 * l : 2 * l + k] > 0
        x[n] = np.where(free, 0.0, np.where(upper, of(problem.upper, n), of(problem.lower, n)))
        c = (P @ y if isinstance(objective, Metric) else y) + A.T @ np.where(active, 0.0, duals[n])
        side = np.where(active, of(problem.rhs, n), 0.0)
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
        values = pattern.values[min(n, pattern.values.shape[0] - 1)]
        A = sp.csr_array((values, (pattern.row, pattern.col)), shape=(k, l))
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
