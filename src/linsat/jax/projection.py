"""`project` and `solve` on JAX arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from linsat import formulas, numpy_door, projection
from linsat.call import DEFAULT, read_objective
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import flatten
from linsat.constraints.plain_rows import PlainRows, Selection, Stated, stated_numbers
from linsat.jax.arrays import worst_violation
from linsat.jax.call import Array, Call, check, read, slots_of_call
from linsat.jax.core import Answers
from linsat.objectives import Objective
from linsat.solvers import Newton
from linsat.status import Status

OnFailure = Literal["raise", "warn", "nan", "ignore"]


class Solution(NamedTuple):
    """A batch of projections, a pytree; every field has the batch dimensions of the scores.

    Attributes:
        x: the projected scores, like the scores.
        status: how each instance ended, as a position in `linsat.Status`: ``Status.of(int(code))``; 0 is converged.
        violation: the worst violation of any hard row or bound at x, relative to its size; see
            `linsat.Constraints.violation`.
        steps: steps taken.
        duals: (batch..., rows) multipliers of the rows as written; differentiable, and a warm start for a later solve.
        adjusted: the largest relative change of a right-hand side that was given in less than float64, to free
            equalities of a contradiction that is rounding; 0 where sides are taken as given.
    """

    x: Any
    status: Array
    violation: Array
    steps: Array
    duals: Array
    adjusted: Array

    @property
    def converged(self) -> Array:
        return self.status == Status.CONVERGED.code


def project(
    y: Any,
    constraints: Constraints,
    *,
    tau: Any = None,
    objective: Objective | None = None,
    b: Array = None,
    d: Array = None,
    f: Array = None,
    A: Array = None,
    C: Array = None,
    E: Array = None,
    lower: Array = None,
    upper: Array = None,
    price: Array = None,
    T: Array = None,
    t: Array = None,
    solver: Newton | None = None,
    on_failure: OnFailure = "raise",
    start: Array = None,
) -> Any:
    """The point of the constraint set that fits the scores best: `linsat.project` in JAX.

    Args:
        y: scores, floating: flat, (..., variables), in the shape of the set's variable, or a dict of arrays by name;
            -inf: x at its lower bound.
        constraints: the rows and the box; a constant of the computation.
        tau: short for ``objective=linsat.Entropy(tau=tau)``, the paper's layer; default 0.1. A number or an array of
            the batch shape.
        objective: what is optimised, as in `linsat.project`; its numbers may be JAX arrays.
        b, d, f: right-hand sides in place of the set's own, (rows,) or (batch..., rows); a row whose b is inf, or d
            -inf, is absent.
        A, C, E: coefficients in place of the set's own, (batch..., rows, variables); where the set has zeros, the
            values of its non-zeros instead, row by row, (batch..., non-zeros).
        lower, upper: bounds in place of the set's own, a number, (variables,) or (batch..., variables).
        price: of breaking the rows that are soft in the set, a number or (batch..., rows).
        T, t: coefficients (batch..., non-zeros) and constants (batch..., bases) of the expressions inside ``abs``,
            ``maximum`` and norms, T x - t, in the order of `linsat.Constraints.terms`.
        solver: `linsat.Newton(tol=..., max_steps=...)`.
        on_failure: what to do when some instance is not solved: ``"raise"``, ``"warn"``, ``"nan"`` or ``"ignore"``.
            Where JAX traces (jit, grad, vmap) nothing can be raised: ``"raise"`` acts as ``"nan"``, ``"warn"`` as
            ``"ignore"``.
        start: duals of an earlier, similar solve (`Solution.duals`) to start from.

    Returns:
        x like y. Every number may be traced, mapped and differentiated, forwards and backwards, any number of times.
        On the CPU the native core solves and gives the gradient, in float64 whatever the precision of JAX; elsewhere,
        and for what is differentiated forwards or again, `lax` operations do, in the precision of JAX: without
        ``jax_enable_x64`` rows then hold to 1e-6 relative to their size. Cost: see `linsat.Newton`.

    Raises:
        InfeasibleError: the rows of the set contradict each other; outside of traces, also those of an instance.
        ConstraintError: malformed arguments; outside of traces, numbers that no solver could use.
        ConvergenceError: with ``on_failure="raise"``, outside of traces.
    """
    given = {"b": b, "d": d, "f": f, "A": A, "C": C, "E": E, "lower": lower, "upper": upper, "price": price}
    given |= {"T": T, "t": t}
    given = {name: value for name, value in given.items() if value is not None}
    arguments = constraints, given, read_objective(objective, tau), solver, on_failure, start
    if _on_host(y, *arguments):
        return _by_host(y, *arguments).x
    if formulas.takes(constraints):
        return _with_formulas(y, *arguments).x
    call = read(y, *arguments)
    return call.restored(_reported(call.solve(), on_failure))


def solve(
    y: Any,
    constraints: Constraints,
    *,
    tau: Any = None,
    objective: Objective | None = None,
    b: Array = None,
    d: Array = None,
    f: Array = None,
    A: Array = None,
    C: Array = None,
    E: Array = None,
    lower: Array = None,
    upper: Array = None,
    price: Array = None,
    T: Array = None,
    t: Array = None,
    solver: Newton | None = None,
    on_failure: OnFailure = "warn",
    start: Array = None,
) -> Solution:
    """Like `project`, returning a `Solution`: x with status, violation, steps and duals of every instance.

    As the status says which instances were not solved, the default is to warn.
    """
    given = {"b": b, "d": d, "f": f, "A": A, "C": C, "E": E, "lower": lower, "upper": upper, "price": price}
    given |= {"T": T, "t": t}
    given = {name: value for name, value in given.items() if value is not None}
    arguments = constraints, given, read_objective(objective, tau), solver, on_failure, start
    if _on_host(y, *arguments):
        return _by_host(y, *arguments)
    if formulas.takes(constraints):
        return _with_formulas(y, *arguments)
    call = read(y, *arguments)
    answers = call.solve()
    x, batch = _reported(answers, on_failure), call.batch
    codes, steps, _ = (count.reshape(batch) for count in answers.counts.T)
    duals = answers.duals.reshape(*batch, answers.duals.shape[-1])
    violation = _violation(call, x).reshape(batch)
    return Solution(call.restored(x), codes, violation, steps, duals, call.adjusted)


def _on_host(
    y: Any, constraints: Any, given: Any, objective: Objective, solver: Any, on_failure: Any, start: Any
) -> bool:
    """Whether every number is known and on the CPU: then the core can be called at once, and errors can be raised."""
    for leaf in jax.tree.leaves((y, given, list(objective.parameters().values()), start)):
        if isinstance(leaf, jax.core.Tracer):
            return False
        if isinstance(leaf, jax.Array) and any(device.platform != "cpu" for device in leaf.devices()):
            return False
    return True


def _by_host(
    y: Any, constraints: Constraints, given: Any, objective: Objective, solver: Any, on_failure: Any, start: Any
) -> Solution:
    """As numpy's arrays; rows, bounds and prices of the call in the precision of JAX, as they are when it traces."""
    check(constraints, solver, on_failure)
    scores, start = jax.tree.map(_to_numpy, (y, start))
    numbers = {name: np.asarray(value) for name, value in given.items()}
    objective = objective.changed(_to_numpy)
    try:
        if formulas.takes(constraints):
            raise numpy_door.NotHere("a set with formulas")
        call, answer, flat = numpy_door.attempt(scores, constraints, numbers, objective, solver, on_failure, start)
    except numpy_door.NotHere:  # too large for the core, an objective of one's own, or formulas
        solution = projection.solve(
            scores, constraints, objective=objective, solver=solver, on_failure=on_failure, start=start, **numbers
        )
        fields = (solution.codes, solution.violation, solution.steps, solution.duals, solution.adjusted)
        return Solution(jax.tree.map(jnp.asarray, solution.x), *map(jnp.asarray, fields))
    batch = call.batch_shape
    codes, steps, _ = (jnp.asarray(count.reshape(batch), np.int32) for count in answer.counts)
    x = numpy_door.restored(call, answer.x, flat.dtype)
    with np.errstate(invalid="ignore"):
        violation = worst_violation(call.plan, call.numbers, answer.x.astype(np.float64)).reshape(batch)
    return Solution(
        jax.tree.map(jnp.asarray, x),
        codes,
        jnp.asarray(violation),
        steps,
        jnp.asarray(answer.duals.reshape(*batch, answer.duals.shape[-1])),
        jnp.asarray(np.broadcast_to(constraints.adjustment() if "f" not in given else 0.0, batch)),
    )


def _with_formulas(
    y: Any, constraints: Constraints, given: Any, objective: Objective, solver: Any, on_failure: Any, start: Any
) -> Solution:
    """A set with maxima in its rows, traced: which pieces count is asked of the host, in a callback without gradients;
    the linear rows that they come down to are solved as any others."""
    check(constraints, solver, on_failure)
    rows, terms = PlainRows.of(constraints, objective.entropic_slack), constraints.terms
    width, layout = constraints.num_variables, constraints.layout
    assert terms is not None
    assert width is not None
    scores, arrangement = flatten("y", y, layout, width, lambda _, part: jnp.asarray(part))
    objective = objective if layout is None else objective.flat(layout)
    stated = _stated(constraints, given, width)
    batch = np.broadcast_shapes(scores.shape[:-1], constraints.batch_shape, *(n.shape[:-1] for n in stated))
    codes, selection = None, None
    if len(rows.joint):
        codes, selection = _asked(rows, constraints, stated, scores, objective, solver, batch)
    plain = rows.numbers(terms, stated, selection)
    numbers = rows.given(plain)
    if constraints._soft_mask().any():
        numbers["price"] = plain.price
    solution = solve(
        scores,
        rows.template(constraints),
        objective=objective,
        solver=solver,
        on_failure="ignore" if codes is not None else on_failure,
        **numbers,
    )
    x, status, violation = solution.x, solution.status, solution.violation
    if codes is not None and selection is not None:
        chosen = codes == Status.CONVERGED.code
        status, violation = jnp.where(chosen, status, codes), jnp.where(chosen, violation, jnp.nan)
        x = rows.put(terms, stated, selection, x)
        if on_failure not in ("warn", "ignore"):
            x = jnp.where((status != Status.CONVERGED.code)[..., None], jnp.nan, x)
    if layout is not None and arrangement != "flat":
        x = layout.restored(x, arrangement)
    return solution._replace(x=x, status=status, duals=rows.duals(solution.duals), violation=violation)


def _stated(constraints: Constraints, given: Any, width: int) -> Stated:
    """The numbers of a set with those of the call in their places, (batch..., .) in the precision of JAX."""
    own = stated_numbers(constraints)
    numbers = {name: jnp.asarray(value, jnp.zeros(0).dtype) for name, value in given.items()}
    inner = {name: numbers.pop(name) for name in ("T", "t") if name in numbers}
    slots = slots_of_call(constraints, numbers, width)
    parts = own._replace(**slots, **inner)
    return Stated(*(jnp.asarray(part, jnp.zeros(0).dtype) for part in parts))


def _asked(
    rows: PlainRows,
    constraints: Constraints,
    stated: Stated,
    scores: Array,
    objective: Objective,
    solver: Any,
    batch: tuple[int, ...],
) -> tuple[Array, Selection]:
    """Status, and what the right choice selects, by a callback to the host."""
    terms, width = constraints.terms, scores.shape[-1]
    assert terms is not None
    count = int(np.prod(batch))
    parameters = objective.spread(batch, width).parameters()
    names = tuple(parameters)

    def ask(scores: Any, numbers: Any, own: Any) -> tuple[np.ndarray, ...]:
        whole = np.asarray(scores, np.float64)
        lead = whole.shape[:-1]
        flat = [np.asarray(part, np.float64).reshape(-1, part.shape[-1]) for part in (whole, *numbers, *own)]
        own_numbers = dict(zip(names, flat[1 + len(numbers) :], strict=True))
        spread = replace(objective, **own_numbers) if names else objective  # type: ignore[type-var]
        numbers = Stated(*flat[1 : 1 + len(stated)])
        chosen = formulas.choose(constraints, numbers, flat[0], spread, solver or DEFAULT, None)
        selection = rows.selection(terms, chosen.choice, width, lead)
        return chosen.counts[0].reshape(lead).astype(np.int8), *(part.astype(np.int8) for part in selection)

    # Whole numbers: the thread of a callback does not know whether JAX has 64 bits here.
    sizes = ((), (rows.num_masks,), (len(rows.bound),), (width,))
    shapes = tuple(jax.ShapeDtypeStruct((*batch, *size), np.int8) for size in sizes)
    full = [jnp.broadcast_to(part, (*batch, part.shape[-1])) for part in stated]
    own = [jnp.broadcast_to(n, (count, n.shape[-1])).reshape(*batch, n.shape[-1]) for n in parameters.values()]
    operands = jax.lax.stop_gradient((jnp.broadcast_to(scores, (*batch, width)), full, own))
    codes, *selected = jax.pure_callback(ask, shapes, *operands, vmap_method="broadcast_all")
    return codes.astype(np.int32), Selection(*selected)


def _to_numpy(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _reported(answers: Answers, on_failure: str) -> Array:
    """x (N, l), NaN where an instance was not solved and the caller did not ask to see it."""
    if on_failure in ("warn", "ignore"):
        return answers.x
    failed = answers.counts[:, :1] != Status.CONVERGED.code
    return jnp.where(failed, jnp.nan, answers.x)


def _violation(call: Call, x: Array) -> Array:
    """The worst violation of any hard row or bound at x (N, l), (N,)."""
    numbers = jax.lax.stop_gradient(call.kind.numbers(call.operands))
    return worst_violation(call.kind.plan, numbers, jax.lax.stop_gradient(x).astype(numbers.values.dtype))
