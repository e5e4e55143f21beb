"""Run the arena: ``python -m arena`` (in ``benchmarks``), ``--quick`` for tiny sizes, ``--page`` for the page alone."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from arena import page, plan, records

LIMIT = 600.0  # seconds for a unit; what takes longer is recorded as such


def main() -> None:
    """Run what has no record yet, each unit in a separate process, then write the page."""
    options = _options()
    if options.unit:
        print(json.dumps(plan.units(options.quick)[options.unit]()))
        return
    path = records.file(options.quick)
    if options.fresh and path.exists():
        path.unlink()
    units = [] if options.page else [u for u in plan.units(options.quick) if options.only in u]
    done = records.load(path)
    waiting = [unit for unit in units if unit not in done or records.failed(done[unit])]
    spent = 0.0
    for number, unit in enumerate(waiting, 1):
        begin = time.perf_counter()
        result = _run(unit, options.quick)
        seconds = time.perf_counter() - begin
        records.append(unit, result, seconds, path)
        spent += seconds
        left = spent / number * (len(waiting) - number) / 60
        failed = "  FAILED" if records.failed({"result": result}) else ""
        print(f"{number:3}/{len(waiting)}  {seconds:7.1f} s  about {left:.0f} min left  {unit}{failed}", flush=True)
    if not options.quick:
        records.keep(path)
        print(f"written: {page.write().relative_to(records.ROOT)}")


def _run(unit: str, quick: bool) -> object:
    command = [sys.executable, "-m", "arena", "--unit", unit, *(["--quick"] if quick else [])]
    try:
        ended = subprocess.run(
            command, cwd=Path(__file__).resolve().parent.parent, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {LIMIT:.0f} s"}
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        return {"error": (ended.stderr.strip().splitlines() or ["no output"])[-1][:300]}
    return json.loads(lines[-1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="arena")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--fresh", action="store_true", help="forget earlier records")
    parser.add_argument("--only", default="", help="only units whose name contains this")
    parser.add_argument("--page", action="store_true", help="write docs/arena.md from the records, run nothing")
    parser.add_argument("--unit", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
