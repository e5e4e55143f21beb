"""Right-hand sides by the names of rows, and bounds by the names and shapes of variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from linsat.constraints.arrays import Tensor, check_bound, check_finite, read_bound, to_tensor
from linsat.constraints.layout import Layout
from linsat.constraints.names import family_shape, rows_named
from linsat.constraints.structure import BLOCKS
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints


def right_sides_by_name(constraints: Constraints, values: Any) -> dict[str, Tensor]:
    """The right-hand sides ``b``, ``d``, ``f`` that change when rows of these names get these numbers.

    Args:
        values: from the name of a row, or of a family of rows, to a number, (rows,), (batch..., rows), or the array
            that the rows form, (batch..., *shape).
    """
    if not isinstance(values, Mapping):
        raise ConstraintError(
            f"rhs is {type(values).__name__}; expected a dict from names of rows to numbers. "
            f"Fix: {{'capacity': 3.0}}, or b=, d=, f= for all rows of a kind."
        )
    sides, changed, given = constraints.right_sides, set[str](), dict[int, str]()
    for name, value in values.items():
        rows = rows_named(constraints, name)
        twice = next((row for row in rows if row in given), None)
        if twice is not None:
            raise ConstraintError(
                f"rhs gives row {constraints.names[twice]!r} twice, by {given[twice]!r} and {name!r}. Fix: one of them."
            )
        given |= dict.fromkeys(rows, str(name))
        numbers = _read_numbers(name, value, [constraints.names[row] for row in rows])
        start = 0
        for _, side, _ in BLOCKS:
            count = sides[side].shape[-1] if side in sides else 0
            here = [i for i, row in enumerate(rows) if start <= row < start + count]
            if here:
                sides[side] = _replaced(sides[side], [rows[i] - start for i in here], numbers[..., here])
                changed.add(side)
            start += count
    return {side: sides[side] for side in changed}


def _read_numbers(name: str, value: Any, rows: list[str]) -> Tensor:
    """(batch..., rows) numbers for the rows of one name."""
    tensor = to_tensor(f"rhs[{name!r}]", value)
    if tensor.layout != torch.strided:
        raise ConstraintError(f"rhs[{name!r}] is sparse; expected a dense array. Fix: .to_dense().")
    check_finite(f"rhs[{name!r}]", tensor)
    if tensor.dim() == 0:
        return tensor.expand(len(rows))
    if tensor.shape[-1] == len(rows):
        return tensor
    shape = family_shape(rows)
    batch = tensor.dim() - len(shape)
    if batch < 0 or tuple(tensor.shape[batch:]) != shape:
        array = f" or (..., {', '.join(map(str, shape))})" if len(shape) > 1 else ""
        raise ConstraintError(
            f"rhs[{name!r}] has shape {tuple(tensor.shape)}; expected a number or (..., {len(rows)}){array} for the "
            f"{len(rows)} rows of that name. Fix: one number for each row, after any batch dimensions."
        )
    return tensor.reshape(*tensor.shape[:batch], len(rows))


def _replaced(side: Tensor, columns: list[int], numbers: Tensor) -> Tensor:
    """A right-hand side (batch..., rows) with other numbers in some columns, differentiably."""
    try:
        batch = torch.broadcast_shapes(side.shape[:-1], numbers.shape[:-1])
    except RuntimeError:
        raise ConstraintError(
            f"rhs has batch dimensions {tuple(numbers.shape[:-1])} but other right-hand sides have "
            f"{tuple(side.shape[:-1])}. Fix: give all the same, or none."
        ) from None
    parts = [t.to(numbers.device, torch.float64).expand(*batch, -1) for t in (side, numbers)]
    order = torch.arange(side.shape[-1])
    order[columns] = side.shape[-1] + torch.arange(len(columns))
    return torch.cat(parts, dim=-1).index_select(-1, order.to(numbers.device))


def read_bound_of(constraints: Constraints, side: str, value: Any) -> Tensor:
    """One side of the box for all variables of a set: flat, in the shape of its variable, or a dict of several.

    Variables that a dict leaves out keep their bounds.
    """
    layout = constraints.layout
    if isinstance(value, Mapping):
        return _bound_by_name(constraints, side, value)
    bound = read_bound(side, value)
    if layout is None or layout.shape is None or bound.dim() < 2 or bound.shape[-1] in (1, layout.size):
        return bound
    found = layout.flattened(bound)
    if found is None:
        return bound  # rejected with the others, where all must agree
    if isinstance(value, torch.nn.Parameter):
        raise ConstraintError(
            f"{side} is a parameter of shape {tuple(bound.shape)}; expected (..., {layout.size}), because a set "
            f"follows the parameter itself. Fix: nn.Parameter({side}.flatten())."
        )
    return found[0]


def _bound_by_name(constraints: Constraints, side: str, values: Mapping[str, Any]) -> Tensor:
    layout: Layout | None = constraints.layout
    if layout is None or not layout.variables[0].name:
        raise ConstraintError(f"{side} is a dict, but the set has no named variables. Fix: one array (..., variables).")
    present: Tensor = getattr(constraints, side).to(torch.float64)
    batch = present.shape[:-1] if present.dim() else ()
    pieces: dict[str, Tensor] = layout.restored(present.expand(*batch, layout.size), "by name")
    shapes = {variable.name: variable.shape for variable in layout.variables}
    for name, value in values.items():
        tensor = to_tensor(f"{side}[{name!r}]", value)
        check_bound(side, tensor)
        pieces[name] = tensor.expand(shapes[name]) if tensor.dim() == 0 and name in shapes else tensor
    return layout.joined(pieces, side)
