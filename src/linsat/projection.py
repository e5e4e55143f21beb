"""`project` and `solve`: scores and constraints in, constrained x out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import forward_mode, outside_graphs, recorded, tracing, transforming
from linsat.backends.run import confirm
from linsat.call import Call, OnFailure, read_objective, read_scores
from linsat.compile.problem import Tensor
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import flatten
from linsat.errors import ConstraintError
from linsat.failures import check_usable, settle
from linsat.gradient.implicit import point, point_and_duals
from linsat.objectives import Objective
from linsat.plan import Answer, Solver, pack
from linsat.solution import Scores, Solution
from linsat.solvers import Newton, Sinkhorn
from linsat.status import Status

_RECENT = 64  # calls of one set


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
            (..., 5)}``. A tensor whose last axis is as long as there are variables in all is flat. ``-inf`` keeps a
            variable at its lower bound in that instance, without a gradient.
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
        ConstraintError: malformed arguments; with ``on_failure="raise"``, NaN or +inf among the scores.
        ConvergenceError: with ``on_failure="raise"``.
    """
    objective = read_objective(objective, tau)
    key = _key(y, constraints, objective, solver, on_failure) if start is None else None
    call = None if key is None else constraints.calls.get(key)
    if call is not None:
        return point(call, y)
    call, scores = Call.read(y, constraints, objective, solver, on_failure, start)
    if _unrolls(call.plan.solver):
        return call.answer(_unrolled(call, scores).x)
    x = point(call, scores)
    if key is not None and call.plan.constant and scores is y:
        _keep(constraints.calls, key, call)
    return call.answer(x)


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
    call, scores = Call.read(y, constraints, read_objective(objective, tau), solver, on_failure, start)
    if _unrolls(call.plan.solver):
        return call.solution(_unrolled(call, scores))
    return call.solution(point_and_duals(call, scores))


def compile_ahead(constraints: Constraints, objective: Objective) -> None:
    """Compile a set whose numbers all instances share, and solve it once at scores 0.

    Raises:
        InfeasibleError: the rows contradict each other.
    """
    if constraints.batch_shape or constraints.num_variables is None:
        return
    numbers = dict.fromkeys(objective.parameters(), torch.ones((), dtype=torch.float64, device="cpu"))
    shared = replace(objective, **numbers) if numbers else objective  # type: ignore[type-var]
    with torch.no_grad():
        solve(
            torch.zeros(constraints.num_variables, dtype=torch.float64, device="cpu"),
            constraints,
            objective=shared,
            on_failure="ignore",
        )


def _key(y: Any, constraints: Any, objective: Objective, solver: Any, on_failure: Any) -> Any:
    """What a call depends on besides the numbers in y, where all of that is plain and constant; else None.

    A call with the key of an earlier one needs no reading and no checks of anything but the numbers in y.
    """
    if tracing() or transforming() or forward_mode() or torch._C._is_tracing():
        return None
    numbers = objective.constant_key
    if numbers is None or type(y) is not torch.Tensor or type(constraints) is not Constraints:
        return None
    if type(on_failure) is not str or not (solver is None or type(solver) is Newton):
        return None
    return y.shape, y.dtype, y.device, y.layout, numbers, solver, on_failure


def _keep(calls: dict[Any, Call], key: Any, call: Call) -> None:
    if len(calls) >= _RECENT:
        calls.clear()
    calls[key] = call


def _unrolls(solver: Solver) -> bool:
    return isinstance(solver, Sinkhorn) and solver.gradient == "unrolled"


@outside_graphs
def _unrolled(call: Call, scores: Tensor) -> Answer:
    if tracing(scores):
        raise ConstraintError(
            "Sinkhorn(gradient='unrolled') looks at numbers to know when to stop, and a graph has none. "
            "Fix: gradient='implicit', or linsat.Newton()."
        )
    plan, objective, solver = call.plan, call.objective, call.plan.solver
    assert isinstance(solver, Sinkhorn)
    flat = scores.reshape(call.batch_shape.numel(), scores.shape[-1]).to(torch.float64)
    unusable = check_usable(plan, call.numbers, flat, objective, call.on_failure)
    if unusable is not None:
        flat = flat.masked_fill(unusable[:, None], 0.0)
    problem = plan.problem(call.numbers, flat, objective, plan.decided() if plan.constant else None)
    result = solver.unrolled(problem, None if call.start is None else call.start * problem.scale.detach())
    confirm(problem, result, solver)
    result.codes[problem.presolved.infeasible.expand(result.codes.shape)] = Status.INFEASIBLE.code
    if unusable is not None:
        result.codes[unusable] = Status.NOT_FINITE.code
    answer = Answer(result.x, problem.multipliers(result.mu), result.counts, pack(problem.presolved, len(flat)))
    if not answer.solved:
        settle(plan, call.numbers, flat.detach(), objective, answer, call.on_failure, call.own_instance)
    return answer


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
