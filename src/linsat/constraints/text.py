"""A constraint set in words: single rows, and the whole in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from linsat.constraints.arrays import Tensor
from linsat.constraints.structure import EQUAL, GREATER, LESS

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints

NAME_TERMS = 4  # of a row that is called by what it says
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
    side = _of_instance(constraints, constraints.numbers("cpu").rhs[..., index, None], instance)[..., 0]
    shown = f"{float(side):g}" if side.dim() == 0 else f"(one of {side.numel()} right-hand sides)"
    return f"{_left_side(constraints, index, instance, terms)} {shown}"


def _left_side(constraints: Constraints, index: int, instance: int | None, terms: int) -> str:
    structure = constraints.structure
    here = structure.row == index
    columns = structure.col[here].tolist()
    own = _of_instance(constraints, constraints.numbers("cpu").values[..., here], instance)
    block = structure.default_names[index].removesuffix("]").replace("[", "[..., ")
    shared = [_one_value(own[..., position]) for position in range(len(columns))]
    # One that differs per instance is shown as the entry of the tensor that holds it.
    values = [f"{block}, {col}]" if value is None else value for value, col in zip(shared, columns, strict=True)]
    left = terms_text(values, columns, constraints.variable_name, terms)
    return f"{left} {SENSE_TEXT[int(structure.senses[index])]}"


def named_row_text(constraints: Constraints, index: int, *, instance: int | None = None, terms: int = 6) -> str:
    """One row with its name, where it was given one."""
    name, text = constraints.names[index], row_text(constraints, index, instance, terms)
    # Rows without a name are called by what they said when they were written.
    return text if name.startswith(_left_side(constraints, index, instance, NAME_TERMS)) else f"{name}: {text}"


def _of_instance(constraints: Constraints, numbers: Tensor, instance: int | None) -> Tensor:
    """The numbers (batch..., n) of one instance, (n,); as they are without one."""
    numbers, batch = numbers.detach(), constraints.batch_shape
    if instance is None:
        return numbers
    return numbers.expand(*batch, numbers.shape[-1]).reshape(batch.numel(), numbers.shape[-1])[instance]


def _one_value(numbers: Tensor) -> float | None:
    """The number that all instances share, or None where they differ."""
    flat = numbers.reshape(-1)
    return float(flat[0]) if flat.numel() and bool((flat == flat[0]).all()) else None


def summary(constraints: Constraints) -> str:
    """Size, box and the first and last rows."""
    senses, rows = constraints.senses, len(constraints)
    counts = ", ".join(f"{senses.count(s)} {s}" for s in ("<=", ">=", "==") if s in senses) or "none"
    box = f"[{_span(constraints.lower.detach(), 'min')}, {_span(constraints.upper.detach(), 'max')}]"
    width = "any number of" if constraints.num_variables is None else str(constraints.num_variables)
    batch = f", batch {tuple(constraints.batch_shape)}" if constraints.batch_shape else ""
    noun = "row" if rows == 1 else "rows"
    soft = constraints.soft.tolist()
    softened = f", {sum(soft)} of them soft" if any(soft) else ""
    named = f"{constraints.layout}: " if constraints.layout else ""
    lines = [f"Constraints({named}{width} variables in {box}, {rows} {noun}: {counts}{softened}{batch})"]
    shown = range(rows) if rows <= 6 else [0, 1, 2, rows - 1]
    for position, index in enumerate(shown):
        if rows > 6 and position == 3:
            lines.append("  ...")
        price = f" (soft, price {_range(constraints.price.detach()[..., index])})" if soft[index] else ""
        lines.append(f"  {named_row_text(constraints, index)}{price}")
    return "\n".join(lines)


def _range(price: Tensor) -> str:
    least, most = (f"{float(end):g}" for end in price.aminmax())
    return least if least == most else f"{least} to {most}"


def _span(bound: Tensor, side: str) -> str:
    value = float(bound.min() if side == "min" else bound.max()) if bound.numel() else 0.0
    varies = bound.numel() > 1 and bool((bound != bound.reshape(-1)[0]).any())
    return f"{value:g}" + (" (varies)" if varies else "")
