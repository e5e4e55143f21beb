"""How figures are written on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scipy import stats


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def standard_error(values: Sequence[float]) -> float:
    middle = mean(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1) / len(values))


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The mean difference and half its 95 % interval, by Student's distribution."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    return mean(differences), float(stats.t.ppf(0.975, len(differences) - 1)) * standard_error(differences)


def interval(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard error."""
    if len(values) < 2:
        return f"{mean(values):.{digits}f}"
    return f"{mean(values):.{digits}f} ± {standard_error(values):.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def bars(found: Sequence[tuple[str, str, bool]]) -> str:
    """What was asked for, what was measured, and whether that is enough."""
    return table(
        ("asked for", "measured", ""), [(asked, got, "held" if ok else "**missed**") for asked, got, ok in found]
    )
