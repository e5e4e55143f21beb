"""Instances that were not solved: why, and what the caller wants to become of them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import torch

from linsat.backends.interior_point import JUDGE_SECONDS
from linsat.compile import Deadline, LinearSystem, judge
from linsat.compile.diagnosis import reject_infeasible
from linsat.compile.hard_rows import contradictory
from linsat.compile.problem import Tensor
from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError, ConvergenceError, InfeasibleError, LinSATWarning
from linsat.objectives import Entropy, Euclidean, Objective
from linsat.plan import Answer, Numbers, Plan
from linsat.status import Status

_UNSOLVED = (Status.STEP_LIMIT, Status.STALLED)
_SECONDS = 60.0  # for verdicts on all instances of a call


def settle(
    plan: Plan,
    numbers: Numbers,
    scores: Tensor,
    objective: Objective,
    answer: Answer,
    on_failure: str,
    own_instance: Callable[[int], int],
) -> None:
    """Say why instances of an answer were not solved, and raise, warn or put NaN as the caller asked.

    Raises:
        InfeasibleError: rows shared by all contradict each other; with ``on_failure="raise"``, those of an instance.
        ConstraintError: numbers of the set or of the objective that cannot be; where failures raise, scores too.
        ConvergenceError: where failures raise.
    """
    if not bool((answer.codes == Status.CONVERGED.code).all()):
        explain(plan, numbers, scores, objective, answer, on_failure)
        _judge(plan, numbers, scores, objective, answer)
    constraints = plan.constraints
    infeasible = (answer.codes == Status.INFEASIBLE.code) & ~torch.isneginf(scores).any(-1)
    if not constraints.batch_shape and bool(infeasible.any()):
        reject_infeasible(constraints)
    _report(answer, on_failure, plan, numbers, scores, own_instance)


def explain(
    plan: Plan, numbers: Numbers, scores: Tensor, objective: Objective, answer: Answer, on_failure: str
) -> None:
    """Raise what is wrong with numbers that no solver could use."""
    check_objective(objective)
    constraints = plan.constraints
    if not plan.constant:
        constraints.check_numbers()
        check_prices(numbers)
    if objective.finite_box:
        constraints.require_finite_box()
    held = torch.isneginf(scores)
    if bool(held.any()):
        check_lower(held & torch.isneginf(numbers.lower), constraints)
    unusable = answer.codes == Status.NOT_FINITE.code
    if bool(unusable.any()) and on_failure == "raise":
        reject_scores(scores, numbers, constraints, int(unusable.nonzero()[0]))


def check_usable(plan: Plan, numbers: Numbers, scores: Tensor, objective: Objective, on_failure: str) -> Tensor | None:
    """(N,) instances whose scores no solver could use, for solvers that do not look themselves; None: there are none.

    Raises:
        ConstraintError: numbers of the objective that no solver could use, and scores where a failure is to raise.
    """
    check_objective(objective)
    constraints, values = plan.constraints, scores.detach()
    if not plan.constant:
        constraints.check_numbers()
        check_prices(numbers)
    if objective.finite_box:
        constraints.require_finite_box()
    held = torch.isneginf(values)
    if bool(held.any()):
        check_lower(held & torch.isneginf(numbers.lower), constraints)
        values = values.masked_fill(held, 0.0)
    largest = values.abs().amax(-1) if values.numel() else values.new_zeros(values.shape[:1])
    width = float((numbers.upper - numbers.lower).amax()) if objective.finite_box and numbers.lower.numel() else 0.0
    bad = ~torch.isfinite(largest.to(torch.float64) * width)  # infinity times 0 is not finite either
    if not bool(bad.any()):
        return None
    if on_failure == "raise":
        reject_scores(scores.detach(), numbers, constraints, int(bad.nonzero()[0]))
    return bad


def reject_scores(scores: Tensor, numbers: Numbers, constraints: Constraints, instance: int) -> None:
    """Raise what is wrong with the scores of an instance."""
    own = scores[instance].to(torch.float64)
    wrong = ~torch.isfinite(own) & ~torch.isneginf(own)
    if not bool(wrong.any()):
        lower, upper = (b[min(instance, b.shape[0] - 1)] for b in (numbers.lower, numbers.upper))
        infinite = ~(torch.isfinite(lower) & torch.isfinite(upper))
        if bool(infinite.any()) or bool(torch.isfinite(own * (upper - lower)).all()):
            largest = torch.finfo(scores.dtype).max
            raise ConstraintError(
                f"x of instance {instance} is beyond the range of y's dtype {scores.dtype}, which ends at "
                f"{largest:g}. Fix: y.double(), or finite bounds."
            )
        raise ConstraintError(
            f"y of instance {instance}, times the width of the box, is beyond the range of float64. "
            f"Fix: smaller scores, or a narrower box."
        )
    variable = int(wrong.nonzero()[0])
    raise ConstraintError(
        f"y holds {float(own[variable])} (instance {instance}, variable "
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


def check_prices(numbers: Numbers) -> None:
    """Reject prices that no solver could use; those of a graph come without the set that would say which."""
    if not bool((numbers.price > 0).all()):
        raise ConstraintError("price holds a number that is not positive and finite; expected one per unit of a row.")


def check_objective(objective: Objective) -> None:
    """Reject numbers of the objective that no solver could use."""
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


def _judge(plan: Plan, numbers: Numbers, scores: Tensor, objective: Objective, answer: Answer) -> None:
    """Mark the instances among those not solved that are proved infeasible."""
    left = [i for i, code in enumerate(answer.codes.tolist()) if Status.of(code) in _UNSOLVED]
    if not left:
        return
    index = torch.tensor(left, device=scores.device)
    decided = answer.decided if answer.decided.shape[0] == 1 else answer.decided[index]
    here = objective.probe(numbers.lower)
    with torch.no_grad():
        problem = plan.problem(numbers.select(index), scores[index], here, decided)
    limit = Deadline(_SECONDS)

    def infeasible(system: LinearSystem, _: int) -> bool:
        return judge(system, deadline=limit.within(JUDGE_SECONDS)).kind == "infeasible"

    answer.codes[index[contradictory(problem, infeasible)]] = Status.INFEASIBLE.code


def _report(
    answer: Answer,
    on_failure: str,
    plan: Plan,
    numbers: Numbers,
    scores: Tensor,
    own_instance: Callable[[int], int],
) -> None:
    """Raise, warn or put NaN where an instance was not solved, as the caller asked."""
    failed = answer.codes != Status.CONVERGED.code
    if not bool(failed.any()):
        return
    without_x = answer.codes == Status.NOT_FINITE.code
    if bool(without_x.any()):  # no scores, no point, whoever asks
        answer.x = answer.x.masked_fill(without_x[:, None], torch.nan)
    if on_failure == "ignore":
        return
    if on_failure == "nan":
        answer.x = answer.x.masked_fill(failed[:, None], torch.nan)
        return
    first = int(failed.nonzero()[0])
    status = Status.of(int(answer.codes[first]))
    text = (
        f"{int(failed.sum())} of {len(failed)} instances were not solved; the first is instance {first}: {status}. "
        f"{status.advice}"
    )
    if on_failure == "warn":
        warnings.warn(text, LinSATWarning, stacklevel=_caller_level())
        return
    if status is Status.INFEASIBLE:
        reject_instance(plan, numbers, scores, first, own_instance)
    raise ConvergenceError(f'{text} To continue without such instances: on_failure="nan".')


def reject_instance(
    plan: Plan, numbers: Numbers, scores: Tensor, instance: int, own_instance: Callable[[int], int]
) -> None:
    """Raise `InfeasibleError` where the rows of an instance contradict each other, at bounds as scores of -inf make."""
    constraints, own = plan.constraints, own_instance(instance)
    held = torch.isneginf(scores[instance])
    if not bool(held.any()):
        reject_infeasible(constraints, own)
        return
    batch = constraints.batch_shape or (instance + 1,)
    lower, upper = (b[min(instance, b.shape[0] - 1)] for b in (numbers.lower, numbers.upper))
    upper = torch.where(held, lower, upper).detach().cpu().expand(*batch, -1)
    try:
        reject_infeasible(constraints.with_bounds(upper=upper), own if constraints.batch_shape else instance)
    except InfeasibleError as error:
        words, _, fix = str(error).rpartition("Fix:")
        error.args = (f"{words}A variable with a score of -inf stays at its lower bound.\nFix:{fix}",)
        raise


def _caller_level() -> int:
    """Stack level of the first frame outside linsat and torch, so that a warning points at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("linsat", "torch"):
        level, frame = level + 1, frame.f_back
    return level
