"""The solver in JAX: the step of `linsat.solvers.step` in ``lax.while_loop``, and its implicit derivatives.

At the solution r(mu, theta) = 0 on the rows F whose dual lies strictly inside its bounds; the other duals stay at their
bound. So, for tangents of the numbers theta,

    H_FF dmu_F = -(dr/dtheta . theta_dot)_F,      x_dot = dx/dtheta . theta_dot + D A' dmu / rho     at mu held.

This is linear in the tangents and made of differentiable operations: JAX transposes it for reverse mode, maps it, and
differentiates it again.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from linsat._array_namespace import namespace
from linsat._senses import GREATER, LESS
from linsat.compile.problem import Problem
from linsat.jax.numbers import repaired
from linsat.jax.plan import Numbers, Plan
from linsat.jax.single import refine, residuals
from linsat.solvers import Newton
from linsat.solvers import newton as constants
from linsat.solvers.newton import precision_of
from linsat.solvers.result import farkas_gap
from linsat.solvers.step import Setting, State, first_state, optimal, polish, step
from linsat.status import Status

Array = Any

_RUNS = -1  # in place of the code of a status
jax.tree_util.register_dataclass(State, [f.name for f in fields(State)], [])


class Answer(NamedTuple):
    """Duals of the scaled rows, x, status codes and steps of N instances."""

    mu: Array
    x: Array
    codes: Array
    steps: Array


@functools.partial(jax.jit, static_argnums=0)
def answer(plan: Plan, numbers: Numbers) -> Answer:
    """Solve, differentiably, with duals of the rows as written; compiled once for each plan and shapes."""
    usable, codes = repaired(plan, numbers)
    prepared = plan.prepare(usable)
    rests = codes != Status.CONVERGED.code  # nothing of such an instance is worth a step
    decided = prepared.get("infeasible", False if plan.presolved is None else plan.presolved.infeasible)
    found = _answer(plan, prepared | {"infeasible": decided | rests})
    return found._replace(
        mu=found.mu / plan.problem(prepared).scale,
        x=jnp.where(rests[:, None], jnp.nan, found.x),
        codes=jnp.where(rests, codes, found.codes),
    )


def _confirmed(plan: Plan, problem: Problem, found: Answer, sides: Array) -> Answer:
    """Without converged instances whose rows, as given, or bounds do not hold.

    The solver sees a scaled system without what presolve has fixed, and sides that the paper's slack may have rounded.
    """
    rounding = plan.pattern.padded[0].shape[1] * float(jnp.finfo(found.x.dtype).eps)  # of the longest row
    lost = ~(worst_violation(plan, problem, found.x, sides) <= plan.solver.tol + rounding)
    lost = lost & (found.codes == Status.CONVERGED.code)
    return found._replace(codes=jnp.where(lost, Status.STALLED.code, found.codes))


def worst_violation(plan: Plan, problem: Problem, x: Array, sides: Array) -> Array:
    """The largest violation of a hard row or a bound, relative to max(1, the size of its terms), (N,)."""
    if precision_of(x).residual:
        residual, size = residuals(problem, plan, x, sides)
    else:
        residual, size = problem.rows.matvec(x) - sides, problem.row_sizes(x)
    gaps = jnp.where(plan.senses == LESS, residual, jnp.where(plan.senses == GREATER, -residual, abs(residual)))
    rows = jnp.where(plan.soft, 0.0, gaps) / jnp.maximum(size, 1.0)
    bounds = jnp.maximum(problem.lower - x, x - problem.upper) / jnp.maximum(abs(x), 1.0)
    return jnp.maximum(rows.max(-1, initial=0.0), bounds.max(-1, initial=0.0))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _answer(plan: Plan, numbers: Numbers) -> Answer:
    return _forward(plan)(numbers)


def _forward(plan: Plan) -> Any:
    """Numbers -> answer, in one batch also under vmap: a mapped axis joins the batch."""

    @custom_vmap
    def forward(numbers: Numbers) -> Answer:
        problem = plan.problem(numbers)
        found = newton(problem, plan.solver, numbers.get("start"))
        sides = plan.given_sides(numbers)
        if precision_of(problem.scores).residual:
            return _refined(problem, plan, found, sides)
        return _confirmed(plan, problem, found, sides)

    @forward.def_vmap
    def mapped(axis_size: int, batched: Any, numbers: Numbers) -> tuple[Answer, Answer]:
        count = numbers["y"].shape[1 if batched[0]["y"] else 0]

        def join(name: str, array: Array, is_mapped: bool) -> Array:
            """(B, n, ...) or (n, ...) as (B N, ...); (1, ...) where all share it, but for y, whose length is N."""
            if not is_mapped and array.shape[0] == 1 and name != "y":
                return array
            whole = array if is_mapped else array[None]
            whole = jnp.broadcast_to(whole, (axis_size, count, *whole.shape[2:]))
            return whole.reshape(axis_size * count, *whole.shape[2:])

        joined = {name: join(name, array, batched[0][name]) for name, array in numbers.items()}
        found = forward(joined)
        apart = Answer(*(part.reshape(axis_size, count, *part.shape[1:]) for part in found))
        return apart, Answer(True, True, True, True)

    return forward


def newton(problem: Problem, options: Newton, start: Array | None) -> Answer:
    """Steps until every instance has a status; who is done waits, so that no answer depends on the others."""
    setting = Setting.of(problem)
    state = first_state(setting, start)
    infeasible = jnp.broadcast_to(problem.presolved.infeasible, state.stalled.shape)
    codes = jnp.where(infeasible, Status.INFEASIBLE.code, _RUNS)
    # Who is done at the start only waits for the first look.
    waits = infeasible | setting.done(state, options.tol)
    loop = _Loop(state, codes, waits, jnp.zeros((), int))
    look = functools.partial(_look, setting, options)

    def advance(now: _Loop) -> _Loop:
        state = step(setting, now.state, waits=now.waits)
        waits = now.waits | setting.done(state, options.tol) | state.stalled | _at_limit(state, options)
        now = _Loop(state, now.codes, waits, now.passes + 1)
        due = waits.all() | (now.passes % constants.CERTIFICATE_EVERY == 0)
        return jax.lax.cond(due, look, lambda same: same, now)

    loop = jax.lax.while_loop(lambda now: (now.codes == _RUNS).any(), advance, loop)
    return Answer(loop.state.mu, loop.state.at.x, loop.codes, loop.state.steps)


class _Loop(NamedTuple):
    state: State
    codes: Array
    waits: Array
    passes: Array


def _at_limit(state: State, options: Newton) -> Array:
    return (state.steps >= options.max_steps) & ~state.searching


def _look(setting: Setting, options: Newton, now: _Loop) -> _Loop:
    """Polish who is done, and let everyone whose end is known leave."""
    runs = now.codes == _RUNS
    done = runs & setting.done(now.state, options.tol)
    state = polish(setting, now.state, done)
    found = [
        (done & optimal(setting, state, options.tol), Status.CONVERGED),
        (state.stalled, Status.STALLED),
        (farkas_gap(setting.problem, state.mu) > 0, Status.INFEASIBLE),
        (_at_limit(state, options), Status.STEP_LIMIT),
    ]
    codes = now.codes
    for which, status in reversed(found):  # the first that holds counts
        codes = jnp.where(runs & which, status.code, codes)
    return _Loop(state, codes, codes != _RUNS, now.passes)


def _refined(problem: Problem, plan: Plan, found: Answer, sides: Array) -> Answer:
    """In single precision: x with its rows held to rounding, and the status that follows from that."""
    x, holds = refine(problem, plan, found, sides)
    lost = (found.codes == Status.CONVERGED.code) & ~holds
    return found._replace(x=x, codes=jnp.where(lost, Status.STALLED.code, found.codes))


@functools.partial(_answer.defjvp, symbolic_zeros=True)
def _tangents(plan: Plan, primals: tuple[Numbers], tangents: tuple[Numbers]) -> tuple[Answer, Answer]:
    numbers, dots = primals[0], tangents[0]
    found = _answer(plan, numbers)
    # An instance that was not solved has no derivative; at duals of zero nothing about it is infinite.
    solved = (found.codes == Status.CONVERGED.code)[:, None]
    mu = jnp.where(solved, found.mu, 0.0)
    moving_numbers = {name: dot for name, dot in dots.items() if _moves(dot)}
    given = {name: numbers[name] for name in moving_numbers}

    def explicit(some: Numbers) -> tuple[Array, Array, Array]:
        """x, residual and duals as functions of everything but the duals strictly inside their bounds."""
        here = plan.problem({**numbers, **some})
        followed = here.follow_prices(mu)
        x = here.point(here.adjusted(followed))
        return x, here.residual(x, here.slack_shares(followed)), followed

    _, (x_dot, r_dot, mu_dot) = jax.jvp(explicit, (given,), (moving_numbers,))
    problem = plan.problem(numbers)
    low, high = problem.dual_bounds()
    moving = problem.presolved.active & (mu > low) & (mu < high) & solved
    u = problem.adjusted(mu)
    curvature = problem.curvature(u, problem.slack_shares(mu), problem.objective, moving)
    change = jnp.where(moving, solve_exactly(curvature.dense(), jnp.where(moving, -r_dot, 0.0)), 0.0)
    x_dot = x_dot + curvature.weights * problem.rows.rmatvec(change / problem.scale)
    zero = np.zeros(found.codes.shape, dtype=jax.dtypes.float0)
    mu_dot = jnp.where(solved, jnp.where(moving, change, mu_dot), 0.0)
    return found, Answer(mu_dot, jnp.where(solved, x_dot, 0.0), zero, zero)


def _moves(tangent: Any) -> bool:
    """Whether a number may have a tangent at all: those of decisions are none."""
    return not isinstance(tangent, SymbolicZero) and tangent.dtype != jax.dtypes.float0


def solve_exactly(H: Array, rhs: Array) -> Array:
    """H^{-1} rhs for rhs (N, k) in the range of H; rows without any curvature get 0, the choice of least norm."""
    diagonal = jax.lax.stop_gradient(jnp.diagonal(H, axis1=-2, axis2=-1))
    curved = diagonal > jnp.finfo(H.dtype).tiny
    scaling = jnp.where(curved, 1.0 / jnp.sqrt(jnp.where(curved, diagonal, 1.0)), 0.0)
    scaled = H * scaling[:, :, None] * scaling[:, None, :]
    factor = _factor(jax.lax.stop_gradient(scaled))
    xp = namespace(H)

    def product(v: Array) -> Array:
        return (scaled @ v[:, :, None])[:, :, 0]

    def solve(_: Any, target: Array) -> Array:
        found = xp.cholesky_solve(factor, target)
        for _ in range(3):  # the refinements undo the ridge
            found = found + xp.cholesky_solve(factor, target - product(found))
        return found

    return scaling * jax.lax.custom_linear_solve(product, scaling * rhs, solve, symmetric=True)


def _factor(scaled: Array) -> Array:
    """The Cholesky factor of a matrix of unit diagonal plus the least ridge that makes it regular."""
    xp, ridge = namespace(scaled), precision_of(scaled).refined_ridge
    eye = jnp.eye(scaled.shape[-1], dtype=scaled.dtype)
    factor, failed = xp.cholesky(scaled + ridge * eye)

    def again(_: Array) -> Array:
        larger, lost = xp.cholesky(scaled + 1e3 * ridge * eye)
        larger = jnp.where(lost[:, None, None], scaled.shape[-1] ** 0.5 * eye, larger)
        return jnp.where(failed[:, None, None], larger, factor)

    return jax.lax.cond(failed.any(), again, lambda same: same, factor)
