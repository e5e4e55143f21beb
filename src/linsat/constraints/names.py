"""Row names: single rows, and families such as ``capacity[0]``, ``capacity[1]``, ... that share one name."""

from __future__ import annotations

import difflib
import itertools
import math
import operator
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from linsat.constraints.arrays import shown
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints

_INDEXED = re.compile(r"(.+)\[([^\[\]]*)\]", re.DOTALL)
_SHOWN = 8  # names that an error lists


def family(name: str) -> str:
    """What a row shares with the others of its family: ``staffed`` for ``staffed[2]`` and ``staffed[Ann, Mon]``."""
    indexed = _INDEXED.fullmatch(name)
    return indexed[1] if indexed else name


def families(names: Sequence[str]) -> dict[str, list[int]]:
    """The positions of the rows of each family, in the order in which families first occur."""
    rows: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        rows.setdefault(family(name), []).append(position)
    return rows


def rows_named(constraints: Constraints, name: str) -> list[int]:
    """Positions of all rows of that name or family: ``"capacity"`` finds ``capacity``, ``capacity[0]`` and so on.

    Raises:
        ConstraintError: there is none; the message says which names there are.
    """
    names, cache = constraints.names, constraints._structure.cache
    known, rows = cache.get("families", (None, {}))
    if known != names:  # sets of one pattern may have other names
        exact: dict[str, list[int]] = {}
        for position, other in enumerate(names):
            exact.setdefault(other, []).append(position)
        rows = exact | families(names)
        cache["families"] = names, rows
    if not isinstance(name, str) or name not in rows:
        # A name with an index is compared with those that have one.
        indexed = isinstance(name, str) and family(name) != name and family(name) in rows
        reject_unknown("row", name, names if indexed else list(families(names)))
    return rows[name]


def select_rows(constraints: Constraints, wanted: Any) -> list[int]:
    """Positions of the rows that are asked for, in the order in which they are, each once.

    Args:
        wanted: a position, a name (see `rows_named`), a list of them, or None for all rows.

    Raises:
        ConstraintError: no such row, or one that is asked for twice.
    """
    names = constraints.names
    if wanted is None:
        return list(range(len(names)))
    entries = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)
    entry_of: dict[int, Any] = {}
    for entry in entries:
        for row in rows_named(constraints, entry) if isinstance(entry, str) else [position(names, entry)]:
            if row in entry_of:
                raise ConstraintError(
                    f"rows asks for {names[row]!r} (row {row}) twice, as {entry_of[row]!r} and as {entry!r}. "
                    f"Fix: leave one out."
                )
            entry_of[row] = entry
    return list(entry_of)


def position(names: Sequence[str], index: Any, argument: str = "rows") -> int:
    """The position of a row from a whole number, which may count from the end.

    Args:
        argument: what it was given as: ``rows``, which may hold several and names, or ``index``.
    """
    several = argument == "rows"
    expected, fix = ("positions or names of rows", "rows=[0, 2], or rows='budget'") if several else ("a position", "0")
    try:
        if isinstance(index, bool) or "bool" in str(getattr(index, "dtype", "")):
            raise TypeError
        place = operator.index(index)
    except TypeError:
        verb = "holds" if several else "is"
        raise ConstraintError(f"{argument} {verb} {shown(index)}; expected {expected}. Fix: {fix}.") from None
    if not -len(names) <= place < len(names):
        last, plural = len(names) - 1, "s" * (len(names) != 1)
        fix = f"count from 0 to {last}" if last > 0 else "0, the only one" if names else "a set with rows"
        raise ConstraintError(f"{argument} asks for row {place} of a set of {len(names)} row{plural}. Fix: {fix}.")
    return place % len(names)


def reject_unknown(what: str, name: object, known: Sequence[str]) -> NoReturn:
    """Raise an error about a name that is not there; it lists the nearest names, or the first ones."""
    near = difflib.get_close_matches(name, known, n=3) if isinstance(name, str) else []
    if near:
        fix = f"did you mean {' or '.join(map(repr, near))}?"
    else:
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        fix = f"one of {', '.join(map(repr, known[:_SHOWN]))}{more}."
    raise ConstraintError(f"No {what} is named {name!r}. Fix: {fix}")


def family_shape(names: Sequence[str]) -> tuple[int, ...]:
    """The array that rows of one family form by their indices, row by row; else, or without indices, ``(rows,)``.

    A single row without an index is an array without axes.
    """
    if len(names) == 1 and family(names[0]) == names[0]:
        return ()
    indices = [match[2].split(", ") if (match := _INDEXED.fullmatch(name)) else [name] for name in names]
    if len({len(index) for index in indices}) == 1:
        columns = zip(*indices, strict=True)
        axes = [list(dict.fromkeys(column)) for column in columns]
        shape = tuple(map(len, axes))
        grid = itertools.product(*axes)
        if len(names) == math.prod(shape) and all(tuple(a) == b for a, b in zip(indices, grid, strict=True)):
            return shape
    return (len(names),)
