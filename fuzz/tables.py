"""``python -m fuzz.tables``: the tables of docs/reliability.md from the recorded run in results/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fuzz.families import FAMILIES
from fuzz.structured import STRUCTURED

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
RECORD = ROOT / "fuzz" / "results" / "seed-9.json"
_STATUSES = ("converged", "step_limit", "stalled", "refused")


def feasible_text(record: dict[str, Any]) -> str:
    """What came out for systems with a known point."""
    checks, machine = record["checks"], record["machine"]
    vouched, apart = checks["optimum"], _found(record, "Clarabel")
    silent = len(set(record["findings"]))
    counts = (f"--{kind} {record[kind]}" for kind in ("feasible", "structured", "infeasible"))
    command = " ".join([f"-m fuzz.run --seed {record['seed']} --minutes 600", *counts])
    forced = checks["forced"]
    lines = [
        f"The recorded run, `.venv/bin/python {command}`, went through",
        f"{record['feasible']:,} random, {record['structured']:,} structured and {record['infeasible']:,} infeasible "
        f"systems in {record['row_sets']:,} sets of rows, in",
        f"{record['seconds']:.0f} s of processor time of one thread of a shared machine (torch {machine['torch']}, "
        f"numpy {machine['numpy']}, scipy {machine['scipy']}).",
        f"**Silent failures: {silent}.** Reported failures: {_share(record, FAMILIES)} of the random "
        f"systems, {_share(record, STRUCTURED)} of the",
        f"structured ones. Duality gaps recomputed: {checks['gaps']:,}; forced variables and rows put to HiGHS: "
        f"{forced:,}; gradients checked",
        f"in {checks['gradients']:,} calls, graphs compiled and exported: {checks.get('compiled', 0)} and "
        f"{checks.get('exported', 0)}; HiGHS asked {checks['HiGHS']} times for feasibility; Clarabel",
        f"agreed in {vouched - apart} of {vouched} cases it vouched for (unsure in "
        f"{checks['optimum: Clarabel unsure']}). Cases judged again after a repair: "
        f"{checks.get('judged again', 0)}.",
        "",
        "| family | systems | converged | `step_limit` | `stalled` | rejected (dtype) | worst violation | worst gap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family in [*FAMILIES, *STRUCTURED]:
        if family not in record["statuses"]:
            continue
        worst = f"{record['worst'][family]:.0e}", f"{record['gap'][family]:.0e}"
        lines.append(_row(family, record["statuses"][family], *worst))
    lines += [
        "",
        "Worst violation: of hard rows called converged, relative to `max(1, sum_j |a_ij x_j|)`; worst gap: "
        "relative to 1 plus",
        f"the sum of the terms of the objective; both beyond rounding. By option: `fuzz/results/{RECORD.name}`.",
    ]
    return "\n".join(lines)


def _row(name: str, counts: dict[str, int], *more: str) -> str:
    shown = [f"{counts.get(status, 0):,}" for status in _STATUSES]
    return f"| {' | '.join([name, f'{sum(counts.values()):,}', *shown, *more])} |"


def _share(record: dict[str, Any], families: Iterable[str]) -> str:
    """Reported failures among the systems of some families, which are known to be feasible."""
    counts = [record["statuses"].get(family, {}) for family in families]
    failed = sum(c.get("step_limit", 0) + c.get("stalled", 0) for c in counts)
    return f"{failed:,} ({100 * failed / sum(sum(c.values()) for c in counts):.3f} %)"


def infeasible_text(record: dict[str, Any]) -> str:
    """What came out for systems that cannot hold."""
    checks = record["checks"]
    lines = [
        f"In the same run, {record['infeasible']:,} infeasible systems:",
        "",
        "| infeasible by | systems | status `infeasible` | raised | other status | accepted |",
        "|---|---|---|---|---|---|",
    ]
    for excess, counts in record["reports"].items():
        total, named = sum(counts.values()), counts.get("infeasible", 0)
        refused, accepted = counts.get("refused", 0), counts.get("converged", 0)
        cells = (f"{total:,}", f"{named:,}", f"{refused:,}", f"{total - named - refused - accepted:,}", f"{accepted:,}")
        lines.append(f"| {excess} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Certificates checked in exact arithmetic: {checks['certificates']:,}, of them "
        f"{checks['certificates, infinite bounds']:,} with infinite bounds; wrong: {_found(record, 'certificate')}. "
        "Sets of named rows checked by HiGHS, each without any one of its",
        f"rows: {checks['minimal sets']}, not minimal: {_found(record, 'not minimal')}; minimality not claimed: "
        f"{checks.get('minimal sets, not claimed', 0)}. Mixed batches compared bit for "
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
