"""`project` and `solve` on JAX arrays."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError, ConvergenceError, LinSATWarning
from linsat.jax.arguments import Array, Call, Given, check_options, is_traced, read, read_objective
from linsat.jax.native import Answer, answer, worst_violation
from linsat.jax.numbers import repaired
from linsat.jax.plan import Numbers, Plan, reject_infeasible
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
        steps: Newton steps taken.
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
    solver: Newton | None = None,
    on_failure: OnFailure = "raise",
    start: Array = None,
    backend: Literal["auto", "kernel"] = "auto",
) -> Any:
    """The point of the constraint set that fits the scores best: `linsat.project` in JAX.

    Args:
        y: scores, floating: flat, (..., variables), in the shape of the set's variable, or a dict of arrays by name;
            -inf: x at its lower bound.
        constraints: the rows and the box; a constant of the computation.
        tau: short for ``objective=linsat.Entropy(tau=tau)``, the paper's layer; default 0.1. A number or an array of
            the batch shape.
        objective: `linsat.Entropy` or `linsat.Euclidean`; tau and weights may be JAX arrays.
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
        backend: ``"auto"``: in JAX, on any device. ``"kernel"``: by a callback to the compiled kernel of the torch
            layer, on the CPU; reverse mode only, once, for scores, tau and b, d, f.

    Returns:
        x like y. Every number may be traced, mapped and differentiated, forwards and backwards, any number of times.
        With ``jax_enable_x64`` everything is solved in float64; without, in float32, the rows then hold to 1e-6
        relative to their size. Cost per step and instance: O(rows^2 variables) at most to assemble the Hessian,
        O(rows^3 / 3) to factor it; the slowest instance of a batch decides how many steps are taken.

    Raises:
        InfeasibleError: the rows of the set contradict each other; outside of traces, also those of an instance.
        ConstraintError: malformed arguments; NaN scores where JAX does not trace, unless ``on_failure`` is ``"nan"`` or
            ``"ignore"``.
        ConvergenceError: with ``on_failure="raise"``, where JAX does not trace.
    """
    check_options(constraints, solver, on_failure)
    given = Given(b, d, f, A, C, E, lower, upper, price)
    if backend not in ("auto", "kernel"):
        raise ConstraintError(f"backend is {backend!r}; expected 'auto' or 'kernel'.")
    objective = read_objective(objective, tau)
    call = read(y, constraints, objective, solver, start, given, on_failure)
    if backend == "kernel":
        return _by_kernel(call, constraints, objective, solver, on_failure)
    found = answer(call.plan, call.numbers)
    return call.restore(_reported(call, constraints, found, on_failure))


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
    check_options(constraints, solver, on_failure)
    given = Given(b, d, f, A, C, E, lower, upper, price)
    call = read(y, constraints, read_objective(objective, tau), solver, start, given, on_failure)
    found = answer(call.plan, call.numbers)
    x = _reported(call, constraints, found, on_failure)
    return Solution(
        x=call.restore(x),
        status=found.codes.reshape(call.batch),
        violation=_violation(call.plan, call.numbers, x),
        steps=found.steps.reshape(call.batch),
        duals=found.mu.reshape(*call.batch, found.mu.shape[-1]),
        adjusted=call.adjusted,
    )


def _reported(call: Call, constraints: Constraints, found: Answer, on_failure: str) -> Array:
    """x (batch..., l) in the dtype of the scores; raises, warns or puts NaN where an instance was not solved."""
    failed = found.codes != Status.CONVERGED.code
    x = found.x
    if not is_traced(found.codes, found.x) and on_failure in ("raise", "warn") and bool(failed.any()):
        _report(call, constraints, np.asarray(found.codes), on_failure)
    elif on_failure in ("raise", "nan"):
        x = jnp.where(failed[:, None], jnp.nan, x)
    return x.reshape(*call.batch, x.shape[-1]).astype(call.dtype)


def _report(call: Call, constraints: Constraints, codes: np.ndarray, on_failure: str) -> None:
    failed = np.flatnonzero(codes)
    first = int(failed[0])
    status = Status.of(int(codes[first]))
    text = (
        f"{len(failed)} of {len(codes)} instances were not solved; the first is instance {first}: {status}. "
        f"{status.advice}"
    )
    if on_failure == "warn":
        warnings.warn(text, LinSATWarning, stacklevel=4)
        return
    reject_infeasible(*_one_instance(call, constraints, first))
    raise ConvergenceError(f'{text} To continue without such instances: on_failure="nan".')


def _one_instance(call: Call, constraints: Constraints, instance: int) -> tuple[Constraints, int | None]:
    """The set with the numbers of a call, and which of its instances an instance of the batch is."""
    own = {name: np.asarray(array, np.float64) for name, array in call.own.items() if name != "price"}
    stated = constraints
    for names, change in ((("b", "d", "f"), "with_rhs"), (("A", "C", "E"), "with_coefficients")):
        some = {name: own[name] for name in names if name in own}
        stated = getattr(stated, change)(**some) if some else stated
    some = {name: own[name] for name in ("lower", "upper") if name in own}
    stated = stated.with_bounds(**some) if some else stated
    if "held" in call.numbers:  # at their lower bounds, by scores of -inf
        numbers, held = stated.statement(), np.asarray(call.numbers["held"])
        upper = np.where(held.reshape(*call.batch, -1), numbers.lower, numbers.upper)
        stated = stated.with_bounds(lower=numbers.lower, upper=upper)
    shape = tuple(stated.batch_shape)
    if not shape:
        return stated, None
    place = np.unravel_index(instance, call.batch)[-len(shape) :]
    return stated, int(
        np.ravel_multi_index([0 if n == 1 else int(i) for i, n in zip(place, shape, strict=True)], shape)
    )


@functools.partial(jax.jit, static_argnums=0)
def _violation(plan: Plan, numbers: Numbers, x: Array) -> Array:
    """The worst violation of any hard row or bound at x (batch..., l), of the batch shape."""
    prepared = plan.prepare(repaired(plan, numbers)[0])
    problem = plan.problem(prepared)
    point = jax.lax.stop_gradient(x.reshape(problem.scores.shape).astype(problem.scores.dtype))
    worst = worst_violation(plan, problem, point, plan.given_sides(prepared))
    worst = jnp.where(jnp.isnan(point).any(-1), jnp.nan, worst)
    return jax.lax.stop_gradient(worst).reshape(x.shape[:-1])


def _by_kernel(
    call: Call, constraints: Constraints, objective: Objective, solver: Newton | None, on_failure: str
) -> Array:
    from linsat.jax.callback import project_by_kernel

    extra = [name for name in call.own if name not in ("b", "d", "f")] + ["start"] * ("start" in call.numbers)
    if extra:
        raise ConstraintError(
            f'backend="kernel" takes no {extra[0]}=. Fix: leave backend out, or state the set with those numbers.'
        )
    return project_by_kernel(call, constraints, objective, solver, on_failure)
