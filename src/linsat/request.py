"""`Request`: what a caller asks for, beside the scores, and how each argument of it is read and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import numpy as np

from linsat._array_namespace import to_numpy
from linsat.arrays import is_solver
from linsat.arrays.newton import Newton
from linsat.constraints.arrays import picked, reject_masked, side_by_side, spread
from linsat.constraints.by_name import duals_by_name
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.modelling import not_a_set
from linsat.constraints.names import families
from linsat.errors import ConstraintError
from linsat.objectives import Entropy, Objective
from linsat.plan import Array

_PLAIN = frozenset((Newton, str, bool, int, float))  # options by which a call is found again
_DEFAULT = Newton()
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


def read_given(numbers: GivenNumbers, constraints: Any) -> dict[str, Any]:
    """The numbers of a call without those that are None.

    Raises:
        TypeError: there is no such argument.
    """
    if not _GIVEN.issuperset(numbers):
        unknown = next(name for name in numbers if name not in _GIVEN)
        known = constraints.names if isinstance(constraints, Constraints) else []
        named = (
            f"rhs={{{unknown!r}: ...}}, a right-hand side by the name of its row."
            if unknown in families(known)
            else None
        )
        raise TypeError(
            f"unexpected keyword argument {unknown!r}; expected tau, objective, solver, on_failure or start, or "
            f"numbers of the set for this call: {', '.join(sorted(_GIVEN - {'T', 't'}))}. Fix: "
            + (named or _FIXES.get(unknown, "leave it out."))
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
        return cls(constraints, read_given(numbers, constraints), read_objective(objective, tau), options, start)

    @property
    def has_formulas(self) -> bool:
        """Whether rows of the set have maxima, absolute values or norms (`linsat.formulas`)."""
        return isinstance(self.constraints, Constraints) and self.constraints._terms is not None

    @property
    def solver(self) -> Any:
        """The solver asked for, else the default one, once the request has been checked."""
        return _DEFAULT if self.options.solver is None else self.options.solver

    def check(self) -> None:
        """Reject what is no set, what is no solver, and unknown ways to handle failure."""
        if not isinstance(self.constraints, Constraints):
            raise not_a_set(self.constraints)
        check_options(self.options)


def filled(request: Request) -> Request:
    """The same with the numbers that come with the call in its set."""
    constraints, given = request.constraints, request.given
    return request._replace(constraints=with_numbers(constraints, given), given={}) if given else request


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


def own_instance(instance: int, batch: tuple[int, ...], own: tuple[int, ...]) -> int:
    """Which instance of numbers with batch dimensions ``own`` an instance of a larger batch has."""
    if not own:
        return 0
    place = np.unravel_index(instance % max(1, math.prod(batch)), batch)[-len(own) :]
    return int(np.ravel_multi_index([0 if n == 1 else int(i) for i, n in zip(place, own, strict=True)], own))


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
    reject_masked("start", value)
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
