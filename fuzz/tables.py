"""``python -m fuzz.tables [RUN]``: all tables of docs/reliability.md from the records in results/.

RUN is the record of a fuzzing run, such as out/fuzz/seed-1.json; it becomes the recorded one, results/fuzz.json.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fuzz import real_systems
from fuzz.families import FAMILIES
from fuzz.structured import STRUCTURED

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "fuzz" / "results"
RECORD = RESULTS / "fuzz.json"
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
        f"{checks['optimum: Clarabel unsure']}), {checks.get('values', 0):,} times by the value of the objective. "
        "Gradients against finite",
        f"differences: {checks.get('finite differences', 0):,}; calls by numpy and JAX: {checks.get('numpy', 0):,} and "
        f"{checks.get('JAX', 0):,}; sets with formulas: {checks.get('formulas', 0):,}, of them reported as not solved:",
        f"{checks.get('formulas, reported', 0)}. Cases judged again after a repair: {checks.get('judged again', 0)}.",
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
        "the sum of the terms of the objective; both beyond rounding. The same by what is asked:",
        "",
        "| asked | systems | converged | `step_limit` | `stalled` | rejected (dtype) |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(option, counts) for option, counts in sorted(record["options"].items())]
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


def faults_text(records: dict[str, dict[str, Any]]) -> str:
    """What came of the programs of `fuzz.faults`, one line each; those without a record are left out."""
    told = {
        "kills": _kills,
        "kills_training": _kills,
        "soak": lambda r: (
            f"{r['projections']:,} projections in one process, {r['calls']:,} calls of every kind, errors among them: "
            f"resident memory {r['start_mb']:.1f} MB after the warm-up, {r['growth_mb']:+.1f} MB at the end (bar: 5 MB)"
        ),
        "malformed": lambda r: f"{len(r['passed'])} malformed inputs rejected in one line, {len(r['failed'])} not",
        "hostile": lambda r: (
            f"{len(r['replies'])} hostile requests to the explorer, "
            f"{sum(bool(one['odd']) for one in r['replies'])} with a traceback "
            "or without an answer to the question after it"
        ),
        "native": lambda r: "; ".join(
            f"{kind}: {one['calls']} ({one['instances']})" for kind, one in r["sanitizers"].items()
        ),
    }
    lines = ["| command | what came of it | on |", "|---|---|---|"]
    for name, tell in told.items():
        if name in records:
            record = records[name]
            day = record["finished"].partition(" ")[0]
            lines.append(f"| `{record['command']}` | {'' if record['met'] else '**Missed.** '}{tell(record)} | {day} |")
    return "\n".join(lines)


def _kills(record: dict[str, Any]) -> str:
    by_program: dict[str, list[dict[str, Any]]] = {}
    for trial in record["trials"]:
        by_program.setdefault(trial["program"], []).append(trial)
    parts = []
    for program, trials in by_program.items():
        killed = [trial for trial in trials if trial["killed"]]
        writing, equal = (sum(trial[name] for trial in killed) for name in ("at_write", "equal"))
        left = sum(len(trial["left"]) for trial in killed)
        parts.append(
            f"{program}: {len(killed)} kills, {writing} while writing; {equal} ended bit for bit as if undisturbed, "
            f"{left} half-written files left"
        )
    return ". ".join(parts)


def fault_records() -> dict[str, dict[str, Any]]:
    """The records of `fuzz.faults` that are there."""
    names = ("kills", "kills_training", "soak", "malformed", "hostile", "native")
    paths = {name: RESULTS / f"{name}.json" for name in names}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def _found(record: dict[str, Any], kind: str) -> int:
    return sum(kind in str(finding) for finding in record["findings"])


def filled(page: str, record: dict[str, Any], faults: dict[str, dict[str, Any]]) -> str:
    """The page with its tables replaced."""
    texts = {"result": feasible_text(record), "infeasible": infeasible_text(record), "faults": faults_text(faults)}
    for marker, text in texts.items():
        block = re.compile(rf"(<!-- {marker} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        page, count = block.subn(lambda found, text=text: found[1] + text + found[2], page)
        if count != 1:
            raise ValueError(
                f"{PAGE} has {count} places for {marker!r}; expected one, between <!-- {marker} --> and end."
            )
    return page


if __name__ == "__main__":
    if len(sys.argv) > 1:
        RECORD.write_text(Path(sys.argv[1]).read_text(encoding="utf-8"), encoding="utf-8")
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    page = filled(PAGE.read_text(encoding="utf-8"), recorded, fault_records())
    of_real = json.loads((RESULTS / "real_systems.json").read_text(encoding="utf-8"))
    PAGE.write_text(real_systems.filled(page, of_real), encoding="utf-8")
    print(f"written: {PAGE}")
