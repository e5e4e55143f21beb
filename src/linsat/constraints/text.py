"""A constraint set in words: single rows, and the whole in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linsat.constraints.arrays import Tensor
from linsat.constraints.structure import EQUAL, GREATER, LESS

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints

SENSE_TEXT = {LESS: "<=", EQUAL: "==", GREATER: ">="}


def row_text(constraints: Constraints, index: int, instance: int | None, terms: int) -> str:
    """See `Constraints.row_text`."""
    structure, numbers = constraints.structure, constraints.numbers("cpu")
    here = structure.row == index
    values = _of_instance(constraints, numbers.values[..., here], instance)
    side = _of_instance(constraints, numbers.rhs[..., index, None], instance)[..., 0]
    pieces: list[str] = []
    for position, col in enumerate(structure.col[here].tolist()):
        value = _one_value(values[..., position])
        if value is None:  # it differs per instance: the entry of the tensor that holds it
            block = structure.default_names[index].removesuffix("]")
            pieces.append(f"{'+ ' if pieces else ''}{block.replace('[', '[..., ')}, {col}] x[{col}]")
        elif value != 0:
            size = "" if abs(value) == 1 else f"{abs(value):g} "
            sign = ("-" if value < 0 else "") if not pieces else ("- " if value < 0 else "+ ")
            pieces.append(f"{sign}{size}x[{col}]")
    if len(pieces) > terms:
        pieces = [*pieces[: terms - 1], "+ ...", pieces[-1]]
    shown = f"{float(side):g}" if side.dim() == 0 else f"(one of {side.numel()} right-hand sides)"
    return f"{' '.join(pieces) or '0'} {SENSE_TEXT[int(structure.senses[index])]} {shown}"


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
    lines = [f"Constraints({width} variables in {box}, {rows} {noun}: {counts}{softened}{batch})"]
    shown = range(rows) if rows <= 6 else [0, 1, 2, rows - 1]
    for position, index in enumerate(shown):
        if rows > 6 and position == 3:
            lines.append("  ...")
        price = f" (soft, price {_range(constraints.price.detach()[..., index])})" if soft[index] else ""
        lines.append(f"  {constraints.names[index]}: {constraints.row_text(index)}{price}")
    return "\n".join(lines)


def _range(price: Tensor) -> str:
    least, most = (f"{float(end):g}" for end in price.aminmax())
    return least if least == most else f"{least} to {most}"


def _span(bound: Tensor, side: str) -> str:
    value = float(bound.min() if side == "min" else bound.max()) if bound.numel() else 0.0
    varies = bound.numel() > 1 and bool((bound != bound.reshape(-1)[0]).any())
    return f"{value:g}" + (" (varies)" if varies else "")
