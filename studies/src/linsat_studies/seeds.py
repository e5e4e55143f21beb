"""Figures of runs that differ by their seed alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def spread_over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Number, mean, standard deviation and standard error of the mean; the last two are nan for a single run."""
    found = np.asarray(values, dtype=float)
    spread = float(found.std(ddof=1)) if len(found) > 1 else float("nan")
    return {
        "seeds": len(found),
        "mean": float(found.mean()),
        "spread": spread,
        "error": float(spread / np.sqrt(len(found))),
    }


def add_leads(table: dict[str, dict[str, Any]], ours: str) -> None:
    """Add to the row ``ours`` by how much its mean exceeds that of each other row.

    ``leads`` are the differences, ``errors`` their standard errors over seeds (both rows' together), and ``passes``
    says whether the lead is larger. Nothing is added where there is no such row.
    """
    if ours not in table:
        return
    row, others = table[ours], {name: other for name, other in table.items() if name != ours}
    row["leads"] = {name: row["mean"] - other["mean"] for name, other in others.items()}
    row["errors"] = {name: math.hypot(row["error"], other["error"]) for name, other in others.items()}
    row["passes"] = {name: lead > row["errors"][name] for name, lead in row["leads"].items()}
