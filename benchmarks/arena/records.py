"""What was measured, one JSON object a line, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "out" / "arena"
KEPT = ROOT / "docs" / "assets" / "arena" / "records.jsonl"  # those of the page


def file(quick: bool = False) -> Path:
    """Where records are; those of tiny sizes are kept apart."""
    return FOLDER / ("quick.jsonl" if quick else "records.jsonl")


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Records by the name of their unit; a later one replaces an earlier one, a torn last line is left out."""
    found: dict[str, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[record["unit"]] = record
    return found


def failed(record: dict[str, Any]) -> bool:
    """Whether the unit ended in an error; it is run again when the arena goes on."""
    return isinstance(record["result"], dict) and "error" in record["result"]


def append(unit: str, result: Any, seconds: float, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"unit": unit, "result": result, "seconds": round(seconds, 2)})
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def keep(source: Path, target: Path = KEPT) -> None:
    """Add what was measured to the records of the page, one line a unit; failures do not replace figures."""
    kept = load(target)
    for unit, record in load(source).items():
        if not (failed(record) and unit in kept):
            kept[unit] = record
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(record) + "\n" for record in kept.values()), encoding="utf-8")
