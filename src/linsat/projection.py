"""`project` and `solve`: scores and constraints in, constrained x out."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import outside_graphs
from linsat.backends.run import first_backend, judge_failures, presolve, reject_infeasible, run, settle
from linsat.compile.compiled import CompiledConstraints, compile_constraints
from linsat.compile.problem import Presolved, Problem, StandardForm, Tensor
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import flatten
from linsat.errors import ConstraintError, ConvergenceError, LinSATWarning
from linsat.gradient.implicit import Call, differentiable
from linsat.objectives import Objective
from linsat.request import OnFailure, Request, Solver, check_numbers, read_objective, read_scores
from linsat.solution import Solution
from linsat.solvers import Sinkhorn
from linsat.solvers.result import SolverResult
from linsat.status import Status


@outside_graphs
@one_thread_after_a_fork
def project(
    y: Any,
    constraints: Constraints,
    *,
    tau: Any = None,
    objective: Objective | None = None,
    solver: Solver | None = None,
    on_failure: OnFailure = "raise",
    start: Any = None,
) -> Any:
    """The point of the constraint set that fits the scores best, differentiably.

    Solves, for each instance, ``max <y, x> - Omega(x)`` over the rows and the box; the objective says what Omega is.

    Args:
        y: scores, floating torch tensors or numpy arrays; numpy in, numpy out. Flat, (..., variables); in the shape of
            the set's variable, (..., 4, 5); or one array for each of several variables, ``{"works": (..., 4, 5), "off":
            (..., 5)}``. A tensor whose last axis is as long as there are variables in all is flat.
        constraints: the rows and the box; per-instance numbers broadcast against the leading dimensions of y.
        tau: short for ``objective=linsat.Entropy(tau=tau)``, the paper's layer; default 0.1.
        objective: `Entropy` or `Euclidean`; docs/objectives.md says which to choose.
        solver: `Newton()` (default) or `Sinkhorn()`.
        on_failure: what to do when some instance is not solved, since its x breaks rows: ``"raise"``, ``"warn"``,
            ``"nan"`` (its x is NaN, the others are untouched) or ``"ignore"``.
        start: duals of an earlier, similar solve (`Solution.duals`) to start from.

    Returns:
        x like y: same shape or dict (broadcast with per-instance constraints), dtype and device. Gradients reach y,
        right-hand sides, coefficients, bounds, tau and weights; those of an instance that was not solved are zero.
        Cost: see `Newton` and `Sinkhorn`.

    Raises:
        InfeasibleError: rows shared by all instances contradict each other; with ``on_failure="raise"``, also those of
            an instance with numbers of its own.
        ConstraintError: malformed arguments, NaN or infinite scores.
        ConvergenceError: with ``on_failure="raise"``.
    """
    request = Request.read(y, constraints, read_objective(objective, tau), solver, on_failure, start)
    return request.answer(_solve(request, duals=False)[0].x)


@outside_graphs
@one_thread_after_a_fork
def solve(
    y: Any,
    constraints: Constraints,
    *,
    tau: Any = None,
    objective: Objective | None = None,
    solver: Solver | None = None,
    on_failure: OnFailure = "warn",
    start: Any = None,
) -> Solution:
    """Like `project`, returning a `Solution`: x with status, violation, steps and duals of every instance.

    As the status says which instances were not solved, the default is to warn.
    """
    request = Request.read(y, constraints, read_objective(objective, tau), solver, on_failure, start)
    return request.solution(*_solve(request))


def _solve(request: Request, *, duals: bool = True) -> tuple[SolverResult, StandardForm]:
    compiled = compile_constraints(
        request.constraints,
        request.objective,
        num_variables=request.scores.shape[-1],
        device=request.scores.device,
        gamma_shift=request.solver.gamma_shift,
        presolve=request.solver.presolves,
    )
    form = request.form(compiled)
    solver = request.solver
    if isinstance(solver, Sinkhorn) and solver.gradient == "unrolled":
        result = _unrolled(compiled, request, form, solver)
    else:
        constant = form is compiled.form and compiled.presolved is not None
        call = Call(form, request.objective, _Solve(compiled, request), compiled.cache if constant else None)
        result = differentiable(call, request.scores, duals=duals)
    return result, form


class _Solve:
    """Everything that looks at numbers, out of sight of autograd and of function transforms."""

    def __init__(self, compiled: CompiledConstraints, request: Request) -> None:
        self.compiled, self.request = compiled, request

    def __call__(self, form: StandardForm, scores: Tensor, objective: Objective) -> tuple[SolverResult, Presolved]:
        compiled, request = self.compiled, self.request
        constant = form is compiled.form and compiled.presolved is not None
        presolved = settle(compiled) if constant else presolve(compiled, form)
        problem = form.problem(scores, objective, presolved, compiled.cache if constant else None)
        start = None if request.start is None else request.start * form.scale
        first = first_backend(problem, request.solver)
        if first.name != "kernel":  # which looks at the numbers as it reads them
            check_numbers(scores, objective, form, request.constraints)
        result = run(problem, request.solver, start, first)
        if not result.solved:
            check_numbers(scores, objective, form, request.constraints)
            self._failed(problem, result)
        return result, presolved

    def _failed(self, problem: Problem, result: SolverResult) -> None:
        judge_failures(problem, result)
        if self.compiled.shared and bool((result.codes == Status.INFEASIBLE.code).any()):
            reject_infeasible(self.compiled.constraints)
        report(self.request, result)


def _unrolled(compiled: CompiledConstraints, request: Request, form: StandardForm, solver: Sinkhorn) -> SolverResult:
    scores = request.scores.reshape(request.batch_shape.numel(), request.scores.shape[-1]).to(torch.float64)
    check_numbers(scores, request.objective, form, request.constraints)
    presolved = compiled.presolve(form)
    problem = form.problem(scores, request.objective, presolved)
    start = None if request.start is None else request.start * form.scale.detach()
    result = solver.unrolled(problem, start)
    result.codes[presolved.infeasible.expand(result.codes.shape)] = Status.INFEASIBLE.code
    report(request, result)
    return result


def project_each(
    scores: Sequence[Any],
    constraints: Sequence[Constraints],
    *,
    tau: Any = None,
    objective: Objective | None = None,
    solver: Solver | None = None,
    on_failure: OnFailure = "raise",
) -> list[Any]:
    """Project instances of different shapes: ``scores[i]`` onto ``constraints[i]``, in the given order.

    Instances whose sets have the same box and non-zeros in the same places are solved together as one batch, also where
    coefficients or right-hand sides differ; an infeasible one among those is reported by ``on_failure`` like any
    instance with per-instance numbers.
    """
    if len(scores) != len(constraints):
        raise ConstraintError(
            f"scores has {len(scores)} entries and constraints {len(constraints)}. Fix: one constraint set per scores."
        )
    objective = read_objective(objective, tau)
    groups: dict[Any, list[int]] = {}
    for i, (y, cons) in enumerate(zip(scores, constraints, strict=True)):
        # A dict of scores is solved by itself: only arrays are stacked.
        shape = id(y) if isinstance(y, Mapping) else tuple(np.shape(y))
        kind = (type(y).__name__, str(getattr(y, "dtype", None)), shape)
        groups.setdefault((kind, _rows_key(cons)), []).append(i)
    results: list[Any] = [None] * len(scores)
    for members in groups.values():
        parts, sets = [scores[i] for i in members], [constraints[i] for i in members]
        together = _project_group(parts, sets, objective, solver, on_failure)
        for i, x in zip(members, together, strict=True):
            results[i] = x
    return results


def _project_group(
    scores: list[Any], sets: list[Constraints], objective: Objective, solver: Solver | None, on_failure: OnFailure
) -> Any:
    """Sets that differ in coefficients and right-hand sides alone, as one batch."""
    if len(scores) == 1:
        return [project(scores[0], sets[0], objective=objective, solver=solver, on_failure=on_failure)]
    stack = torch.stack if isinstance(scores[0], torch.Tensor) else np.stack
    flat, _ = flatten("scores", scores[0], sets[0].layout, sets[0].num_variables, read_scores)
    joined = _joined(sets, flat.dim() - 1)
    return project(stack(scores), joined, objective=objective, solver=solver, on_failure=on_failure)


def _rows_key(constraints: Any) -> Any:
    """Equal for sets with the same pattern, prices and box; a set that cannot be joined has a key that no other has."""
    if not isinstance(constraints, Constraints) or not constraints.fixed or constraints.batch_shape:
        return id(constraints)
    structure = constraints.structure
    parts = (structure.row, structure.col, structure.senses, constraints.lower, constraints.upper, constraints.price)
    return (
        len(constraints),
        constraints.num_variables,
        constraints.layout,
        tuple((name, block.sparse) for name, block in constraints.blocks.items()),
        *(t.cpu().numpy().tobytes() for t in parts),
    )


def _joined(sets: Sequence[Constraints], batch_dims: int) -> Constraints:
    """One set for scores (sets, batch..., variables), from sets of one pattern: with the numbers of each."""

    def stacked(numbers: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Those numbers of all sets, (sets, 1..., size), by name; empty where all sets have the same."""
        if all(all(map(torch.equal, numbers[0].values(), other.values())) for other in numbers[1:]):
            return {}
        together = {name: torch.stack([one[name] for one in numbers]) for name in numbers[0]}
        return {name: t.reshape(len(sets), *[1] * batch_dims, *t.shape[1:]) for name, t in together.items()}

    joined = sets[0]
    if all(cons is joined for cons in sets):
        return joined
    coefficients, sides = stacked([cons.coefficients for cons in sets]), stacked([cons.right_sides for cons in sets])
    joined = joined.with_coefficients(**coefficients) if coefficients else joined
    return joined.with_rhs(**sides) if sides else joined


def report(request: Request, result: SolverResult) -> None:
    """Raise, warn or put NaN where an instance was not solved, as the caller asked."""
    failed = result.codes != Status.CONVERGED.code
    if request.on_failure == "ignore" or not bool(failed.any()):
        return
    if request.on_failure == "nan":
        result.x = result.x.masked_fill(failed[:, None], torch.nan)
        return
    first = int(failed.nonzero()[0])
    status = Status.of(int(result.codes[first]))
    text = (
        f"{int(failed.sum())} of {len(failed)} instances were not solved; the first is instance {first}: {status}. "
        f"{status.advice}"
    )
    if request.on_failure == "warn":
        warnings.warn(text, LinSATWarning, stacklevel=_caller_level())
        return
    if status is Status.INFEASIBLE:
        reject_infeasible(request.constraints, request.own_instance(first))
    raise ConvergenceError(f'{text} To go on without such instances: on_failure="nan".')


def _caller_level() -> int:
    """Stack level of the first frame outside linsat and torch, so that a warning points at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("linsat", "torch"):
        level, frame = level + 1, frame.f_back
    return level
