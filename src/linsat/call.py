"""`Call`: a request read for scores of one shape, to be solved.

The doors of numpy and of torch make a call of a request; where JAX traces, `linsat.jax.call` makes a `TracedCall`. The
native core solves a call where it can, the interior-point method on arrays of numpy what that leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat._array_namespace import namespace, to_numpy
from linsat.arrays.interior import instances as interior_point
from linsat.arrays.interior import quadratic
from linsat.arrays.judgement import decide
from linsat.arrays.newton import Newton
from linsat.arrays.problem import Problem
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Arrangement
from linsat.failures import settle, unusable_scores
from linsat.native.batch import dense
from linsat.objectives import Objective
from linsat.objectives.quadratic import Matrix
from linsat.plan import Answer, Array, Numbers, Plan, pack
from linsat.request import Options, own_instance, with_numbers
from linsat.status import Status

if TYPE_CHECKING:
    from linsat.native.batch import Statement

# Which number of a statement (`Numbers`) an argument is, where the set has no other rows.
SLOT_OF = {"A": 0, "C": 0, "E": 0, "b": 1, "d": 1, "f": 1, "lower": 2, "upper": 3, "price": 4}
_RECENT = 64  # calls of one set that are kept


@dataclass(eq=False, kw_only=True)
class Call:
    """Plan, numbers and objective over one flattened batch of N instances.

    One whose plan is constant serves every later call with scores of the same shape; one that brings numbers makes
    those with others, `template` and `with_given`.
    """

    plan: Plan
    stated: Numbers
    objective: Objective  # its numbers spread over the batch
    options: Options
    start: Array | None  # (N, k)
    batch_shape: tuple[int, ...]
    arrangement: Arrangement  # of the scores, and so of the answer
    owner: Callable[[], Constraints]  # the set with the numbers of this call, for messages
    statement: Statement | None  # where the native core solves it
    given: Mapping[int, Array] = field(default_factory=dict)  # by slot, as they came, in place of what is stated

    @property
    def numbers(self) -> Numbers:
        """(1 or N, .) each."""
        if not self.given:
            return self.stated
        own = {slot: array.reshape(self.stated[slot].shape) for slot, array in self.given.items()}
        return Numbers(*(own.get(slot, array) for slot, array in enumerate(self.stated)))

    @property
    def constraints(self) -> Constraints:
        return self.owner()

    @property
    def count(self) -> int:
        return math.prod(self.batch_shape)

    def template(self, constraints: Constraints, given: Mapping[str, Any]) -> Call | None:
        """A call that makes others with numbers of the same shapes and dtypes, `with_given`; it keeps none of them.

        None where numbers would have to be joined or converted: each must be all of its slot.
        """
        slots = {SLOT_OF[name]: array for name, array in given.items() if name in SLOT_OF}
        alone = len(constraints._matrices) == 1 or slots.keys().isdisjoint((0, 1))
        whole = all(math.prod(array.shape) == math.prod(self.stated[slot].shape) for slot, array in slots.items())
        exact = "f" not in given or str(given["f"].dtype).endswith("float64")  # shorter ones may contradict by rounding
        hard = "price" in given and not constraints._soft_mask().all()  # whose price is not the one given
        if self.statement is None or len(slots) < len(given) or hard or not (alone and whole and exact):
            return None
        shapes = {slot: np.broadcast_to(np.nan, self.stated[slot].shape) for slot in slots}
        stated = Numbers(*(shapes.get(slot, array) for slot, array in enumerate(self.stated)))
        return replace(self, stated=stated, statement=self.statement.without(slots))

    def with_given(self, constraints: Constraints, given: Mapping[str, Any]) -> Call:
        """The call with these numbers, from its `template`."""
        assert self.statement is not None
        arrays = {SLOT_OF[name]: array for name, array in given.items()}
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__
        made.given = arrays
        made.statement = self.statement.with_arrays({slot: dense(array) for slot, array in arrays.items()})
        made.owner = functools.partial(with_numbers, constraints, given)
        return made

    def solve(self, scores: Array, x: Array) -> Answer:
        """Scores (N, l) solved into x by the native core; failures become what the caller asked for.

        Both are contiguous, in float32 or float64.
        """
        answer = self.attempt(scores, x)
        if not answer.solved:
            self.report(answer, to_numpy(scores))
        return answer

    def attempt(self, scores: Array, x: Array) -> Answer:
        """The same, failures as they are; what the core has not solved goes to the method for large sparse programs."""
        if self.statement is None:
            return self._without_core(to_numpy(scores))
        answer = self.plan.solve(self.statement, scores, x, self.start)
        if answer.solved:
            return answer
        if len(answer.far):
            self._judge_far(answer, np.asarray(answer.far), to_numpy(scores))
        left = self.plan.left_over(answer)
        if len(left):
            self._finish(answer, np.asarray(left), to_numpy(scores))
        if len(left) or len(answer.far):
            answer = self._ended(answer, None)
        return answer

    def report(self, answer: Answer, scores: np.ndarray) -> None:
        """What was not solved becomes what the caller asked for."""
        if answer.codes.any():
            failed = settle(self, scores, answer)
            if failed is not None:
                answer.x[failed] = math.nan

    @np.errstate(all="ignore")  # what comes of numbers beyond their range is judged
    def _without_core(self, scores: np.ndarray) -> Answer:
        """Rows that are too many for the core: at rest where none binds, else by the interior-point method."""
        plan, unusable = self.plan, unusable_scores(self, scores)
        decided = plan.known()
        usable = scores if unusable is None else np.where(unusable[:, None], 0.0, scores)
        if self.objective.couples:
            rows, count = plan.pattern.num_rows, len(scores)
            answer = Answer(
                np.zeros_like(scores),
                np.zeros((count, rows)),
                np.full((3, count), Status.STALLED.code) * np.array([[1], [0], [1]]),
                np.zeros((count, 2 * (plan.width + rows)), np.uint8),
                False,
            )
            left = np.arange(count) if unusable is None else np.flatnonzero(~unusable)
            self._finish(answer, left, usable)
            return self._ended(answer, unusable)
        problem = plan.problem(self.in_numpy(), usable.astype(np.float64), self.objective.changed(to_numpy), decided)
        result = decide(problem, interior_point.rest(problem, plan.solver.tol), plan.solver)
        answer = Answer(
            result.x.astype(scores.dtype), problem.multipliers(result.mu), result.counts, pack(problem.presolved), False
        )
        left = np.flatnonzero(result.codes != Status.CONVERGED.code)
        if len(left):
            self._finish(answer, left, usable)
        return self._ended(answer, unusable)

    def _ended(self, answer: Answer, unusable: np.ndarray | None) -> Answer:
        """The answer, with what its scores or its dtype make of instances."""
        if unusable is not None:
            answer.codes[unusable] = Status.NOT_FINITE.code
        self.mark_beyond(answer.codes, to_numpy(answer.x))
        answer.solved = not answer.codes.any()
        return answer

    def mark_beyond(self, codes: Array, x: Array) -> bool:
        """Whether some x (N, l) is beyond the range of its dtype: that is no answer, and its code (N,) says so now.

        What finite bounds allow is checked before, `check_range`.
        """
        if self.objective.finite_box:
            return False
        beyond = ~namespace(x).isfinite(x).all(-1) & (codes == Status.CONVERGED.code)
        codes[beyond] = Status.NOT_FINITE.code
        return bool(beyond.any())

    @np.errstate(all="ignore")
    def _finish(self, answer: Answer, left: np.ndarray, scores: np.ndarray) -> None:
        """What is left, by the interior-point method on arrays of numpy."""
        plan, solver = self.plan, self.plan.solver
        assert isinstance(solver, Newton)
        objective = self.objective.changed(lambda n: to_numpy(n) if n.shape[0] == 1 else to_numpy(n)[left])
        x, duals = to_numpy(answer.x), to_numpy(answer.duals)
        if isinstance(objective, Matrix):
            problem = self._rows_and_box(scores, left)
            claim = quadratic.solve(problem, objective, solver)
        elif interior_point.unsupported(objective) is None:
            decided = answer.decided if answer.decided.shape[0] == 1 else answer.decided[left]
            numbers = self.in_numpy().select(left)
            problem = plan.problem(numbers, scores[left].astype(np.float64), objective, decided)
            claim = interior_point.finish(problem, solver, duals[left], self._polish(problem, numbers))
        else:
            return
        part = decide(problem, claim, solver)
        duals[left], x[left] = problem.multipliers(part.mu), part.x.astype(x.dtype)
        if isinstance(objective, Matrix):  # bounds that bind are written as decided
            answer.decided[left] = quadratic.decided(problem, part.x, duals[left])
        part.steps[:] += answer.counts[1, left]
        answer.counts[:, left] = part.counts
        answer.solved = not answer.codes.any()

    @np.errstate(all="ignore")
    def _judge_far(self, answer: Answer, far: np.ndarray, scores: np.ndarray) -> None:
        """Optimal answers whose rows hold only relative to a huge x: solved if a point shows that they can hold."""
        problem, solver = self._rows_and_box(scores, far), self.plan.solver
        assert isinstance(solver, Newton)
        answer.codes[far] = interior_point.can_hold(problem, to_numpy(answer.x)[far], solver)

    def _rows_and_box(self, scores: np.ndarray, which: np.ndarray) -> Problem:
        """Rows and box of some instances of a full quadratic, on arrays of numpy."""
        numbers, own = self.in_numpy().select(which), scores[which].astype(np.float64)
        return self.plan.problem(numbers, own, self.objective.probe(numbers.lower), None)

    def _polish(self, problem: Problem, numbers: Numbers) -> interior_point.Polish:
        """A few steps of the core."""
        plan = self.plan
        assert isinstance(plan.solver, Newton)
        few = replace(plan, numbers=None, solver=replace(plan.solver, max_steps=interior_point.POLISHING_STEPS))

        def polish(instance: int, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
            if self.statement is None:
                return None
            one = problem.select(np.array([instance]))
            own = numbers.select(np.array([instance]))
            statement = few.state(own, tuple(one.objective.parameters().values()), 1)
            answer = few.solve(statement, one.scores, np.empty_like(one.scores), one.multipliers(mu))
            arrived = answer.solved or len(answer.far)  # whether rows can hold is asked of what is returned
            return ((answer.duals * one.scale)[0], answer.x[0]) if arrived else None

        return polish

    def in_numpy(self) -> Numbers:
        """The numbers as arrays of the host, without gradients."""
        return Numbers(*map(to_numpy, self.numbers))

    def own_instance(self, instance: int) -> int:
        """Which of the constraint set's instances an instance of the batch has its numbers from."""
        return own_instance(instance, self.batch_shape, self.constraints.batch_shape)


def keep(constraints: Constraints, key: Hashable, call: Call, given: Mapping[str, Any]) -> None:
    """Have later calls with this key need no reading, if this one can serve them."""
    kept = call.template(constraints, given) if given else call if call.plan.constant else None
    if kept is not None:
        if len(constraints._calls) >= _RECENT:
            constraints._calls.clear()
        constraints._calls[key] = kept
