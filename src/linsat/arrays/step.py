"""One step of Newton's method (`linsat.arrays.newton`) as a pure function of a state, on arrays of torch or of JAX.

torch runs it in a loop on the host (`linsat.arrays.iteration`), JAX in ``lax.while_loop`` (`linsat.jax.native`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from linsat._array_namespace import Tensor, namespace
from linsat.arrays import newton as constants
from linsat.arrays.linear_algebra import newton_direction
from linsat.arrays.newton import Precision, precision_of
from linsat.arrays.problem import Evaluation, Problem
from linsat.objectives.base import Objective

_SETTLING = 8  # steps of disjoint rows, each of which evaluates everything
FAR = 1e30  # beyond any length of a step, in single precision too


@dataclass(frozen=True)
class State:
    """Where every instance of a batch is; first dimension N."""

    mu: Tensor  # (N, k)
    at: Evaluation  # everything at mu and the present temperature
    error: Tensor  # (N,)
    temperature: Tensor  # (N, 1); 1 for objectives without one
    damping: Tensor  # (N, 1)
    ridge: Tensor  # (N, 1)
    stride: Tensor  # (N, 1)
    direction: Tensor  # (N, k)
    length: Tensor  # (N,) of the next try along the direction
    tries: Tensor  # (N,)
    steps: Tensor  # (N,)
    searching: Tensor  # (N,) bool: the last try was rejected
    cooled: Tensor  # (N,) bool: the present step lowered the temperature
    stalled: Tensor  # (N,) bool

    def select(self, index: Tensor) -> State:
        kept = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "at"}
        return State(**kept, at=Evaluation(*(t[index] for t in self.at)))


@dataclass(frozen=True)
class Setting:
    """What does not change while a problem is solved."""

    problem: Problem
    low: Tensor  # (., k) bounds of the scaled duals
    high: Tensor
    linear: Tensor  # (., k)
    tau: Tensor  # (N, 1) the final temperature
    reach: Tensor  # (N, 1) the largest |score| in units of the duals
    xp: Any  # the array operations
    precision: Precision

    @classmethod
    def of(cls, problem: Problem) -> Setting:
        xp = namespace(problem.scores)
        tau = problem.objective.temperature
        ones = xp.ones_like(problem.scores[:, :1])
        reach = xp.zeros_like(ones)
        if tau is not None:
            terms = problem.objective.linear(problem.scores)
            if problem.objective.finite_box:
                terms = (problem.upper - problem.lower) * terms
            reach = xp.amax(abs(terms * problem.presolved.free))[:, None]
        tau = ones if tau is None else xp.broadcast_to(tau, ones.shape)
        low, high = problem.dual_bounds()
        return cls(problem, low, high, problem.linear_term(), tau, reach, xp, precision_of(problem.scores))

    def select(self, index: Tensor) -> Setting:
        low, high, linear = (t if t.shape[0] == 1 else t[index] for t in (self.low, self.high, self.linear))
        chosen = {"low": low, "high": high, "linear": linear, "tau": self.tau[index], "reach": self.reach[index]}
        return replace(self, problem=self.problem.select(index), **chosen)

    def objective(self, temperature: Tensor) -> Objective:
        """The objective at this temperature."""
        own = self.problem.objective
        return own if own.temperature is None else own.at(temperature)

    def evaluate(self, mu: Tensor, temperature: Tensor) -> Evaluation:
        return self.problem.evaluate(mu, self.objective(temperature), self.linear)

    def clip(self, mu: Tensor) -> Tensor:
        return self.xp.clip(mu, self.low, self.high)

    def moved(self, mu: Tensor, residual: Tensor) -> Tensor:
        """How far a step along -r, clipped, would take each dual; as written, a large dual hides no small residual."""
        return self.xp.clip(-residual, self.low - mu, self.high - mu)

    def error(self, mu: Tensor, residual: Tensor) -> Tensor:
        """e: how far mu is from where a step along -r, clipped, would leave it."""
        return self.largest(self.moved(mu, residual))

    def held(self, mu: Tensor, residual: Tensor, error: Tensor) -> Tensor:
        """The duals at a bound that would leave their box."""
        near = self.xp.at_most(error[:, None], constants.HELD)
        return ((mu - self.low <= near) & (residual > 0)) | ((self.high - mu <= near) & (residual < 0))

    def largest(self, rows: Tensor) -> Tensor:
        """Largest absolute entry of each instance, 0 where there are no rows."""
        return self.xp.amax(abs(rows)) if rows.shape[-1] else self.xp.zeros((rows.shape[0],), rows)

    def rounding(self, state: State) -> Tensor:
        """How much of each scaled residual may be rounding, (N, k): of its sum, and of u, which moves x by D of it.

        In single precision only, where it shows.
        """
        problem, at, rows = self.problem, state.at, self.problem.rows
        terms = abs(at.u)
        if problem.objective.temperature is None:  # x may be so steep in u at a temperature that this forgave anything
            pulls = rows.column_sums(abs((state.mu / problem.scale)[:, rows.row] * rows.values))
            terms = pulls + abs(problem.objective.linear(problem.scores))  # which may cancel each other in u
        moved = problem.objective.slope(at.u, problem.lower, problem.upper) * terms
        size = problem.row_sizes(abs(at.x) + moved) + abs(problem.rhs)
        return self.precision.residual * size / problem.scale

    def done(self, state: State, tol: float) -> Tensor:
        """Whether an instance has the final temperature and an error that counts as none."""
        allowed: Any = tol
        if self.precision.residual:
            allowed = self.xp.at_least(self.largest(self.rounding(state)), tol)
        return (state.error <= allowed) & (state.temperature <= self.tau).squeeze(-1)


def first_state(setting: Setting, start: Tensor | None = None) -> State:
    """The state before the first step: cold, or at given duals where they are better than none."""
    problem, xp = setting.problem, setting.xp
    tau = setting.tau
    temperature = xp.maximum(tau, constants.START_TEMPERATURE * setting.reach)
    mu = setting.clip(xp.zeros((problem.size, problem.rows.shape[0]), problem.scores))
    if start is not None:
        given = _settled(setting, start)
        there, here = setting.evaluate(given, tau), setting.evaluate(mu, tau)
        better = (there.theta <= here.theta)[:, None]
        mu, temperature = xp.where(better, given, mu), xp.where(better, tau, temperature)
    at = setting.evaluate(mu, temperature)
    whole = xp.counters(problem.size, tau)
    state = State(
        mu=mu,
        at=at,
        error=setting.error(mu, at.residual),
        temperature=temperature,
        damping=xp.full_like(tau, constants.FIRST_DAMPING),
        ridge=xp.full_like(tau, setting.precision.first_ridge),
        stride=xp.ones_like(tau),
        direction=xp.zeros_like(mu),
        length=xp.ones_like(tau[:, 0]),
        tries=whole,
        steps=whole,
        searching=whole > 0,
        cooled=whole > 0,
        stalled=whole > 0,
    )
    if start is None and problem.objective.multiplies:
        for _ in range(constants.SWEEPS):
            state = _sweep(setting, state)
    return state


def _settled(setting: Setting, start: Tensor) -> Tensor:
    """The duals given, (N, k); those that are not (NaN) by a pass over disjoint rows, each for itself: Newton's method
    between ends that close in on the root, as in the native core's start.h, in fewer steps."""
    problem, xp, tau = setting.problem, setting.xp, setting.tau
    missing, active = start != start, problem.presolved.active
    # The dual of a row that is not active would never move: from another right-hand side it may not be 0.
    mu = xp.where(active & ~missing, setting.clip(xp.where(missing, 0.0, start)), 0.0)
    if xp.known_false(missing):
        return mu
    objective, groups = setting.objective(tau), problem.rows.groups()
    rows = xp.zeros_like(mu)
    for members in groups[: constants.MOST_GROUPS]:
        own = missing & active & (xp.index_add(rows, members, xp.ones_like(rows[:, members])) > 0)
        low, high = setting.low, setting.high
        for _ in range(_SETTLING):
            at = setting.evaluate(mu, tau)
            above = at.residual > 0
            low, high = xp.where(above, low, mu), xp.where(above, mu, high)
            slope = problem.curvature(at.u, at.z, objective, own).diagonal()
            reach = 10 * tau + 0.5 * setting.reach + 1.0
            way = xp.clip(-at.residual / xp.at_least(slope, 1e-30), -reach, reach)
            there = mu + way
            outside = (there <= low) | (there >= high)
            end = xp.where(above, low, high)
            there = xp.where(outside & xp.isfinite(end), 0.5 * (mu + xp.where(xp.isfinite(end), end, 0.0)), there)
            mu = xp.where(own & (abs(at.residual) > constants.SETTLED), there, mu)
    return setting.clip(mu)


def _sweep(setting: Setting, state: State) -> State:
    """One Sinkhorn sweep over the groups of disjoint rows, kept by the instances whose potential it lowers.

    A start far better than mu = 0 for much less than a Newton step. Each row multiplies the odds of its variables and
    slack (or the variables themselves) by what would make it hold were its coefficients equal.
    """
    problem, xp, odds = setting.problem, setting.xp, setting.problem.objective.multiplies == "odds"
    groups = problem.rows.groups()
    if len(groups) > constants.MOST_GROUPS:
        return state
    least, most = problem.row_ranges()
    signed = problem.rows.row_sums(xp.cast(problem.rows.values < 0, least)) > 0
    usable_rows = problem.presolved.active & ~signed
    cap = 10 * state.temperature + 0.5 * setting.reach
    mu, at = state.mu, state.at
    for members in groups:
        goal = (setting.linear - least)[:, members]
        whole = (most - least)[:, members]
        have = at.residual[:, members] + goal
        sides = xp.stack(xp.broadcast(goal, have, *((whole - have, whole - goal) if odds else ())))
        usable = usable_rows[:, members] & (xp.amin_first(sides) > 1e-12 * (whole if odds else goal))
        wanted, have, *others = xp.where(usable, sides, 1.0)
        ratio = wanted / have * (others[0] / others[1] if odds else 1.0)
        change = xp.clip(state.temperature * xp.log(ratio), -cap, cap)
        mu = setting.clip(xp.index_add(mu, members, change))
        at = setting.evaluate(mu, state.temperature)
    better = at.theta <= state.at.theta
    at = _pick(setting, better, at, state.at)
    mu = xp.where(better[:, None], mu, state.mu)
    return replace(state, mu=mu, at=at, error=setting.error(mu, at.residual))


def step(setting: Setting, state: State, *, look: bool = True, waits: Tensor | None = None) -> State:
    """One evaluation for every instance: the first try of a new step for some, a shorter try for the others.

    Nothing here depends on numbers that the host would have to read, unless ``look`` says that reading is cheap. Who
    ``waits`` stays as it is.
    """
    xp = setting.xp
    goes = ~state.stalled if waits is None else ~waits
    state = xp.if_any(~state.searching, lambda now: _new_direction(setting, now, goes, look), state, look)
    accepted, state = _try(setting, state, goes)
    tries = state.tries + goes
    gives_up = goes & ~accepted & (tries >= constants.BACKTRACKS)
    full, shorter = (accepted & (state.length == 1))[:, None], (accepted | gives_up)[:, None]
    damping = xp.where(full, state.damping / 4, xp.where(shorter, 4 * state.damping, state.damping))
    # Thin feasible sets have duals far away: whole steps that keep succeeding may grow longer.
    stride = xp.where(full, 2 * state.stride, xp.where(shorter, state.stride / 2, state.stride))
    searching = xp.where(goes, ~accepted & ~gives_up, state.searching)
    return replace(
        state,
        tries=tries,
        stalled=state.stalled | (gives_up & ~state.cooled),
        searching=searching,
        damping=xp.clip(damping, constants.LEAST_DAMPING, constants.LARGEST_DAMPING),
        stride=xp.clip(stride, 1.0, constants.LARGEST_STRIDE),
        length=xp.where(searching & goes, constants.SHORTEN * state.length, state.length),
    )


def _new_direction(setting: Setting, state: State, goes: Tensor, look: bool) -> State:
    """A direction for every instance that is not searching along one; cools those that are ready."""
    xp, fresh = setting.xp, ~state.searching & goes
    ready = fresh & (state.error <= constants.LOOSE_RESIDUAL) & (state.temperature > setting.tau).squeeze(-1)
    cooler = xp.maximum(setting.tau, constants.COOLING * state.temperature)
    cooler = xp.where(ready[:, None], cooler, state.temperature)
    direction, failed = _direction(setting, state, cooler)
    # Dependent rows may need a larger ridge, from the next step on.
    grown = xp.at_most(100 * state.ridge, constants.LARGEST_RIDGE)
    state = replace(
        state,
        direction=xp.where(fresh[:, None], direction, state.direction),
        ridge=xp.where((failed & fresh)[:, None], grown, state.ridge),
        temperature=cooler,
        cooled=xp.where(fresh, ready, state.cooled),
        steps=state.steps + fresh,
        length=xp.where(fresh, 1.0, state.length),
        tries=xp.where(fresh, 0, state.tries),
    )
    if setting.problem.objective.temperature is None:
        return state
    return xp.if_any(ready, lambda now: _at_temperature(setting, now, ready), state, look)


def _at_temperature(setting: Setting, state: State, ready: Tensor) -> State:
    """The state evaluated again where its temperature has changed."""
    at = _pick(setting, ready, setting.evaluate(state.mu, state.temperature), state.at)
    return replace(state, at=at, error=setting.error(state.mu, at.residual))


def _direction(setting: Setting, state: State, cooler: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's step towards the solution at the temperature ``cooler``, along the tangent of the path mu(T).

    The damping in proportion to the residual keeps the step sensible where everything a row touches is saturated and
    its curvature nil; it vanishes at the solution, so convergence stays quadratic.
    """
    problem, objective, xp = setting.problem, setting.objective(state.temperature), setting.xp
    residual = state.at.residual
    rhs = residual
    if objective.temperature is not None:
        rhs = rhs + problem.drift(state.at, state.mu, objective) * (cooler - state.temperature)
    held = setting.held(state.mu, residual, state.error)
    moving = problem.presolved.active & ~held
    damping = state.damping * xp.at_most(state.error[:, None], 1.0) / state.temperature
    curvature = problem.curvature(state.at.u, state.at.z, objective, moving)
    direction, failed = newton_direction(curvature, damping, state.ridge, xp.where(moving, rhs, 0.0))
    direction = xp.where(moving, direction, 0.0)
    if objective.temperature is not None:
        cap = state.stride * (10 * state.temperature + 0.5 * setting.reach)
        direction = direction * xp.at_most(cap / xp.at_least(setting.largest(direction)[:, None], 1 / FAR), 1.0)
    return -xp.where(moving, direction, residual), failed  # duals that are held stay: a large residual shortens no step


def _try(setting: Setting, state: State, goes: Tensor) -> tuple[Tensor, State]:
    """Go along the direction where that lowers the potential; returns where it does."""
    xp = setting.xp
    trial = setting.clip(state.mu + state.length[:, None] * state.direction)
    moved = trial - state.mu
    at = setting.evaluate(trial, state.temperature)
    slope = xp.at_most((moved * state.at.residual).sum(-1), 0.0)
    falls = at.theta <= state.at.theta + constants.DECREASE * slope
    # Theta is convex: where its slope at the trial still points down, it has fallen, whatever rounding shows. Close to
    # the solution the residual decides between points whose theta rounding cannot tell apart.
    still_down = (moved * at.residual).sum(-1) <= 0
    level = at.theta <= state.at.theta + setting.precision.rounding * (1 + at.size + state.at.size)
    error = setting.error(trial, at.residual)
    good = goes & (falls | (level & (still_down | (error < state.error))))
    return good, replace(
        state,
        mu=xp.where(good[:, None], trial, state.mu),
        at=_pick(setting, good, at, state.at),
        error=xp.where(good, error, state.error),
    )


def polish(setting: Setting, state: State, done: Tensor) -> State:
    """One undamped step for the instances that are done, and duals that do nothing put to their bound.

    Each is kept only where it lowers the error.
    """
    xp = setting.xp
    cold = replace(state, damping=xp.zeros_like(state.damping), stride=xp.full_like(state.stride, FAR))
    direction, _ = _direction(setting, cold, state.temperature)
    for target in (lambda now: now.mu + direction, lambda now: _snapped(setting, now)):
        trial = setting.clip(target(state))
        at = setting.evaluate(trial, state.temperature)
        error = setting.error(trial, at.residual)
        better = done & (error <= state.error)
        state = replace(
            state,
            mu=xp.where(better[:, None], trial, state.mu),
            at=_pick(setting, better, at, state.at),
            error=xp.where(better, error, state.error),
        )
    return state


def _snapped(setting: Setting, state: State) -> Tensor:
    """Duals that a step along -r would put to a bound, put there."""
    there = setting.clip(state.mu - state.at.residual)
    return setting.xp.where((there == setting.low) | (there == setting.high), there, state.mu)


def _pick(setting: Setting, which: Tensor, first: Evaluation, second: Evaluation) -> Evaluation:
    pairs = zip(first, second, strict=True)
    return Evaluation(*(setting.xp.where(which[:, None] if a.ndim == 2 else which, a, b) for a, b in pairs))
