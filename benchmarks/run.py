"""Measure every method on every problem, side by side: ``python benchmarks/run.py [--quick] [--threads 2]``.

One process per (case, method), one after another. Results are appended to out/bench/results.jsonl as they
come, so an interrupted run keeps what it has and ``--resume`` goes on. The report is written at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import cold_start
import machine
import methods
import plan
import problems
import report
import results
from bars import seconds_text
from launcher import THREAD_VARIABLES, Launcher
from results import Record

_COLD_STARTS, _COLD_STARTS_QUICK, _COLD_STARTS_PEERS = 5, 2, 1  # repetitions


@dataclass(frozen=True)
class Settings:
    """What one run was asked to do."""

    out: Path
    threads: int
    seed: int
    quick: bool
    minutes: float
    memory_gb: float | None
    adapters: Path | None
    resume: bool

    def environment(self) -> dict[str, str]:
        """Of every process that is measured."""
        return dict(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(self.threads))


@dataclass
class Runner:
    """Goes through the pairs, within the time that the whole run has."""

    settings: Settings
    pairs: list[plan.Pair]
    run: str = ""
    done: set[tuple[str, str]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    gave_up: dict[tuple[str, str], str] = field(default_factory=dict)  # (method, sweep) -> where and why
    common: Record = field(default_factory=dict)

    def prepare(self) -> None:
        """Describe the run, and find the one to resume."""
        s = self.settings
        same = {"threads": s.threads, "seed": s.seed, "quick": s.quick, "commit": machine.commit()}
        if s.resume:
            name, records = results.last_run(results.load(s.out), **same)
            self.run, self.done = name or "", results.measured(records)
            print(f"Resuming run {name}: {len(self.done)} pairs measured." if name else "Nothing to resume.")
        self.run = self.run or datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.common = {**same, "machine": machine.machine(), "versions": machine.versions()}
        self.pairs = [pair for pair in self.pairs if pair.key not in self.done]

    def go(self) -> bool:
        """Measure all pairs; False when interrupted."""
        start = time.monotonic()
        deadline = start + 60 * self.settings.minutes
        expected, spent = sum(p.expected_seconds for p in self.pairs), 0.0
        with Launcher(self.settings.environment(), "worker") as launcher:
            for number, pair in enumerate(self.pairs, 1):
                elapsed = time.monotonic() - start
                pace = elapsed / spent if spent else 1.0
                left = min(deadline - time.monotonic(), pace * (expected - spent))
                _show_progress(number, len(self.pairs), pair, left)
                others = machine.OtherWork()
                try:
                    record = self.measure(pair, launcher, deadline - time.monotonic())
                except KeyboardInterrupt:
                    print(f"\nInterrupted; {number - 1} pairs are kept in {self.settings.out}.")
                    return False
                spent += pair.expected_seconds
                self.keep(pair, {**record, "others_cores": others.cores(record.pop("cpu_s", 0.0))})
                _show_result(number, len(self.pairs), pair, record)
        return True

    def measure(self, pair: plan.Pair, launcher: Launcher, remaining: float) -> Record:
        """What is known about the pair without trying, else what its process says."""
        missing, applies = methods.missing_module(pair.method), methods.applies(pair.method, pair.problem)
        if missing:
            return {"status": "not installed", "message": f"no module named {missing}"}
        if not applies.ok:
            return {"status": "not applicable", "message": applies.reason}
        blocked = self.gave_up.get((pair.method.name, pair.sweep or ""))
        if blocked:
            return {"status": "not run", "message": blocked}
        out_of_time = {"status": "out of time", "message": f"the run's {self.settings.minutes:g} minutes are used"}
        if remaining < pair.expected_seconds:
            return out_of_time
        timeout = min(pair.limits.timeout, remaining)
        if problems.COLD_START in pair.problem.groups:
            record = run_cold_starts(pair, self.settings, timeout)
        else:
            record = run_worker(pair, self.settings, launcher, timeout)
        cut_short = record["status"] == "timeout" and remaining < pair.limits.timeout
        return out_of_time if cut_short else record

    def keep(self, pair: plan.Pair, record: Record) -> None:
        if pair.sweep and record["status"] in ("timeout", "out of memory"):
            self.gave_up[(pair.method.name, pair.sweep)] = f"{record['status']} at {pair.problem.name}"
        self.counts[record["status"]] += 1
        about = {
            "run": self.run,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "case": pair.problem.name,
            "method": pair.method.name,
            "objective": pair.problem.objective,
            "family": pair.problem.family,
            "size": pair.problem.size,
            "batch": pair.problem.batch,
            "tau": pair.problem.tau,
            "iterations": pair.problem.iterations,
        }
        results.append(self.settings.out, {**about, **record, **self.common})


def run_worker(pair: plan.Pair, settings: Settings, launcher: Launcher, timeout: float) -> Record:
    """Measure one pair in a separate process, which is ended after ``timeout`` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "result.json", Path(folder) / "log.txt"
        arguments = ["--case", pair.problem.name, "--method", pair.method.name]
        arguments += ["--threads", str(settings.threads), "--seed", str(settings.seed)]
        arguments += ["--budget", str(pair.limits.budget), "--result", str(answer)]
        arguments += ["--memory-gb", str(settings.memory_gb)] if settings.memory_gb else []
        arguments += ["--adapters", str(settings.adapters)] if settings.adapters else []
        ended = launcher.run(arguments, log=log, timeout=timeout)
        used = {"cpu_s": ended.cpu_s}
        if ended.timed_out:
            return {"status": "timeout", "message": f"more than {timeout:.0f} s", **used}
        if answer.exists():
            return results.load(answer)[0] | used
        lines = (log.read_text(errors="replace") if log.exists() else "").strip().splitlines() or ["no output"]
        status = "out of memory" if ended.code == -signal.SIGKILL else "crashed"
        return {"status": status, "message": f"exit code {ended.code}: {lines[-1][:300]}", **used}


def run_cold_starts(pair: plan.Pair, settings: Settings, timeout: float) -> Record:
    """Measure the first call of fresh processes; ours more often, since a bar is about it."""
    ours = _COLD_STARTS_QUICK if settings.quick else _COLD_STARTS
    times = ours if pair.method is methods.OURS else _COLD_STARTS_PEERS
    try:
        return cold_start.measure(pair.problem, pair.method, settings.environment(), times=times, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "message": f"more than {timeout:.0f} s"}
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no output"]
        return {"status": "crashed", "message": f"exit code {error.returncode}: {lines[-1][:300]}"}


# ------------------------------------------------------------------ what is printed


def _show_progress(number: int, total: int, pair: plan.Pair, left: float) -> None:
    if sys.stdout.isatty():
        filled = round(20 * (number - 1) / total)
        bar = "#" * filled + "." * (20 - filled)
        minutes, seconds = divmod(max(0, round(left)), 60)
        text = f"[{bar}] {number}/{total}, {minutes}:{seconds:02d} left: {pair.problem.name} {pair.method.name}"
        print(f"\r\x1b[2K{text[:110]}", end="", flush=True)


def _show_result(number: int, total: int, pair: plan.Pair, record: Record) -> None:
    start = "\r\x1b[2K" if sys.stdout.isatty() else ""
    text = record["status"] + (f": {record['message']}" if record["message"] else "")
    if "total_s" in record:
        text = f"{seconds_text(record['total_s']):>10} {record['memory_mb']:>9,.1f} MB  {text}"
    elif "cold_s" in record:
        text = f"{seconds_text(record['cold_s']):>10} {'':>12}  {text}"
    print(f"{start}{number:>4}/{total} {pair.problem.name:<27} {pair.method.name:<21} {text[:110]}", flush=True)


def _summary(counts: Counter[str]) -> str:
    failed = sum(counts[status] for status in results.FAILURES)
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"{sum(counts.values())} pairs, {failed} failures: {listed or 'nothing to do'}."


# ------------------------------------------------------------------ command line


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only the pairs the bars compare, in three minutes")
    parser.add_argument("--threads", type=int, default=2, help="of torch, OpenMP and BLAS in every process")
    parser.add_argument("--seed", type=int, default=0, help="of the scores")
    parser.add_argument("--minutes", type=float, help="time for the whole run (default 19, quick 3)")
    parser.add_argument("--memory-gb", type=float, help="limit of one process (default: 97 %% of what is free)")
    parser.add_argument("--resume", action="store_true", help="go on with the last run of the same commit")
    parser.add_argument("--cases", nargs="+", help="only these cases (with --methods)")
    parser.add_argument("--methods", nargs="+", help="only these methods (with --cases)")
    parser.add_argument("--adapters", type=Path, help="Python file with further METHODS")
    parser.add_argument("--out", type=Path, default=results.DEFAULT, help="results file")
    parser.add_argument("--no-report", action="store_true", help="measure only")
    found = parser.parse_args(argv)
    if bool(found.cases) != bool(found.methods):
        parser.error("--cases and --methods go together")
    return found


def main(argv: list[str] | None = None) -> int:
    given = _arguments(argv)
    settings = Settings(
        out=given.out,
        threads=given.threads,
        seed=given.seed,
        quick=given.quick,
        minutes=given.minutes or (3.0 if given.quick else 19.0),
        memory_gb=given.memory_gb,
        adapters=given.adapters,
        resume=given.resume,
    )
    everything = methods.all_methods(given.adapters)
    if given.cases:
        pairs = plan.chosen(everything, given.cases, given.methods)
    else:
        pairs = plan.quick(everything) if given.quick else plan.full(everything)
    runner = Runner(settings, pairs)
    runner.prepare()
    finished = runner.go()
    print(_summary(runner.counts))
    if not given.no_report:
        report.main(["--results", str(given.out)])
    return 0 if finished else 130


if __name__ == "__main__":
    sys.exit(main())
