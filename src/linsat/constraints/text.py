"""A constraint set in words: single rows, and the whole in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from linsat.constraints.arrays import Array, as_array
from linsat.constraints.numbers import of_instance, present
from linsat.constraints.structure import EQUAL, GREATER, LESS

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints

NAME_TERMS, _TERMS = 4, 6  # of a row that is called by what it says; of one in a message
SENSE_TEXT = {LESS: "<=", EQUAL: "==", GREATER: ">="}


def terms_text(values: Sequence[float | str], columns: Sequence[int], entry: Callable[[int], str], terms: int) -> str:
    """A sum as a user writes it, shortened to ``terms`` terms: ``X[0, 1] - 2 X[1, 1] + ... + X[9, 1]``.

    A coefficient is a number, or a text that stands for numbers that differ.
    """
    present = [(value, column) for value, column in zip(values, columns, strict=True) if value != 0]
    shown = present if len(present) <= terms else [*present[: terms - 2], present[-1]]
    pieces: list[str] = []
    for value, column in shown:
        negative = not isinstance(value, str) and value < 0
        size = f"{value} " if isinstance(value, str) else "" if abs(value) == 1 else f"{abs(value):g} "
        sign = ("-" if negative else "") if not pieces else ("- " if negative else "+ ")
        pieces.append(f"{sign}{size}{entry(column)}")
    if len(shown) < len(present):
        pieces.insert(-1, "+ ...")
    return " ".join(pieces) or "0"


def row_text(constraints: Constraints, index: int, instance: int | None, terms: int) -> str:
    """See `Constraints.row_text`."""
    side = _of_instance(constraints, present(constraints).rhs[..., [index]], instance)[..., 0]
    shown = f"{float(side):g}" if side.ndim == 0 else f"(one of {side.size} right-hand sides)"
    return f"{_left_side(constraints, index, instance, terms)} {shown}"


def _left_side(constraints: Constraints, index: int, instance: int | None, terms: int) -> str:
    structure = constraints._structure
    here = np.flatnonzero(structure.row == index)
    columns = structure.col[here].tolist()
    own = _of_instance(constraints, present(constraints).values[..., here], instance)
    block = structure.default_names[index].removesuffix("]").replace("[", "[..., ")
    shared = own.tolist() if own.ndim == 1 else [_one_value(own[..., position]) for position in range(len(columns))]
    # One that differs per instance is shown as the entry of the tensor that holds it.
    values = [f"{block}, {col}]" if value is None else value for value, col in zip(shared, columns, strict=True)]
    entry: Callable[[int], str] = constraints._variable_name
    if constraints._terms is not None:
        maxima, width = constraints._terms, constraints.num_variables or 0
        own_maxima = np.flatnonzero(maxima.row == index).tolist()
        values += [abs(w) for w in maxima.weight[own_maxima].tolist()]
        columns += [width + m for m in own_maxima]

        def named(column: int) -> str:
            if column < width:
                return constraints._variable_name(column)
            return maxima.text(
                column - width, constraints._variable_name, lambda n: _of_instance(constraints, as_array(n), instance)
            )

        entry = named
    left = terms_text(values, columns, entry, terms)
    return f"{left} {SENSE_TEXT[int(structure.senses[index])]}"


def named_row_text(constraints: Constraints, index: int, *, instance: int | None = None) -> str:
    """One row with its name, where it was given one."""
    name, text = constraints.names[index], row_text(constraints, index, instance, _TERMS)
    # Rows without a name are called by what they said when they were written.
    return text if name.startswith(_left_side(constraints, index, instance, NAME_TERMS)) else f"{name}: {text}"


def _of_instance(constraints: Constraints, numbers: Array, instance: int | None) -> Array:
    """The numbers (batch..., n) of one instance, (n,); as they are without one."""
    return numbers if instance is None else of_instance(numbers, constraints.batch_shape, instance)


def _one_value(numbers: Array) -> float | None:
    """The number that all instances share, or None where they differ."""
    flat = numbers.reshape(-1)
    return float(flat[0]) if flat.size and bool((flat == flat[0]).all()) else None


def summary(constraints: Constraints) -> str:
    """Size, box and the first and last rows."""
    senses, rows = constraints.senses, len(constraints)
    noun = "row" if rows == 1 else "rows"
    counts = ", ".join(f"{senses.count(s)} {s}" for s in ("<=", ">=", "==") if s in senses) or "none"
    if any(number.is_meta for number in constraints._learned_tensors().values()):
        return f"Constraints({constraints.num_variables} variables, {rows} {noun}: {counts}; its numbers are on meta)"
    lower, upper = (as_array(bound) for bound in constraints._bounds().values())
    box = f"[{_span(lower, 'min')}, {_span(upper, 'max')}]"
    width = "any number of" if constraints.num_variables is None else str(constraints.num_variables)
    batch = f", batch {tuple(constraints.batch_shape)}" if constraints.batch_shape else ""
    soft, prices = constraints._soft_mask().tolist(), present(constraints).price
    softened = f", {sum(soft)} of them soft" if any(soft) else ""
    variables = str(constraints._layout or "")  # empty where labels were given but no name
    named = f"{variables}: " if variables else ""
    lines = [f"Constraints({named}{width} variables in {box}, {rows} {noun}: {counts}{softened}{batch})"]
    shown = range(rows) if rows <= 6 else [0, 1, 2, rows - 1]
    for position, index in enumerate(shown):
        if rows > 6 and position == 3:
            lines.append("  ...")
        price = ""
        if prices is not None and soft[index]:
            ends = dict.fromkeys(f"{end:g}" for end in (prices[..., index].min(), prices[..., index].max()))
            price = f" (soft, price {' to '.join(ends)})"
        lines.append(f"  {named_row_text(constraints, index)}{price}")
    return "\n".join(lines)


def _span(bound: Array, side: str) -> str:
    value = float(bound.min() if side == "min" else bound.max()) if bound.size else 0.0
    varies = bound.size > 1 and bool((bound != bound.reshape(-1)[0]).any())
    return f"{value:g}" + (" (varies)" if varies else "")
