"""The interior-point method behind the socket of the back ends: a second opinion, instance by instance on the CPU."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch

from linsat.backends.arrays import ArrayBackend
from linsat.compile import judge
from linsat.compile.hard_rows import ROUNDING, hard_rows, linear_system
from linsat.compile.problem import Problem, Tensor
from linsat.objectives import Entropy, Euclidean
from linsat.solvers.duality_gap import duality_gap
from linsat.solvers.interior_point import Optimum, minimise
from linsat.solvers.newton import Newton
from linsat.solvers.program import Program
from linsat.solvers.result import SolverResult
from linsat.status import Status

_POLISHING_STEPS = 12
_GAP = 5.0  # duality gap allowed, in units of tol (1 + the terms of the objective)
JUDGE_SECONDS = 10.0  # for the question whether the rows of an instance can hold


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
        tol = min(options.tol, 1e-9)
        errors = []
        for instance in range(problem.size):
            elastic = _Elastic.of(problem, instance)
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = minimise(elastic.added_to(_program(problem, instance)), 0.1 * tol)
            scale = _one(problem.scale, instance)
            result.mu[instance] = torch.from_numpy(elastic.snapped(found) * scale)
            result.x[instance] = torch.from_numpy(found.x[: problem.rows.shape[1]])
            result.steps[instance] = found.steps
            errors.append(found.error)
        result.mu = problem.clip(result.mu)
        reached = torch.tensor(errors, dtype=torch.float64, device=problem.scores.device)
        result.codes[:] = torch.where(reached <= tol, Status.CONVERGED.code, Status.STALLED.code)
        if not problem.rows.sparse:
            self._polish(problem, options, result)
        for instance in (result.codes == Status.CONVERGED.code).nonzero().squeeze(-1).tolist():
            result.codes[instance] = self._confirmed(problem, instance, result, tol).code
        return result

    @staticmethod
    def _confirmed(problem: Problem, instance: int, result: SolverResult, tol: float) -> Status:
        """What an answer called converged is: by the duality gap of x and duals as returned, and by its rows.

        Rows that hold only because x is so far away, or only at huge duals, may be rows that cannot hold: that is put
        to an exact verdict, and nothing is claimed where there is none.
        """
        elastic, program = _Elastic.of(problem, instance), _program(problem, instance)
        x = result.x[instance].cpu().numpy()
        duals = result.mu[instance].cpu().numpy() / _one(problem.scale, instance)
        soft = _one(problem.soft, instance)
        gap = duality_gap(elastic.added_to(program), np.append(x, elastic.broken(program, x)), duals, soft)
        if not gap.columns + gap.room <= _GAP * tol:
            return Status.STALLED
        system, unit = hard_rows(problem, instance, x), _one(problem.scale, instance)[~soft]
        if gap.rows <= _GAP * tol and (system.outside(x) <= tol * unit).all():
            return Status.CONVERGED
        verdict = judge(system, seconds=JUDGE_SECONDS)
        if verdict.kind == "infeasible":
            return Status.INFEASIBLE
        holds = verdict.point is not None and (system.outside(verdict.point) <= tol * unit).all()
        return Status.CONVERGED if holds else Status.STALLED

    @staticmethod
    def _polish(problem: Problem, options: Newton, result: SolverResult) -> None:
        few = Newton(tol=options.tol, max_steps=_POLISHING_STEPS)
        # One after another: sums over a batch round as its size has it, and no answer may depend on the others.
        for index in torch.isfinite(result.mu).all(-1).nonzero():
            part = ArrayBackend().solve(problem.select(index), few, result.mu[index])
            hard = hard_rows(problem, int(index))
            off, polished = (hard.violation(x[0].cpu().numpy()) for x in (result.x[index], part.x))
            if int(part.codes[0]) == Status.CONVERGED.code and polished <= max(off, 0.1 * options.tol):
                result.mu[index], result.x[index], result.codes[index] = part.mu, part.x, part.codes


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
