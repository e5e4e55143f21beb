"""A conflict in words: its rows by name, one a line, and what its certificate says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from linsat.compile.certificate import allowed, exact_gap, least_in_box
from linsat.compile.system import LinearSystem
from linsat.constraints.names import families
from linsat.constraints.text import named_row_text

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints

_SHOWN = 8  # rows that are listed one by one
_SHOWN_OF_FAMILY = 2  # rows of each name where there are more than that
_GROUPS = 5  # names that the words of a certificate mention
_DENOMINATOR = 1000  # of multipliers that are fractions of each other

Number = float | Fraction


def row_lines(constraints: Constraints, rows: Sequence[int], instance: int) -> list[str]:
    """The rows of an instance, one a line and those of one name together; of many rows the first ones of each name."""
    groups = families([constraints.names[row] for row in rows])
    each = len(rows) if len(rows) <= _SHOWN else _SHOWN_OF_FAMILY
    lines: list[str] = []
    shown = 0
    for name, places in list(groups.items())[:_SHOWN]:
        lines += [f"  {named_row_text(constraints, rows[p], instance=instance)}" for p in places[:each]]
        if len(places) > each:
            left = len(places) - each
            lines.append(f"  and {left} more {'row' if left == 1 else 'rows'} '{name}'")
        shown += len(places)
    return lines + ([f"  and {len(rows) - shown} more"] if shown < len(rows) else [])


def counted_names(constraints: Constraints, rows: Sequence[int]) -> str:
    """The rows by name, those of one name counted: ``4 rows 'at most 2', budget``."""
    groups = list(families([constraints.names[row] for row in rows]).items())
    parts = [
        constraints.names[rows[places[0]]] if len(places) == 1 else f"{len(places)} rows '{name}'"
        for name, places in groups[:_SHOWN]
    ]
    return ", ".join(parts) + (f" and {len(groups) - _SHOWN} more names" if len(groups) > _SHOWN else "")


def listed_names(constraints: Constraints, rows: Sequence[int]) -> str:
    """The rows by name, one by one where they are few, else as `counted_names` does."""
    if len(rows) > _SHOWN_OF_FAMILY * 2:
        return counted_names(constraints, rows)
    return ", ".join(constraints.names[row] for row in rows)


def certificate_words(
    constraints: Constraints, system: LinearSystem, rows: Sequence[int], multipliers: Sequence[Number]
) -> str:
    """What the multipliers prove, as a sum: ``10 rows 'staffed' need 10; 4 rows 'at most 2' allow 8``.

    Rows with negative multipliers say that a sum is at least something, those with positive ones that a sum is at most
    something; the bounds allow the rest, and it does not suffice.
    """
    if not multipliers:
        return ""
    given = {row: Fraction(m) for row, m in zip(rows, multipliers, strict=True)}
    weights = _simple(system, given)
    least = least_in_box(system, list(weights), list(weights.values()))
    assert least is not None  # or they would prove nothing
    bounds = -least  # what the bounds add to what rows allow
    needs = _Side([row for row in rows if weights[row] < 0], max(-bounds, Fraction(0)))
    allows = _Side([row for row in rows if weights[row] > 0], max(bounds, Fraction(0)))
    totals = [side.total(system, weights) for side in (needs, allows)]
    digits = next((d for d in (6, 9, 12, 17) if _text(totals[0], d) != _text(totals[1], d)), 17)
    parts = needs.words(constraints, system, weights, ("needs", "need"), digits)
    parts += allows.words(constraints, system, weights, ("allows", "allow"), digits)
    text = "; ".join(parts)
    if len(parts) > 2:
        text += f": {_text(totals[0], digits)} needed, {_text(totals[1], digits)} allowed"
    return text[0].upper() + text[1:] + "."


def _simple(system: LinearSystem, multipliers: dict[int, Fraction]) -> dict[int, Fraction]:
    """The multipliers in units of the usual one; freed of rounding, in whole numbers, where that proves as much."""
    usual = Counter(float(f"{abs(float(m)):.9g}") for m in multipliers.values()).most_common(1)[0][0]
    scaled = {m: m / Fraction(usual) for m in set(multipliers.values())}
    near = {m: share.limit_denominator(_DENOMINATOR) for m, share in scaled.items()}
    common = math.lcm(*(share.denominator for share in near.values()))
    simple = {row: near[m] * (common if common <= _DENOMINATOR else 1) for row, m in multipliers.items()}
    gap = exact_gap(system, list(simple), list(simple.values())) if all(near.values()) else None
    return simple if gap is not None and gap > 0 else {row: scaled[m] for row, m in multipliers.items()}


class _Side:
    """The rows that need something, or those that allow something, and the share of the bounds."""

    def __init__(self, rows: list[int], bounds: Fraction) -> None:
        self.rows, self.bounds = rows, bounds

    def total(self, system: LinearSystem, weights: dict[int, Fraction]) -> Fraction:
        return self.bounds + _amount(system, self.rows, weights)

    def words(
        self,
        constraints: Constraints,
        system: LinearSystem,
        weights: dict[int, Fraction],
        verbs: tuple[str, str],
        digits: int,
    ) -> list[str]:
        """One phrase per name of rows, and one for the bounds."""
        parts: list[str] = []
        groups = families([constraints.names[row] for row in self.rows])
        for name, places in list(groups.items())[:_GROUPS]:
            rows = [self.rows[p] for p in places]
            amount = _amount(system, rows, weights)
            sizes = {abs(weights[row]) for row in rows}
            factor = "" if sizes == {1} else f" (times {_text(min(sizes), 6)})" if len(sizes) == 1 else " (weighted)"
            subject = f"row '{constraints.names[rows[0]]}'" if len(rows) == 1 else f"{len(rows)} rows '{name}'"
            parts.append(f"{subject}{factor} {verbs[len(rows) > 1]} {_text(amount, digits)}")
        if len(groups) > _GROUPS:
            parts.append(f"rows of {len(groups) - _GROUPS} more names")
        if self.bounds:
            parts.append(f"the bounds {verbs[1]} {_text(self.bounds, digits)}")
        return parts


def _amount(system: LinearSystem, rows: Sequence[int], weights: dict[int, Fraction]) -> Fraction:
    """What the rows of one side allow, or need, together."""
    total = allowed(system, rows, [weights[row] for row in rows])
    assert total is not None  # or they would prove nothing
    return -total if any(weights[row] < 0 for row in rows[:1]) else total


def _text(value: Fraction, digits: int) -> str:
    return f"{float(value):.{digits}g}"
