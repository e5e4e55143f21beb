"""The verdict on arrays: whether an instance has converged; the native core has the same formulas, native/verdict.h."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linsat._array_namespace import namespace
from linsat.compile.problem import Problem
from linsat.status import Status

if TYPE_CHECKING:
    from linsat.solvers.newton import Newton
    from linsat.solvers.result import SolverResult
    from linsat.solvers.sinkhorn import Sinkhorn


def confirm(problem: Problem, result: SolverResult, solver: Newton | Sinkhorn) -> None:
    """Take back that an instance has converged where a hard row as stated does not hold at x: relative to
    ``max(1, sum_j |a_ij x_j|)``, but for rounding."""
    xp = namespace(problem.rhs)
    x = xp.constant(result.x)
    holds = problem.violation(xp.cast(x, problem.rhs)) <= solver.holds + xp.eps(x)
    lost = ~holds & (result.codes == Status.CONVERGED.code)
    result.codes[:] = xp.where(lost, Status.STALLED.code, result.codes)
    result.known_solved = False
