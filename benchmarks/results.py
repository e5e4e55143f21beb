"""The results file: one JSON object per line, one line per measured pair, appended as soon as it is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Run = dict[tuple[str, str], Record]  # (case, method) -> its record

DEFAULT = Path("out/bench/results.jsonl")
# What counts as a failure of the method, as opposed to not having been tried.
FAILURES = ("crashed", "timeout", "out of memory", "rows not held", "not finite")
# A pair with one of these is tried again by --resume.
_UNTRIED = ("out of time",)


def append(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def load(path: Path) -> list[Record]:
    """Every record; a line cut short by an interruption is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def last_run(records: list[Record], **wanted: Any) -> tuple[str | None, Run]:
    """Name and pairs of the last run, of those whose records have the wanted fields."""
    fitting = [r for r in records if all(r.get(key) == value for key, value in wanted.items())]
    if not fitting:
        return None, {}
    name = fitting[-1]["run"]
    return name, {(r["case"], r["method"]): r for r in fitting if r["run"] == name}


def measured(run: Run) -> set[tuple[str, str]]:
    """The pairs that need not be tried again."""
    return {pair for pair, record in run.items() if record["status"] not in _UNTRIED}


def timed(run: Run, case: str, method: str) -> Record | None:
    """The record of a pair if it has a time."""
    record = run.get((case, method))
    return record if record is not None and "total_s" in record else None
