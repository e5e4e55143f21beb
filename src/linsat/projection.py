"""`project` and `solve`: scores and constraints in, constrained x out; the door is that of the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat import formula_call, numpy_door
from linsat._array_namespace import to_numpy
from linsat._optional import is_tensor, require
from linsat._transforms import outside_graphs, tracing
from linsat.constraints.arrays import as_array
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import flatten, holds_tensors
from linsat.errors import ConstraintError
from linsat.objectives import Objective
from linsat.plan import Solver
from linsat.request import GivenNumbers, OnFailure, Options, Request, filled, joint_batch, read_objective, read_start
from linsat.solution import Scores, Solution
from linsat.status import Status

if TYPE_CHECKING:
    from typing_extensions import Unpack


def project(
    y: Scores,
    constraints: Constraints,
    *,
    tau: Any = None,
    objective: Objective | None = None,
    solver: Solver | None = None,
    on_failure: OnFailure = "raise",
    start: Any = None,
    **numbers: Unpack[GivenNumbers],
) -> Scores:
    """The point of the constraint set that fits the scores best, differentiably.

    Solves, for each instance, ``max <y, x> - Omega(x)`` over the rows and the box; the objective says what Omega is.

    Args:
        y: scores, floating torch tensors or numpy arrays; numpy in, numpy out, without torch. Flat, (..., variables);
            in the shape of the set's variable, (..., 4, 5); or one array for each of several variables, ``{"works":
            (..., 4, 5), "off": (..., 5)}``. An array whose last axis is as long as there are variables in all is flat.
            ``-inf`` keeps a variable at its lower bound in that instance, without a gradient.
        constraints: the rows and the box; per-instance numbers broadcast against the leading dimensions of y.
        tau: short for ``objective=linsat.Entropy(tau=tau)``, the paper's layer; default 0.1.
        objective: `Entropy`, `KL`, `Tsallis`, `Euclidean` or `Quadratic`; docs/objectives.md says which to choose.
        solver: `Newton()` (default) or `Sinkhorn()`.
        on_failure: what to do when some instance is not solved, since its x breaks rows: ``"raise"``, ``"warn"``,
            ``"nan"`` (its x is NaN, the others are untouched) or ``"ignore"``.
        start: duals to start from, those of an earlier, similar solve (`Solution.duals`), or of some rows by their
            names, ``{"capacity": duals[..., :64]}``, (rows,) or (batch..., rows): the others begin afresh. Duals that
            are worse than none are not used; they never change the answer but for its last digits.
        numbers: in place of the set's own for this call, by their names: coefficients ``A``, ``C``, ``E`` as
            `Constraints.with_coefficients` takes them, right-hand sides ``b``, ``d``, ``f`` or, by the names of rows,
            ``rhs={"budget": 3.0}``, bounds ``lower`` and ``upper``, the ``price`` of soft rows, ``T`` and ``t`` of
            formulas as `Constraints.with_rhs` takes ``t``. The cheapest way to rows that change with every
            call, most of all where the set has rows of one kind (A, C or E): those of several are joined in each call.

    Returns:
        x like y: same shape or dict (broadcast with per-instance constraints), dtype and device. Gradients reach y,
        right-hand sides, coefficients, bounds, prices, tau and weights; those of an instance that was not solved are
        zero. Cost: see `Newton` and `Sinkhorn`.

    Raises:
        InfeasibleError: rows shared by all instances contradict each other; with ``on_failure="raise"``, also those of
            an instance with per-instance numbers.
        ConstraintError: malformed arguments; with ``on_failure="raise"``, NaN or +inf among the scores.
        ConvergenceError: with ``on_failure="raise"``.
    """
    request = Request.of(constraints, numbers, objective, tau, Options(solver, on_failure), start)
    if request.has_formulas:
        return _with_formulas(y, filled(request)).x
    if holds_tensors(y):
        from linsat.torch.projection import project

        return project(y, request)
    try:
        return numpy_door.project(y, request)
    except numpy_door.NotHere as reason:
        return _by_torch(reason, y, request).x


def solve(
    y: Scores,
    constraints: Constraints,
    *,
    tau: Any = None,
    objective: Objective | None = None,
    solver: Solver | None = None,
    on_failure: OnFailure = "warn",
    start: Any = None,
    **numbers: Unpack[GivenNumbers],
) -> Solution[Scores]:
    """Like `project`, returning a `Solution`: x with status, violation, steps and duals of every instance.

    As the status says which instances were not solved, the default is to warn.
    """
    return solve_request(y, Request.of(constraints, numbers, objective, tau, Options(solver, on_failure), start))


def solve_request(y: Any, request: Request) -> Solution:
    """`solve`, its arguments read."""
    if request.has_formulas:
        return _with_formulas(y, filled(request))
    if holds_tensors(y):
        from linsat.torch.projection import solve

        return solve(y, request)
    try:
        return numpy_door.solve(y, request)
    except numpy_door.NotHere as reason:
        return _by_torch(reason, y, request)


@outside_graphs
def _with_formulas(y: Any, request: Request) -> Solution:
    """A set with maxima in its rows: the linear rows that they come down to, solved as any others."""
    formula_call.reject_graphs(y)
    constraints, objective, start = request.constraints, request.objective, request.start
    layout = constraints._layout
    scores, arrangement = flatten("y", y, layout, constraints.num_variables, read_either)
    flat = to_numpy(scores)
    batch = joint_batch(scores.shape[:-1], constraints.batch_shape)
    objective = objective.read(layout, batch, flat.shape[-1])
    if isinstance(start, Mapping) and start:  # rows not named begin at 0: formulas have others beside them
        begun = read_start(start, batch, constraints, lambda value: np.array(to_numpy(value), np.float64))
        start = np.nan_to_num(to_numpy(begun)).reshape(*batch, -1)
    call = formula_call.prepare(request._replace(objective=objective, start=start), flat)
    chosen = call.chosen
    if chosen is None:
        begin = None if start is None else call.rows.start(start)
        solution = solve_request(scores, request._replace(constraints=call.plain, objective=objective, start=begin))
        solution = replace(solution, duals=call.rows.duals(solution.duals), constraints=constraints)
    else:
        options = request.options._replace(on_failure="ignore")
        plain = request._replace(constraints=call.plain, objective=objective, options=options, start=call.start)
        solution = solve_request(scores, plain)
        codes = to_numpy(solution.codes).reshape(-1)
        codes = np.where(chosen.counts[0] == Status.CONVERGED.code, codes, chosen.counts[0])
        batch, width = tuple(solution.codes.shape), flat.shape[-1]
        failed = call.report(
            codes, np.broadcast_to(flat, (*batch, width)).reshape(-1, width), request.options.on_failure, batch
        )
        solution = call.solution(solution, codes, failed)
    if layout is None or arrangement == "flat":
        return solution
    return replace(solution, x=layout.restored(solution.x, arrangement))


def read_either(name: str, part: Any) -> Any:
    """Scores as they came, tensors or arrays of numpy, checked."""
    if is_tensor(part):
        from linsat.torch.call import read_scores

        return read_scores(name, part)
    return numpy_door.read_scores(name, part)


def _by_torch(reason: Exception, y: Any, request: Request) -> Solution:
    """Scores of numpy where the native core does not take the call: torch operations do."""
    torch = require("torch", extra="torch", purpose=f"This call ({reason})")
    from linsat.torch.call import scores_from_numpy
    from linsat.torch.projection import solve

    with torch.no_grad():
        return solve(scores_from_numpy(y), request).in_numpy()


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
    if isinstance(constraints, Constraints):
        raise ConstraintError(
            "constraints is one Constraints; expected a list, one for each of the scores. "
            "Fix: [constraints] * len(scores), or linsat.project of the stacked scores."
        )
    if len(scores) != len(constraints):
        raise ConstraintError(
            f"scores has {len(scores)} entries and constraints {len(constraints)}. Fix: one constraint set per scores."
        )
    options: Any = {"objective": read_objective(objective, tau), "solver": solver, "on_failure": on_failure}
    groups: dict[Any, list[int]] = {}
    for i, (y, cons) in enumerate(zip(scores, constraints, strict=True)):
        # A dict of scores is solved by itself: only arrays are stacked.
        shape = id(y) if isinstance(y, Mapping) else tuple(np.shape(y))
        kind = (type(y).__name__, str(getattr(y, "dtype", None)), shape)
        groups.setdefault((kind, _rows_key(cons)), []).append(i)
    results: list[Any] = [None] * len(scores)
    for members in groups.values():
        parts: list[Any] = [scores[i] for i in members]
        sets = [constraints[i] for i in members]
        if len(parts) == 1:
            together: Any = [project(parts[0], sets[0], **options)]
        else:
            together = project(_stacked(parts), _joined(sets, tuple(np.shape(parts[0]))), **options)
        for i, x in zip(members, together, strict=True):
            results[i] = x
    return results


def _stacked(parts: Sequence[Any]) -> Any:
    if not is_tensor(parts[0]):
        return np.stack(parts)
    import torch

    return torch.stack(list(parts))


def _rows_key(constraints: Any) -> Any:
    """Equal for sets with the same pattern, prices and box; a set that cannot be joined has a key that no other has."""
    if tracing() or not isinstance(constraints, Constraints) or not constraints._fixed or constraints.batch_shape:
        return id(constraints)
    if constraints._terms is not None:
        return id(constraints)
    numbers = constraints.statement()
    price = np.full(len(constraints), np.inf) if numbers.price is None else numbers.price
    parts = (numbers.row, numbers.col, numbers.senses, numbers.lower, numbers.upper, price)
    return (
        len(constraints),
        constraints.num_variables,
        constraints._layout,
        tuple((name, block.sparse) for name, block in constraints._matrices.items()),
        *(part.tobytes() for part in parts),
    )


def _joined(sets: Sequence[Constraints], shape: tuple[int, ...]) -> Constraints:
    """One set for scores (sets, *shape), from sets of one pattern: with the numbers of each."""

    def stacked(numbers: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Those numbers of all sets, (sets, 1..., size), by name; empty where all sets have the same."""
        if all(all(map(np.array_equal, numbers[0].values(), other.values())) for other in numbers[1:]):
            return {}
        together = {name: np.stack([one[name] for one in numbers]) for name in numbers[0]}
        return {name: array.reshape(len(sets), *ones, *array.shape[1:]) for name, array in together.items()}

    joined = sets[0]
    if all(cons is joined for cons in sets):
        return joined
    scores, width = np.broadcast_to(0.0, shape), joined.num_variables
    ones = [1] * (flatten("scores", scores, joined._layout, width, lambda _, whole: whole)[0].ndim - 1)
    blocks = [{name: as_array(matrix.stated()) for name, matrix in cons._matrices.items()} for cons in sets]
    sides = [{name: as_array(side) for name, side in cons._sides().items()} for cons in sets]
    own = {name: joined._matrices[name].with_stated(values) for name, values in stacked(blocks).items()}
    return joined._with_numbers(**own, **stacked(sides))
