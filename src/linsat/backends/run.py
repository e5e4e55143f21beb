"""From a problem to an answer: the first back end that takes it, and a second opinion on what that does not solve."""

from __future__ import annotations

import torch

from linsat.backends.arrays import ArrayBackend
from linsat.backends.interior_point import InteriorPointBackend
from linsat.compile.compiled import CompiledConstraints, compile_constraints, infeasible_error, presolve_by_program
from linsat.compile.problem import Presolved, Problem, Tensor
from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError
from linsat.objectives import Objective
from linsat.solvers import Newton, Sinkhorn
from linsat.solvers.newton import STEPS_BEFORE_INTERIOR
from linsat.solvers.result import SolverResult
from linsat.status import Status

# A set whose every share lies this far inside (0, 1) at scores 0 has an interior: nothing is forced.
_WELL_INSIDE = 1e-5
# Sets with more rows than this go straight to the interior-point method where Newton's would have far to go: scores of
# this many temperatures, or rows off by this many times the largest score.
_MANY_ROWS = 300
_COLD, _OFF = 1e3, 1e2


def run(problem: Problem, solver: Newton | Sinkhorn, start: Tensor | None = None) -> SolverResult:
    """Solve every instance that presolve has not found infeasible."""
    infeasible = problem.presolved.infeasible.expand(problem.size)
    if not bool(infeasible.any()):
        return _solve(problem, solver, start)
    result = SolverResult.empty(problem, "newton")
    result.x = problem.point(problem.adjusted(result.mu))
    result.codes[infeasible] = Status.INFEASIBLE.code
    rest = (~infeasible).nonzero().squeeze(-1)
    if rest.numel():
        result.put(rest, _solve(problem.select(rest), solver, None if start is None else start[rest]))
    return result


def _solve(problem: Problem, solver: Newton | Sinkhorn, start: Tensor | None) -> SolverResult:
    if isinstance(solver, Sinkhorn):
        return solver.run(problem, start)
    second = InteriorPointBackend()
    declined = second.supports(problem)
    if solver.backend == "interior_point":
        if declined is not None:
            raise ConstraintError(f"backend is 'interior_point', but {declined}. Fix: backend='auto'.")
        return second.solve(problem, solver, start)
    if declined is not None:
        return ArrayBackend().solve(problem, solver, start)
    far = _far(problem) if start is None else torch.zeros_like(problem.scores[:, 0], dtype=torch.bool)
    result = SolverResult.empty(problem, second.name)
    near = (~far).nonzero().squeeze(-1)
    if near.numel():
        few = Newton(tol=solver.tol, max_steps=min(solver.max_steps, STEPS_BEFORE_INTERIOR))
        part = ArrayBackend().solve(problem.select(near), few, None if start is None else start[near])
        result.put(near, part)
    left = far | (result.codes == Status.STALLED.code)
    if solver.max_steps > STEPS_BEFORE_INTERIOR:  # else the limit is the user's, and final
        left = left | (result.codes == Status.STEP_LIMIT.code)
    left = left.nonzero().squeeze(-1)
    if left.numel():
        part = second.solve(problem.select(left), solver)
        part.steps = part.steps + result.steps[left]
        result.put(left, part)
    return result


def _far(problem: Problem) -> Tensor:
    """The instances of sets with many rows whose duals are so far from zero that Newton's steps would be wasted.

    An entropic problem whose scores are thousands of temperatures is nearly a linear program; a Euclidean one whose
    rows are off by many times the scores has most of its bounds still to find.
    """
    if problem.rows.shape[0] <= _MANY_ROWS:
        return torch.zeros_like(problem.scores[:, 0], dtype=torch.bool)
    tau = problem.objective.temperature
    if tau is not None:
        reach = ((problem.upper - problem.lower) * problem.scores * problem.presolved.free).abs().amax(-1)
        return reach > _COLD * tau[:, 0]
    none = problem.scores.new_zeros((problem.size, problem.rows.shape[0]))
    x = problem.point(problem.adjusted(none))
    residual = problem.residual(x, none).abs().amax(-1)
    return residual > _OFF * (1.0 + problem.scores.abs().amax(-1))


def prepare(constraints: Constraints, objective: Objective) -> CompiledConstraints:
    """Compile a set now; raises `InfeasibleError` where rows shared by all instances contradict each other."""
    compiled = compile_constraints(constraints, objective)
    if compiled.presolved is not None:
        settle(compiled)
    return compiled


def settle(compiled: CompiledConstraints) -> Presolved:
    """What every call with a compiled set of shared, constant numbers can rely on; decided at the first.

    Raises:
        InfeasibleError: the rows contradict each other; names a minimal conflicting set.
    """
    if "settled" not in compiled.cache:
        compiled.cache["settled"] = _settle(compiled)
    return compiled.cache["settled"]


def _settle(compiled: CompiledConstraints) -> Presolved:
    presolved, form = compiled.presolved, compiled.form
    assert presolved is not None
    if not bool(presolved.infeasible.any()):
        if not bool(presolved.active.any()):
            return presolved
        scores = torch.zeros_like(form.lower[:1])
        objective = compiled.objective
        problem = form.problem(scores, objective, presolved)
        result = run(problem, Newton(max_steps=STEPS_BEFORE_INTERIOR))
        done = int(result.codes[0]) == Status.CONVERGED.code
        if done and (not objective.interior or _well_inside(problem, result)):
            return presolved
        if objective.interior:
            presolved = presolve_by_program(form, compiled.senses, presolved, 0)
        elif done:
            return presolved
    if bool(presolved.infeasible.any()):
        raise infeasible_error(compiled.constraints, form, compiled.senses)
    return presolved


def _well_inside(problem: Problem, result: SolverResult) -> bool:
    p, width = problem.presolved, problem.upper - problem.lower
    share = (result.x - problem.lower) / torch.where(width > 0, width, 1.0)
    inside = (share * (1 - share) > _WELL_INSIDE) | ~p.free
    if not problem.objective.entropic_slack:
        return bool(inside.all())
    z = problem.slack_shares(result.mu)
    return bool(inside.all()) and bool(((z * (1 - z) > _WELL_INSIDE) | ~p.active | (problem.slack <= 0)).all())
