"""The table of ``docs/routing.md``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linsat_studies.document import table
from linsat_studies.tsp import paper
from linsat_studies.tsp.report import NAMES, TASKS, duration


def tables(records: dict[str, Any]) -> dict[str, str]:
    """The layer's row from the records ``se`` and ``pri`` of `evaluate --json`, the others from ``rivals``."""
    rivals = records["rivals"]
    stated = {line.method.lower(): {"se": line.se, "pri": line.pri} for line in paper.TABLE_1}
    found = {task: records[task] for task in TASKS}
    seconds = {task: found[task]["seconds"] for task in TASKS}
    times = [
        f"{duration(spent['total'])}, of it the layer {duration(spent['layer'])} (threads: {found[task]['threads']})"
        for task, spent in seconds.items()
    ]
    ours = {task: {"mean_length": found[task]["mean_length"]} for task in TASKS}
    rows = [_row("**LinSAT, beam 2,048**", stated["linsat, beam 2,048"], ours, rivals["optimum"], times)]
    for name, row in rivals["rows"].items():
        spent = [duration(row[task]["seconds"]) for task in TASKS]
        rows.append(_row(name, stated.get(row.get("paper", name).lower(), {}), row, rivals["optimum"], spent))
    header = [cell for task in TASKS for cell in (f"{NAMES[task]}, paper", "ours", "gap")]
    return {"results": table(["", *header, *(f"time, {NAMES[task]}" for task in TASKS)], rows)}


def draw(records: dict[str, Any], folder: Path) -> None:
    """No chart of this page is of its records."""


def _row(
    name: str, stated: dict[str, float | None], found: dict[str, Any], optimum: dict[str, float], times: list[str]
) -> list[str]:
    cells = []
    for task in TASKS:
        length, known = found[task]["mean_length"], stated.get(task)
        gap = 100 * (length / optimum[task] - 1)
        cells += ["" if known is None else f"{known:.3f}", f"{length:.4f}", f"{gap:.2f} %"]
    return [name, *cells, *times]
