"""How the variables of a set lie in the one vector that is projected: their names, shapes, and labels of their axes."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from linsat._optional import is_tensor
from linsat.constraints.arrays import Numbers, Shape, side_by_side
from linsat.constraints.names import reject_unknown
from linsat.errors import ConstraintError

Labels = tuple[tuple[str, ...] | None, ...]  # one entry per axis; None: its indices are numbers


def index_text(index: Sequence[Any], labels: Labels) -> str:
    """``[3, Mon]`` for an index into an array whose second axis has labels; empty for an array without axes."""
    parts = [str(i) if axis is None else axis[i] for i, axis in zip(index, labels, strict=True)]
    return f"[{', '.join(parts)}]" if parts else ""


def labels_at(chosen: np.ndarray, shape: tuple[int, ...], labels: Labels) -> Labels:
    """Labels for an array of entries of an array: an axis along which the index of one old axis changes has its labels.

    Args:
        chosen: positions in the flattened old array.
        shape, labels: of the old array.
    """
    kept: list[tuple[str, ...] | None] = [None] * chosen.ndim
    if not any(labels) or not chosen.size:
        return tuple(kept)
    places = np.unravel_index(chosen, shape)
    axes = range(chosen.ndim)
    changes = [[bool((place != place.take([0], axis)).any()) for axis in axes] for place in places]
    for axis in axes:
        here = [old for old, changed in enumerate(changes) if changed[axis]]
        words = labels[here[0]] if len(here) == 1 and sum(changes[here[0]]) == 1 else None
        if words is not None:
            line = np.moveaxis(places[here[0]], axis, 0).reshape(chosen.shape[axis], -1)[:, 0]
            kept[axis] = tuple(words[i] for i in line)
    return tuple(kept)


def numbered_index(parts: tuple[Any, ...], labels: Labels) -> tuple[Any, ...]:
    """An index with numbers in place of labels."""
    used = [_axes_used(part) for part in parts]
    numbers, axis = [], 0
    for position, part in enumerate(parts):
        if part is ...:
            axis = len(labels) - sum(used[position + 1 :])
        words = labels[axis] if used[position] and axis < len(labels) else None
        numbers.append(_numbered(part, words))
        axis += used[position]
    return tuple(numbers)


def _axes_used(part: Any) -> int:
    """How many axes of an array one part of an index takes."""
    if part is None or part is ...:
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1


def _numbered(part: Any, labels: tuple[str, ...] | None) -> Any:
    if isinstance(part, list) and part and all(isinstance(word, str) for word in part):
        return [_numbered(word, labels) for word in part]
    if not isinstance(part, str):
        return part
    if labels is None:
        raise ConstraintError(
            f"The index has the label {part!r}, but that axis has none. Fix: a number, or Variable([{part!r}, ...]) "
            f"with labels for the axis."
        )
    if part not in labels:
        reject_unknown("entry of this axis", part, labels)
    return labels.index(part)


# How an array over all variables was given: (batch..., l), (batch..., *shape), or one array per variable by name.
Arrangement = Literal["flat", "shaped", "by name"]


@dataclass(frozen=True)
class NamedArray:
    """One variable of a set: its name, shape, and the labels of its axes (None for an axis counted in numbers)."""

    name: str  # empty for entries that have names of their own
    shape: Shape
    labels: Labels

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def entry(self, flat: int) -> str:
        """An entry as a user writes it: ``works[3, 0]``, ``works[Ann, Mon]``."""
        if not self.name:
            return str(self.labels[0][flat])  # type: ignore[index]
        return self.name + index_text(np.unravel_index(flat, self.shape), self.labels)

    def __str__(self) -> str:
        return f"{self.name} {self.shape}" if self.shape else self.name


@dataclass(frozen=True)
class Layout:
    """The variables of a set one after the other, each flattened row by row."""

    variables: tuple[NamedArray, ...]

    @staticmethod
    def of_names(names: Sequence[str]) -> Layout:
        """Variables that each have a name of their own."""
        return Layout((NamedArray("", (len(names),), (tuple(names),)),))

    @cached_property
    def starts(self) -> list[int]:
        """Where each variable begins, and the length of the vector."""
        return list(itertools.accumulate((variable.size for variable in self.variables), initial=0))

    @property
    def size(self) -> int:
        return self.starts[-1]

    @property
    def shape(self) -> Shape | None:
        """The shape of the variable of a set that has one only."""
        return self.variables[0].shape if len(self.variables) == 1 else None

    def entry(self, column: int) -> str:
        """An entry of the vector as a user writes it."""
        which = bisect.bisect_right(self.starts, column) - 1
        return self.variables[which].entry(column - self.starts[which])

    def entries(self) -> list[str]:
        """Every entry of the vector as a user writes it."""
        return [variable.entry(i) for variable in self.variables for i in range(variable.size)]

    def flattened(self, array: Any) -> tuple[Any, Arrangement] | None:
        """A tensor or array as (batch..., l), and how it came; None where it has the shape of neither.

        One rule decides: an array whose last axis is as long as the vector is flat; any other must end in the shape of
        the only variable.
        """
        if array.ndim and array.shape[-1] == self.size:
            return array, "flat"
        shape = self.shape
        if shape is None or array.ndim < len(shape) or tuple(array.shape[array.ndim - len(shape) :]) != shape:
            return None
        return array.reshape(*array.shape[: array.ndim - len(shape)], self.size), "shaped"

    def joined(self, values: Mapping[str, Numbers], name: str) -> Numbers:
        """One vector (batch..., l) from one array or tensor (batch..., *shape) per variable."""
        self._check_keys(values, name)
        flat = []
        for variable in self.variables:
            part = values[variable.name]
            batch = part.ndim - len(variable.shape)
            if batch < 0 or tuple(part.shape[batch:]) != variable.shape:
                raise ConstraintError(
                    f"{name}[{variable.name!r}] has shape {tuple(part.shape)}; expected {variable.shape} after any "
                    f"batch dimensions. Fix: reshape it."
                )
            flat.append(part.reshape(*part.shape[:batch], variable.size))
        devices = {v.name: part.device for v, part in zip(self.variables, flat, strict=True) if is_tensor(part)}
        if len(set(devices.values())) > 1:
            listed = ", ".join(f"{key} on {device}" for key, device in devices.items())
            raise ConstraintError(f"{name} has {listed}; expected one device. Fix: .to(device).")
        try:
            return side_by_side(flat)
        except ValueError:
            listed = ", ".join(str(tuple(part.shape[:-1])) for part in flat)
            raise ConstraintError(
                f"The batch dimensions {listed} of {name} do not broadcast. Fix: give all the same."
            ) from None

    def _check_keys(self, values: Mapping[str, Numbers], name: str) -> None:
        if not self.variables[0].name:
            raise ConstraintError(
                f"{name} is a dict, but the entries of this set have a name each and no array has one. "
                f"Fix: one array (..., {self.size})."
            )
        known = [variable.name for variable in self.variables]
        for key in values:
            if key not in known:
                reject_unknown(f"variable of {name}", key, known)
        missing = [key for key in known if key not in values]
        if missing:
            raise ConstraintError(
                f"{name} has no entry for {', '.join(missing)}. Fix: one array for each of {', '.join(known)}."
            )

    def restored(self, x: Any, arrangement: Arrangement) -> Any:
        """x (batch..., l), a tensor or array, in the arrangement that the scores came in."""
        if arrangement == "flat":
            return x
        batch = tuple(x.shape[:-1])
        if arrangement == "shaped":
            return x.reshape(batch + self.variables[0].shape)
        return {
            variable.name: x[..., start : start + variable.size].reshape(batch + variable.shape)
            for variable, start in zip(self.variables, self.starts, strict=False)
        }

    def __str__(self) -> str:
        return ", ".join(str(variable) for variable in self.variables) if self.variables[0].name else ""


def holds_tensors(value: Any) -> bool:
    """Whether an array over all variables, or the first of a dict of arrays, is a torch tensor."""
    return is_tensor(value) or (isinstance(value, Mapping) and is_tensor(next(iter(value.values()), None)))


def expected_shape(layout: Layout | None, width: int | None) -> str:
    """The shapes that an array over all variables may have, in words."""
    if layout is None or not layout.variables[0].name or layout.shape == (layout.size,):
        return f"(..., {width or 'variables'}): one entry per variable in the last dimension"
    if layout.shape is not None:
        inner = ", ".join(map(str, ("...", *layout.shape)))
        return f"({inner}) like {layout.variables[0].name}, or flat, (..., {width})"
    parts = ", ".join(f"{v.name!r}: ({', '.join(map(str, ('...', *v.shape)))})" for v in layout.variables)
    return f"a dict {{{parts}}}, or flat, (..., {width})"


def flatten(
    name: str, value: Any, layout: Layout | None, width: int | None, read: Callable[[str, Any], Numbers]
) -> tuple[Numbers, Arrangement]:
    """An array over all variables as (batch..., l), and how it came.

    Args:
        name: of the argument, for messages.
        value: an array, or a mapping from variables' names to arrays.
        layout: of the variables, None where a set has no names.
        width: how many variables there are; None: any number.
        read: one array, called by its name, as an array or a tensor.
    """
    if not is_tensor(value) and isinstance(value, Mapping):
        if layout is None:
            raise ConstraintError(
                f"{name} is a dict, but the set has no named variables. Fix: one array (..., {width or 'variables'}), "
                f"or Constraints(..., variables=[X, Y])."
            )
        return layout.joined({key: read(f"{name}[{key!r}]", part) for key, part in value.items()}, name), "by name"
    flat = read(name, value)
    last = flat.shape[-1] if flat.ndim else 0
    if last and (width is None or last == width):
        return flat, "flat"
    shaped = None if layout is None else layout.flattened(flat)
    if shaped is not None:
        return shaped
    named = layout is not None and bool(layout.variables[0].name)
    fix = f"one entry in {name} for each of the {width} variables" + (f", or a set over {last}" if last else "")
    if named:
        fix = "the shape of the variables, after any batch dimensions"
    elif flat.ndim > 1 and flat.shape[-2] * last == width:
        fix = f"flatten matrices, {name}.reshape(*{name}.shape[:-2], -1)"
    elif flat.ndim > 1 and flat.shape[-2] == width:
        fix = f"{name}.swapaxes(-1, -2), instances first"
    raise ConstraintError(
        f"{name} has shape {tuple(flat.shape)}; expected {expected_shape(layout, width)}. Fix: {fix}."
    )
