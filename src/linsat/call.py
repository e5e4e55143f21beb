"""`Request`: what a caller asks for, beside the scores. `Call`: the same read for scores of one shape, to be solved.

The doors of numpy and of torch make a call of a request; where JAX traces, `linsat.jax.call` makes a `TracedCall`. The
native core solves a call where it can, the interior-point method on arrays of numpy what that leaves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, get_args

import numpy as np

from linsat._array_namespace import namespace, to_numpy
from linsat.arrays import is_solver
from linsat.arrays.interior import instances as interior_point
from linsat.arrays.interior import quadratic
from linsat.arrays.judgement import decide
from linsat.arrays.newton import Newton
from linsat.arrays.problem import Problem
from linsat.constraints.arrays import picked, side_by_side, spread
from linsat.constraints.by_name import duals_by_name
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Arrangement
from linsat.errors import ConstraintError
from linsat.failures import settle, unusable_scores
from linsat.objectives import Entropy, Objective
from linsat.objectives.quadratic import Matrix
from linsat.plan import Answer, Array, Numbers, Plan, pack
from linsat.status import Status

if TYPE_CHECKING:
    from linsat.native.batch import Statement

# Which number of a statement (`Numbers`) an argument is, where the set has no other rows.
SLOT_OF = {"A": 0, "C": 0, "E": 0, "b": 1, "d": 1, "f": 1, "lower": 2, "upper": 3, "price": 4}
_PLAIN = frozenset((Newton, str, bool, int, float))  # options by which a call is found again
_RECENT = 64  # calls of one set that are kept
DEFAULT = Newton()
DEFAULT_TAU = 0.1
OnFailure = Literal["raise", "warn", "nan", "ignore"]
Given = Mapping[str, Any]  # numbers that come with a call, by their names
ON_FAILURE: tuple[str, ...] = get_args(OnFailure)


class Options(NamedTuple):
    """How a call is to be solved: what of a request is neither the set nor a number, but a plain constant."""

    solver: Any = None  # a Solver or None, once `check_options` has seen it
    on_failure: OnFailure = "raise"


def check_options(options: Options) -> None:
    """Reject what is no solver, and unknown ways to handle failure."""
    solver, on_failure = options
    if solver is not None and not is_solver(solver):
        raise ConstraintError(
            f"solver is {_shown(solver)}; expected a linsat.Newton or linsat.Sinkhorn. "
            f"Fix: linsat.Newton(), with parentheses."
        )
    if on_failure not in ON_FAILURE:
        raise ConstraintError(
            f"on_failure is {on_failure!r}; expected one of {', '.join(map(repr, ON_FAILURE))}. Fix: on_failure='nan', "
            f"under which x of instances that were not solved is NaN; or leave it out."
        )


def _shown(value: Any) -> str:
    """What a user gave, in few words."""
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)


def read_objective(objective: Any, tau: Any) -> Objective:
    """The objective of a call: ``tau=`` is short for the paper's entropy at that temperature."""
    if objective is None:
        return Entropy(tau=DEFAULT_TAU if tau is None else tau)
    if not isinstance(objective, Objective):
        raise ConstraintError(
            f"objective is {_shown(objective)}; expected an instance of linsat.Objective. "
            f"Fix: linsat.Entropy(tau=0.1), with parentheses, or linsat.Euclidean()."
        )
    if tau is not None:
        raise ConstraintError(
            "tau and objective were both given; tau belongs to the entropic objective. "
            "Fix: objective=linsat.Entropy(tau=...), or leave objective out."
        )
    return objective


class GivenNumbers(TypedDict, total=False):
    """Numbers that come with a call in place of the set's own; `linsat.project` says what they are."""

    A: Any
    C: Any
    E: Any
    b: Any
    d: Any
    f: Any
    lower: Any
    upper: Any
    price: Any
    T: Any
    t: Any
    rhs: Mapping[str, Any] | None


_GIVEN = frozenset(GivenNumbers.__annotations__)
_FIXES = {
    "temperature": "tau=.",
    "eps": "tau=, or solver=linsat.Newton(tol=...).",
    "tol": "solver=linsat.Newton(tol=...).",
    "device": "leave it out; x is where the scores are.",
    "warm_start": "start=solution.duals, or linsat.LinSAT(cons, warm_start=True).",
}


def read_given(numbers: GivenNumbers) -> dict[str, Any]:
    """The numbers of a call without those that are None.

    Raises:
        TypeError: there is no such argument.
    """
    if not _GIVEN.issuperset(numbers):
        unknown = next(name for name in numbers if name not in _GIVEN)
        raise TypeError(
            f"unexpected keyword argument {unknown!r}; expected tau, objective, solver, on_failure or start, or "
            f"numbers of the set for this call: {', '.join(sorted(_GIVEN - {'T', 't'}))}. Fix: "
            + _FIXES.get(unknown, "leave it out.")
        )
    return {name: value for name, value in numbers.items() if value is not None}


class Request(NamedTuple):
    """What a caller of `linsat.project` or `linsat.solve` asks for, beside the scores."""

    constraints: Constraints
    given: Given
    objective: Objective
    options: Options = Options()
    start: Any = None

    @classmethod
    def of(
        cls,
        constraints: Constraints,
        numbers: GivenNumbers,
        objective: Objective | None,
        tau: Any,
        options: Options,
        start: Any,
    ) -> Request:
        """From the arguments as they came."""
        return cls(constraints, read_given(numbers), read_objective(objective, tau), options, start)


def filled(request: Request) -> Request:
    """The same with the numbers that come with the call in its set."""
    constraints, given, *others = request
    return Request(with_numbers(constraints, given), {}, *others) if given else request


def key_of(request: Request) -> tuple[Any, ...] | None:
    """What a request says besides the numbers given and those in the set, where all of that is plain; else None.

    With the same key a call needs no reading and no checks of anything but these numbers.
    """
    options, numbers = request.options, request.objective.constant_key
    if type(request.constraints) is not Constraints or numbers is None or request.start is not None:
        return None
    for option in options:
        if option is not None and type(option) not in _PLAIN:
            return None
    return numbers, options


def with_numbers(constraints: Constraints, given: Mapping[str, Any]) -> Constraints:
    """The set with the numbers of a call; ``rhs`` are right-hand sides by the names of rows."""
    numbers = {name: value for name, value in given.items() if name not in ("rhs", "price")}
    if numbers:
        constraints = constraints._with_numbers(**numbers)
    if "rhs" in given:
        constraints = constraints.with_rhs(given["rhs"])
    return constraints.with_price(given["price"]) if "price" in given else constraints


def joint_batch(scores: tuple[int, ...], constraints: tuple[int, ...]) -> tuple[int, ...]:
    """The batch dimensions of a call, from those of its scores and of its set."""
    if not constraints or scores == constraints:
        return scores
    try:
        return np.broadcast_shapes(scores, constraints)
    except ValueError:
        raise ConstraintError(
            f"y has batch dimensions {tuple(scores)} but the constraints have {tuple(constraints)}; they do not "
            f"broadcast. Fix: numbers for each instance, or shared ones."
        ) from None


def read_start(
    start: Any, batch: tuple[int, ...], constraints: Constraints, read: Callable[[Any], Array], *, look: bool = True
) -> Array | None:
    """Duals to begin with, (N, k), as ``read`` makes them an array; ``look``: whether their numbers are known.

    Duals by the names of rows leave others out: these are NaN.
    """
    if start is None or (isinstance(start, Mapping) and not start):
        return None
    shape = (*batch, len(constraints))
    if isinstance(start, Mapping):
        parts = duals_by_name(constraints, start, lambda value: _duals(value, (*batch, "rows of the name"), read))
        array = read(np.full(shape[-1], math.nan))
        for name, (rows, duals) in parts.items():
            if look:
                _require_finite(f"start[{name!r}]", duals, "leave that name out")
            order = np.arange(shape[-1])
            order[rows] = shape[-1] + np.arange(len(rows))
            array = picked(side_by_side([array, duals]), order)
        try:
            whole = spread(array, shape)
        except (ValueError, RuntimeError):
            raise ConstraintError(
                f"start has batch dimensions {tuple(array.shape[:-1])}; expected those of the call, {batch}, or none. "
                f"Fix: one number for each row, after the batch dimensions of y."
            ) from None
        whole = np.ascontiguousarray(whole) if isinstance(whole, np.ndarray) else whole  # as the core reads it
        return whole.reshape(math.prod(batch), shape[-1])
    array = _duals(start, shape, read)
    if tuple(array.shape) != shape:
        raise ConstraintError(
            f"start has shape {tuple(array.shape)}; expected duals of shape {shape}. "
            f"Fix: pass Solution.duals of a solve with the same rows and batch shape, or duals by the names of rows."
        )
    if look:
        _require_finite("start", array, "0 in its place, which starts that row afresh; or leave start out")
    return array.reshape(math.prod(batch), shape[-1])


def _duals(value: Any, shape: tuple[Any, ...], read: Callable[[Any], Array]) -> Array:
    try:
        return read(value)
    except (TypeError, ValueError, RuntimeError):
        raise ConstraintError(
            f"start is {type(value).__name__}; expected duals of shape {shape}. Fix: pass Solution.duals."
        ) from None


def _require_finite(name: str, duals: Array, fix: str) -> None:
    wrong = np.argwhere(~np.isfinite(to_numpy(duals)))
    if len(wrong):
        index = tuple(int(i) for i in wrong[0])
        at = f"[{', '.join(map(str, index))}]"
        raise ConstraintError(f"{name}{at} is {float(duals[index])}; expected finite duals. Fix: {fix}.")


def check_range(dtype: Any, largest: float, constraints: Constraints) -> None:
    """Reject bounds that the answer, which has the dtype of the scores, could not hold."""
    reach = constraints._reach
    if reach > largest:
        raise ConstraintError(
            f"The bounds reach {reach:g} but y has dtype {dtype}, which ends at {largest:g}. "
            f"Fix: y.double(), or a smaller box."
        )


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
        made.statement = self.statement.with_arrays({slot: self.dense(array) for slot, array in arrays.items()})
        made.owner = functools.partial(with_numbers, constraints, given)
        return made

    @staticmethod
    def dense(array: Array) -> Array:
        """An array as the core reads it."""
        return np.ascontiguousarray(array)

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
        left = () if answer.solved else self.plan.left_over(answer)
        if len(left):
            self._finish(answer, np.asarray(left), to_numpy(scores))
            answer = self._ended(answer, None)
        return answer

    def report(self, answer: Answer, scores: np.ndarray) -> None:
        """What was not solved becomes what the caller asked for."""
        if answer.codes.any():
            failed = settle(self, scores, answer)
            if failed is not None:
                answer.x[failed] = math.nan

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
        with np.errstate(over="ignore"):  # an x beyond its dtype is told by `_ended`
            duals[left], x[left] = problem.multipliers(part.mu), part.x.astype(x.dtype)
        if isinstance(objective, Matrix):  # bounds that bind are written as decided
            answer.decided[left] = quadratic.decided(problem, part.x, duals[left])
        part.steps[:] += answer.counts[1, left]
        answer.counts[:, left] = part.counts
        answer.solved = not answer.codes.any()

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
            return ((answer.duals * one.scale)[0], answer.x[0]) if answer.solved else None

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


def own_instance(instance: int, batch: tuple[int, ...], own: tuple[int, ...]) -> int:
    """Which instance of numbers with batch dimensions ``own`` an instance of a larger batch has."""
    if not own:
        return 0
    place = np.unravel_index(instance % max(1, math.prod(batch)), batch)[-len(own) :]
    return int(np.ravel_multi_index([0 if n == 1 else int(i) for i, n in zip(place, own, strict=True)], own))
