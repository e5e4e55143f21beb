"""The interior-point method for what the core and Newton have not solved: one instance after another, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from linsat._recent import Recent
from linsat.arrays.hard_rows import ROW_LOST, contradictory, hard_rows, linear_system, one
from linsat.arrays.interior.duality_gap import duality_gap
from linsat.arrays.interior.method import Optimum, minimise
from linsat.arrays.interior.program import Program
from linsat.arrays.newton import Newton
from linsat.arrays.problem import Problem
from linsat.arrays.result import Claim, Stop
from linsat.objectives import Objective, Tsallis
from linsat.verdict import judge
from linsat.verdict.feasibility import refuted
from linsat.verdict.programs import linear_program
from linsat.verdict.system import Deadline, LinearSystem

Array = np.ndarray
# What a few of Newton's steps from duals (1, k) make of an instance: duals and x; None: they have not converged.
Polish = Callable[[int, Array], tuple[Array, Array] | None]
Cost = Callable[[Program, int], Program]

POLISHING_STEPS = 12
INTERIOR_GAP = 5.0  # duality gap allowed, in units of tol (1 + the terms of the objective)
JUDGE_SECONDS = 10.0  # for the question whether the rows of an instance can hold
_REFUTE_SECONDS = 10.0  # for the question whether duals refute the rows of an instance
# Quadratic models of a cost, the shortest step between two of them, the way (relative to x) that ends them, and the
# distance from a bound at which a curvature without end is taken.
_MODELS, _SHORTEST, _AT_REST, _NEAR_BOUND = 40, 1e-3, 1e-9, 1e-12
_FALLS = 1e-6  # by which a direction of entries up to 1 must lower the cost, relative to its largest entry
_PATTERNS = 4  # of which the order of elimination is kept with a set


def unsupported(objective: Objective) -> str | None:
    """None, or why the method cannot take an objective."""
    if type(objective).costs is not Objective.costs:
        return None
    return f"the interior-point method knows Entropy, Euclidean, KL and Tsallis, not {type(objective).__name__}"


def is_modelled(objective: Objective) -> bool:
    """Whether a program cannot state the objective as it is, but for models of it, one after another."""
    return isinstance(objective, Tsallis)


def _modelled_cost(problem: Problem, instance: int) -> Tsallis | None:
    """The cost of an instance, with its numbers, where it is modelled."""
    own = problem.objective.changed(lambda number: one(number, instance)[0])
    return own if isinstance(own, Tsallis) else None


def rest(problem: Problem, tol: float) -> Claim:
    """What no step at all makes of it: converged where no row binds."""
    claim = Claim.empty(problem, "newton")
    claim.mu = problem.mu_at_rest()
    at = problem.evaluate(claim.mu, problem.objective, problem.linear_term())
    claim.x = at.x
    claim.stops[problem.error(claim.mu, at.residual) <= tol] = Stop.ARRIVED
    return claim


def finish(problem: Problem, solver: Newton, duals: Array, polish: Polish) -> Claim:
    """What Newton has not solved, ending at these duals (N, k); not what they, as weights of the rows, refute.

    The problem is one of numpy arrays.
    """

    def ask(system: LinearSystem, instance: int) -> bool:
        hard = ~problem.soft[min(instance, problem.soft.shape[0] - 1)]
        return refuted(system, -duals[instance][hard], seconds=_REFUTE_SECONDS)

    claim = Claim.empty(problem, "newton")
    claim.x = problem.point(problem.adjusted(claim.mu))
    infeasible = contradictory(problem, ask, claim.x)
    claim.stops[infeasible] = Stop.INFEASIBLE
    left = np.flatnonzero(~infeasible)
    if len(left):
        claim.put(left, solve(problem.select(left), solver, lambda place, mu: polish(int(left[place]), mu)))
    return claim


def solve(problem: Problem, options: Newton, polish: Polish, cost: Cost | None = None) -> Claim:
    """Every instance; duals are polished by Newton's method, so that active rows and bounds are exact.

    ``cost`` puts another cost in place of that of the problem's objective.
    """
    claim = Claim.empty(problem, "interior_point")
    tol, deadline = min(options.tol, 1e-9), Deadline(options.seconds)
    analyses = problem.rows.cache.setdefault("analyses", Recent(_PATTERNS))
    low, high = problem.dual_bounds()
    for instance in range(problem.size):
        elastic, program = Elastic.of(problem, instance), program_of(problem, instance)
        if cost is not None:
            program = cost(program, instance)
        whole = elastic.added_to(program)
        optimum = minimise(whole, 0.1 * tol, deadline=deadline, analyses=analyses)
        if is_modelled(problem.objective):
            optimum = _modelled(problem, instance, whole, optimum, 0.1 * tol, deadline)
        mu = elastic.snapped(optimum) * one(problem.scale, instance)
        claim.mu[instance] = np.clip(mu, one(low, instance), one(high, instance))
        claim.x[instance] = optimum.x[: problem.rows.shape[1]]
        claim.steps[instance] = optimum.steps
        polished = not problem.rows.sparse and _polished(problem, instance, options.tol, claim, polish)
        converged = polished or optimum.error <= tol
        stop = _seen(problem, instance, (elastic, program, whole), claim, tol, deadline, converged)
        claim.stops[instance] = stop if converged or stop is Stop.ARRIVED else _ending(whole, optimum, deadline)
    return claim


def _modelled(
    problem: Problem, instance: int, program: Program, optimum: Optimum, tol: float, deadline: Deadline
) -> Optimum:
    """A cost that is neither quadratic nor an entropy: its quadratic model at x, solved, and again from there.

    Each model has the slope and the curvature of the cost at x, so that a solution that no longer moves is one of the
    problem; between two feasible points a shorter step is feasible too. Near a lower bound, where the curvature may
    have no end, that of the point which the duals ask for is taken if it is further inside.
    """
    own = _modelled_cost(problem, instance)
    assert own is not None
    tau, alpha = own.tau, own.alpha
    analyses, l = problem.rows.cache.setdefault("analyses", Recent(_PATTERNS)), problem.rows.shape[1]
    scores, lower, upper = program.linear[:l], program.lower[:l], program.upper[:l]

    def value(x: Array) -> float:
        t = np.maximum(x[:l] - lower, 0.0)
        cost = tau * (t**alpha - t) / (alpha * (alpha - 1))
        return float((cost - scores * x[:l]).sum() - program.linear[l:] @ x[l:])

    def asked_for(duals: Array) -> Array:
        return own.point(scores + program.matrix[:, :l].T @ duals, lower, upper)

    def model(x: Array, duals: Array) -> Program:
        asked = asked_for(duals)
        t = np.maximum(np.maximum(x[:l], asked) - lower, _NEAR_BOUND)
        curvature = np.maximum(tau * t ** (alpha - 2), _NEAR_BOUND)
        linear, quadratic = program.linear.copy(), program.quadratic.copy()
        linear[:l] = scores - own.cost_slope(x[:l], lower) + curvature * x[:l]
        quadratic[:l] = curvature
        return replace(program, linear=linear, quadratic=quadratic)

    x, steps = optimum.x, optimum.steps
    for _ in range(_MODELS):
        whole = model(x, optimum.duals)
        optimum = minimise(whole, tol, deadline=deadline, analyses=analyses)
        steps += optimum.steps
        way, length, before = optimum.x - x, 1.0, value(x)
        if not np.isfinite(way).all() or optimum.out_of_time:
            break
        while length > _SHORTEST and value(x + length * way) > before + INTERIOR_GAP * tol * abs(before):
            length *= 0.5
        x = optimum.x if length == 1.0 else x + length * way
        if np.abs(way).max(initial=0.0) <= _AT_REST * (1.0 + np.abs(x).max(initial=0.0)):
            break
    asked = asked_for(optimum.duals)  # bounds that bind are reached exactly
    reached = ((asked == lower) | (asked == upper)) & (np.abs(x[:l] - asked) <= _NEAR_BOUND * (1.0 + np.abs(asked)))
    x = np.append(np.where(reached, asked, x[:l]), x[l:])
    return replace(optimum, x=x, steps=steps)


def _seen(
    problem: Problem,
    instance: int,
    solved: tuple[Elastic, Program, Program],
    claim: Claim,
    tol: float,
    deadline: Deadline,
    converged: bool,
) -> Stop:
    """What an answer is by the duality gap of x and duals as returned, and by its rows; not by the method's own error.

    Rows that hold only because x is so far away, or only at huge duals, may be rows that cannot hold: where the method
    says that it has converged, that is put to an exact verdict, and nothing is claimed where there is none.
    """
    elastic, program, whole = solved
    x, unit = claim.x[instance], one(problem.scale, instance)
    soft = one(problem.soft, instance)
    lacking, own = elastic.broken(program, x), _modelled_cost(problem, instance)
    gap = duality_gap(whole, np.append(x, lacking), claim.mu[instance] / unit, soft, own)
    if not max(gap.columns, 0.0) + gap.room <= INTERIOR_GAP * tol:  # what rounding forgives of columns is theirs alone
        return Stop.STALLED
    system, unit = hard_rows(problem, instance, x), unit[~soft]
    if gap.rows <= INTERIOR_GAP * tol and (system.outside(x) <= tol * unit).all():
        return Stop.ARRIVED
    if not converged:
        return Stop.STALLED
    return _can_hold(system, tol * unit, min(JUDGE_SECONDS, deadline.remaining))


def _can_hold(system: LinearSystem, off: Array, seconds: float) -> Stop:
    """Whether the rows of a system can hold, but for so much of each."""
    verdict = judge(system, seconds=seconds)
    if verdict.kind == "infeasible":
        return Stop.INFEASIBLE
    holds = verdict.point is not None and (system.outside(verdict.point) <= off).all()
    return Stop.ARRIVED if holds else Stop.STALLED


def can_hold(problem: Problem, points: Array, solver: Newton) -> list[Stop]:
    """The same of instances that are solved if their rows can hold, which x (N, l) are too large to show."""
    deadline, answers = Deadline(solver.seconds), []
    for instance, x in enumerate(points):
        unit = one(problem.scale, instance)[~one(problem.soft, instance)]
        system = hard_rows(problem, instance, x)
        answers.append(_can_hold(system, solver.tol * unit, min(JUDGE_SECONDS, deadline.remaining)))
    return answers


def _polished(problem: Problem, instance: int, tol: float, claim: Claim, polish: Polish) -> bool:
    """Replace an answer by what a few of Newton's steps make of it, where they converge and its rows hold as well."""
    if not np.isfinite(claim.mu[instance]).all():
        return False
    # One after another: sums over a batch round as its size has it, and no answer may depend on the others.
    better = polish(instance, claim.mu[instance : instance + 1])
    if better is None:
        return False
    mu, x = better
    hard = hard_rows(problem, instance)
    if hard.violation(x) > max(hard.violation(claim.x[instance]), 0.1 * tol):
        return False
    claim.mu[instance], claim.x[instance] = mu, x
    return True


def _ending(program: Program, optimum: Optimum, deadline: Deadline) -> Stop:
    """Why the method ended where it has not converged."""
    if optimum.out_of_time:
        return Stop.TIME_LIMIT
    return Stop.STALLED if _recession(program, deadline) is None else Stop.UNBOUNDED


def _recession(program: Program, deadline: Deadline) -> Array | None:
    """A direction d with P d = 0 and <c, d> > 0 along which every point of the program stays one; None: none was seen.

    Cost: a linear program where a column without curvature of its own has no bound on one side, else nothing.
    """
    free = (program.quadratic == 0) & (program.entropy == 0) & (program.upper > program.lower)
    upwards, downwards = free & np.isposinf(program.upper), free & np.isneginf(program.lower)
    open_columns = np.flatnonzero(upwards | downwards)
    if not len(open_columns) or not program.linear[open_columns].any():
        return None
    bounds = np.stack([np.where(downwards, -1.0, 0.0), np.where(upwards, 1.0, 0.0)], axis=1)[open_columns]
    rows, curves = program.matrix[:, open_columns], []
    if program.P is not None:
        curves = [program.P[:, open_columns]]
    low, high = np.isfinite(program.row_lower), np.isfinite(program.row_upper)
    equal = sp.csr_array(sp.vstack([rows[low & high], *curves]))
    capped = sp.csr_array(sp.vstack([rows[high & ~low], -rows[low & ~high]]))
    cost = program.linear[open_columns]
    solved = linear_program(
        -cost / np.abs(cost).max(),
        deadline,
        A_eq=equal,
        b_eq=np.zeros(equal.shape[0]),
        A_ub=capped,
        b_ub=np.zeros(capped.shape[0]),
        bounds=bounds,
    )
    if solved.status != 0 or solved.x is None or not -solved.fun > _FALLS:
        return None
    direction = np.zeros(len(program.linear))
    direction[open_columns] = solved.x
    return direction


@dataclass(frozen=True)
class Elastic:
    """Columns that take up what soft rows are broken by, each way one, at the price of the row."""

    rows: Array  # (m,) the row of each column
    sign: Array  # (m,) -1 takes up what exceeds a row, +1 what a row lacks
    price: Array  # (m,)

    @classmethod
    def of(cls, problem: Problem, instance: int) -> Elastic:
        soft = one(problem.soft, instance) & one(problem.presolved.active, instance)
        low, high = one(problem.dual_lower, instance), one(problem.dual_upper, instance)
        over, under = np.flatnonzero(soft & (low < 0)), np.flatnonzero(soft & (high > 0))
        sign = np.concatenate([-np.ones(len(over)), np.ones(len(under))])
        return cls(np.concatenate([over, under]), sign, np.concatenate([-low[over], high[under]]))

    def added_to(self, program: Program) -> Program:
        """The program in which soft rows cannot fail to hold."""
        count = len(self.rows)
        if not count:
            return program
        columns = sp.csr_array((self.sign, (self.rows, np.arange(count))), shape=(program.matrix.shape[0], count))
        none = np.zeros(count)
        return replace(
            program,
            matrix=sp.csr_array(sp.hstack([program.matrix, columns])),
            lower=np.append(program.lower, none),
            upper=np.append(program.upper, np.full(count, np.inf)),
            linear=np.append(program.linear, -self.price),
            quadratic=np.append(program.quadratic, none),
            entropy=np.append(program.entropy, none),
            P=None if program.P is None else sp.csr_array(sp.block_diag((program.P, sp.csr_array((count, count))))),
            prior=None if program.prior is None else np.append(program.prior, none),
        )

    def broken(self, program: Program, x: Array) -> Array:
        """What the columns have to take up at x, beyond the rounding of the rows: times a high price, that is much."""
        values, sizes = (program.matrix @ x)[self.rows], (abs(program.matrix) @ np.abs(x))[self.rows]
        side = np.where(self.sign < 0, program.row_upper[self.rows], program.row_lower[self.rows])
        broken = -self.sign * (values - side)
        return np.where(broken > ROW_LOST * (sizes + np.abs(side)), broken, 0.0)

    def snapped(self, optimum: Optimum) -> Array:
        """The duals of the rows, at the price where a row is broken by more than its dual lacks to that."""
        duals = optimum.duals.copy()
        broken = optimum.x[len(optimum.x) - len(self.rows) :] > self.price - self.sign * duals[self.rows]
        duals[self.rows[broken]] = (self.sign * self.price)[broken]
        return duals


def program_of(problem: Problem, instance: int) -> Program:
    """One instance as the interior-point method wants it: what presolve fixed has no room, idle rows no sides."""
    p, rows = problem.presolved, problem.rows
    stated = (problem.lower, problem.upper, p.free, p.at_upper)
    lower, upper, free, at_upper = (one(array, instance) for array in stated)
    lower, upper = np.where(free | ~at_upper, lower, upper), np.where(free | at_upper, upper, lower)
    system = linear_system(problem, instance)
    row_lower, row_upper = system.row_lower, system.row_upper
    objective = problem.objective.changed(lambda number: one(number, instance))
    costs, l, row_entropy = objective.costs(lower, upper), rows.shape[1], np.zeros(rows.shape[0])
    linear = one(problem.objective.linear(problem.scores), instance) + costs.linear
    rhs, slack, scale = one(problem.rhs, instance), one(problem.slack, instance), one(problem.scale, instance)
    if objective.entropic_slack:
        row_entropy = np.where(slack > 0, objective.temperature / scale, 0.0)
    tight, share = one(p.tight, instance), one(p.tight_share, instance)
    row_lower, row_upper = (np.where(tight, rhs - slack * share, end) for end in (row_lower, row_upper))
    idle = ~one(p.active, instance)
    return Program(
        matrix=system.matrix,
        row_lower=np.where(idle, -np.inf, row_lower),
        row_upper=np.where(idle, np.inf, row_upper),
        lower=lower,
        upper=upper,
        linear=linear,
        quadratic=np.full(l, costs.quadratic),
        entropy=np.full(l, costs.entropy),
        row_entropy=row_entropy,
        prior=costs.prior,
    )
