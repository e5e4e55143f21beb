"""All numbers of a set at once: as float64 tensors on a device, as numpy arrays, as one sparse tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from linsat._transforms import plain_tensors, tracing
from linsat.constraints.arrays import Array, Numbers, as_array, followed, side_by_side, spread, to_tensor
from linsat.constraints.soft import full_price
from linsat.constraints.statement import Statement
from linsat.constraints.structure import SparsityPattern, Values
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    import torch

    from linsat.constraints.rows_and_box import RowsAndBox

    Tensor = torch.Tensor


def values_on(constraints: RowsAndBox, device: torch.device | str | None) -> Values:
    """The numbers on a device, by default that of the coefficients, with gradients where asked for."""
    values = [to_tensor(matrix.values(), device) for matrix in constraints._matrices.values()]
    lower, upper = (_bound_on(constraints, name, device) for name in ("lower", "upper"))
    if device is None:
        device = values[0].device if values else lower.device
    price = full_price(constraints._soft, len(constraints))
    return Values(
        values=_stacked(values, device),
        rhs=_stacked([to_tensor(side, device) for side in constraints._consistent_sides().values()], device),
        lower=lower.to(device),
        upper=upper.to(device),
        price=None if price is None else to_tensor(price, device),
    )


def _bound_on(constraints: RowsAndBox, name: str, device: torch.device | str | None) -> Tensor:
    """A bound on a device; one that is a constant is kept, for sets that differ in other numbers too."""
    bound, kept = constraints._bounds()[name], constraints._bounds_on
    if followed(bound) or tracing():
        return to_tensor(bound, device)
    key = name, str(device)
    if key not in kept or kept[key][0] is not bound:
        with plain_tensors():
            kept[key] = bound, to_tensor(own_tensor(bound), device)
    return kept[key][1]


def _stacked(parts: Sequence[Tensor], device: torch.device | str) -> Tensor:
    import torch

    if not parts:
        return torch.zeros(0, dtype=torch.float64, device=device)
    return side_by_side([part.to(device) for part in parts])


def right_sides(constraints: RowsAndBox) -> dict[str, Tensor]:
    """The right-hand sides (batch..., rows) by name, as tensors: the user's own where they are followed."""
    return {
        name: own_tensor(spread(side, (*side.shape[:-1], constraints._rows_of(name))))
        for name, side in constraints._right_sides.items()
    }


def own_tensor(numbers: Numbers) -> Tensor:
    """Numbers of a set as a tensor: the user's own where it is followed, else a copy: writing to it changes no set."""
    return numbers if followed(numbers) else to_tensor(numbers).clone()


def present(constraints: RowsAndBox) -> Statement:
    """All numbers as they are now, learned ones too; arrays may share memory with the set."""
    pattern, soft = constraints.structure, constraints._soft
    bounds = {name: as_array(bound) for name, bound in constraints._bounds().items()}
    price = full_price(soft, len(constraints))
    return Statement(
        row=pattern.row,
        col=pattern.col,
        senses=pattern.senses,
        values=_stacked_arrays([matrix.values() for matrix in constraints.blocks.values()]),
        rhs=_stacked_arrays(list(constraints._consistent_sides().values())),
        lower=bounds["lower"],
        upper=bounds["upper"],
        price=None if price is None else as_array(price),
        num_variables=constraints.num_variables,
        batch_shape=tuple(constraints.batch_shape),
    )


def _stacked_arrays(parts: Sequence[Numbers]) -> Array:
    return side_by_side([as_array(part).astype(np.float64, copy=False) for part in parts]) if parts else np.zeros(0)


def statement(constraints: RowsAndBox) -> Statement:
    """See `Constraints.statement`; all of it copied."""
    if not constraints.fixed:
        held = ", ".join(constraints.learned_tensors()) or "of a graph or a function transform"
        raise ConstraintError(
            f"The set holds tensors that torch follows ({held}); expected constants. Fix: build the set from arrays, "
            f"or from tensor.detach()."
        )
    stated = present(constraints)
    arrays = {f.name: getattr(stated, f.name) for f in fields(stated)}
    return replace(stated, **{name: part.copy() for name, part in arrays.items() if isinstance(part, np.ndarray)})


def of_instance(numbers: Array, batch_shape: Sequence[int], instance: int) -> Array:
    """The numbers (batch..., n) of one instance, (n,)."""
    size = numbers.shape[-1]
    return np.broadcast_to(numbers, (*batch_shape, size)).reshape(math.prod(batch_shape), size)[instance]


def sparse_matrix(pattern: SparsityPattern, values: Tensor) -> Tensor:
    """All coefficients as one sparse COO tensor (batch..., rows, variables)."""
    import torch

    row, col, _ = pattern.on(values.device)
    batch = values.shape[:-1]
    shape = (*batch, pattern.num_rows, pattern.num_variables or 0)
    instances = torch.ones(batch, dtype=torch.bool, device=row.device).nonzero().T  # (batch dimensions, instances)
    places = torch.stack([row, col]).repeat(1, batch.numel())
    index = torch.cat([instances.repeat_interleave(len(row), dim=1), places])
    found = torch.sparse_coo_tensor(index, values.flatten(), shape, device=values.device, check_invariants=True)
    return found.coalesce()
