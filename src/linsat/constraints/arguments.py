"""Reading the plain arguments of the ready-made families: whole numbers, numbers in a range, vectors."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from linsat._optional import is_tensor
from linsat.constraints.constants import Array, read_constant
from linsat.errors import ConstraintError


def reject(argument: str, came: object, expected: str, fix: str) -> NoReturn:
    raise ConstraintError(f"{argument} is {came}; expected {expected}. Fix: {fix}.")


def exceeds(value: float, limit: float) -> bool:
    """Above the limit by more than the rounding of a sum: ten times 0.1 must not exceed 1."""
    return value > limit + 1e-9 * max(1.0, abs(limit))


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """One integer from low to high."""
    array = whole_array(name, value, low, high)
    if array.ndim:
        reject(name, f"of shape {array.shape}", "one integer", f"pass a plain int as {name}")
    return int(array)


def whole_array(name: str, value: Any, low: int, high: int | None) -> Array:
    """One integer from low to high, or a flat sequence of them."""
    expected = f"an integer of at least {low}" if high is None else f"integers from {low} to {high}"
    try:
        array = np.asarray(value.cpu() if is_tensor(value) else value)
    except ValueError:
        reject(name, repr(value), expected, "pass one integer or a flat sequence of them")
    if array.size == 0 or array.ndim > 1:
        reject(name, f"of shape {array.shape}", expected, "pass one integer or a flat sequence of them")
    if array.dtype.kind not in "iu":
        reject(name, repr(value), expected, "convert it to int (a mask: numpy.flatnonzero)")
    outside = np.flatnonzero((array < low) | (array > (np.inf if high is None else high)))
    if outside.size:
        where = f"[{outside[0]}]" if array.ndim else ""
        reject(name + where, int(array.reshape(-1)[outside[0]]), expected, f"choose {name} in that range")
    return array.astype(np.int64)


def number(name: str, value: Any, low: float, high: float, why: str) -> float:
    """One finite number in [low, high]."""
    array = read_constant(value, name)
    expected = f"at least {low:g}" if high == np.inf else f"a number from {low:g} to {high:g}"
    if array.ndim > 0:
        reject(name, f"of shape {array.shape}", "one number", "for one per instance use Constraints.with_rhs")
    if not low <= array <= high:
        reject(name, float(array), expected, f"choose {name} in that range, because {why}")
    return float(array)


def vector(name: str, value: Any, length: int | None, *, low: float = -np.inf) -> Array:
    """(length,) finite numbers of at least ``low``; one number stands for all where the length is known."""
    array = read_constant(value, name)
    if array.ndim == 0 and length is not None:
        array = np.full(length, float(array))
    if array.ndim != 1 or array.size == 0 or (length is not None and len(array) != length):
        reject(
            name,
            f"of shape {array.shape}",
            f"shape ({'n' if length is None else length},)",
            "one number each",
        )
    if (array < low).any():
        at = int(np.flatnonzero(array < low)[0])
        reject(f"{name}[{at}]", f"{array[at]:g}", f"at least {low:g}", "raise it")
    return array
