"""Run the arena: ``python -m arena`` (in ``benchmarks``), ``--quick`` for tiny sizes, ``--page`` for the page alone."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
from arena import page, plan, records
from launcher import THREAD_VARIABLES, Launcher

UNIT = "arena.unit"  # the module that runs one
LIMIT = 300.0  # seconds for a unit; what takes longer is ended, and recorded as such
MINUTES = 58.0  # after which no unit is begun: those left are for the next time


def main() -> None:
    """Run what has no record yet, each unit in a separate process, then write the page."""
    options = _options()
    path = records.file(options.quick)
    if options.fresh:
        path.unlink(missing_ok=True)
    if not options.page:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            units = [unit for unit in plan.units(options.quick) if options.only in unit or unit == "machine"]
            _measure(units, path, options.quick)
        except KeyboardInterrupt:
            sys.exit(f"\nInterrupted; what was measured is in {path}, and the next call goes on from there.")
    if not options.quick:
        records.keep(path, plan.units())
        print(f"written: {page.write().relative_to(records.ROOT)}")


def _measure(units: list[str], path: Path, quick: bool) -> None:
    done, run = records.load(path), records.run_of(path)
    waiting = [unit for unit in units if unit not in done or records.failed(done[unit])]
    begin, commit = time.monotonic(), machine.commit()
    with Launcher({**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}, UNIT) as launcher:
        for number, unit in enumerate(waiting, 1):
            if time.monotonic() - begin > 60 * MINUTES:
                left = ", ".join(waiting[number - 1 :])
                print(f"{MINUTES:.0f} minutes are used; left for the next call, which goes on with this run: {left}.")
                break
            record = {"unit": unit, "run": run, "commit": commit, **_run(unit, quick, launcher)}
            records.append(record, path)
            failed = f"  FAILED: {record['result']['error']}" if records.failed(record) else ""
            spent = (time.monotonic() - begin) / 60
            about = f"{number:3}/{len(waiting)}  {record['seconds']:7.1f} s  {spent:5.1f} min so far"
            print(f"{about}  {unit}{failed}", flush=True)


def _run(unit: str, quick: bool, launcher: Launcher) -> dict[str, Any]:
    """The result, its seconds on the clock and of the processor, and how many cores others kept busy."""
    begin, others = time.monotonic(), machine.OtherWork()
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "result.json", Path(folder) / "log.txt"
        arguments = [unit, "--result", str(answer), *(["--quick"] if quick else [])]
        ended = launcher.run(arguments, log=log, timeout=LIMIT)
        if ended.timed_out:
            result: Any = {"error": f"more than {LIMIT:.0f} s"}
        elif answer.exists():
            result = json.loads(answer.read_text(encoding="utf-8"))
        else:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
            result = {"error": f"ended with {ended.code}: {said[-1][:250] if said else 'no output'}"}
    seconds = {"seconds": round(time.monotonic() - begin, 2), "cpu_s": round(ended.cpu_s, 2)}
    return {**seconds, "others_cores": others.cores(ended.cpu_s), "result": result}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="arena")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--fresh", action="store_true", help="forget earlier records")
    parser.add_argument("--only", default="", help="only units whose name contains this")
    parser.add_argument("--page", action="store_true", help="write docs/arena.md from the records, run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
