"""The interior-point method behind the socket of the back ends: a second opinion, instance by instance on the CPU."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from linsat.backends.arrays import ArrayBackend
from linsat.compile.compiled import linear_system
from linsat.compile.problem import Problem, Tensor
from linsat.objectives import Entropy, Euclidean
from linsat.solvers.interior_point import Program, minimise
from linsat.solvers.newton import Newton
from linsat.solvers.result import SolverResult
from linsat.status import Status

_POLISHING_STEPS = 12


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
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = minimise(_program(problem, instance), 0.1 * tol)
            scale = _one(problem.scale, instance)
            result.mu[instance] = torch.from_numpy(found.duals * scale)
            result.x[instance] = torch.from_numpy(found.x)
            result.steps[instance] = found.steps
            errors.append(found.error)
        reached = torch.tensor(errors, dtype=torch.float64, device=problem.scores.device)
        result.codes[:] = torch.where(reached <= tol, Status.CONVERGED.code, Status.STALLED.code)
        if not problem.rows.sparse:
            self._polish(problem, options, result)
        return result

    @staticmethod
    def _polish(problem: Problem, options: Newton, result: SolverResult) -> None:
        near = torch.isfinite(result.mu).all(-1).nonzero().squeeze(-1)
        if near.numel() == 0:
            return
        few = Newton(tol=options.tol, max_steps=_POLISHING_STEPS)
        part = ArrayBackend().solve(problem.select(near), few, result.mu[near])
        done = part.codes == Status.CONVERGED.code
        index = near[done]
        result.mu[index], result.x[index] = part.mu[done], part.x[done]
        result.codes[index] = Status.CONVERGED.code


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
