"""Decisions without regularisation: the exact maximiser of the scores over a set, and what a wrong one costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from linsat._array_namespace import namespace, to_numpy
from linsat._optional import is_tensor
from linsat._transforms import outside_graphs
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Arrangement, flatten
from linsat.constraints.modelling import not_a_set
from linsat.constraints.numbers import of_instance, present
from linsat.errors import ConstraintError, ConvergenceError
from linsat.failures import check_lower, reject_instance
from linsat.numpy_door import read_scores
from linsat.projection import read_either
from linsat.request import joint_batch, own_instance
from linsat.solution import Scores
from linsat.verdict.diagnosis import linear_system

_INFEASIBLE, _UNBOUNDED = 2, 3  # statuses of scipy.optimize.milp


@outside_graphs
def argmax(y: Scores, constraints: Constraints) -> Scores:
    """A point of the set with the largest ``<y, x>``: what `linsat.project` tends to as tau goes to 0.

    A linear program for each instance, solved exactly by HiGHS: a vertex, for evaluation. It has no gradient; train
    through `linsat.project`, or with `linsat.fenchel_young_loss`. Soft rows may be broken at their price.

    Args:
        y: scores in any shape that `linsat.project` takes; to minimise a cost, pass its negative.
        constraints: the rows and the box; per-instance numbers broadcast against the leading dimensions of y.

    Returns:
        x like y. Where several points are best, one of them.

    Cost: about a millisecond for each instance of a few hundred non-zeros, one after the other on the CPU.

    Raises:
        InfeasibleError: no point satisfies the rows of some instance.
        ConstraintError: malformed arguments; NaN or +inf among the scores (-inf keeps a variable at its lower bound);
            an infinite bound in the direction of the scores.
    """
    if not isinstance(constraints, Constraints):
        raise not_a_set(constraints)
    constraints._require_linear("linsat.argmax")
    given, scores, arrangement = _read(y, constraints)
    held = np.isneginf(scores)
    numbers = present(constraints)
    batch: tuple[int, ...] = scores.shape[:-1]
    width = scores.shape[-1]
    lower, upper = (np.broadcast_to(end, (*batch, width)).reshape(-1, width) for end in (numbers.lower, numbers.upper))
    scores, held = scores.reshape(-1, width), held.reshape(-1, width)
    check_lower(held & np.isneginf(lower), constraints)
    wrong = ~np.isfinite(scores) & ~held
    if wrong.any():
        instance, variable = np.argwhere(wrong)[0]
        raise ConstraintError(
            f"y holds {scores[instance, variable]} (instance {instance}, variable "
            f"{constraints._variable_name(int(variable))}); expected finite scores, or -inf to keep a variable at its "
            f"lower bound. Fix: find out where it comes from."
        )
    best = np.empty_like(scores)
    programs: dict[tuple[int, bytes], _Program] = {}
    for i, row in enumerate(scores):
        own = own_instance(i, batch, constraints.batch_shape)
        key = own, held[i].tobytes()
        if key not in programs:
            programs[key] = _Program.of(constraints, own, held[i])
        point = programs[key].solve(np.where(held[i], 0.0, row))
        if point is None:
            reject_instance(constraints, own, i, held[i], lower[i], upper[i])
            raise ConvergenceError("HiGHS found no point in the set. Fix: rows of ordinary size.")
        best[i] = point
    return _like(given, best.reshape(*batch, width), constraints, arrangement)


def _read(y: Any, constraints: Constraints) -> tuple[Any, np.ndarray, Arrangement]:
    """Scores (batch..., l) as they came, in float64 over the joint batch, and how they came."""

    given, arrangement = flatten("y", y, constraints._layout, constraints.num_variables, read_either)
    scores = to_numpy(given.cpu() if is_tensor(given) else given).astype(np.float64)
    batch = joint_batch(scores.shape[:-1], constraints.batch_shape)
    return given, np.broadcast_to(scores, (*batch, scores.shape[-1])), arrangement


def _like(given: Any, x: np.ndarray, constraints: Constraints, arrangement: Arrangement) -> Any:
    """x in the library, dtype and shape in which the scores came."""
    answer: Any = x.astype(given.dtype) if isinstance(given, np.ndarray) else namespace(given).from_numpy(x, given)
    answer = answer if isinstance(given, np.ndarray) else answer.to(given.dtype)
    layout = constraints._layout
    return answer if layout is None or arrangement == "flat" else layout.restored(answer, arrangement)


def regret(
    y: Any, truth: Any, constraints: Constraints, *, reduction: Literal["none", "mean", "relative"] = "none"
) -> Any:
    """What deciding by scores y costs when ``truth`` are the true ones: ``<truth, argmax(truth) - argmax(y)>``.

    Args:
        y: predicted scores, in any shape that `linsat.project` takes.
        truth: true scores, of the same shape.
        constraints: the set to decide in.
        reduction: ``"none"``: one number per instance; ``"mean"``; ``"relative"``: the sum over the sum of the best
            possible ``|<truth, argmax(truth)>|``, which is how PyEPO reports it.

    Returns:
        numbers of the kind of y (tensor or numpy array), in float64, at least zero up to rounding; without gradients.

    Cost and failure: those of two calls of `linsat.argmax`.
    """
    if reduction not in ("none", "mean", "relative"):
        raise ConstraintError(f"reduction is {reduction!r}; expected 'none', 'mean' or 'relative'.")

    predicted, true = (_flat(name, value, constraints) for name, value in (("y", y), ("truth", truth)))
    if predicted.shape != true.shape:
        raise ConstraintError(f"y has shape {predicted.shape} and truth {true.shape}; expected the same shape.")
    if np.isneginf(true).any():
        raise ConstraintError(
            "truth holds -inf, with which deciding otherwise costs infinitely much or nothing; expected finite scores. "
            "Fix: forbid the variables by constraints.with_bounds(upper=...)."
        )
    best = (true * argmax(true, constraints)).sum(-1)
    lost = best - (true * argmax(predicted, constraints)).sum(-1)
    if reduction != "none":
        with np.errstate(invalid="ignore"):  # where nothing can be gained, nothing is lost either: NaN
            lost = lost.mean() if reduction == "mean" else lost.sum() / np.abs(best).sum()
    if not is_tensor(y):
        return lost
    import torch

    return torch.as_tensor(lost)


def _flat(name: str, value: Any, constraints: Constraints) -> np.ndarray:
    def read(name: str, part: Any) -> np.ndarray:
        return read_scores(name, to_numpy(part.cpu()) if is_tensor(part) else part).astype(np.float64)

    return flatten(name, value, constraints._layout, constraints.num_variables, read)[0]


@dataclass(frozen=True, eq=False)
class _Program:
    """low <= A x <= high over a box; columns behind those of x take up what soft rows are broken by, at a cost."""

    rows: Any  # scipy.optimize.LinearConstraint, or () for none
    bounds: Any
    elastic: np.ndarray  # cost of the further columns

    @classmethod
    def of(cls, constraints: Constraints, instance: int, held: np.ndarray) -> _Program:
        """The program of an instance; ``held`` variables stay at their lower bounds."""
        from scipy import optimize  # takes a while to import

        box: Any = optimize.Bounds  # whose ends may be arrays, which the types of scipy do not know
        count = len(constraints)
        system = linear_system(constraints, instance, width=len(held), all_hard=True)
        upper, price = np.where(held, system.lower, system.upper), present(constraints).price
        if not count:
            return cls((), box(system.lower, upper), np.zeros(0))
        price = np.full(count, np.inf) if price is None else of_instance(price, constraints.batch_shape, instance)
        soft = np.isfinite(price)
        over, under = (np.flatnonzero(soft & np.isfinite(end)) for end in (system.row_upper, system.row_lower))
        broken = np.concatenate([over, under])
        signs = np.concatenate([-np.ones(len(over)), np.ones(len(under))])
        taken = sp.csr_array((signs, (broken, np.arange(len(broken)))), shape=(count, len(broken)))
        rows = sp.hstack([system.matrix, taken], format="csr")
        ends = np.append(system.lower, np.zeros(len(broken))), np.append(upper, np.full(len(broken), np.inf))
        between: Any = optimize.LinearConstraint
        return cls(between(rows, system.row_lower, system.row_upper), box(*ends), price[broken])

    def solve(self, scores: np.ndarray) -> np.ndarray | None:
        """The best point; None where there is none."""
        from scipy.optimize import milp

        answer = milp(np.append(-scores, self.elastic), constraints=self.rows, bounds=self.bounds)
        if answer.status == _INFEASIBLE:
            return None
        if answer.status == _UNBOUNDED:
            raise ConstraintError(
                "no point is best: <y, x> grows without limit where a bound is infinite. Fix: finite bounds."
            )
        if answer.x is None:
            raise ConvergenceError(f"HiGHS did not solve an instance: {answer.message}. Fix: rows of ordinary size.")
        return np.asarray(answer.x[: len(scores)])
