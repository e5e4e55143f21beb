"""Solving one batch: everything that looks at numbers, out of sight of autograd, function transforms and graphs."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from linsat.backends.run import first_backend, judge_failures, presolve, reject_infeasible, run, settle
from linsat.compile.compiled import CompiledConstraints
from linsat.compile.diagnosis import linear_system
from linsat.compile.feasibility import HOLDS
from linsat.compile.problem import Problem, StandardForm, Tensor
from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError, ConvergenceError, InfeasibleError, LinSATWarning
from linsat.objectives import Entropy, Euclidean, Objective
from linsat.solvers import Newton, Sinkhorn
from linsat.solvers.result import SolverResult
from linsat.status import Status

_LARGEST_SLACK = 1e5  # in units of a row: beyond it, rounding of d + S may come close to the tolerance of 1e-9


@dataclass(frozen=True)
class Solve:
    """How the problems of one call are solved, and what happens where that fails."""

    compiled: CompiledConstraints
    solver: Newton | Sinkhorn
    on_failure: str
    start: Tensor | None  # (N, k) duals of the rows as written
    own_instance: Callable[[int], int]  # which instance of the set an instance of the batch has its numbers from

    def __call__(self, form: StandardForm, scores: Tensor, objective: Objective) -> tuple[SolverResult, Problem]:
        compiled = self.compiled
        constant = form is compiled.form and compiled.presolved is not None
        presolved = settle(compiled) if constant else presolve(compiled, form)
        problem = form.problem(scores, objective, presolved, compiled.cache if constant else None, compiled.senses)
        start = None if self.start is None else self.start * form.scale
        first = first_backend(problem, self.solver)
        unusable = None
        if first.name != "kernel":  # which looks at the numbers as it reads them
            unusable = self._unusable(form, scores, objective)
            if unusable is not None:  # zeros solve, and do not get into the way of the others
                problem = replace(problem, scores=scores.masked_fill(unusable[:, None], 0.0))
        result = run(problem, self.solver, start, first)
        if unusable is not None:
            result.codes[unusable], result.known_solved = Status.NOT_FINITE.code, False
        if objective.entropic_slack and isinstance(self.solver, Newton) and self._rounds_sides(form, constant):
            self._check_rows(result, scores.dtype)
        if not result.solved:
            if unusable is None:
                self._unusable(form, scores, objective)
            self._failed(problem, result)
        if not objective.finite_box and scores.dtype is not torch.float64:
            check_reach(result, scores.dtype)
        return result, problem

    def _rounds_sides(self, form: StandardForm, constant: bool) -> bool:
        """Whether d + S, which the paper's slack makes of ``c x >= d``, is so large that doubles may not keep d."""
        if not constant:
            return bool((form.slack > _LARGEST_SLACK).any())
        known = self.compiled.cache
        if "rounds_sides" not in known:
            known["rounds_sides"] = bool((form.slack > _LARGEST_SLACK).any())
        return known["rounds_sides"]

    def _check_rows(self, result: SolverResult, dtype: torch.dtype) -> None:
        """Take back that an instance has converged where its rows hold with d + S and not with d.

        ``dtype`` is that of the scores, to which x is rounded or will be.
        """
        constraints, x = self.compiled.constraints, result.x.detach()
        if constraints.mapped:  # the numbers of an instance are out of reach, inside a function transform
            return
        if self.compiled.shared:
            worst = constraints.violation(x)
        else:
            points = enumerate(x.double().cpu().numpy())
            each = [linear_system(constraints, self.own_instance(i)).violation(point) for i, point in points]
            worst = torch.tensor(each, dtype=torch.float64, device=x.device)
        rounding = 0.0 if dtype is torch.float64 else torch.finfo(dtype).eps
        lost = (worst > max(self.solver.tol, HOLDS) + rounding) & (result.codes == Status.CONVERGED.code)
        if bool(lost.any()):
            result.known_solved = False
            result.codes[lost] = Status.STALLED.code

    def _unusable(self, form: StandardForm, scores: Tensor, objective: Objective) -> Tensor | None:
        return unusable(form, scores, objective, self.compiled.constraints, self.on_failure)

    def _failed(self, problem: Problem, result: SolverResult) -> None:
        judge_failures(problem, result)
        if self.compiled.shared and bool((result.codes == Status.INFEASIBLE.code).any()):
            reject_infeasible(self.compiled.constraints)
        report(result, self.on_failure, self.compiled.constraints, self.own_instance)


def report(result: SolverResult, on_failure: str, constraints: Constraints, own_instance: Callable[[int], int]) -> None:
    """Raise, warn or put NaN where an instance was not solved, as the caller asked."""
    failed = result.codes != Status.CONVERGED.code
    if not bool(failed.any()):
        return
    without_x = result.codes == Status.NOT_FINITE.code
    if bool(without_x.any()):  # no scores, no point, whoever asks
        result.x = result.x.masked_fill(without_x[:, None], torch.nan)
    if on_failure == "ignore":
        return
    if on_failure == "nan":
        result.x = result.x.masked_fill(failed[:, None], torch.nan)
        return
    first = int(failed.nonzero()[0])
    status = Status.of(int(result.codes[first]))
    text = (
        f"{int(failed.sum())} of {len(failed)} instances were not solved; the first is instance {first}: {status}. "
        f"{status.advice}"
    )
    if on_failure == "warn":
        warnings.warn(text, LinSATWarning, stacklevel=_caller_level())
        return
    if status is Status.INFEASIBLE:
        reject_infeasible(constraints, own_instance(first))
    raise ConvergenceError(f'{text} To continue without such instances: on_failure="nan".')


def _caller_level() -> int:
    """Stack level of the first frame outside linsat and torch, so that a warning points at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("linsat", "torch"):
        level, frame = level + 1, frame.f_back
    return level


def check_reach(result: SolverResult, dtype: torch.dtype) -> None:
    """Reject answers beyond the range of the scores' dtype, which they will have; finite bounds are checked before."""
    x = result.x if result.solved else result.x[result.codes == Status.CONVERGED.code]
    reach, largest = float(x.abs().amax()) if x.numel() else 0.0, torch.finfo(dtype).max
    if reach > largest:
        raise ConstraintError(
            f"x reaches {reach:g} but y has dtype {dtype}, which ends at {largest:g}. "
            f"Fix: y.double(), or finite bounds."
        )


class ForbiddenVariables(Exception):  # noqa: N818 - a signal to whoever can change the box, which no user sees
    """Some scores are -inf: those variables stay at their lower bounds, `linsat.request.Request.forbidding`."""


@contextmanager
def saying_what_is_forbidden() -> Iterator[None]:
    """Have an error about rows that cannot hold say that scores of -inf count as bounds."""
    try:
        yield
    except InfeasibleError as error:
        found, _, fix = str(error).rpartition("Fix:")
        error.args = (f"{found}A variable with a score of -inf stays at its lower bound.\nFix:{fix}",)
        raise


def unusable(
    form: StandardForm, scores: Tensor, objective: Objective, constraints: Constraints, on_failure: str
) -> Tensor | None:
    """(N,) instances whose scores no solver could use; None: there are none.

    Raises:
        ForbiddenVariables: some scores are -inf.
        ConstraintError: numbers of the objective that no solver could use, and scores where a failure is to raise.
    """
    _check_objective(objective)
    scores = scores.detach()
    largest = scores.abs().amax(-1) if scores.numel() else scores.new_zeros(scores.shape[:1])
    largest = largest.to(torch.float64)
    width = float((form.upper - form.lower).amax()) if objective.finite_box and form.lower.numel() else 0.0
    bad = ~torch.isfinite(largest * width)  # infinity times 0 is not finite either
    if not bool(bad.any()):
        return None
    if bool(torch.isneginf(scores).any()):
        raise ForbiddenVariables
    if on_failure != "raise":
        return bad
    instance = int(bad.nonzero()[0])
    if math.isfinite(float(largest[instance])):
        raise ConstraintError(
            f"y of instance {instance}, times the width of the box, is beyond the range of float64. "
            f"Fix: smaller scores, or a narrower box."
        )
    variable = int((~torch.isfinite(scores[instance])).nonzero()[0])
    raise ConstraintError(
        f"y holds {float(scores[instance, variable])} (instance {instance}, variable "
        f"{constraints.variable_name(variable)}); expected finite scores, or -inf to keep a variable at its lower "
        f'bound. Fix: find out where it comes from; to go on without such instances: on_failure="nan".'
    )


def check_lower(wrong: Tensor, constraints: Constraints) -> None:
    """Reject scores of -inf for variables without a lower bound, (N, l) bool."""
    if bool(wrong.any()):
        instance, variable = wrong.nonzero()[0].tolist()
        raise ConstraintError(
            f"y holds -inf (instance {instance}, variable {constraints.variable_name(variable)}), which keeps a "
            f"variable at its lower bound; that is -inf too. Fix: a finite lower bound, or a finite score."
        )


def _check_objective(objective: Objective) -> None:
    positive = isinstance(objective, (Entropy, Euclidean))  # one's own may have numbers of any sign
    for name, value in objective.parameters().items():
        wrong = ~torch.isfinite(value) | ((value <= 0) if positive else False)
        if bool(wrong.any()):
            index = tuple(int(i) for i in wrong.nonzero()[0])
            expected = (
                "a positive, finite temperature. Fix: for example tau=0.1." if name == "tau" else "positive numbers."
            )
            if not positive:
                expected = "finite numbers. Fix: find out where it comes from."
            raise ConstraintError(f"{name} is {float(value[index])}; expected {expected}")
