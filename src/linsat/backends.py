"""Problems on arrays: the first back end that takes one, and the interior-point method for what that does not solve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from linsat._array_namespace import to_numpy
from linsat.arrays import Newton, Sinkhorn
from linsat.arrays.interior import instances as interior_point
from linsat.arrays.iteration import ArrayBackend
from linsat.arrays.judgement import decide
from linsat.arrays.newton import STEPS_BEFORE_INTERIOR, handed_over
from linsat.arrays.problem import Problem, Tensor
from linsat.arrays.result import Claim, SolverResult, Stop
from linsat.errors import ConstraintError
from linsat.status import Status
from linsat.triton import TritonBackend


class Backend(Protocol):
    """Where a problem is solved."""

    name: str

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why this back end cannot take the problem."""

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> Claim:
        """Solve every instance, from duals ``start`` of an earlier solve where given."""
        ...


class InteriorPoint:
    """The interior-point method behind the same socket: arrays of the host, and back."""

    name = "interior_point"

    def supports(self, problem: Problem) -> str | None:
        return interior_point.unsupported(problem.objective)

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> Claim:
        claim = interior_point.solve(problem.in_numpy(), options, _polish(problem, options))
        return Claim(*_as_tensors(claim, problem))


_ARRAYS, _INTERIOR = ArrayBackend(), InteriorPoint()
# In order of preference; the last takes every problem. Triton's kernels serve where they are asked for.
BACKENDS: list[Backend] = [_ARRAYS]


def every_backend() -> list[Backend]:
    """All back ends on arrays, also the one that takes what the others do not solve."""
    return [*BACKENDS, TritonBackend(), _INTERIOR]


def choose(problem: Problem, solver: Newton) -> Backend:
    """The back end that the solver asks for, or the first that takes the problem.

    Raises:
        ConstraintError: the one asked for cannot take the problem; the message says why.
    """
    if solver.backend in ("auto", "kernel"):
        return next(backend for backend in BACKENDS if backend.supports(problem) is None)
    asked = next(backend for backend in every_backend() if backend.name == solver.backend)
    reason = asked.supports(problem)
    if reason is not None:
        raise ConstraintError(f"backend={solver.backend!r} cannot be used here: {reason}. Fix: leave backend out.")
    return asked


def run(problem: Problem, solver: Newton | Sinkhorn, start: Tensor | None = None) -> SolverResult:
    """Solve every instance that presolve has not found infeasible; the verdict is that of `linsat.arrays.judgement`."""
    infeasible = problem.presolved.infeasible
    if not bool(infeasible.any()):
        return _solve(problem, solver, start)
    infeasible, problem = infeasible.expand(problem.size), problem.in_double()
    claim = Claim.empty(problem, "newton")
    claim.x = problem.point(problem.adjusted(claim.mu))
    claim.stops[infeasible] = Stop.INFEASIBLE
    result = decide(problem, claim, solver)
    rest = (~infeasible).nonzero().squeeze(-1)
    if rest.numel():
        result.put(rest, _solve(problem.select(rest), solver, None if start is None else start[rest]))
    return result


def _solve(problem: Problem, solver: Newton | Sinkhorn, start: Tensor | None) -> SolverResult:
    if isinstance(solver, Sinkhorn):
        return decide(problem, solver.run(problem.in_double(), start), solver)
    first = choose(problem, solver)
    alone = first is _INTERIOR or _INTERIOR.supports(problem) is not None
    if not alone and first is _ARRAYS and problem.rows.sparse and start is None:
        problem = problem.in_double()
        result = decide(problem, interior_point.rest(problem, solver.tol), solver)
        left = result.codes != Status.CONVERGED.code
    else:
        steps = min(solver.max_steps, STEPS_BEFORE_INTERIOR)
        claim = first.solve(problem, solver if alone else replace(solver, max_steps=steps), start)
        result = decide(problem, claim, solver)
        if alone or result.solved:
            return result
        left = handed_over(result.codes, solver.max_steps)
    left = left.nonzero().squeeze(-1)
    if left.numel():
        problem, result.x = problem.in_double(), result.x.to(torch.float64)
        part = finish(problem.select(left), solver, problem.multipliers(result.mu)[left])
        part.steps.add_(result.steps[left])
        result.put(left, part)
    return result


def finish(problem: Problem, solver: Newton, duals: Tensor) -> SolverResult:
    """The interior-point method, for what Newton has not solved."""
    host, polish = problem.in_numpy(), _polish(problem, solver)
    result = decide(host, interior_point.finish(host, solver, to_numpy(duals), polish), solver)
    return SolverResult(*_as_tensors(result, problem))


def _polish(problem: Problem, solver: Newton) -> interior_point.Polish:
    """A few steps of Newton's on tensors."""
    few, device = Newton(tol=solver.tol, max_steps=interior_point.POLISHING_STEPS), problem.scores.device

    def polish(instance: int, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        index = torch.tensor([instance], device=device)
        part = _ARRAYS.solve(problem.select(index), few, torch.from_numpy(mu).to(device))
        return (to_numpy(part.mu[0]), to_numpy(part.x[0])) if int(part.stops[0]) == Stop.ARRIVED else None

    return polish


def _as_tensors(ended: Claim | SolverResult, problem: Problem) -> Iterator[Tensor]:
    """Duals, x and counts on the device of a problem."""
    return (torch.from_numpy(part).to(problem.scores.device) for part in (ended.mu, ended.x, ended.counts))
