"""Instances that were not solved: why, and what the caller wants to become of them."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from linsat._array_namespace import to_numpy
from linsat.arrays.hard_rows import contradictory
from linsat.arrays.interior.instances import JUDGE_SECONDS
from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError, ConvergenceError, InfeasibleError, LinSATWarning
from linsat.objectives import Objective
from linsat.plan import Answer, Numbers
from linsat.status import Status
from linsat.verdict import Deadline, LinearSystem, judge
from linsat.verdict.diagnosis import reject_infeasible

if TYPE_CHECKING:
    from linsat.call import Call

Array = np.ndarray
Failed = Array | None  # (N,) bool: instances whose x is to be NaN
_UNSOLVED = (Status.STEP_LIMIT, Status.STALLED)
_SECONDS = 60.0  # for verdicts on all instances of a call


def settle(call: Call, scores: Array, answer: Answer) -> Failed:
    """Say why instances of an answer were not solved, and raise, warn or tell whose x becomes NaN, as the caller asked.

    The codes of the answer, an array of numpy, change where an instance is proved infeasible.

    Raises:
        InfeasibleError: rows shared by all contradict each other; with ``on_failure="raise"``, those of an instance.
        ConstraintError: numbers of the set or of the objective that cannot be; where failures raise, scores too.
        ConvergenceError: where failures raise.
    """
    held = call.objective.held
    if held is not None and to_numpy(held).any():  # as a score of -inf does
        scores = np.where(to_numpy(held), -np.inf, scores)
    if answer.codes.any():
        _explain(call, scores, answer)
        _judge(call, scores, answer)
    infeasible = (answer.codes == Status.INFEASIBLE.code) & ~np.isneginf(scores).any(-1)
    if infeasible.any() and not call.constraints.batch_shape:
        reject_infeasible(call.constraints)
    return _report(call, scores, answer)


def _explain(call: Call, scores: Array, answer: Answer) -> None:
    """Raise what is wrong with numbers that no solver could use: of one instance only where failures raise."""
    numbers = call.in_numpy()
    if call.options.on_failure == "raise" or (answer.codes != Status.CONVERGED.code).all():
        _check_numbers(call)
    held = np.isneginf(scores)
    if held.any():
        check_lower(held & np.isneginf(numbers.lower), call.constraints)
    unusable = answer.codes == Status.NOT_FINITE.code
    if unusable.any() and call.options.on_failure == "raise":
        reject_scores(scores, numbers, call.constraints, int(unusable.nonzero()[0][0]))


def unusable_scores(call: Call, scores: Array) -> Failed:
    """(N,) instances whose scores no solver could use, for solvers that do not look themselves; None: there are none.

    Raises:
        ConstraintError: numbers of the objective that no solver could use, and scores where a failure is to raise.
    """
    unfit = _unfit(call)
    numbers, constraints = _check_numbers(call, of_objective=not unfit.any()), call.constraints
    held = np.isneginf(scores)
    values = scores
    if held.any():
        check_lower(held & np.isneginf(numbers.lower), constraints)
        values = np.where(held, 0.0, scores)
    largest = np.abs(values.astype(np.float64)).max(-1, initial=0.0)
    width = 0.0
    if call.objective.finite_box:
        width = float((numbers.upper - numbers.lower).max(initial=0.0))
    with np.errstate(invalid="ignore", over="ignore"):
        bad = ~np.isfinite(largest * width) | unfit  # infinity times 0 is not finite either
    if not bad.any():
        return None
    if call.options.on_failure == "raise":
        reject_scores(scores, numbers, constraints, int(bad.nonzero()[0][0]))
    return bad


def _unfit(call: Call) -> Array:
    """(N,) or (1,) instances whose matrix is none, where a failure of some need not stop the others."""
    number = next(iter(call.objective.parameters().values()), None)
    if not call.objective.couples or call.options.on_failure == "raise" or number is None or number.shape[0] == 1:
        return np.zeros(1, dtype=bool)
    unfit = np.zeros(number.shape[0], dtype=bool)
    for n in range(len(unfit)):
        try:
            check_objective(call.objective.changed(operator.itemgetter(slice(n, n + 1))))
        except ConstraintError:
            unfit[n] = True
    return np.zeros(1, dtype=bool) if unfit.all() else unfit


def _check_numbers(call: Call, *, of_objective: bool = True) -> Numbers:
    """Reject numbers of objective and set that no solver could use; returns those of the set as plain arrays."""
    plan, numbers = call.plan, call.in_numpy()
    if of_objective:
        check_objective(call.objective)
    if not plan.constant:
        call.constraints._check_numbers()
        if not (numbers.price > 0).all():  # those of a graph come without the set that would say which
            raise ConstraintError(
                "price holds a number that is not positive and finite; expected one per unit of a row."
            )
    call.objective.check_bounds(call.constraints)
    return numbers


def reject_scores(scores: Array, numbers: Numbers, constraints: Constraints, instance: int) -> None:
    """Raise what is wrong with the scores of an instance."""
    own = scores[instance].astype(np.float64)
    wrong = ~np.isfinite(own) & ~np.isneginf(own)
    if not wrong.any():
        lower, upper = (b[min(instance, b.shape[0] - 1)] for b in (numbers.lower, numbers.upper))
        with np.errstate(invalid="ignore", over="ignore"):
            fits = np.isfinite(own * (upper - lower)).all()
        if fits or not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            raise ConstraintError(
                f"x of instance {instance} is beyond the range of y's dtype {scores.dtype}, which ends at "
                f"{np.finfo(scores.dtype).max:g}. Fix: y.double(), or finite bounds."
            )
        raise ConstraintError(
            f"y of instance {instance}, times the width of the box, is beyond the range of float64. "
            f"Fix: smaller scores, or a narrower box."
        )
    variable = int(wrong.nonzero()[0][0])
    raise ConstraintError(
        f"y holds {float(own[variable])} (instance {instance}, variable "
        f"{constraints._variable_name(variable)}); expected finite scores, or -inf to keep a variable at its lower "
        f'bound. Fix: find out where it comes from; to go on without such instances: on_failure="nan".'
    )


def check_lower(wrong: Array, constraints: Constraints) -> None:
    """Reject scores of -inf for variables without a lower bound, (N, l) bool."""
    if wrong.any():
        instance, variable = (int(i) for i in np.argwhere(wrong)[0])
        raise ConstraintError(
            f"y holds -inf (instance {instance}, variable {constraints._variable_name(variable)}), which keeps a "
            f"variable at its lower bound; that is -inf too. Fix: a finite lower bound, or a finite score."
        )


def check_objective(objective: Objective) -> None:
    """Reject numbers of the objective that no solver could use."""
    for name, value in objective.parameters().items():
        number, known = to_numpy(value), objective.ranges.get(name)
        wrong = ~np.isfinite(number) | (known.wrong(number) if known else False)
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            expected = known.expected if known else "finite numbers. Fix: find out where it comes from."
            raise ConstraintError(f"{name} is {float(number[index])}; expected {expected}")
    objective.check()


def _judge(call: Call, scores: Array, answer: Answer) -> None:
    """Mark the instances among those not solved that are proved infeasible."""
    left = [i for i, code in enumerate(answer.codes.tolist()) if Status.of(code) in _UNSOLVED]
    if not left:
        return
    numbers = call.in_numpy()
    decided = answer.decided if answer.decided.shape[0] == 1 else answer.decided[left]
    if call.objective.couples:  # that says what binds
        decided = None
    objective = call.objective.probe(numbers.lower)
    problem = call.plan.problem(numbers.select(left), scores[left].astype(np.float64), objective, decided)
    limit = Deadline(_SECONDS)

    def infeasible(system: LinearSystem, _: int) -> bool:
        return judge(system, deadline=limit.within(JUDGE_SECONDS)).kind == "infeasible"

    answer.codes[np.array(left)[contradictory(problem, infeasible)]] = Status.INFEASIBLE.code


def _report(call: Call, scores: Array, answer: Answer) -> Failed:
    """Raise, warn, or tell where x becomes NaN because an instance was not solved, as the caller asked."""

    def reject(first: int) -> None:
        numbers, held = call.in_numpy(), np.isneginf(scores[first])
        ends = (bound[min(first, bound.shape[0] - 1)] for bound in (numbers.lower, numbers.upper))
        reject_instance(call.constraints, call.own_instance(first), first, held, *ends)

    return report(answer.codes, call.options.on_failure, reject)


def report(codes: Array, on_failure: str, reject: Callable[[int], None]) -> Failed:
    """The same for the codes (N,) of any solve; ``reject`` raises what is wrong with an infeasible instance."""
    failed = codes != Status.CONVERGED.code
    if not failed.any():
        return None
    nowhere = codes == Status.NOT_FINITE.code  # no scores, no point, whoever asks
    if on_failure == "nan":
        return failed
    if on_failure == "ignore":
        return nowhere if nowhere.any() else None
    first = int(failed.nonzero()[0][0])
    status = Status.of(int(codes[first]))
    text = (
        f"{int(failed.sum())} of {len(failed)} instances were not solved; the first is instance {first}: {status}. "
        f"{status.advice}"
    )
    if on_failure == "warn":
        warnings.warn(text, LinSATWarning, stacklevel=_caller_level())
        return nowhere if nowhere.any() else None
    if status is Status.INFEASIBLE:
        reject(first)
    raise ConvergenceError(f'{text} To continue without such instances: on_failure="nan".')


def reject_instance(constraints: Constraints, own: int, instance: int, held: Array, lower: Array, upper: Array) -> None:
    """Raise `InfeasibleError` where the rows of an instance contradict each other, at bounds as scores of -inf make.

    Args:
        own: which of the set's instances it has its numbers from.
        held: (l,) variables whose scores are -inf.
        lower, upper: (l,) the bounds of the instance.
    """
    if not held.any():
        reject_infeasible(constraints, own)
        return
    batch = constraints.batch_shape or (instance + 1,)
    upper = np.broadcast_to(np.where(held, lower, upper), (*batch, len(held)))
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
