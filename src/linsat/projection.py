"""`project` and `solve`: scores and constraints in, constrained x out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import outside_graphs, recorded, tracing
from linsat.compile.compiled import CompiledConstraints, compile_constraints
from linsat.compile.problem import StandardForm, Tensor
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import flatten
from linsat.errors import ConstraintError
from linsat.gradient.implicit import Call, differentiable
from linsat.objectives import Objective
from linsat.request import OnFailure, Request, Solver, read_objective, read_scores
from linsat.solution import Scores, Solution
from linsat.solvers import Sinkhorn
from linsat.solvers.result import SolverResult
from linsat.solving import Solve, check_numbers, report
from linsat.status import Status


@recorded
@one_thread_after_a_fork
def project(
    y: Scores,
    constraints: Constraints,
    *,
    tau: Any = None,
    objective: Objective | None = None,
    solver: Solver | None = None,
    on_failure: OnFailure = "raise",
    start: Any = None,
) -> Scores:
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
            an instance with per-instance numbers.
        ConstraintError: malformed arguments, NaN or infinite scores.
        ConvergenceError: with ``on_failure="raise"``.
    """
    request = Request.read(y, constraints, read_objective(objective, tau), solver, on_failure, start)
    return request.answer(_solve(request, duals=False)[0].x)


@recorded
@one_thread_after_a_fork
def solve(
    y: Scores,
    constraints: Constraints,
    *,
    tau: Any = None,
    objective: Objective | None = None,
    solver: Solver | None = None,
    on_failure: OnFailure = "warn",
    start: Any = None,
) -> Solution[Scores]:
    """Like `project`, returning a `Solution`: x with status, violation, steps and duals of every instance.

    As the status says which instances were not solved, the default is to warn.
    """
    request = Request.read(y, constraints, read_objective(objective, tau), solver, on_failure, start)
    return request.solution(*_solve(request))


def compile_ahead(constraints: Constraints, objective: Objective) -> None:
    """Compile a set whose numbers all instances share, and solve it once at scores 0.

    Raises:
        InfeasibleError: the rows contradict each other.
    """
    if constraints.batch_shape or constraints.num_variables is None:
        return
    numbers = dict.fromkeys(objective.parameters(), torch.ones((), dtype=torch.float64))
    shared = replace(objective, **numbers) if numbers else objective  # type: ignore[type-var]
    with torch.no_grad():
        solve(
            torch.zeros(constraints.num_variables, dtype=torch.float64),
            constraints,
            objective=shared,
            on_failure="ignore",
        )


def _solve(request: Request, *, duals: bool = True) -> tuple[SolverResult, StandardForm]:
    scores, solver = request.scores, request.solver
    compiled = compile_constraints(
        request.constraints,
        request.objective,
        num_variables=scores.shape[-1],
        device=torch.device("cpu") if scores.is_meta else scores.device,  # presolve needs numbers
        gamma_shift=request.solver.gamma_shift,
        presolve=request.solver.presolves,
    )
    form = request.form(compiled)
    if isinstance(solver, Sinkhorn) and solver.gradient == "unrolled":
        result = _unrolled(compiled, request, form, solver)
    else:
        constant = form is compiled.form and compiled.presolved is not None
        solve = Solve(compiled, solver, request.on_failure, request.start, request.own_instance)
        call = Call(form, request.objective, solve, compiled.cache if constant else None)
        result = differentiable(call, scores, duals=duals, traced=request.traced)
    return result, form


@outside_graphs
def _unrolled(compiled: CompiledConstraints, request: Request, form: StandardForm, solver: Sinkhorn) -> SolverResult:
    if tracing(request.scores):
        raise ConstraintError(
            "Sinkhorn(gradient='unrolled') looks at numbers to know when to stop, and a graph has none. "
            "Fix: gradient='implicit', or linsat.Newton()."
        )
    scores = request.scores.reshape(request.batch_shape.numel(), request.scores.shape[-1]).to(torch.float64)
    check_numbers(scores, request.objective, form, request.constraints.variable_name)
    presolved = compiled.presolve(form)
    problem = form.problem(scores, request.objective, presolved)
    start = None if request.start is None else request.start * form.scale.detach()
    result = solver.unrolled(problem, start)
    result.codes[presolved.infeasible.expand(result.codes.shape)] = Status.INFEASIBLE.code
    report(result, request.on_failure, request.constraints, request.own_instance)
    return result


def project_each(
    scores: Sequence[Scores],
    constraints: Sequence[Constraints],
    *,
    tau: Any = None,
    objective: Objective | None = None,
    solver: Solver | None = None,
    on_failure: OnFailure = "raise",
) -> list[Scores]:
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
    stack: Any = torch.stack if isinstance(scores[0], torch.Tensor) else np.stack
    flat, _ = flatten("scores", scores[0], sets[0].layout, sets[0].num_variables, read_scores)
    joined = _joined(sets, flat.dim() - 1)
    return project(stack(scores), joined, objective=objective, solver=solver, on_failure=on_failure)


def _rows_key(constraints: Any) -> Any:
    """Equal for sets with the same pattern, prices and box; a set that cannot be joined has a key that no other has."""
    if tracing() or not isinstance(constraints, Constraints) or not constraints.fixed or constraints.batch_shape:
        return id(constraints)
    numbers = constraints.statement()
    price = np.full(len(constraints), np.inf) if numbers.price is None else numbers.price
    parts = (numbers.row, numbers.col, numbers.senses, numbers.lower, numbers.upper, price)
    return (
        len(constraints),
        constraints.num_variables,
        constraints.layout,
        tuple((name, block.sparse) for name, block in constraints.blocks.items()),
        *(part.tobytes() for part in parts),
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
