"""How figures are written on the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def standard_error(values: Sequence[float]) -> float:
    middle = mean(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1) / len(values))


def interval(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard error."""
    if len(values) < 2:
        return f"{mean(values):.{digits}f}"
    return f"{mean(values):.{digits}f} ± {standard_error(values):.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
