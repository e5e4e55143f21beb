"""A constraint set in words: single rows, and the whole in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from linsat.constraints.arrays import Tensor
from linsat.constraints.structure import EQUAL, GREATER, LESS

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints

NAME_TERMS = 4  # of a row that is called by what it says
SENSE_TEXT = {LESS: "<=", EQUAL: "==", GREATER: ">="}


def terms_text(values: Sequence[float], columns: Sequence[int], entry: Callable[[int], str], terms: int) -> str:
    """A sum as a user writes it, shortened to ``terms`` terms: ``X[0, 1] - 2 X[1, 1] + ... + X[9, 1]``."""
    present = [(value, column) for value, column in zip(values, columns, strict=True) if value != 0]
    shown = present if len(present) <= terms else [*present[: terms - 2], present[-1]]
    pieces: list[str] = []
    for value, column in shown:
        size = "" if abs(value) == 1 else f"{abs(value):g} "
        sign = ("-" if value < 0 else "") if not pieces else ("- " if value < 0 else "+ ")
        pieces.append(f"{sign}{size}{entry(column)}")
    if len(shown) < len(present):
        pieces.insert(-1, "+ ...")
    return " ".join(pieces) or "0"


def row_text(constraints: Constraints, index: int, rhs: float | None, terms: int) -> str:
    """See `Constraints.row_text`."""
    side = constraints.rhs.detach()[..., index] if rhs is None else torch.tensor(rhs)
    shown = f"{float(side):g}" if side.dim() == 0 else f"(one of {side.numel()} right-hand sides)"
    return f"{_left_side(constraints, index, terms)} {shown}"


def _left_side(constraints: Constraints, index: int, terms: int) -> str:
    structure = constraints.structure
    here = structure.row == index
    values = constraints.numbers().values.detach().cpu()[here].tolist()
    left = terms_text(values, structure.col[here].tolist(), constraints.variable_name, terms)
    return f"{left} {SENSE_TEXT[int(structure.senses[index])]}"


def named_row_text(constraints: Constraints, index: int, *, rhs: float | None = None, terms: int = 6) -> str:
    """One row with its name, where it was given one."""
    name, text = constraints.names[index], row_text(constraints, index, rhs, terms)
    # Rows without a name are called by what they said when they were written.
    return text if name.startswith(_left_side(constraints, index, NAME_TERMS)) else f"{name}: {text}"


def summary(constraints: Constraints) -> str:
    """Size, box and the first and last rows."""
    senses, rows = constraints.senses, len(constraints)
    counts = ", ".join(f"{senses.count(s)} {s}" for s in ("<=", ">=", "==") if s in senses) or "none"
    box = f"[{_span(constraints.lower.detach(), 'min')}, {_span(constraints.upper.detach(), 'max')}]"
    width = "any number of" if constraints.num_variables is None else str(constraints.num_variables)
    batch = f", batch {tuple(constraints.batch_shape)}" if constraints.batch_shape else ""
    noun = "row" if rows == 1 else "rows"
    named = str(constraints.layout or "")
    lines = [f"Constraints({named and named + ': '}{width} variables in {box}, {rows} {noun}: {counts}{batch})"]
    shown = range(rows) if rows <= 6 else [0, 1, 2, rows - 1]
    for position, index in enumerate(shown):
        if rows > 6 and position == 3:
            lines.append("  ...")
        lines.append(f"  {named_row_text(constraints, index)}")
    return "\n".join(lines)


def _span(bound: Tensor, side: str) -> str:
    value = float(bound.min() if side == "min" else bound.max()) if bound.numel() else 0.0
    varies = bound.numel() > 1 and bool((bound != bound.reshape(-1)[0]).any())
    return f"{value:g}" + (" (varies)" if varies else "")
