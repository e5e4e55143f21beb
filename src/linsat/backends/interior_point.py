"""The interior-point method behind the socket of the back ends: a second opinion, instance by instance on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch

from linsat._recent import Recent
from linsat.backends.arrays import ArrayBackend
from linsat.compile import judge
from linsat.compile.hard_rows import ROUNDING, hard_rows, linear_system
from linsat.compile.problem import Problem, Tensor
from linsat.compile.system import Deadline
from linsat.objectives import Entropy, Euclidean
from linsat.solvers.duality_gap import duality_gap
from linsat.solvers.interior_point import Optimum, minimise
from linsat.solvers.newton import Newton
from linsat.solvers.program import Program
from linsat.solvers.recession import recession
from linsat.solvers.result import SolverResult
from linsat.status import Status

_POLISHING_STEPS = 12
_GAP = 5.0  # duality gap allowed, in units of tol (1 + the terms of the objective)
JUDGE_SECONDS = 10.0  # for the question whether the rows of an instance can hold
_PATTERNS = 4  # of which the order of elimination is kept with a set


class InteriorPointBackend:
    """Solves entropic and Euclidean problems of any scale, one instance after another."""

    name = "interior_point"

    def supports(self, problem: Problem) -> str | None:
        if type(problem.objective) not in (Entropy, Euclidean):
            return f"the interior-point method knows Entropy and Euclidean, not {type(problem.objective).__name__}"
        return None

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> SolverResult:
        """Solve every instance; duals are polished by Newton's method, so that active rows and bounds are exact."""
        problem = problem.in_double()
        result = SolverResult.empty(problem, self.name)
        tol, deadline = min(options.tol, 1e-9), Deadline(options.seconds)
        analyses = problem.rows.cache.setdefault("analyses", Recent(_PATTERNS))
        low, high = (np.atleast_2d(bound.cpu().numpy()) for bound in problem.dual_bounds())
        for instance in range(problem.size):
            elastic, program = _Elastic.of(problem, instance), _program(problem, instance)
            whole = elastic.added_to(program)
            optimum = minimise(whole, 0.1 * tol, deadline=deadline, analyses=analyses)
            mu = elastic.snapped(optimum) * _one(problem.scale, instance)
            mu = np.clip(mu, *(bound[min(instance, len(bound) - 1)] for bound in (low, high)))
            result.mu[instance] = torch.from_numpy(mu)
            result.x[instance] = torch.from_numpy(optimum.x[: problem.rows.shape[1]])
            result.steps[instance] = optimum.steps
            status = _ending(whole, optimum, tol, deadline)
            if not problem.rows.sparse and _polished(problem, instance, options, result):
                status = Status.CONVERGED
            if status is Status.CONVERGED:
                status = self._confirmed(problem, instance, (elastic, program, whole), result, tol, deadline)
            result.codes[instance] = status.code
        return result

    @staticmethod
    def _confirmed(
        problem: Problem,
        instance: int,
        solved: tuple[_Elastic, Program, Program],
        result: SolverResult,
        tol: float,
        deadline: Deadline,
    ) -> Status:
        """What an answer called converged is: by the duality gap of x and duals as returned, and by its rows.

        Rows that hold only because x is so far away, or only at huge duals, may be rows that cannot hold: that is put
        to an exact verdict, and nothing is claimed where there is none.
        """
        elastic, program, whole = solved
        x = result.x[instance].cpu().numpy()
        duals = result.mu[instance].cpu().numpy() / _one(problem.scale, instance)
        soft = _one(problem.soft, instance)
        gap = duality_gap(whole, np.append(x, elastic.broken(program, x)), duals, soft)
        if not gap.columns + gap.room <= _GAP * tol:
            return Status.STALLED
        system, unit = hard_rows(problem, instance, x), _one(problem.scale, instance)[~soft]
        if gap.rows <= _GAP * tol and (system.outside(x) <= tol * unit).all():
            return Status.CONVERGED
        verdict = judge(system, seconds=min(JUDGE_SECONDS, deadline.remaining))
        if verdict.kind == "infeasible":
            return Status.INFEASIBLE
        holds = verdict.point is not None and (system.outside(verdict.point) <= tol * unit).all()
        return Status.CONVERGED if holds else Status.STALLED


def _polished(problem: Problem, instance: int, options: Newton, result: SolverResult) -> bool:
    """Put what a few of Newton's steps make of an answer in its place, where they converge and its rows hold as well."""
    if not bool(torch.isfinite(result.mu[instance]).all()):
        return False
    index, few = torch.tensor([instance], device=result.mu.device), Newton(tol=options.tol, max_steps=_POLISHING_STEPS)
    # One after another: sums over a batch round as its size has it, and no answer may depend on the others.
    part = ArrayBackend().solve(problem.select(index), few, result.mu[index])
    hard = hard_rows(problem, instance)
    off, polished = (hard.violation(x[0].cpu().numpy()) for x in (result.x[index], part.x))
    if int(part.codes[0]) != Status.CONVERGED.code or polished > max(off, 0.1 * options.tol):
        return False
    result.mu[index], result.x[index] = part.mu, part.x
    return True


def _ending(program: Program, optimum: Optimum, tol: float, deadline: Deadline) -> Status:
    """How the method ended, as a claim."""
    if optimum.error <= tol:
        return Status.CONVERGED
    if optimum.out_of_time:
        return Status.TIME_LIMIT
    return Status.STALLED if recession(program, deadline) is None else Status.UNBOUNDED


@dataclass(frozen=True)
class _Elastic:
    """Columns that take up what soft rows are broken by, each way one, at the price of the row."""

    rows: np.ndarray  # (m,) the row of each column
    sign: np.ndarray  # (m,) -1 takes up what exceeds a row, +1 what a row lacks
    price: np.ndarray  # (m,)

    @classmethod
    def of(cls, problem: Problem, instance: int) -> _Elastic:
        soft = _one(problem.soft, instance) & _one(problem.presolved.active, instance)
        low, high = _one(problem.dual_lower, instance), _one(problem.dual_upper, instance)
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
        )

    def broken(self, program: Program, x: np.ndarray) -> np.ndarray:
        """What the columns have to take up at x, beyond the rounding of the rows: times a high price, that is much."""
        values, sizes = (program.matrix @ x)[self.rows], (abs(program.matrix) @ np.abs(x))[self.rows]
        side = np.where(self.sign < 0, program.row_upper[self.rows], program.row_lower[self.rows])
        broken = -self.sign * (values - side)
        return np.where(broken > ROUNDING * (sizes + np.abs(side)), broken, 0.0)

    def snapped(self, found: Optimum) -> np.ndarray:
        """The duals of the rows, at the price where a row is broken by more than its dual lacks to that."""
        duals = found.duals.copy()
        broken = found.x[len(found.x) - len(self.rows) :] > self.price - self.sign * duals[self.rows]
        duals[self.rows[broken]] = (self.sign * self.price)[broken]
        return duals


def _one(tensor: Tensor, instance: int) -> np.ndarray:
    picked = tensor[min(instance, tensor.shape[0] - 1)]
    return picked.detach().cpu().numpy()


def _program(problem: Problem, instance: int) -> Program:
    """One instance as the interior-point method wants it: what presolve fixed has no room, idle rows no sides."""

    def of(tensor: Tensor) -> np.ndarray:
        return _one(tensor, instance)

    p, rows = problem.presolved, problem.rows
    lower, upper, free, at_upper = of(problem.lower), of(problem.upper), of(p.free), of(p.at_upper)
    lower, upper = np.where(free | ~at_upper, lower, upper), np.where(free | at_upper, upper, lower)
    system = linear_system(problem, instance)
    row_lower, row_upper = system.row_lower, system.row_upper
    objective, l, k = problem.objective, rows.shape[1], rows.shape[0]
    quadratic, entropy, row_entropy = np.zeros(l), np.zeros(l), np.zeros(k)
    rhs, slack, scale = of(problem.rhs), of(problem.slack), of(problem.scale)
    if isinstance(objective, Entropy):
        tau = float(of(objective.tau)[0])
        entropy = tau / np.maximum(upper - lower, 1e-300)
        if objective.entropic_slack:
            row_entropy = np.where(slack > 0, tau / scale, 0.0)
    elif isinstance(objective, Euclidean):
        quadratic = np.ones(l) if objective.weights is None else of(objective.weights).copy()
    tight, share = of(p.tight), of(p.tight_share)
    row_lower, row_upper = (
        np.where(tight, rhs - slack * share, row_lower),
        np.where(tight, rhs - slack * share, row_upper),
    )
    idle = ~of(p.active)
    return Program(
        matrix=system.matrix,
        row_lower=np.where(idle, -np.inf, row_lower),
        row_upper=np.where(idle, np.inf, row_upper),
        lower=lower,
        upper=upper,
        linear=of(objective.linear(problem.scores)),
        quadratic=quadratic,
        entropy=entropy,
        row_entropy=row_entropy,
    )
