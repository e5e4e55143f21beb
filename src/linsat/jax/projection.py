"""`project` and `solve` on JAX arrays."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from linsat import numpy_door, projection
from linsat.call import read_objective
from linsat.constraints.constraint_set import Constraints
from linsat.jax.arrays import worst_violation
from linsat.jax.call import Array, Call, check, read
from linsat.jax.core import Answers
from linsat.objectives import Objective
from linsat.solvers import Newton
from linsat.solvers.bound_duals import bound_duals
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
        bound_duals: (batch..., variables) multipliers of the bounds; see `linsat.Solution.bound_duals`.
    """

    x: Any
    status: Array
    violation: Array
    steps: Array
    duals: Array
    adjusted: Array
    bound_duals: Array = None

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
    given = {name: value for name, value in given.items() if value is not None}
    arguments = constraints, given, read_objective(objective, tau), solver, on_failure, start
    if _on_host(y, *arguments):
        return _by_host(y, *arguments).x
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
    solver: Newton | None = None,
    on_failure: OnFailure = "warn",
    start: Array = None,
) -> Solution:
    """Like `project`, returning a `Solution`: x with status, violation, steps and duals of every instance.

    As the status says which instances were not solved, the default is to warn.
    """
    given = {"b": b, "d": d, "f": f, "A": A, "C": C, "E": E, "lower": lower, "upper": upper, "price": price}
    given = {name: value for name, value in given.items() if value is not None}
    arguments = constraints, given, read_objective(objective, tau), solver, on_failure, start
    if _on_host(y, *arguments):
        return _by_host(y, *arguments)
    call = read(y, *arguments)
    answers = call.solve()
    x, batch = _reported(answers, on_failure), call.batch
    codes, steps, _ = (count.reshape(batch) for count in answers.counts.T)
    duals = answers.duals.reshape(*batch, answers.duals.shape[-1])
    violation = _violation(call, x).reshape(batch)
    return Solution(call.restored(x), codes, violation, steps, duals, call.adjusted, _of_bounds(call, answers))


def _of_bounds(call: Call, answers: Answers) -> Array:
    """The multipliers of the bounds; none of an objective of one's own."""
    kind, operands = call.kind, call.operands
    objective, numbers = kind.objective(operands), kind.numbers(operands)
    if objective.native is None:
        return None
    found = bound_duals(objective, numbers, (operands.row, operands.col), operands.scores, answers.x, answers.duals)
    return found.reshape(*call.batch, found.shape[-1])


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
        call, answer, flat = numpy_door.attempt(scores, constraints, numbers, objective, solver, on_failure, start)
    except numpy_door.NotHere:  # too large for the core, or an objective of one's own
        solution = projection.solve(
            scores, constraints, objective=objective, solver=solver, on_failure=on_failure, start=start, **numbers
        )
        own = solution.bound_duals if objective.native is not None else np.zeros(0)
        fields = (solution.codes, solution.violation, solution.steps, solution.duals, solution.adjusted, own)
        return Solution(jax.tree.map(jnp.asarray, solution.x), *map(jnp.asarray, fields))
    batch = call.batch_shape
    codes, steps, _ = (jnp.asarray(count.reshape(batch), np.int32) for count in answer.counts)
    x = numpy_door.restored(call, answer.x, flat.dtype)
    with np.errstate(invalid="ignore"):
        violation = worst_violation(call.plan, call.numbers, answer.x.astype(np.float64)).reshape(batch)
    places = call.plan.pattern.row, call.plan.pattern.col
    z = bound_duals(call.objective, call.numbers, places, flat, answer.x, answer.duals)
    return Solution(
        jax.tree.map(jnp.asarray, x),
        codes,
        jnp.asarray(violation),
        steps,
        jnp.asarray(answer.duals.reshape(*batch, answer.duals.shape[-1])),
        jnp.asarray(np.broadcast_to(constraints.adjustment() if "f" not in given else 0.0, batch)),
        jnp.asarray(z.reshape(*batch, z.shape[-1])),
    )


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
