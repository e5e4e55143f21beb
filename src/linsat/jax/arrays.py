"""The solver in `lax` operations: the step of `linsat.arrays.step` in a loop, and its implicit derivatives.

At the solution r(mu, theta) = 0 on the rows F whose dual lies strictly inside its bounds; the other duals stay at their
bound. So, for tangents of the numbers theta,

    H_FF dmu_F = -(dr/dtheta . theta_dot)_F,      x_dot = dx/dtheta . theta_dot + D A' dmu / rho     at mu held.

This is linear in the tangents and made of differentiable operations: JAX transposes it for reverse mode, maps it, and
differentiates it again. Operands are those of `linsat.jax.operands`.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from linsat._array_namespace import namespace
from linsat._senses import EQUAL, GREATER, LESS
from linsat.arrays import Newton
from linsat.arrays import newton as constants
from linsat.arrays.judgement import decide, optimal
from linsat.arrays.linear_algebra import MOST_DENSE_ROWS, undo_ridge
from linsat.arrays.newton import precision_of
from linsat.arrays.problem import Problem
from linsat.arrays.result import Claim, Stop, farkas_gap
from linsat.arrays.rows import RowMatrix
from linsat.arrays.saddle import explicit
from linsat.arrays.step import Setting, State, first_state, polish, step
from linsat.errors import ConstraintError
from linsat.jax.operands import MOVING, Kind, Operands, Solved, work_dtype
from linsat.jax.single import refine, residuals
from linsat.objectives import Objective
from linsat.objectives.quadratic import Matrix
from linsat.plan import Numbers, Plan
from linsat.status import Status

Array = Any

_OWN = len(Solved._fields)  # operands of push that come before the tangents
jax.tree_util.register_dataclass(State, [f.name for f in fields(State)], [])


# ------------------------------------------------------------------ the three primitives


def solve(*operands: Array, kind: Kind) -> list[Array]:
    """x, duals, their bits, counts, and what was decided."""
    plan, solver = kind.plan, kind.plan.solver
    assert isinstance(solver, Newton)
    if plan.objective.couples:
        raise ConstraintError(
            "a full matrix needs the native core, which JAX cannot use here: it takes a few hundred rows and "
            "variables, on a CPU. Fix: call it outside of jit, or linsat.project."
        )
    if plan.pattern.num_rows > MOST_DENSE_ROWS:
        raise ConstraintError(
            f"the set has {plan.pattern.num_rows} rows; inside jit, where the native core cannot be used, linsat.jax "
            f"solves with up to {MOST_DENSE_ROWS}. Fix: call it outside of jit, or linsat.project."
        )
    given = Operands(*operands)
    numbers, objective, start = kind.numbers(operands), kind.objective(operands), given.start
    if given.rest.size:
        numbers = numbers._replace(side=numbers.side + given.rest)
    numbers, objective, scores, asked = repaired(plan, numbers, objective, given.scores.astype(work_dtype()))
    problem = plan.problem(numbers, scores, objective, given.known if given.known.size else None)
    rests = asked != Status.CONVERGED.code  # nothing of such an instance is worth a step
    claim, holds = newton(problem, solver, start * problem.scale if start.size else None, rests), None
    if precision_of(scores).residual:
        claim.x, holds = refine(problem, plan, claim, numbers.side)
    result = decide(problem, claim, solver, holds)
    codes = jnp.where(rests, asked, result.codes)
    x = jnp.where((codes == Status.NOT_FINITE.code)[:, None], jnp.nan, result.x)
    duals, flags = problem.multipliers(result.mu), problem.presolved.flags(len(x))
    counts = jnp.stack([codes, *result.counts[1:]], -1).astype(np.int32)
    return [x.astype(given.scores.dtype), duals, _bits(duals), counts, flags.astype(np.uint8)]


def push(*operands: Array, kind: Kind, moving: tuple[int, ...]) -> list[Array]:
    """Tangents of x and of the duals."""
    own, tangents = Solved(*operands[:_OWN]), operands[_OWN:]
    # An instance that was not solved has no derivative; at duals of zero nothing about it is infinite.
    solved = own.counts[:, :1] == Status.CONVERGED.code
    duals = jnp.where(solved, own.duals, 0.0)
    primals = [own[n] for n in moving]
    if isinstance(kind.plan.objective, Matrix):
        return _push_matrix(own, tangents, kind, moving, duals, solved)

    def problem_of(*some: Array) -> Problem:
        given = list(own)
        for n, array in zip(moving, some, strict=True):
            given[n] = array
        numbers, objective, scores, _ = repaired(
            kind.plan, kind.numbers(given), kind.objective(given), given[0].astype(duals.dtype)
        )
        scores = jnp.where(solved, scores, 0.0)
        return kind.plan.problem(numbers, scores, objective, own.decided, own=True)

    def explicit(*some: Array) -> tuple[Array, Array, Array]:
        """x, residual and duals as functions of everything but the duals strictly inside their bounds."""
        here = problem_of(*some)
        mu = here.follow_prices(duals * here.scale)
        x = here.point(here.adjusted(mu))
        return x, here.residual(x, here.slack_shares(mu)), mu / here.scale

    _, (x_dot, r_dot, duals_dot) = jax.jvp(explicit, primals, list(tangents))
    problem = problem_of(*primals)
    inside = (duals > problem.dual_lower) & (duals < problem.dual_upper)
    rows = problem.presolved.active & (inside | problem.presolved.tight) & solved
    mu = duals * problem.scale
    curvature = problem.curvature(problem.adjusted(mu), problem.slack_shares(mu), problem.objective, rows)
    change = jnp.where(rows, solve_exactly(curvature.dense(), jnp.where(rows, -r_dot, 0.0)), 0.0) / problem.scale
    x_dot = jnp.where(solved, x_dot + curvature.weights * problem.rows.rmatvec(change), 0.0)
    duals_dot = jnp.where(solved, jnp.where(rows, change, duals_dot), 0.0)
    return [x_dot.astype(own.scores.dtype), duals_dot]


def _push_matrix(
    own: Solved, tangents: Any, kind: Kind, moving: tuple[int, ...], duals: Array, solved: Array
) -> list[Array]:
    def solution(*some: Array) -> tuple[Array, Array]:
        given = list(own)
        for n, array in zip(moving, some, strict=True):
            given[n] = array
        objective = kind.objective(given)
        assert isinstance(objective, Matrix)
        return explicit(kind.plan, objective, given[0], kind.numbers(given), duals, own.decided, solved)

    _, (x_dot, duals_dot) = jax.jvp(solution, [own[n] for n in moving], list(tangents))
    return [x_dot.astype(own.scores.dtype), duals_dot]


def pull_back(*operands: Array, kind: Kind, wanted: tuple[int, ...]) -> list[Array]:
    """Gradients to the scores and to the numbers wanted: `push`, transposed."""
    own, (to_x, to_duals) = Solved(*operands[:_OWN]), operands[_OWN:]
    to_duals = to_duals if to_duals.shape == own.duals.shape else jnp.zeros_like(own.duals)
    moving = (0, *(n for n in wanted if n))

    def pushed(*tangents: Array) -> Any:
        return push(*own, *tangents, kind=kind, moving=moving)

    pulled = dict(zip(moving, jax.linear_transpose(pushed, *(own[n] for n in moving))([to_x, to_duals]), strict=True))
    none = jnp.zeros((0, 0), np.float32)
    return [pulled[0], *(pulled.get(n, none) for n in MOVING[1:])]


def _bits(duals: Array) -> Array:
    """The bytes of duals in float64, which only the native core reads: it is not at work here."""
    count, rows = duals.shape
    if duals.dtype != np.float64:
        return jnp.zeros((count, 8 * rows), np.uint8)
    return jax.lax.bitcast_convert_type(duals, np.uint8).reshape(count, 8 * rows)


# ------------------------------------------------------------------ numbers that cannot be


def repaired(
    plan: Plan, numbers: Numbers, objective: Objective, scores: Array
) -> tuple[Numbers, Objective, Array, Array]:
    """Harmless numbers in place of those that no instance can be solved with, and the status (N,) they ask for, or 0.

    So that nothing infinite reaches the others, or a gradient; a side that is infinite on the wrong end is a statement,
    and one that no point satisfies.
    """
    senses, count = plan.pattern.senses, scores.shape[:1]
    invalid = ~(jnp.isfinite(scores) | jnp.isneginf(scores)).all(-1)
    scores = jnp.where(invalid[:, None], 0.0, scores)
    open_end = jnp.asarray(np.where(senses == LESS, np.inf, np.where(senses == GREATER, -np.inf, np.nan)), scores.dtype)
    values, side, lower, upper, price = numbers
    no_side = jnp.isnan(side) | (jnp.isinf(side) & (senses == EQUAL))
    nowhere = jnp.isinf(side) & (side == -open_end)
    low_ok, high_ok = lower < jnp.inf, upper > -jnp.inf  # false for NaN
    if plan.objective.finite_box or plan.objective.finite_lower:
        low_ok = low_ok & jnp.isfinite(lower)
    if plan.objective.finite_box:
        high_ok = high_ok & jnp.isfinite(upper)
    held = jnp.isneginf(scores) & ~jnp.isfinite(lower)
    wrong = [
        (values, ~jnp.isfinite(values), 0.0),
        (side, no_side | nowhere, 0.0),
        (lower, ~low_ok, 0.0),
        (upper, ~high_ok, 1.0),
        (price, ~(price > 0), 1.0),
    ]
    fixed = [jnp.where(bad, harmless, array) for array, bad, harmless in wrong]
    empty = fixed[2] > fixed[3]
    fixed[3] = jnp.where(empty, fixed[2] + 1.0, fixed[3])
    bad_numbers = [wrong[0][1], no_side, wrong[2][1], wrong[3][1], wrong[4][1], held]
    own = []
    for name, value in objective.parameters().items():
        limits = plan.objective.ranges.get(name)
        bad = ~jnp.isfinite(value) | (limits.wrong(value) if limits else False)
        bad_numbers.append(bad)
        own.append(jnp.where(bad, 2.0, value))
    given = iter(own)
    for bad in bad_numbers:
        invalid = invalid | bad.any(-1)
    impossible = nowhere.any(-1) | empty.any(-1)
    codes = jnp.where(invalid, Status.NOT_FINITE.code, jnp.where(impossible, Status.INFEASIBLE.code, 0))
    scores = jnp.where(held, 0.0, scores)
    return Numbers(*fixed), objective.changed(lambda _: next(given)), scores, jnp.broadcast_to(codes, count)


def worst_violation(plan: Plan, numbers: Numbers, x: Array) -> Array:
    """The largest violation of a hard row or a bound, relative to max(1, the size of its terms), (N,)."""
    xp, rows, senses = namespace(x), RowMatrix(plan.rows, numbers.values), plan.pattern.senses
    if precision_of(x).residual:
        residual, size = residuals(plan, numbers.values, x, numbers.side)
    else:
        residual, size = rows.matvec(x) - numbers.side, rows.row_sums(abs(x[:, rows.col] * rows.values))
    gaps = xp.where(senses == LESS, residual, xp.where(senses == GREATER, -residual, abs(residual)))
    hard = xp.where(xp.isfinite(numbers.price), 0.0, gaps) / xp.at_least(size, 1.0)
    bounds = xp.maximum(numbers.lower - x, x - numbers.upper) / xp.at_least(abs(x), 1.0)
    return xp.maximum(hard.max(-1, initial=0.0), bounds.max(-1, initial=0.0))


# ------------------------------------------------------------------ the iteration


def newton(problem: Problem, options: Newton, start: Array | None, rests: Array) -> Claim:
    """Steps until every instance but those that rest has stopped; who is done waits: no answer depends on others."""
    setting = Setting.of(problem)
    state = first_state(setting, start)
    infeasible = rests | problem.presolved.infeasible
    stops = jnp.where(infeasible, int(Stop.INFEASIBLE), int(Stop.RUNS))
    # Who is done at the start only waits for the first look.
    waits = infeasible | setting.done(state, options.tol)
    loop = _Loop(state, stops, waits, jnp.zeros((), int))
    look = functools.partial(_look, setting, options)

    def advance(now: _Loop) -> _Loop:
        state = step(setting, now.state, waits=now.waits)
        waits = now.waits | setting.done(state, options.tol) | state.stalled | _at_limit(state, options)
        now = _Loop(state, now.stops, waits, now.passes + 1)
        due = waits.all() | (now.passes % constants.CERTIFICATE_EVERY == 0)
        return jax.lax.cond(due, look, lambda same: same, now)

    loop = jax.lax.while_loop(lambda now: (now.stops == Stop.RUNS).any(), advance, loop)
    counts = jnp.stack([loop.stops, loop.state.steps, jnp.zeros_like(loop.stops)])
    return Claim(loop.state.mu, loop.state.at.x, counts)


class _Loop(NamedTuple):
    state: State
    stops: Array
    waits: Array
    passes: Array


def _at_limit(state: State, options: Newton) -> Array:
    return (state.steps >= options.max_steps) & ~state.searching


def _look(setting: Setting, options: Newton, now: _Loop) -> _Loop:
    """Polish who is done, and let everyone whose end is known leave."""
    runs = now.stops == Stop.RUNS
    done = runs & setting.done(now.state, options.tol)
    state = polish(setting, now.state, done)
    ends = [
        (done & optimal(setting, state, options.tol), Stop.ARRIVED),
        (state.stalled, Stop.STALLED),
        (farkas_gap(setting.problem, state.mu) > 0, Stop.INFEASIBLE),
        (_at_limit(state, options), Stop.STEP_LIMIT),
    ]
    stops = now.stops
    for which, stop in reversed(ends):  # the first that holds counts
        stops = jnp.where(runs & which, int(stop), stops)
    return _Loop(state, stops, stops != Stop.RUNS, now.passes)


def solve_exactly(H: Array, rhs: Array) -> Array:
    """H^{-1} rhs for rhs (N, k) in the range of H; rows without any curvature get 0, the choice of least norm."""
    diagonal = jax.lax.stop_gradient(jnp.diagonal(H, axis1=-2, axis2=-1))
    curved = diagonal > jnp.finfo(H.dtype).tiny
    scaling = jnp.where(curved, 1.0 / jnp.sqrt(jnp.where(curved, diagonal, 1.0)), 0.0)
    scaled = H * scaling[:, :, None] * scaling[:, None, :]
    factor = _factor(jax.lax.stop_gradient(scaled))

    def product(v: Array) -> Array:
        return (scaled @ v[:, :, None])[:, :, 0]

    def solve(_: Any, target: Array) -> Array:
        return undo_ridge(scaled, factor, target)

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
