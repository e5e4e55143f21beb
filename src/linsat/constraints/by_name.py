"""Right-hand sides and duals by the names of rows, and bounds by the names and shapes of variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat._optional import is_tensor
from linsat.constraints.arrays import (
    Numbers,
    check_bound,
    check_side,
    picked,
    read_bound,
    read_numbers,
    side_by_side,
    spread,
)
from linsat.constraints.layout import Layout, expected_shape
from linsat.constraints.names import family_shape, rows_named
from linsat.constraints.structure import BLOCKS
from linsat.constraints.terms import named_sides
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints


def right_sides_by_name(
    constraints: Constraints,
    values: Any,
    read: Callable[[str, Any], Numbers] = read_numbers,
    given: Mapping[str, Numbers] | None = None,
) -> tuple[dict[str, Numbers], Numbers | None]:
    """The right-hand sides ``b``, ``d``, ``f`` that change when rows of these names get these numbers; and ``t``, where
    some are names of expressions in formulas.

    Args:
        values: from the name of a row, or of a family of rows, to a number, (rows,), (batch..., rows), or the array
            that the rows form, (batch..., *shape).
        read: makes them arrays.
        given: in place of numbers of the set, by their names.
    """
    if not isinstance(values, Mapping):
        raise ConstraintError(
            f"rhs is {type(values).__name__}; expected a dict from names of rows to numbers. "
            f"Fix: {{'capacity': 3.0}}, or b=, d=, f= for all rows of a kind."
        )
    sides = constraints._sides()
    changed: set[str] = set()
    named: dict[int, str] = {}
    sides |= {side: read(side, given[side]) for side in sides if given and side in given}
    terms = constraints._terms
    inside = {} if terms is None else named_sides(terms, values)
    t = None if terms is None or not inside else read("t", given["t"]) if given and "t" in given else terms.sides()
    for name, value in values.items():
        if name in inside and terms is not None:
            given_numbers = read(f"rhs[{name!r}]", value)
            numbers = _for_rows(f"rhs[{name!r}]", given_numbers, [terms.names[i] for i in inside[name]])
            t = _replaced(t, inside[name], numbers)
            continue
        rows = _once("rhs", name, constraints, named)
        given_numbers = read(f"rhs[{name!r}]", value)
        numbers = _for_rows(f"rhs[{name!r}]", given_numbers, [constraints.names[row] for row in rows])
        start = 0
        for _, side, _ in BLOCKS:
            count = sides[side].shape[-1] if side in sides else 0
            here = [i for i, row in enumerate(rows) if start <= row < start + count]
            if here:
                own = picked(numbers, here)
                check_side(side, given_numbers if len(here) == len(rows) else own, f"rhs[{name!r}]")
                sides[side] = _replaced(sides[side], [rows[i] - start for i in here], own)
                changed.add(side)
            start += count
    return {side: sides[side] for side in changed}, t


def duals_by_name(
    constraints: Constraints, values: Mapping[str, Any], read: Callable[[Any], Numbers]
) -> dict[str, tuple[list[int], Numbers]]:
    """By name, the rows and their duals (batch..., rows), as ``read`` makes them arrays."""
    given: dict[int, str] = {}
    duals: dict[str, tuple[list[int], Numbers]] = {}
    for name, value in values.items():
        rows = _once("start", name, constraints, given)
        duals[name] = rows, _for_rows(f"start[{name!r}]", read(value), [constraints.names[row] for row in rows])
    return duals


def _once(argument: str, name: str, constraints: Constraints, given: dict[int, str]) -> list[int]:
    """The rows of a name, none of which another name has ``given``, and that they are given now."""
    rows = rows_named(constraints, name)
    twice = next((row for row in rows if row in given), None)
    if twice is not None:
        raise ConstraintError(
            f"{argument} gives row {constraints.names[twice]!r} twice, by {given[twice]!r} and {name!r}. "
            f"Fix: one of them."
        )
    given |= dict.fromkeys(rows, str(name))
    return rows


def _for_rows(name: str, numbers: Numbers, rows: list[str]) -> Numbers:
    """(batch..., rows) numbers for the rows of one name; ``name`` is the argument in messages."""
    if numbers.ndim == 0:
        return spread(numbers, (len(rows),))
    if numbers.shape[-1] == len(rows):
        return numbers
    shape = family_shape(rows)
    batch = numbers.ndim - len(shape)
    if batch < 0 or tuple(numbers.shape[batch:]) != shape:
        array = f" or (..., {', '.join(map(str, shape))})" if len(shape) > 1 else ""
        raise ConstraintError(
            f"{name} has shape {tuple(numbers.shape)}; expected a number or (..., {len(rows)}){array} for the "
            f"{len(rows)} rows of that name. Fix: one number for each row, after any batch dimensions."
        )
    return numbers.reshape(*numbers.shape[:batch], len(rows))


def _replaced(side: Numbers, columns: list[int], numbers: Numbers) -> Numbers:
    """A right-hand side (batch..., rows) with other numbers in some columns, differentiably."""
    order = np.arange(side.shape[-1])
    order[columns] = side.shape[-1] + np.arange(len(columns))
    try:
        return picked(side_by_side([side, numbers]), order)
    except ValueError:
        raise ConstraintError(
            f"rhs has batch dimensions {tuple(numbers.shape[:-1])} but other right-hand sides have "
            f"{tuple(side.shape[:-1])}. Fix: give all the same, or none."
        ) from None


def read_bound_of(constraints: Constraints, side: str, value: Any) -> Numbers:
    """One side of the box for all variables of a set: flat, in the shape of its variable, or a dict of several.

    Variables that a dict leaves out keep their bounds.
    """
    layout = constraints._layout
    if isinstance(value, Mapping):
        return _bound_by_name(constraints, side, value)
    bound = read_bound(side, value)
    if layout is None or layout.shape is None or bound.ndim < 2 or bound.shape[-1] in (1, layout.size):
        return bound
    flat = layout.flattened(bound)
    if flat is None:
        raise ConstraintError(
            f"{side} has shape {tuple(bound.shape)}; expected a number, or {expected_shape(layout, layout.size)}. "
            f"Fix: the shape of the variable, after any batch dimensions."
        )
    if _is_parameter(value):
        raise ConstraintError(
            f"{side} is a parameter of shape {tuple(bound.shape)}; expected (..., {layout.size}), because a set "
            f"follows the parameter itself. Fix: nn.Parameter({side}.flatten())."
        )
    return flat[0]


def _is_parameter(value: Any) -> bool:
    if not is_tensor(value):
        return False
    from torch.nn import Parameter

    return isinstance(value, Parameter)


def _bound_by_name(constraints: Constraints, side: str, values: Mapping[str, Any]) -> Numbers:
    layout: Layout | None = constraints._layout
    if layout is None or not layout.variables[0].name:
        raise ConstraintError(f"{side} is a dict, but the set has no named variables. Fix: one array (..., variables).")
    present = constraints._bounds()[side]
    pieces: dict[str, Numbers] = layout.restored(spread(present, (*present.shape[:-1], layout.size)), "by name")
    shapes = {variable.name: variable.shape for variable in layout.variables}
    for name, value in values.items():
        bound = read_numbers(f"{side}[{name!r}]", value)
        check_bound(side, bound)
        pieces[name] = spread(bound, shapes[name]) if bound.ndim == 0 and name in shapes else bound
    return layout.joined(pieces, side)
