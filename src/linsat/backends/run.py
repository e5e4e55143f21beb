"""Problems on arrays: the first back end that takes one, and the interior-point method for what that does not solve."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Protocol

import torch

from linsat.backends.arrays import ArrayBackend
from linsat.backends.interior_point import InteriorPointBackend
from linsat.backends.triton import TritonBackend
from linsat.compile import LinearSystem
from linsat.compile.feasibility import refuted
from linsat.compile.hard_rows import contradictory
from linsat.compile.problem import Problem, Tensor
from linsat.errors import ConstraintError
from linsat.solvers import Newton, Sinkhorn
from linsat.solvers.newton import STEPS_BEFORE_INTERIOR
from linsat.solvers.result import SolverResult
from linsat.solvers.verdict import confirm
from linsat.status import Status


class Backend(Protocol):
    """Where a problem is solved."""

    name: str

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why this back end cannot take the problem."""

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> SolverResult:
        """Solve every instance, from duals ``start`` of an earlier solve where given."""


_SECONDS = 10.0  # to refute the rows of an instance
_ARRAYS, _INTERIOR = ArrayBackend(), InteriorPointBackend()
# In order of preference; the last takes every problem.
BACKENDS: list[Backend] = [TritonBackend(), _ARRAYS]


def every_backend() -> list[Backend]:
    """All back ends on arrays, also the one that takes what the others do not solve."""
    return [*BACKENDS, _INTERIOR]


def choose(problem: Problem, solver: Newton) -> Backend:
    """The back end that the solver asks for, or the first that takes the problem.

    Raises:
        ConstraintError: the one asked for cannot take the problem; the message says why.
    """
    if solver.backend in ("auto", "kernel"):
        return next(backend for backend in BACKENDS if backend.supports(problem) is None)
    asked = next(backend for backend in every_backend() if backend.name == solver.backend)
    reason = asked.supports(problem)
    if reason is not None:
        raise ConstraintError(f"backend={solver.backend!r} cannot be used here: {reason}. Fix: leave backend out.")
    return asked


def run(problem: Problem, solver: Newton | Sinkhorn, start: Tensor | None = None) -> SolverResult:
    """Solve every instance that presolve has not found infeasible; the verdict is that of `linsat.solvers.verdict`."""
    infeasible = problem.presolved.infeasible
    if not bool(infeasible.any()):
        return _solve(problem, solver, start)
    infeasible, problem = infeasible.expand(problem.size), problem.in_double()
    result = SolverResult.empty(problem, "newton")
    result.x = problem.point(problem.adjusted(result.mu))
    result.codes[infeasible] = Status.INFEASIBLE.code
    rest = (~infeasible).nonzero().squeeze(-1)
    if rest.numel():
        result.put(rest, _solve(problem.select(rest), solver, None if start is None else start[rest]))
    return result


def _solve(problem: Problem, solver: Newton | Sinkhorn, start: Tensor | None) -> SolverResult:
    if isinstance(solver, Sinkhorn):
        result = solver.run(problem.in_double(), start)
        confirm(problem, result, solver)
        return result
    first = choose(problem, solver)
    alone = first is _INTERIOR or _INTERIOR.supports(problem) is not None
    if not alone and first is _ARRAYS and problem.rows.sparse and start is None:
        result = _idle(problem.in_double(), solver.tol)
        confirm(problem, result, solver)
        left = result.codes != Status.CONVERGED.code
    else:
        result = first.solve(problem, solver if alone else _shortened(solver), start)
        confirm(problem, result, solver)
        if alone or result.solved:
            return result
        left = result.codes == Status.STALLED.code
        if solver.max_steps > STEPS_BEFORE_INTERIOR:  # else the limit is the user's, and final
            left = left | (result.codes == Status.STEP_LIMIT.code)
    left = left.nonzero().squeeze(-1)
    if left.numel():
        problem, result.x = problem.in_double(), result.x.to(torch.float64)
        part = finish(problem.select(left), solver, problem.multipliers(result.mu)[left])
        part.steps.add_(result.steps[left])
        result.put(left, part)
    return result


def finish(problem: Problem, solver: Newton, duals: Tensor) -> SolverResult:
    """The interior-point method, for what Newton has not solved; not for rows that its duals, as written, refute."""

    def ask(system: LinearSystem, instance: int) -> bool:
        hard = ~problem.soft[min(instance, problem.soft.shape[0] - 1)]
        return refuted(system, -duals[instance][hard].detach().cpu().numpy(), seconds=_SECONDS)

    result = SolverResult.empty(problem, "newton")
    result.x = problem.point(problem.adjusted(result.mu))
    infeasible = torch.from_numpy(contradictory(problem, ask, result.x)).to(result.codes.device)
    result.codes[infeasible] = Status.INFEASIBLE.code
    left = (~infeasible).nonzero().squeeze(-1)
    if left.numel():
        part = _INTERIOR.solve(problem.select(left), solver)
        confirm(problem.select(left), part, solver)
        result.put(left, part)
    return result


@functools.lru_cache(maxsize=64)
def _shortened(solver: Newton) -> Newton:
    """The solver with no more steps than the interior-point method waits for; itself where it has no more."""
    return solver if solver.max_steps <= STEPS_BEFORE_INTERIOR else replace(solver, max_steps=STEPS_BEFORE_INTERIOR)


def _idle(problem: Problem, tol: float) -> SolverResult:
    """The result of no step at all: solved where no row binds, a step limit elsewhere."""
    result = SolverResult.empty(problem, "newton")
    result.mu = problem.mu_at_rest()
    objective = problem.objective
    at = problem.evaluate(result.mu, objective, problem.linear_term())
    idle = problem.error(result.mu, at.residual) <= tol
    result.x = at.x
    result.codes[idle] = Status.CONVERGED.code
    return result
