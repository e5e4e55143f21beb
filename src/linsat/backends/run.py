"""From a problem to an answer: the first back end that takes it, and a second opinion on what that does not solve."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Protocol

import torch

from linsat.backends.arrays import ArrayBackend
from linsat.backends.cpu_kernel import KernelBackend
from linsat.backends.interior_point import JUDGE_SECONDS, InteriorPointBackend
from linsat.backends.triton import TritonBackend
from linsat.compile import judge
from linsat.compile.compiled import CompiledConstraints, hard_rows
from linsat.compile.diagnosis import diagnose, error_from
from linsat.compile.feasibility import HOLDS
from linsat.compile.forced import presolve_by_program
from linsat.compile.presolve import everything_free, has_even_interior
from linsat.compile.problem import Presolved, Problem, StandardForm, Tensor
from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError
from linsat.solvers import Newton, Sinkhorn
from linsat.solvers.newton import STEPS_BEFORE_INTERIOR
from linsat.solvers.result import SolverResult
from linsat.status import Status

_UNSOLVED = (Status.STEP_LIMIT, Status.STALLED)
# A set whose every share lies this far inside (0, 1) at scores 0 has an interior: nothing is forced.
_WELL_INSIDE = 1e-5
_LARGE = 1e5  # rounded, it comes close to the tolerance of 1e-9


class Backend(Protocol):
    """Where a problem is solved."""

    name: str

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why this back end cannot take the problem."""

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> SolverResult:
        """Solve every instance, from duals ``start`` of an earlier solve where given."""


_KERNEL = KernelBackend()
_INTERIOR = InteriorPointBackend()
# In order of preference; the last takes every problem.
BACKENDS: list[Backend] = [_KERNEL, TritonBackend(), ArrayBackend()]


def every_backend() -> list[Backend]:
    """All back ends, also the one that is only asked for a second opinion."""
    return [*BACKENDS, _INTERIOR]


def run(
    problem: Problem, solver: Newton | Sinkhorn, start: Tensor | None = None, first: Backend | None = None
) -> SolverResult:
    """Solve every instance that presolve has not found infeasible; ``first`` is `first_backend`, if already known."""
    first = first or first_backend(problem, solver)
    infeasible = problem.presolved.infeasible
    # Numbers that never change have been settled, and are feasible.
    if problem.cache is not None or not bool(infeasible.any()):
        return _solve(problem, solver, start, first)
    infeasible, problem = infeasible.expand(problem.size), problem.in_double()
    result = SolverResult.empty(problem, "newton")
    result.x = problem.point(problem.adjusted(result.mu))
    result.codes[infeasible] = Status.INFEASIBLE.code
    rest = (~infeasible).nonzero().squeeze(-1)
    if rest.numel():
        result.put(rest, _solve(problem.select(rest), solver, None if start is None else start[rest], first))
    return result


def first_backend(problem: Problem, solver: Newton | Sinkhorn) -> Backend:
    """The back end that the solver asks for, or the first that takes the problem; Sinkhorn has torch operations only.

    Raises:
        ConstraintError: the one asked for cannot take the problem; the message says why.
    """
    if isinstance(solver, Sinkhorn):
        return BACKENDS[-1]
    if solver.backend == "auto":
        return next(backend for backend in BACKENDS if backend.supports(problem) is None)
    asked = next(backend for backend in every_backend() if backend.name == solver.backend)
    reason = asked.supports(problem)
    if reason is not None:
        raise ConstraintError(f"backend={solver.backend!r} cannot be used here: {reason}. Fix: leave backend out.")
    return asked


def _solve(problem: Problem, solver: Newton | Sinkhorn, start: Tensor | None, first: Backend) -> SolverResult:
    """Newton's method, and the interior-point method for what that does not solve; nothing converged breaks rows."""
    if isinstance(solver, Sinkhorn):
        result = solver.run(problem.in_double(), start)
        confirm(problem, result, solver)
        return result
    alone = first is _INTERIOR or _INTERIOR.supports(problem) is not None
    if not alone and first is BACKENDS[-1] and problem.rows.sparse and start is None:
        result = _idle(problem.in_double(), solver.tol)
        confirm(problem, result, solver)
        left = result.codes != Status.CONVERGED.code
    else:
        result = first.solve(problem, solver if alone else _shortened(solver), start)
        if first is not _KERNEL or solver.tol < HOLDS or _rounds(problem):
            confirm(problem, result, solver)
        if alone or result.solved:
            return result
        left = result.codes == Status.STALLED.code
        if solver.max_steps > STEPS_BEFORE_INTERIOR:  # else the limit is the user's, and final
            left = left | (result.codes == Status.STEP_LIMIT.code)
    left = left.nonzero().squeeze(-1)
    if left.numel():
        problem, result.x = problem.in_double(), result.x.to(torch.float64)
        rest = problem.select(left)
        part = _INTERIOR.solve(rest, solver)
        confirm(rest, part, solver)
        part.steps.add_(result.steps[left])
        result.put(left, part)
    return result


@torch.no_grad()
def confirm(problem: Problem, result: SolverResult, solver: Newton | Sinkhorn) -> None:
    """Take back that an instance has converged where its rows, as given, do not hold at x, to tolerance."""
    x = result.x.detach()
    worst, allowed = problem.violation(x.to(torch.float64)), solver.holds + torch.finfo(x.dtype).eps
    lost = ~(worst <= allowed) & (result.codes == Status.CONVERGED.code)
    result.codes[:] = torch.where(lost, Status.STALLED.code, result.codes)
    result.known_solved = False


def _rounds(problem: Problem) -> bool:
    """Whether the kernel's numbers hide more of a row than a small part of the tolerance.

    It works with the share of a box that begins at 0, and with the paper's slack: to move the box, and to take up the
    slack, rounds a row by as much as that is large.
    """
    known = problem.cache
    if known is not None and "rounds" in known:
        return known["rounds"]
    found = problem.objective.entropic_slack and bool((problem.slack > _LARGE).any())
    if not found and problem.objective.finite_box and bool(problem.lower.any()):
        found = bool((problem.row_sizes(problem.lower) > _LARGE).any())
    if known is not None:
        known["rounds"] = found
    return found


@functools.lru_cache(maxsize=64)
def _shortened(solver: Newton) -> Newton:
    """The solver with no more steps than the interior-point method waits for; itself where it has no more."""
    return solver if solver.max_steps <= STEPS_BEFORE_INTERIOR else replace(solver, max_steps=STEPS_BEFORE_INTERIOR)


def presolve(compiled: CompiledConstraints, form: StandardForm) -> Presolved:
    """What presolve decides for these numbers, by the kernel where it can take them."""
    if compiled.presolved is not None or not compiled.objective.interior or _KERNEL.takes(form) is not None:
        return compiled.presolve(form)
    return _KERNEL.propagate(form, compiled.senses, everything_free(form))


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


def settle(compiled: CompiledConstraints) -> Presolved:
    """What every call with a compiled set of shared, constant numbers can rely on; decided at the first.

    Variables that the rows force to a bound are found here, for objectives that never reach one: by solving once at
    scores 0, and by a linear program where that comes close to a bound. Sets for the interior-point method need none.

    Raises:
        InfeasibleError: the rows contradict each other; names a minimal conflicting set.
    """
    if "settled" not in compiled.cache:
        compiled.cache["settled"] = _settle(compiled)
    return compiled.cache["settled"]


def _settle(compiled: CompiledConstraints) -> Presolved:
    presolved, form = compiled.presolved, compiled.form
    assert presolved is not None
    if bool(presolved.infeasible.any()):
        reject_infeasible(compiled.constraints)
        presolved = replace(presolved, infeasible=torch.zeros_like(presolved.infeasible))
    if not compiled.objective.interior or not bool(presolved.active.any()) or has_even_interior(form, compiled.senses):
        return presolved
    if form.rows.sparse:
        return presolved
    scores = torch.zeros_like(form.lower[:1])
    problem = form.problem(scores, compiled.objective, presolved, senses=compiled.senses)
    result = run(problem, Newton(max_steps=STEPS_BEFORE_INTERIOR))
    if int(result.codes[0]) == Status.CONVERGED.code and _well_inside(problem, result):
        return presolved
    found = presolve_by_program(form, compiled.senses, presolved, 0)
    if bool(found.infeasible.any()):
        reject_infeasible(compiled.constraints)
        return presolved
    return found


def reject_infeasible(constraints: Constraints, instance: int | None = None) -> None:
    """Raise `InfeasibleError` where the rows (of one instance) are proved to contradict each other."""
    if constraints.mapped:  # the numbers of an instance are out of reach, inside a function transform
        return
    found = diagnose(constraints, instance or 0)
    if found.verdict.kind == "infeasible":
        where = "" if instance is None else f" for instance {instance}"
        raise error_from(constraints, found, instance or 0, where=where)


def _well_inside(problem: Problem, result: SolverResult) -> bool:
    p, width = problem.presolved, problem.upper - problem.lower
    share = (result.x - problem.lower) / torch.where(width > 0, width, 1.0)
    inside = (share * (1 - share) > _WELL_INSIDE) | ~p.free
    if not problem.objective.entropic_slack:
        return bool(inside.all())
    z = problem.slack_shares(result.mu)
    return bool(inside.all()) and bool(((z * (1 - z) > _WELL_INSIDE) | ~p.active | (problem.slack <= 0)).all())


def judge_failures(problem: Problem, result: SolverResult) -> None:
    """Mark the instances among those not solved that are proved infeasible."""
    known: dict[bytes, bool] = {}
    for instance in [i for i, code in enumerate(result.codes.tolist()) if Status.of(code) in _UNSOLVED]:
        system = hard_rows(problem, instance)
        parts = (system.matrix.data, system.row_lower, system.row_upper, system.lower, system.upper)
        key = b"".join(part.tobytes() for part in parts)
        if key not in known:
            known[key] = judge(system, seconds=JUDGE_SECONDS).kind == "infeasible"
        if known[key]:
            result.codes[instance] = Status.INFEASIBLE.code
