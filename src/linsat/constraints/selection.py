"""Rows of a constraint set by position or by name."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

from linsat.errors import ConstraintError

_SHOWN = 6  # names that a message lists


def select_rows(names: Sequence[str], wanted: Any) -> list[int]:
    """Positions of the rows that are asked for, in the order in which they are, each once.

    Args:
        names: the names of all rows.
        wanted: a position, a name, a list of them, or None for all rows. A name stands for every row that has it, and
            for every row of its family, whose names go on with an index: ``"staffed"`` for ``staffed[0]``,
            ``staffed[1]``; ``"capacity of bin"`` for ``capacity of bin 0``.

    Raises:
        ConstraintError: no such row, or one that is asked for twice.
    """
    if wanted is None:
        return list(range(len(names)))
    entries = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)
    found: dict[int, Any] = {}
    for entry in entries:
        for row in _rows_named(names, entry) if isinstance(entry, str) else [_position(names, entry)]:
            if row in found:
                raise ConstraintError(
                    f"rows asks for {names[row]!r} (row {row}) twice, as {found[row]!r} and as {entry!r}. "
                    f"Fix: leave one out."
                )
            found[row] = entry
    return list(found)


def _rows_named(names: Sequence[str], name: str) -> list[int]:
    family = re.compile(re.escape(name) + r"(\[| \d)")
    found = [i for i, own in enumerate(names) if own == name or family.match(own)]
    if not found:
        kinds = list(dict.fromkeys(re.split(r"\[| \d", own)[0] for own in names))
        shown = ", ".join(repr(kind) for kind in kinds[:_SHOWN]) + (", ..." if len(kinds) > _SHOWN else "")
        raise ConstraintError(f"rows names {name!r}; expected a name of some row: {shown or 'the set has none'}.")
    return found


def _position(names: Sequence[str], entry: Any) -> int:
    try:
        if isinstance(entry, bool) or "bool" in str(getattr(entry, "dtype", "")):
            raise TypeError
        position = operator.index(entry)
    except TypeError:
        raise ConstraintError(
            f"rows holds {entry!r}; expected positions or names of rows. Fix: rows=[0, 2], or rows='budget'."
        ) from None
    if not -len(names) <= position < len(names):
        raise ConstraintError(f"rows asks for row {position} of a set of {len(names)} rows.")
    return position % len(names)
