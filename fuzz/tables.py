"""``python fuzz/tables.py``: the tables of docs/reliability.md from the recorded run in results/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
RECORD = ROOT / "fuzz" / "results" / "seed-1.json"
_STATUSES = ("converged", "step_limit", "stalled", "refused")


def feasible_text(record: dict[str, Any]) -> str:
    """What came out for systems with a known point."""
    checks, machine = record["checks"], record["machine"]
    vouched, apart = checks["optimum"], _found(record, "optimum")
    command = f"fuzz/run.py --seed {record['seed']} --feasible 105000 --infeasible 10500"
    lines = [
        f"The recorded run, `.venv/bin/python {command}`, went through",
        f"{record['feasible']:,} feasible and {record['infeasible']:,} infeasible systems in {record['row_sets']:,} "
        "sets of rows, in",
        f"{record['seconds']:.0f} s of processor time of one thread of a shared machine (torch {machine['torch']}, "
        f"numpy {machine['numpy']}, scipy {machine['scipy']}).",
        f"**Silent failures: {len(record['findings'])}.** Gradients checked in {checks['gradients']:,} calls, HiGHS "
        f"asked {checks['HiGHS']} times; Clarabel",
        f"agreed in {vouched - apart} of {vouched} cases it vouched for (unsure in "
        f"{checks['optimum: Clarabel unsure']}).",
        "",
        "| family | systems | converged | `step_limit` | `stalled` | refused (dtype) | worst violation |",
        "|---|---|---|---|---|---|---|",
    ]
    for family, counts in record["statuses"].items():
        shown = [f"{counts.get(status, 0):,}" for status in _STATUSES]
        cells = [family, f"{sum(counts.values()):,}", *shown, f"{record['worst'][family]:.0e}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Worst violation: of rows called converged, in mean `|coefficient * box width|` of the row, beyond rounding.",
    ]
    return "\n".join(lines)


def infeasible_text(record: dict[str, Any]) -> str:
    """What came out for systems that cannot hold."""
    checks = record["checks"]
    lines = [
        f"In the same run, {record['infeasible']:,} infeasible systems:",
        "",
        "| infeasible by | systems | status `infeasible` | `InfeasibleError` | other status | accepted |",
        "|---|---|---|---|---|---|",
    ]
    for excess, counts in record["reports"].items():
        total, named = sum(counts.values()), counts.get("infeasible", 0)
        refused, accepted = counts.get("refused", 0), counts.get("converged", 0)
        cells = (f"{total:,}", f"{named:,}", f"{refused:,}", f"{total - named - refused - accepted:,}", f"{accepted:,}")
        lines.append(f"| {excess} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Certificates checked in exact arithmetic: {checks['certificates']:,}, wrong: "
        f"{_found(record, 'certificate')}. "
        "Sets of named rows checked by HiGHS, each without any one of its",
        f"rows: {checks['minimal sets']}, not minimal: {_found(record, 'not minimal')}. Mixed batches compared bit for "
        f"bit: {checks['mixed batches']:,}, different: {_found(record, 'batch mates')}.",
    ]
    return "\n".join(lines)


def _found(record: dict[str, Any], kind: str) -> int:
    return sum(kind in str(finding) for finding in record["findings"])


def filled(page: str, record: dict[str, Any]) -> str:
    """The page with both tables replaced."""
    for marker, text in (("result", feasible_text(record)), ("infeasible", infeasible_text(record))):
        block = re.compile(rf"(<!-- {marker} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        page, count = block.subn(lambda found, text=text: found[1] + text + found[2], page)
        if count != 1:
            raise ValueError(
                f"{PAGE} has {count} places for {marker!r}; expected one, between <!-- {marker} --> and end."
            )
    return page


if __name__ == "__main__":
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), recorded), encoding="utf-8")
    print(f"written: {PAGE}")
