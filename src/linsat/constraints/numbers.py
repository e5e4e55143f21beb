"""All numbers of a set at once: as float64 tensors on a device, as numpy arrays (`Statement`), as one sparse tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat._optional import is_tensor
from linsat._transforms import plain_tensors, tracing
from linsat.constraints import arrays, structure
from linsat.constraints.arrays import Array, Numbers
from linsat.constraints.coefficients import Matrix
from linsat.constraints.rounded import keep_dependencies, rounding_of
from linsat.constraints.soft import full_price
from linsat.constraints.structure import BLOCKS, SparsityPattern
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    import torch

    from linsat.constraints.constraint_set import Constraints

    Tensor = torch.Tensor


@dataclass(frozen=True)
class Statement:
    """What a set states: coefficients row by row (A first, then C, then E), right-hand sides, the box, prices.

    Numbers that differ per instance have leading dimensions that broadcast to ``batch_shape``.
    """

    row: Array  # (nnz,) int64: row of each coefficient
    col: Array  # (nnz,) int64: variable of each coefficient
    senses: Array  # (rows,) int8: LESS, EQUAL or GREATER of linsat._senses
    values: Array  # (nnz,) or (batch..., nnz) float64
    rhs: Array  # (rows,) or (batch..., rows) float64
    lower: Array  # (), (variables,) or (batch..., variables) float64
    upper: Array  # (), (variables,) or (batch..., variables) float64
    price: Array | None  # (rows,) or (batch..., rows) float64, infinite where a row is hard; None: all are
    num_variables: int | None  # None: no rows and scalar bounds, so any number fits
    batch_shape: tuple[int, ...]


def values_on(constraints: Constraints, device: torch.device | str | None = None) -> structure.Numbers:
    """The numbers in float64 on a device, by default that of the coefficients, with gradients where asked for."""
    values = arrays.to_tensor(_slot(constraints, "values"), device)
    lower, upper = (_bound_on(constraints, name, device) for name in ("lower", "upper"))
    at = values.device if constraints._matrices else lower.device
    side, price = arrays.to_tensor(_slot(constraints, "side"), at), full_price(constraints._soft, len(constraints))
    price = lower.new_full((len(constraints),), np.inf, device=at) if price is None else arrays.to_tensor(price, at)
    return structure.Numbers(values.to(at), side, lower.to(at), upper.to(at), price)


def slots_of(
    constraints: Constraints, width: int, batch: tuple[int, ...], given: Mapping[str, Numbers] | None = None
) -> list[Numbers]:
    """Coefficients, right-hand sides, lower and upper bounds, prices of all rows, over a flattened batch.

    (1, .) where all instances share them, else (N, .): float64 arrays; tensors where torch follows them, or on another
    device. Those ``given`` (`slots_given`) take the place of the set's own.
    """
    pattern = constraints._structure
    sizes = (len(pattern.row), pattern.num_rows, width, width, pattern.num_rows)
    kept = constraints._slots
    slots = []
    for name, size in zip(("values", "side", "lower", "upper", "price"), sizes, strict=True):
        if given is not None and name in given:
            slots.append(_flat(given[name], size, batch))
            continue
        key = name, width, batch
        if key not in kept:
            whole = _flat(_slot(constraints, name), size, batch)
            if is_tensor(whole):
                slots.append(whole)
                continue
            kept[key] = whole
        slots.append(kept[key])
    return slots


def slots_given(constraints: Constraints, given: Mapping[str, Any]) -> dict[str, Numbers] | None:
    """The slots that numbers given with a call replace, (batch..., .), in their own library; None: `with_numbers` must.

    For arrays and tensors in the shapes of what they replace. Nobody looks at the numbers: the solver does.
    """
    shapes = _plain_shapes(constraints)
    for name, value in given.items():
        if not _is_plain(value):
            return None
        if not any(tuple(value.shape[value.ndim - len(shape) :]) == shape for shape in shapes.get(name, ())):
            return None
        if name in constraints._matrices and not _is_block(constraints._matrices[name], value):
            return None
    f = given.get("f")  # that of JAX is freed of rounding already
    if f is not None and not arrays.is_jax(f) and rounding_of(f) and _has_dependencies(constraints, given):
        return None
    slots = {name: given[name] for name in ("lower", "upper") if name in given}
    if "price" in given:
        slots["price"] = _price_slot(constraints, given["price"])
    matrices = constraints._matrices
    if not matrices.keys().isdisjoint(given):
        slots["values"] = arrays.side_by_side([_block(matrix, given.get(name)) for name, matrix in matrices.items()])
    if not constraints._right_sides.keys().isdisjoint(given):
        sides = constraints._consistent_sides()
        slots["side"] = arrays.side_by_side([given.get(name, side) for name, side in sides.items()])
    return slots


def _plain_shapes(constraints: Constraints) -> dict[str, list[tuple[int, ...]]]:
    """In what shapes, after batch dimensions, each number of a set can be replaced as it comes."""
    if "shapes" not in constraints._slots:
        shapes: dict[str, list[tuple[int, ...]]] = {}
        if constraints.num_variables is not None:
            shapes |= {bound: [(constraints.num_variables,)] for bound in ("lower", "upper")}
        soft = int(constraints._soft_mask().sum())
        if soft:
            shapes["price"] = [(soft,), (len(constraints),)]
        for name, side, _ in BLOCKS:
            matrix = constraints._matrices.get(name)
            if matrix is None:
                continue
            shapes[side] = [matrix.shape[:1]]
            shapes[name] = [matrix.shape] * matrix.full + [(len(matrix.row),)] * (matrix.sparse or not matrix.full)
        constraints._slots["shapes"] = shapes
    return constraints._slots["shapes"]


def _price_slot(constraints: Constraints, price: Numbers) -> Numbers:
    """Prices (batch..., rows), infinite where a row is hard, from those of all rows or of the soft ones."""
    soft = constraints._soft_mask()
    xp, count = arrays.namespace(price), int(soft.sum())
    if price.shape[-1] == count != len(soft):
        price = arrays.picked(price, np.where(soft, np.cumsum(soft) - 1, 0))
    return xp.where(arrays.positions_on(price, soft), price, xp.full_like(price, np.inf))


def _is_plain(value: Any) -> bool:
    """Whether a number is a floating array or dense tensor on the CPU."""
    if is_tensor(value):
        return (
            value.device.type == "cpu"
            and arrays.is_dense(value)
            and value.itemsize in (4, 8)
            and value.is_floating_point()
        )
    return (type(value) is np.ndarray or arrays.is_jax(value)) and value.dtype in (np.float64, np.float32)


def _is_block(matrix: Matrix, value: Numbers) -> bool:
    """Whether `_block` has the coefficients: in a matrix with zeros there may be others than those of the set.

    Values of the non-zeros stand for a matrix with zeros where the set was stated so, and where JAX traces.
    """
    return matrix.full or ((matrix.sparse or arrays.is_jax(value)) and not matrix.is_whole(value.shape))


def _block(matrix: Matrix, value: Numbers | None) -> Numbers:
    """Coefficients of a block, (batch..., nnz)."""
    if value is None:
        return matrix.values()
    whole = matrix.is_whole(value.shape) or (matrix.full and not matrix.sparse)
    return value.reshape(*value.shape[:-2], len(matrix.row)) if whole else value


def _has_dependencies(constraints: Constraints, given: Mapping[str, Any]) -> bool:
    """Whether sides of equalities may contradict each other by rounding alone."""
    matrix = constraints._matrices["E"]
    return "E" not in given and not matrix.live and getattr(matrix.kept, keep_dependencies(matrix)).shape[1] > 0


def _slot(constraints: Constraints, name: str) -> Numbers:
    """All numbers of one kind, (batch..., .)."""
    if name == "values":
        return arrays.side_by_side([matrix.values() for matrix in constraints._matrices.values()])
    if name == "side":
        return arrays.side_by_side(list(constraints._consistent_sides().values()))
    if name == "price":
        price = full_price(constraints._soft, len(constraints))
        return np.full(len(constraints), np.inf) if price is None else price
    return constraints._bounds()[name]


def _flat(numbers: Numbers, size: int, batch: tuple[int, ...]) -> Numbers:
    """(batch..., size) or shared numbers as (N or 1, size), in float32 or float64."""
    if numbers.ndim <= 1:
        flat = arrays.spread(numbers, (1, size))
    elif numbers.ndim == 2 and tuple(numbers.shape) == (*batch, size):
        flat = numbers
    else:
        flat = arrays.spread(numbers, (*batch, size)).reshape(math.prod(batch), size)
    return arrays.floating(flat) if is_tensor(flat) else flat


def _bound_on(constraints: Constraints, name: str, device: torch.device | str | None) -> Tensor:
    """A bound on a device; one that is a constant is kept, for sets that differ in other numbers too."""
    bound, kept = constraints._bounds()[name], constraints._bounds_on
    if arrays.followed(bound) or tracing():
        return arrays.to_tensor(bound, device)
    key = name, str(device)
    if key not in kept or kept[key][0] is not bound:
        with plain_tensors():
            kept[key] = bound, arrays.to_tensor(own_tensor(bound), device)
    return kept[key][1]


def own_tensor(numbers: Numbers) -> Tensor:
    """Numbers of a set as a tensor: the user's own where it is followed, else a copy: writing to it changes no set."""
    return numbers if arrays.followed(numbers) else arrays.to_tensor(numbers).clone()


def present(constraints: Constraints) -> Statement:
    """All numbers as they are now, learned ones too; arrays may share memory with the set."""
    pattern, soft = constraints._structure, constraints._soft
    bounds = {name: arrays.as_array(bound) for name, bound in constraints._bounds().items()}
    price = full_price(soft, len(constraints))
    return Statement(
        row=pattern.row,
        col=pattern.col,
        senses=pattern.senses,
        values=arrays.as_array(_slot(constraints, "values")).astype(np.float64, copy=False),
        rhs=arrays.as_array(_slot(constraints, "side")).astype(np.float64, copy=False),
        lower=bounds["lower"],
        upper=bounds["upper"],
        price=None if price is None else arrays.as_array(price),
        num_variables=constraints.num_variables,
        batch_shape=tuple(constraints.batch_shape),
    )


def statement(constraints: Constraints) -> Statement:
    """See `Constraints.statement`; all of it copied."""
    if not constraints._fixed:
        held = ", ".join(constraints._learned_tensors()) or "of a graph or a function transform"
        raise ConstraintError(
            f"The set holds tensors that torch follows ({held}); expected constants. Fix: build the set from arrays, "
            f"or from tensor.detach()."
        )
    constraints._require_linear("Constraints.statement")
    stated = present(constraints)
    parts = {f.name: getattr(stated, f.name) for f in fields(stated)}
    return replace(stated, **{name: part.copy() for name, part in parts.items() if isinstance(part, np.ndarray)})


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
    matrix = torch.sparse_coo_tensor(index, values.flatten(), shape, device=values.device, check_invariants=True)
    return matrix.coalesce()
