"""Fuzz the layer: ``python -m fuzz.run --minutes 10 --seed 0 [--out out/fuzz]``.

Random systems with a known truth go through `linsat.solve` and `linsat.project`; every claim the answer makes is
checked from outside. The record (counts by family, statuses, worst violation, seconds) is written to
``OUT/seed-S.json`` as the run goes; the same command continues it. Failing cases are made small and written to
fuzz/failures/, which tests/verdict/test_fuzz_regressions.py replays; of systems that were reported, not solved, the
record has the kind, seed and number that `fuzz.campaign.make` draws them from. Exit code 1 if there are findings.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

import numpy
import scipy
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import linsat
from fuzz.campaign import KINDS, Goals, Record, judge_again, run

_LINE_EVERY = 60.0  # seconds between two lines where nobody watches


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    goals = Goals(options.feasible, options.infeasible, options.minutes, options.structured)
    path = options.out / f"seed-{options.seed}.json"
    try:
        record = Record.load(path, options.seed)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    record.machine = {
        "python": platform.python_version(),
        "linsat": linsat.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
    }
    console = Console()
    if record.row_sets:
        done = f"{record.feasible:,} random, {record.structured:,} structured and {record.infeasible:,} infeasible"
        console.print(f"Going on after {done} systems.")
    if options.again:
        judge_again(record)
        record.save(path)
    else:
        try:
            _run_with_bar(record, goals, path, console)
        except KeyboardInterrupt:
            print(f"Interrupted; the same command goes on from {path}.", file=sys.stderr)
            return 130
    _print(record, path, console)
    return 1 if record.findings else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after so long (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default 0)")
    parser.add_argument("--feasible", type=int, default=100_000, help="random systems wanted (default 100,000)")
    parser.add_argument("--structured", type=int, default=20_000, help="structured systems wanted (default 20,000)")
    parser.add_argument("--infeasible", type=int, default=10_000, help="infeasible systems wanted (default 10,000)")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="folder of the record (default out/fuzz)")
    parser.add_argument("--again", action="store_true", help="only judge the cases with findings again")
    options = parser.parse_args()
    for name in ("minutes", "feasible", "structured", "infeasible"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} is {getattr(options, name)}; expected a positive number")
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}; expected zero or more")
    return options


def _run_with_bar(record: Record, goals: Goals, path: Path, console: Console) -> None:
    wanted = sum(map(goals.of, KINDS))
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
    said = time.monotonic()
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("fuzzing", total=1.0)

        def show(record: Record, elapsed: float) -> None:
            nonlocal said
            have = sum(min(getattr(record, kind), goals.of(kind)) for kind in KINDS)
            share = max(have / wanted, elapsed / (60 * goals.minutes))
            counts = " + ".join(f"{getattr(record, kind):,}" for kind in KINDS)
            text = f"{counts} systems, {len(record.findings)} findings"
            bar.update(task, completed=share, description=text)
            if not console.is_terminal and time.monotonic() - said > _LINE_EVERY:
                said = time.monotonic()
                print(f"{share:4.0%}  {text}", flush=True)

        run(record, goals, path, show)


def _print(record: Record, path: Path, console: Console) -> None:
    console.print(f"Seed {record.seed}: {record.row_sets:,} sets of rows, {record.seconds:,.0f} s of processor time")
    for family, counts in sorted(record.statuses.items()):
        listed = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
        console.print(
            f"  {family:<21} {listed}; worst violation {record.worst[family]:.1e}, gap {record.gap[family]:.1e}"
        )
    for option, counts in sorted(record.options.items()):
        listed = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
        console.print(f"  {option:<26} {listed}")
    console.print(f"{record.infeasible:,} infeasible systems")
    for excess, counts in record.reports.items():
        listed = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
        console.print(f"  by {excess:<6} {listed}")
    console.print("Checks: " + ", ".join(f"{count:,} {name}" for name, count in sorted(record.checks.items())))
    console.print(f"{len(record.findings)} findings; record in {path}")
    for text in record.findings[:20]:
        console.print("  " + text, markup=False)
    console.print(f"{len(record.reported)} reported, not solved")
    for text in record.reported[:20]:
        console.print("  " + text, markup=False)


if __name__ == "__main__":
    sys.exit(main())
