"""What was measured, one JSON object a line, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timezone
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


def run_of(path: Path) -> str:
    """When the run began whose records these are: now, where there are none."""
    runs = [record["run"] for record in load(path).values()]
    return runs[0] if runs else datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")


def append(record: dict[str, Any], path: Path) -> None:
    """``record`` has ``unit``, ``run``, ``result``, and what was measured beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(record) + "\n")


def keep(source: Path, units: Iterable[str], target: Path = KEPT) -> None:
    """The records of the page: of every unit what was measured now, else what is there; one line a unit."""
    found = load(target) | load(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(found[u]) + "\n" for u in units if u in found), encoding="utf-8")
