"""`project` and `solve` on JAX arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from linsat import numpy_door, projection
from linsat.arrays import Newton
from linsat.call import Call
from linsat.constraints.arrays import reject_lost
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.numbers import slots_given
from linsat.failures import settle
from linsat.jax.arrays import worst_violation
from linsat.jax.call import Array, TracedCall, by_kind, check, read
from linsat.jax.formulas import with_formulas
from linsat.jax.operands import Answers
from linsat.native.batch import Answer as HostAnswer
from linsat.objectives import Objective
from linsat.plan import Numbers
from linsat.request import GivenNumbers, OnFailure, Options, Request, filled, with_numbers
from linsat.solution import bound_duals
from linsat.status import Status

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Solution(NamedTuple):
    """A batch of projections, a pytree; every field has the batch dimensions of the scores.

    Attributes:
        x: the projected scores, like the scores.
        status: how each instance ended, as a position in `linsat.status.Status` (``Status.of``); 0: converged.
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
    solver: Newton | None = None,
    on_failure: OnFailure = "raise",
    start: Any = None,
    **numbers: Unpack[GivenNumbers],
) -> Any:
    """The point of the constraint set that fits the scores best: `linsat.project` in JAX.

    Args:
        y: scores, floating: flat, (..., variables), in the shape of the set's variable, or a dict of arrays by name;
            -inf: x at its lower bound.
        constraints: the rows and the box; a constant of the computation.
        tau: short for ``objective=linsat.Entropy(tau=tau)``, the paper's layer; default 0.1. A number or an array of
            the batch shape.
        objective: what is optimised, as in `linsat.project`; its numbers may be JAX arrays.
        solver: `linsat.Newton(tol=..., max_steps=...)`.
        on_failure: what to do when some instance is not solved: ``"raise"``, ``"warn"``, ``"nan"`` or ``"ignore"``.
            Where JAX traces (jit, grad, vmap) nothing can be raised: ``"raise"`` acts as ``"nan"``, ``"warn"`` as
            ``"ignore"``.
        start: duals to start from, those of an earlier, similar solve (`Solution.duals`), or of some rows by their
            names, ``{"capacity": duals[..., :64]}``, (rows,) or (batch..., rows): the others begin afresh. Duals that
            are worse than none are not used; they never change the answer but for its last digits.
        numbers: in place of the set's own for this call, by their names: right-hand sides ``b``, ``d``, ``f``, (rows,)
            or (batch..., rows), a row whose b is inf, or d -inf, being absent, or by the names of rows,
            ``rhs={"budget": 3.0}``; coefficients ``A``, ``C``, ``E``,
            (batch..., rows, variables) or, where the set has zeros, the values of its non-zeros, row by row,
            (batch..., non-zeros); bounds ``lower`` and ``upper``, a number, (variables,) or (batch..., variables); the
            ``price`` of soft rows, a number or (batch..., rows); ``T`` and ``t``, coefficients (batch..., non-zeros)
            and constants (batch..., bases) of the expressions inside ``abs``, ``maximum`` and norms, T x - t.

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
    request = Request.of(constraints, numbers, objective, tau, Options(solver, on_failure), start)
    answer = _outside_traces(y, request, lambda *own: jax.tree.map(jnp.asarray, numpy_door.project(*own)))
    if answer is not None:
        return answer.x if isinstance(answer, Solution) else answer
    request = by_kind(request)
    if request.has_formulas:
        return with_formulas(y, request).x
    call = read(y, request)
    return call.restored(_settled(call, call.solve()).x)


def solve(
    y: Any,
    constraints: Constraints,
    *,
    tau: Any = None,
    objective: Objective | None = None,
    solver: Newton | None = None,
    on_failure: OnFailure = "warn",
    start: Any = None,
    **numbers: Unpack[GivenNumbers],
) -> Solution:
    """Like `project`, returning a `Solution`: x with status, violation, steps and duals of every instance.

    As the status says which instances were not solved, the default is to warn.
    """
    return solve_request(y, Request.of(constraints, numbers, objective, tau, Options(solver, on_failure), start))


def solve_request(y: Any, request: Request) -> Solution:
    """`solve`, its arguments read."""
    answer = _outside_traces(y, request, _by_core)
    if answer is not None:
        return answer
    request = by_kind(request)
    if request.has_formulas:
        return with_formulas(y, request)
    call = read(y, request)
    answers, batch = _settled(call, call.solve()), call.batch
    codes, steps, _ = (count.reshape(batch) for count in answers.counts.T)
    duals = answers.duals.reshape(*batch, answers.duals.shape[-1])
    violation = _violation(call, answers.x).reshape(batch)
    own = _of_bounds(call, answers)
    return Solution(call.restored(answers.x), codes, violation, steps, duals, call.adjusted, own)


def _of_bounds(call: TracedCall, answers: Answers) -> Array:
    """The multipliers of the bounds; none of an objective of one's own."""
    kind, operands = call.kind, call.operands
    objective, numbers = kind.objective(operands), kind.numbers(operands)
    if objective.native is None:
        return None
    duals = bound_duals(objective, numbers, (operands.row, operands.col), operands.scores, answers.x, answers.duals)
    return duals.reshape(*call.batch, duals.shape[-1])


class _Host(NamedTuple):
    """Scores and a request in numpy's arrays, and the device they come from; None: the default one."""

    scores: Any
    request: Request
    device: Any


def _outside_traces(y: Any, request: Request, by_core: Callable[[Any, Request], Any]) -> Any:
    """What ``by_core`` makes of a call whose numbers are known, on a CPU; else a `Solution` by methods for other sets.

    None where it is for JAX to solve.
    """
    host = _on_host(y, request)
    if host is None:
        return None
    with jax.default_device(host.device):
        if not request.has_formulas:
            with suppress(numpy_door.NotHere):
                return by_core(host.scores, host.request)
        return _by_torch(host.scores, host.request)


def _on_host(y: Any, request: Request) -> _Host | None:
    """Where every number is known and on one device, a CPU, and the core knows the objective; else None.

    Rows, bounds and prices of the call are in the precision of JAX, as they are when it traces.
    """
    objective, solver, device = request.objective, request.options.solver, None
    for leaf in jax.tree.leaves((y, request.given, tuple(objective.parameters().values()), request.start)):
        if isinstance(leaf, jax.core.Tracer):
            return None
        if isinstance(leaf, jax.Array):
            devices = leaf.devices()
            own = next(iter(devices))
            if len(devices) > 1 or own.platform != "cpu" or own is not (device or own):
                return None
            device = own
            # bfloat16 is none of numpy's.
            short = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.kind != "f"
            if short and not request.has_formulas:
                return None
    check(request)
    if objective.native is None or (solver is not None and solver.backend == "arrays"):
        return None
    scores, start = (jax.tree.map(_to_numpy, part) for part in (y, request.start))
    numbers = {name: _number_to_numpy(name, value) for name, value in request.given.items()}
    return _Host(scores, request._replace(given=numbers, objective=objective.changed(_to_numpy), start=start), device)


def _by_core(scores: Any, request: Request) -> Solution:
    call, answer, flat = numpy_door.attempt(scores, request)
    batch = call.batch_shape
    codes, steps, _ = (jnp.asarray(count.reshape(batch), np.int32) for count in answer.counts)
    with np.errstate(invalid="ignore"):
        violation = worst_violation(call.plan, call.numbers, answer.x.astype(np.float64)).reshape(batch)
    places = call.plan.pattern.row, call.plan.pattern.col
    z = bound_duals(call.objective, call.numbers, places, flat, answer.x, answer.duals)
    return Solution(
        jax.tree.map(jnp.asarray, numpy_door.restored(call, answer.x, flat.dtype)),
        codes,
        jnp.asarray(violation),
        steps,
        jnp.asarray(answer.duals.reshape(*batch, answer.duals.shape[-1])),
        jnp.asarray(np.broadcast_to(_adjustment(request), batch)),
        jnp.asarray(z.reshape(*batch, z.shape[-1])),
    )


def _adjustment(request: Request) -> Any:
    """`linsat.Solution.adjusted`, of the set; sides that need no change take the place of its own as they are."""
    constraints, given = request.constraints, request.given
    if given.keys() & {"f", "rhs"} and slots_given(constraints, given) is None:
        return with_numbers(constraints, given)._adjustment()
    return 0.0 if "f" in given else constraints._adjustment()


def _by_torch(scores: Any, request: Request) -> Solution | None:
    """By the methods for many rows; None without torch."""
    try:
        solution = projection.solve_request(scores, filled(request))
    except ImportError:
        return None
    fields = (solution.codes, solution.violation, solution.steps, solution.duals, solution.adjusted)
    codes, violation, steps, duals, adjusted = map(jnp.asarray, fields)
    own = None if solution.of_bounds is None else jnp.asarray(solution.bound_duals)
    x = jax.tree.map(jnp.asarray, solution.x)
    return Solution(x, codes, violation, steps, duals, adjusted, own)


def _number_to_numpy(name: str, value: Any) -> Any:
    """A number of a call; those by the names of rows or variables one by one."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            reject_lost(f"{name}[{key!r}]", one)
        return jax.tree.map(_to_numpy, dict(value))
    reject_lost(name, value)
    return np.asarray(value)


def _to_numpy(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _settled(call: TracedCall, answers: Answers) -> Answers:
    """What was not solved becomes what the caller asked for; where JAX traces, nothing can be raised nor warned of."""
    if not any(isinstance(array, jax.core.Tracer) for array in (*call.operands, *answers)):
        return _settled_now(call, answers)
    if call.request.options.on_failure in ("warn", "ignore"):
        return answers
    failed = answers.counts[:, :1] != Status.CONVERGED.code
    return answers._replace(x=jnp.where(failed, jnp.nan, answers.x))


def _settled_now(call: TracedCall, answers: Answers) -> Answers:
    counts = np.array(answers.counts, np.int64).T
    if not counts[0].any():
        return answers
    kind, request = call.kind, call.request
    numbers = {name: np.asarray(value) for name, value in request.given.items()}
    known = Call(
        plan=kind.plan,
        stated=_in_numpy(call),
        objective=kind.objective(call.operands).changed(np.asarray),
        options=request.options,
        start=None,
        batch_shape=call.batch,
        arrangement=call.arrangement,
        owner=functools.partial(with_numbers, request.constraints, numbers),
        statement=None,
    )
    answer = HostAnswer(None, None, counts, np.asarray(answers.decided), solved=False)
    failed = settle(known, np.asarray(call.operands.scores), answer)
    x = answers.x if failed is None else jnp.where(failed[:, None], jnp.nan, answers.x)
    return answers._replace(x=x, counts=jnp.asarray(counts.T, np.int32))


def _in_numpy(call: TracedCall) -> Numbers:
    numbers = Numbers(*(np.asarray(array, np.float64) for array in call.kind.numbers(call.operands)))
    rest = np.asarray(call.operands.rest, np.float64)
    return numbers._replace(side=numbers.side + rest) if rest.size else numbers


def _violation(call: TracedCall, x: Array) -> Array:
    """The worst violation of any hard row or bound at x (N, l), (N,)."""
    numbers, rest = jax.lax.stop_gradient((call.kind.numbers(call.operands), call.operands.rest))
    numbers = numbers._replace(side=numbers.side + rest) if rest.size else numbers
    return worst_violation(call.kind.plan, numbers, jax.lax.stop_gradient(x).astype(numbers.values.dtype))
