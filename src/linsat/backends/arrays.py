"""Newton's method of `linsat.solvers.newton` on torch tensors: every objective, any device."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from linsat.compile.problem import Evaluation, Problem, Tensor
from linsat.objectives import Objective
from linsat.solvers import newton as constants
from linsat.solvers.linear_solve import is_dense, newton_direction
from linsat.solvers.newton import Newton
from linsat.solvers.result import SolverResult, farkas_gap
from linsat.status import Status

# Passes between two looks at who is done. On the CPU a look costs nothing; elsewhere it makes the host wait for the
# device, which then runs out of work. Who is done between two looks waits, so that no answer depends on this number.
_LOOK_EVERY = 8
_RUNS = -1  # in place of the code of a status


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

    @classmethod
    def of(cls, problem: Problem) -> Setting:
        tau = problem.objective.temperature
        ones = torch.ones_like(problem.scores[:, :1])
        reach = torch.zeros_like(ones)
        if tau is not None:
            width = problem.upper - problem.lower
            reach = (width * problem.scores * problem.presolved.free).abs().amax(-1, keepdim=True)
        tau = ones if tau is None else tau.expand_as(ones)
        low, high = problem.dual_bounds()
        return cls(problem, low, high, problem.linear_term(), tau, reach)

    def select(self, index: Tensor) -> Setting:
        low, high, linear = (t if t.shape[0] == 1 else t[index] for t in (self.low, self.high, self.linear))
        return Setting(self.problem.select(index), low, high, linear, self.tau[index], self.reach[index])

    def objective(self, temperature: Tensor) -> Objective:
        """The objective at this temperature."""
        own = self.problem.objective
        return own if own.temperature is None else own.at(temperature)

    def evaluate(self, mu: Tensor, temperature: Tensor) -> Evaluation:
        return self.problem.evaluate(mu, self.objective(temperature), self.linear)

    def clip(self, mu: Tensor) -> Tensor:
        return torch.clamp(mu, self.low, self.high)

    def moved(self, mu: Tensor, residual: Tensor) -> Tensor:
        """How far a step along -r, clipped, would take each dual; as written, a large dual hides no small residual."""
        return torch.clamp(-residual, self.low - mu, self.high - mu)

    def error(self, mu: Tensor, residual: Tensor) -> Tensor:
        """e: how far mu is from where a step along -r, clipped, would leave it."""
        return _largest(self.moved(mu, residual))

    def held(self, mu: Tensor, residual: Tensor, error: Tensor) -> Tensor:
        """The duals at a bound that would leave their box."""
        near = error[:, None].clamp_max(constants.HELD)
        return ((mu - self.low <= near) & (residual > 0)) | ((self.high - mu <= near) & (residual < 0))


class ArrayBackend:
    """Newton's method with torch operations: takes every objective, every size and every device."""

    name = "torch"

    def supports(self, problem: Problem) -> str | None:
        return None

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> SolverResult:
        """Solve every instance; ``start`` are duals (N, k) of an earlier solve."""
        with torch.no_grad():
            return _Loop(problem.in_double(), options, start).run()


def first_state(setting: Setting, start: Tensor | None = None) -> State:
    """The state before the first step: cold, or at given duals where they are better than none."""
    problem = setting.problem
    tau = setting.tau
    temperature = torch.maximum(tau, constants.START_TEMPERATURE * setting.reach)
    mu = setting.clip(problem.scores.new_zeros((problem.size, problem.rows.shape[0])))
    at = None
    if start is not None:
        # The dual of a row that is not active would never move: from another right-hand side it may not be 0.
        given = torch.where(problem.presolved.active, setting.clip(start), 0.0)
        there, here = setting.evaluate(given, tau), setting.evaluate(mu, tau)
        better = (there.theta <= here.theta)[:, None]
        mu, temperature = torch.where(better, given, mu), torch.where(better, tau, temperature)
    at = setting.evaluate(mu, temperature)
    whole = torch.zeros(problem.size, dtype=torch.int64, device=tau.device)
    state = State(
        mu=mu,
        at=at,
        error=setting.error(mu, at.residual),
        temperature=temperature,
        damping=torch.full_like(tau, constants.FIRST_DAMPING),
        ridge=torch.full_like(tau, constants.FIRST_RIDGE),
        stride=torch.ones_like(tau),
        direction=torch.zeros_like(mu),
        length=torch.ones_like(tau[:, 0]),
        tries=whole,
        steps=whole,
        searching=whole > 0,
        cooled=whole > 0,
        stalled=whole > 0,
    )
    if start is None and problem.objective.temperature is not None:
        for _ in range(constants.SWEEPS):
            state = _sweep(setting, state)
    return state


def _sweep(setting: Setting, state: State) -> State:
    """One Sinkhorn sweep over the groups of disjoint rows, kept by the instances whose potential it lowers.

    A start far better than mu = 0 for much less than a Newton step. Each row multiplies the odds of its variables and
    slack by what would make it hold were its coefficients equal.
    """
    problem = setting.problem
    groups = problem.rows.groups()
    if len(groups) > constants.MOST_GROUPS:
        return state
    least, most = problem.row_ranges()
    signed = problem.rows.row_sums((problem.rows.values < 0).to(least.dtype)) > 0
    usable_rows = problem.presolved.active & ~signed
    cap = 10 * state.temperature + 0.5 * setting.reach
    mu, at = state.mu, state.at
    for members in groups:
        goal = (setting.linear - least)[:, members]
        whole = (most - least)[:, members]
        have = at.residual[:, members] + goal
        sides = torch.stack(torch.broadcast_tensors(goal, whole - goal, have, whole - have))
        usable = usable_rows[:, members] & (sides.amin(0) > 1e-12 * whole)
        wanted, rest, have, left = torch.where(usable, sides, 1.0)
        change = (state.temperature * torch.log(wanted * left / (rest * have))).clamp(-cap, cap)
        mu = setting.clip(mu.index_add(1, members, change))
        at = setting.evaluate(mu, state.temperature)
    better = at.theta <= state.at.theta
    at = _pick(better, at, state.at)
    mu = torch.where(better[:, None], mu, state.mu)
    return replace(state, mu=mu, at=at, error=setting.error(mu, at.residual))


def step(setting: Setting, state: State, *, look: bool = True) -> State:
    """One evaluation for every instance: the first try of a new step for some, a shorter try for the others.

    Nothing here depends on numbers that the host would have to read, unless ``look`` says that reading is cheap.
    """
    fresh = ~state.searching
    if not look or bool(fresh.any()):
        state = _new_direction(setting, state, fresh, look)
    accepted, state = _try(setting, state)
    tries = state.tries + 1
    gives_up = ~accepted & (tries >= constants.BACKTRACKS)
    full, shorter = (accepted & (state.length == 1))[:, None], (accepted | gives_up)[:, None]
    damping = torch.where(full, state.damping / 4, torch.where(shorter, 4 * state.damping, state.damping))
    # Thin feasible sets have duals far away: whole steps that keep succeeding may grow longer.
    stride = torch.where(full, 2 * state.stride, torch.where(shorter, state.stride / 2, state.stride))
    searching = ~accepted & ~gives_up
    return replace(
        state,
        tries=tries,
        stalled=state.stalled | (gives_up & ~state.cooled),
        searching=searching,
        damping=damping.clamp(constants.LEAST_DAMPING, constants.LARGEST_DAMPING),
        stride=stride.clamp(1.0, constants.LARGEST_STRIDE),
        length=torch.where(searching, constants.SHORTEN * state.length, state.length),
    )


def _new_direction(setting: Setting, state: State, fresh: Tensor, look: bool) -> State:
    """A direction for every instance that is not searching along one; cools those that are ready."""
    ready = fresh & (state.error <= constants.LOOSE_RESIDUAL) & (state.temperature > setting.tau).squeeze(-1)
    cooler = torch.maximum(setting.tau, constants.COOLING * state.temperature)
    cooler = torch.where(ready[:, None], cooler, state.temperature)
    direction, failed = _direction(setting, state, cooler)
    # Dependent rows may need a larger ridge, from the next step on.
    grown = (100 * state.ridge).clamp_max(constants.LARGEST_RIDGE)
    state = replace(
        state,
        direction=torch.where(fresh[:, None], direction, state.direction),
        ridge=torch.where((failed & fresh)[:, None], grown, state.ridge),
        temperature=cooler,
        cooled=torch.where(fresh, ready, state.cooled),
        steps=state.steps + fresh,
        length=torch.where(fresh, 1.0, state.length),
        tries=torch.where(fresh, 0, state.tries),
    )
    if look and not bool(ready.any()):
        return state
    at = setting.evaluate(state.mu, cooler)
    return replace(state, at=at, error=setting.error(state.mu, at.residual))


def _direction(setting: Setting, state: State, cooler: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's step towards the solution at the temperature ``cooler``, along the tangent of the path mu(T).

    The damping in proportion to the residual keeps the step sensible where everything a row touches is saturated and
    its curvature nil; it vanishes at the solution, so convergence stays quadratic.
    """
    problem, objective = setting.problem, setting.objective(state.temperature)
    residual = state.at.residual
    rhs = residual
    if objective.temperature is not None:
        rhs = rhs + problem.drift(state.at, state.mu, objective) * (cooler - state.temperature)
    held = setting.held(state.mu, residual, state.error)
    moving = problem.presolved.active & ~held
    damping = state.damping * state.error[:, None].clamp_max(1.0) / state.temperature
    curvature = problem.curvature(state.at.u, state.at.z, objective, moving)
    found, failed = newton_direction(curvature, damping, state.ridge, torch.where(moving, rhs, 0.0))
    found = torch.where(moving, found, residual)
    if objective.temperature is not None:
        cap = state.stride * (10 * state.temperature + 0.5 * setting.reach)
        found = found * (cap / _largest(found)[:, None].clamp_min(1e-300)).clamp_max(1.0)
    return -found, failed


def _try(setting: Setting, state: State) -> tuple[Tensor, State]:
    """Go along the direction where that lowers the potential; returns where it does."""
    trial = setting.clip(state.mu + state.length[:, None] * state.direction)
    moved = trial - state.mu
    at = setting.evaluate(trial, state.temperature)
    slope = (moved * state.at.residual).sum(-1).clamp_max(0.0)
    falls = at.theta <= state.at.theta + constants.DECREASE * slope
    # Theta is convex: where its slope at the trial still points down, it has fallen, whatever rounding shows. Close to
    # the solution the residual decides between points whose theta rounding cannot tell apart.
    still_down = (moved * at.residual).sum(-1) <= 0
    level = at.theta <= state.at.theta + constants.ROUNDING * (1 + at.size + state.at.size)
    error = setting.error(trial, at.residual)
    good = falls | (level & (still_down | (error < state.error)))
    return good, replace(
        state,
        mu=torch.where(good[:, None], trial, state.mu),
        at=_pick(good, at, state.at),
        error=torch.where(good, error, state.error),
    )


class _Loop:
    """Runs `step` until nobody is left; instances that are done leave the batch. One synchronisation a look."""

    def __init__(self, problem: Problem, options: Newton, start: Tensor | None, look_every: int | None = None) -> None:
        self.options = options
        self.look_every = look_every or (1 if problem.scores.device.type == "cpu" else _LOOK_EVERY)
        self.result = SolverResult.empty(problem, "newton")
        self.setting = Setting.of(problem)
        self.index = torch.arange(problem.size, device=problem.scores.device)
        self.start = start

    def run(self) -> SolverResult:
        self.state = first_state(self.setting, self.start)
        for look in range(self.options.max_steps * constants.BACKTRACKS + 1):
            if self._look(look * self.look_every):
                return self.result
            self._advance()
        self._leave(torch.full_like(self.index, Status.STEP_LIMIT.code))
        return self.result

    def _advance(self) -> None:
        """The passes to the next look; who is done after one of them does not take part in the others."""
        if self.look_every == 1:
            self.state = step(self.setting, self.state)
            return
        waits = torch.zeros_like(self.state.stalled)
        for _ in range(self.look_every):
            self.state = _pick_state(waits, self.state, step(self.setting, self.state, look=False))
            waits = waits | self._done(self.state) | self.state.stalled | self._at_limit(self.state)

    def _done(self, state: State) -> Tensor:
        return (state.error <= self.options.tol) & (state.temperature <= self.setting.tau).squeeze(-1)

    def _at_limit(self, state: State) -> Tensor:
        return (state.steps >= self.options.max_steps) & ~state.searching

    def _look(self, number: int) -> bool:
        """Let those who are done leave after ``number`` passes; returns whether nobody is left."""
        done = self._done(self.state)
        if self.look_every > 1 or bool(done.any()):
            # Conjugate gradients cannot tell what is left from rounding, so they polish nothing.
            if is_dense(self.state.mu.shape[-1]):
                self.state = polish(self.setting, self.state, done)
            done = done & optimal(self.setting, self.state, self.options.tol)
        found = [(done, Status.CONVERGED), (self.state.stalled, Status.STALLED)]
        if number and number % constants.CERTIFICATE_EVERY == 0:
            found.append((farkas_gap(self.setting.problem, self.state.mu) > 0, Status.INFEASIBLE))
        found.append((self._at_limit(self.state), Status.STEP_LIMIT))
        codes = torch.full_like(self.index, _RUNS)
        for which, status in reversed(found):  # the first that holds counts
            codes = torch.where(which, status.code, codes)
        return self._leave(codes)

    def _leave(self, codes: Tensor) -> bool:
        """Who has a code leaves with it; returns whether nobody is left."""
        stays = (codes == _RUNS).nonzero().squeeze(-1)  # the host waits here for the device
        if stays.numel() == self.index.numel() > 0:
            return False
        # All of them, because to pick some would be one more wait; who stays writes again when leaving.
        self.result.mu[self.index] = self.state.mu
        self.result.x[self.index] = self.state.at.x
        self.result.codes[self.index] = codes
        self.result.steps[self.index] = self.state.steps
        self.index = self.index[stays]
        self.setting, self.state = self.setting.select(stays), self.state.select(stays)
        return stays.numel() == 0


def optimal(setting: Setting, state: State, tol: float) -> Tensor:
    """Whether rows hold relative to their size at x, and the duality gap is small."""
    problem, at = setting.problem, state.at
    size = problem.row_sizes(at.x).clamp_min(1.0)
    moved = setting.moved(state.mu, at.residual).abs()
    holds = _largest(moved * (problem.scale / size).clamp_min(1.0)) <= tol
    value = (problem.objective.linear(problem.scores) * at.x).abs().sum(-1)
    # A row that holds but for r costs |mu r|; one broken at its price, what its dual lacks to that price times r. Of a
    # soft row either reading will do: times a high price, the rounding of r would be no small gap.
    bound = torch.where(at.residual > 0, setting.low, setting.high)
    way = torch.minimum(state.mu.abs(), (state.mu - bound).abs())
    return holds & ((way * at.residual.abs()).sum(-1) <= constants.GAP * tol * (1.0 + value))


def polish(setting: Setting, state: State, done: Tensor) -> State:
    """One undamped step for the instances that are done, and duals that do nothing put to their bound.

    Each is kept only where it lowers the error.
    """
    cold = replace(state, damping=torch.zeros_like(state.damping), stride=torch.full_like(state.stride, 1e300))
    direction, _ = _direction(setting, cold, state.temperature)
    for target in (lambda now: now.mu + direction, lambda now: _snapped(setting, now)):
        trial = setting.clip(target(state))
        at = setting.evaluate(trial, state.temperature)
        error = setting.error(trial, at.residual)
        better = done & (error <= state.error)
        state = replace(
            state,
            mu=torch.where(better[:, None], trial, state.mu),
            at=_pick(better, at, state.at),
            error=torch.where(better, error, state.error),
        )
    return state


def _snapped(setting: Setting, state: State) -> Tensor:
    """Duals that a step along -r would put to a bound, put there."""
    there = setting.clip(state.mu - state.at.residual)
    return torch.where((there == setting.low) | (there == setting.high), there, state.mu)


def _pick(which: Tensor, first: Evaluation, second: Evaluation) -> Evaluation:
    return Evaluation(*(_where(which, a, b) for a, b in zip(first, second, strict=True)))


def _where(which: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return torch.where(which[:, None] if first.dim() == 2 else which, first, second)


def _pick_state(which: Tensor, first: State, second: State) -> State:
    """``first`` for some instances, ``second`` for the others."""
    names = [f.name for f in fields(State) if f.name != "at"]
    picked = {name: _where(which, getattr(first, name), getattr(second, name)) for name in names}
    return State(**picked, at=_pick(which, first.at, second.at))


def _largest(rows: Tensor) -> Tensor:
    """Largest absolute entry of each instance, 0 where there are no rows."""
    return rows.abs().amax(-1) if rows.shape[-1] else rows.new_zeros(rows.shape[0])
