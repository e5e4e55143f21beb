r"""The socket of the objectives.

A projection is a regularised argmax over the rows and the box,

    x(y) = argmax <y, x> - Omega(x),   Omega(x) = sum_j omega_j(x_j),

and everything the solvers need of Omega is the conjugate of each term over its interval,

    psi(u) = max over lower <= x <= upper of  u x - omega(x),      x = psi'(u),      D = psi''(u).

A new objective is a subclass with these three functions, elementwise on arrays; `Euclidean` is the shortest example. It
serves torch, JAX and numpy, because it takes its operations from `namespace`. Newton's method on arrays runs every
objective; the native core and the kernels of Triton know those of linsat only, the interior-point method those that
have `costs`, and they say so.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from linsat._array_namespace import Tensor, namespace
from linsat._optional import is_tensor
from linsat.constraints.arrays import is_jax, reject_masked, spread, to_float64
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from linsat.constraints.layout import Layout

# An objective without its numbers: class, the other fields by name, and the names of the numbers.
Kind = tuple[Any, tuple[tuple[str, Any], ...], tuple[str, ...]]


class Range(NamedTuple):
    """What the numbers of an objective must be, besides finite."""

    above: float
    expected: str  # and the fix, for messages
    zero: bool = False  # 0 is allowed too

    def wrong(self, value: Tensor) -> Tensor:
        return ~((value > self.above) | ((value == 0) & self.zero))


class Costs(NamedTuple):
    """Omega of one instance in the terms of `arrays.interior.program`: numbers for each variable, or one for all."""

    quadratic: Any = 0.0
    entropy: Any = 0.0
    prior: Any = None
    linear: Any = 0.0  # beside that of the scores


POSITIVE_TAU = Range(0.0, "a positive, finite temperature. Fix: for example tau=0.1.")


class Objective:
    """What a projection optimises; subclasses are frozen dataclasses whose tensor fields may be learned.

    Attributes:
        native: what the native core calls it, in linsat.h; None: it runs on arrays only.
        per_instance, per_variable: which of its numbers are one for each instance, or one for each variable; the
            others may be either.
        finite_box: whether every variable needs two finite bounds.
        finite_lower: whether every variable needs a finite lower bound.
        interior: whether x only tends to its lower bound and never reaches it, so that variables which the rows force
            there must be taken out before solving.
        multiplies: what the dual of a row multiplies, ``"odds"`` or ``"shares"`` of its variables: then a sweep of
            Sinkhorn's is a good start.
        ranges: numbers that must exceed something, by name.
        entropic_slack: whether an inequality row has a slack with an entropy term, as in the paper.
        couples: whether Omega is no sum of terms of single variables, so that there is no psi.
    """

    native: ClassVar[str | None] = None
    per_instance: ClassVar[tuple[str, ...]] = ()
    per_variable: ClassVar[tuple[str, ...]] = ()
    finite_box = False
    finite_lower = False
    interior = False
    multiplies: ClassVar[str | None] = None
    couples: ClassVar[bool] = False
    ranges: ClassVar[Mapping[str, Range]] = {}

    def __init_subclass__(cls) -> None:
        """A subclass may compute something else: only what says so itself is native, or has costs."""
        cls.native = vars(cls).get("native")
        if "costs" not in vars(cls):
            cls.costs = Objective.costs  # type: ignore[method-assign]

    @property
    def entropic_slack(self) -> bool:
        return False

    @property
    def temperature(self) -> Any:
        """The temperature of an objective that is solved by continuation in it, else None."""
        return None

    def at(self, temperature: Tensor) -> Objective:
        """The same objective at another temperature; only asked for where `temperature` is not None."""
        raise TypeError(f"{type(self).__name__} has no temperature.")

    def probe(self, like: Tensor) -> Objective:
        """An objective of this kind for one instance at scores 0, ``like`` a tensor of its dtype and device."""
        zero = namespace(like).zeros((1, 1), like)
        least = {name: self.ranges[name].above if name in self.ranges else 0.0 for name in self.parameters()}
        numbers = {name: zero + above + 1.0 for name, above in least.items()}
        return replace(self, **numbers) if numbers else self  # type: ignore[type-var]

    def parameters(self) -> dict[str, Any]:
        """The numbers of the objective by field name; they may be tensors that require gradients.

        By default every field that holds a tensor, or an array of JAX. An override may name others, such as a field
        that is a number now.
        """
        names: list[str] = [f.name for f in fields(self)] if is_dataclass(self) else []
        values = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in values if is_tensor(value) or is_jax(value)}

    @property
    def constant_key(self) -> Hashable:
        """Equal for objectives that stay the same; None for one that may change, as with a tensor among its numbers."""
        return None

    def kind(self) -> Kind:
        """Everything but the numbers; `of_kind` puts others in."""
        from linsat._transforms import constant_field

        numbers = tuple(self.parameters())
        others = [f.name for f in fields(self) if f.name not in numbers]  # type: ignore[arg-type]
        return type(self), tuple((name, constant_field(getattr(self, name))) for name in others), numbers

    def spread(self, batch_shape: Sequence[int], num_variables: int, device: torch.device | None = None) -> Objective:
        """The same objective with its numbers in float64 over the flattened batch, (1 or N, 1) or (1 or N, l).

        Tensors on a device, or arrays of numpy where that is None. A number is one for all, (variables,), or (batch...,
        1 or variables); one for each instance has the batch shape.

        Raises:
            ConstraintError: a number of another shape.
        """
        shape = tuple(batch_shape)
        own = {name: _spread_one(self, name, shape, num_variables, device) for name in self.parameters()}
        return replace(self, **own) if own else self  # type: ignore[type-var]

    def changed(self, change: Callable[[Any], Any]) -> Objective:
        """The same objective with every number changed."""
        own = {name: change(value) for name, value in self.parameters().items()}
        return replace(self, **own) if own else self  # type: ignore[type-var]

    def flat(self, layout: Layout) -> Objective:
        """The same objective, its numbers per variable in one vector where they came in the shape of a variable."""
        given = {name: getattr(self, name) for name in self.per_variable}
        shaped = {name: layout.flattened(value) for name, value in given.items() if hasattr(value, "ndim")}
        own = {name: flat[0] for name, flat in shaped.items() if flat is not None}
        return replace(self, **own) if own else self  # type: ignore[type-var]

    def read(self, layout: Layout | None, batch_shape: Sequence[int], num_variables: int) -> Objective:
        """The objective of scores of a shape over a set with, or without, variables of shapes of their own."""
        return self if layout is None else self.flat(layout)

    def check(self) -> None:
        """Reject numbers, once spread, for which `ranges` has no words."""

    def check_bounds(self, constraints: Any) -> None:
        """Reject a set without the bounds that this objective needs."""
        if self.finite_box or self.finite_lower:
            constraints._require_finite_box(lower_only=not self.finite_box)

    @property
    def held(self) -> Tensor | None:
        """(N or 1, l) bool, of an objective that has been spread: variables that its numbers hold at their bound."""
        return None

    def linear(self, y: Tensor) -> Tensor:
        """The linear term that scores y stand for; y itself unless variables are weighted."""
        return y

    def cost_slope(self, x: Tensor, lower: Tensor) -> Tensor:
        """Omega'(x) at a bound, which the multipliers of bounds need; infinite where x only tends to it."""
        raise ConstraintError(
            f"{type(self).__name__} has no slope of its Omega, which the multipliers of bounds need. "
            f"Fix: define cost_slope(x, lower)."
        )

    def costs(self, lower: np.ndarray, upper: np.ndarray) -> Costs:
        """Omega of one instance in a box (l,) for the interior-point method, which knows the objectives that define it.

        The numbers are those of the instance, arrays of numpy (1,) or (l,).
        """
        return Costs()

    def conjugate(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """psi(u)."""
        raise NotImplementedError

    def point(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """psi'(u), the x that u asks for."""
        raise NotImplementedError

    def slope(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """psi''(u), how fast x moves with u."""
        raise NotImplementedError

    def excess(self, u: Tensor, t: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """psi(u) + omega(t) - u t >= 0 of a point t of the box: its part of a Fenchel-Young loss.

        Only asked for by `linsat.fenchel_young_loss`, which takes the objectives that define it themselves.
        """
        raise NotImplementedError


class Tempered(Objective):
    """An objective that is a temperature ``tau`` times a function of x, solved by continuation in it."""

    tau: Any

    def __post_init__(self) -> None:
        for name, limits in self.ranges.items():
            value: Any = getattr(self, name, None)
            if type(value) in (int, float) and not (value > limits.above or (limits.zero and value == 0)):
                raise ConstraintError(f"{name} is {value}; expected {limits.expected}")

    @property
    def temperature(self) -> Any:
        return self.tau

    def at(self, temperature: Tensor) -> Tempered:
        return replace(self, tau=temperature)  # type: ignore[type-var]


def _spread_one(
    objective: Objective, name: str, batch: tuple[int, ...], width: int, device: torch.device | None
) -> Any:
    """One number of an objective over the flattened batch."""
    number, count = _read_number(objective, name, device), math.prod(batch)
    try:
        if not number.ndim:
            return spread(number, (1, width if name in objective.per_variable else 1))
        if name in objective.per_instance:
            return spread(number, batch).reshape(count, 1)
        if number.shape[-1] == 1 and name not in objective.per_variable:
            return spread(number, (*batch, 1)).reshape(count, 1)
        shape = (1, width) if number.ndim == 1 else (*batch, width)
        return spread(number, shape).reshape(-1, width)
    except (RuntimeError, ValueError):
        raise ConstraintError(
            f"{_called(objective, name)} has shape {tuple(number.shape)}; expected "
            f"{_shapes(objective, name, batch, width)}."
        ) from None


def _read_number(objective: Objective, name: str, device: torch.device | None) -> Any:
    """One number of an objective as a float64 array, or as a tensor on a device."""
    value = objective.parameters()[name]
    reject_masked(_called(objective, name), value)
    try:
        number = to_float64(value, device)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ConstraintError(
            f"{_called(objective, name)} is {repr(value)[:40]}; expected {_shapes(objective, name, (), None)}."
        ) from None
    if number is None:
        raise ConstraintError(f"{_called(objective, name)} has dtype {value.dtype}; expected real numbers.")
    return number


def _called(objective: Objective, name: str) -> str:
    """A number as messages call it: those of linsat's objectives are arguments that everybody knows."""
    return name if objective.native is not None else f"{name} of {type(objective).__name__}"


def _shapes(objective: Objective, name: str, batch: tuple[int, ...], width: int | None) -> str:
    """What a number may be, and the fix."""
    each = f"({width},)" if width else "one per variable"
    if name in objective.per_instance:
        shapes = f"a scalar or the batch shape {batch}" if batch else "a positive number or tensor"
        return f"{shapes}. Fix: for example {name}=0.1"
    if name in objective.per_variable:
        shapes = f"{each} or {(*batch, width)}" if batch else each
        return f"{shapes}. Fix: one number for each variable"
    return f"one number, {each}, or the batch shape {batch} and 1 or {width}. Fix: one of these shapes"


def check_spread(given: Objective, made: Objective, count: int) -> None:
    """Reject an objective whose own `parameters` or `spread` would lose a gradient, or leave a number no one can use.

    Raises:
        ConstraintError: names the field, and what to return.
    """
    kind, numbers = type(given).__name__, made.parameters()
    for name, value in vars(given).items():
        if name not in numbers and _is_learned(value):
            raise ConstraintError(
                f"{name} of {kind} requires gradients, and none would reach it: {kind}.parameters() has no {name!r}. "
                f"Fix: make every such tensor a field of a frozen dataclass, and let parameters() name it."
            )
    for name, number in numbers.items():
        if not is_tensor(number) or number.ndim != 2 or number.shape[0] not in (1, count):
            shape = f"shape {tuple(number.shape)}" if is_tensor(number) else f"type {type(number).__name__}"
            raise ConstraintError(
                f"{name} of {kind} has {shape} after {kind}.spread(); expected a tensor (1 or {count}, .). "
                f"Fix: leave `spread` to linsat.Objective, or spread every number that parameters() names."
            )


def _is_learned(value: Any) -> bool:
    """Whether a tensor that requires gradients is there, alone, among others or in a module."""
    if is_tensor(value):
        return value.requires_grad
    if isinstance(value, Mapping):
        return any(map(_is_learned, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_is_learned, value))
    modules = sys.modules.get("torch.nn")
    return modules is not None and isinstance(value, modules.Module) and any(map(_is_learned, value.parameters()))


def times_log(t: Tensor) -> Tensor:
    """t log t, 0 at 0."""
    xp = namespace(t)
    return t * xp.log(xp.where(t > 0, t, 1.0))


def of_kind(kind: Kind, numbers: Sequence[Any]) -> Objective:
    """The objective of a kind with these numbers."""
    made, kept, names = kind
    return made(**dict(kept), **dict(zip(names, numbers, strict=True)))
