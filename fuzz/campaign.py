"""A fuzzing run: cases in order, a record on disk that a later call goes on from, and failures made small."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.conflicts import draw_infeasible
from fuzz.judge import Depth, judge
from fuzz.shrink import FAILURES, save, shrink
from fuzz.structured import STRUCTURED
from fuzz.systems import Case, draw, draw_structured
from fuzz.verdict import Verdict
from tests.helpers.time_limit import time_limit

_NAMES = {"kl": "KL", "tsallis": "Tsallis", "quadratic": "full quadratic", "metric": "euclidean, metric"}
CASE_SECONDS = 120.0  # of processor time; no case may take longer
_SAVE_EVERY = 15.0  # seconds
KINDS = ("feasible", "structured", "infeasible")
_MOST_KEPT = 20  # failures made small and written, per run

Show = Callable[["Record", float], None]


class HangError(Exception):
    """A case took longer than `CASE_SECONDS`."""


@dataclass
class Goals:
    """A run ends when all counts are reached, or its time is over."""

    feasible: int = 100_000
    infeasible: int = 10_000
    minutes: float = 10.0
    structured: int = 20_000

    def of(self, kind: str) -> int:
        return int(getattr(self, kind))


@dataclass
class Record:
    """What a run has seen so far; goes to JSON and back."""

    seed: int
    next_feasible: int = 0  # number of the next feasible case
    next_structured: int = 0
    next_infeasible: int = 0
    row_sets: int = 0
    feasible: int = 0  # random systems: rows with one right-hand side each
    structured: int = 0
    infeasible: int = 0
    seconds: float = 0.0  # of processor time
    statuses: dict[str, dict[str, int]] = field(default_factory=dict)  # feasible systems by family
    options: dict[str, dict[str, int]] = field(default_factory=dict)  # the same by objective and other options
    cases: dict[str, int] = field(default_factory=dict)  # by family, both kinds
    slowest: dict[str, float] = field(default_factory=dict)  # seconds of the slowest case by family
    worst: dict[str, float] = field(default_factory=dict)  # violation of a converged row by family
    gap: dict[str, float] = field(default_factory=dict)  # duality gap of a converged instance by family
    reports: dict[str, dict[str, int]] = field(default_factory=dict)  # infeasible systems by how far they are from it
    checks: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)  # feasible systems that were not solved, as `make` draws them
    machine: dict[str, Any] = field(default_factory=dict)

    def add(self, case: Case, verdict: Verdict, label: str, seconds: float) -> None:
        family = case.family
        self.row_sets += 1
        bad = int(case.infeasible.sum())
        self.infeasible += bad
        good = len(case.sides) - bad
        if family in STRUCTURED:
            self.structured += good
        else:
            self.feasible += good
        self.seconds += seconds
        self.cases[family] = self.cases.get(family, 0) + 1
        self.slowest[family] = max(self.slowest.get(family, 0.0), round(seconds, 3))
        self.worst[family] = max(self.worst.get(family, 0.0), verdict.worst)
        self.gap[family] = max(self.gap.get(family, 0.0), verdict.gap)
        _merge(self.statuses.setdefault(family, {}), verdict.statuses)
        for option in options_of(case):
            _merge(self.options.setdefault(option, {}), verdict.statuses)
        if bad:
            _merge(self.reports.setdefault(f"{case.excess:g}", {}), verdict.reports)
        _merge(self.checks, verdict.checks)
        self.findings += [f"{label}: {text}" for text in verdict.findings]
        open_ = {s: n for s, n in verdict.statuses.items() if s not in ("converged", "refused")}
        asked = ", ".join([family, *options_of(case)])
        self.reported += [f"{label}: {count} {status}, {asked}" for status, count in sorted(open_.items())]

    def done(self, goals: Goals) -> bool:
        return all(getattr(self, kind) >= goals.of(kind) for kind in KINDS)

    def save(self, path: Path) -> None:
        """Whole or not at all, so that a run that is killed can go on."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(vars(self), indent=1) + "\n")
        os.replace(part, path)

    @classmethod
    def load(cls, path: Path, seed: int) -> Record:
        """The record of an earlier call with this seed, or a new one."""
        if not path.exists():
            return cls(seed)
        body = json.loads(path.read_text())
        if body.get("seed") != seed:
            raise ValueError(
                f"{path} holds a run with seed {body.get('seed')}; this one has seed {seed}. "
                f"Fix: give the same seed, another --out, or remove the file."
            )
        return cls(**body)


def options_of(case: Case) -> list[str]:
    """What is asked of a case, for the table by options."""
    found = [_NAMES.get(case.objective, case.objective) if case.metric is None else "euclidean, weighted"]
    found += ["numbers of each instance"] if case.each else []
    found += ["numbers with the call"] if case.call else []
    found += ["unbounded box"] if np.isinf(case.lower).any() or np.isinf(case.upper).any() else []
    found += ["very wide box"] if case.wide else []
    found += ["soft rows"] if case.price is not None else []
    found += ["per-instance coefficients"] if case.own is not None else []
    found += ["half precision"] if case.dtype in ("float16", "bfloat16") else []
    return found + ([f"{case.way} graph"] if case.way != "eager" else [])


def cases(record: Record, goals: Goals) -> Iterator[tuple[str, int]]:
    """Kind and number of the next case: whichever kind is farthest from its goal."""
    while not record.done(goals):
        wanted = [kind for kind in KINDS if getattr(record, kind) < goals.of(kind)]
        kind = min(wanted, key=lambda kind: getattr(record, kind) / goals.of(kind))
        number = getattr(record, f"next_{kind}")
        setattr(record, f"next_{kind}", number + 1)
        yield kind, number


def make(kind: str, seed: int, number: int) -> tuple[Case, Depth]:
    """A case and how deeply it is checked."""
    if kind == "infeasible":
        return draw_infeasible(seed, number), Depth(highs=number % 11 == 0, proof=number % 3 == 0)
    drawn = draw_structured if kind == "structured" else draw
    return drawn(seed, number), Depth(
        optimum=number % 17 == 0,
        highs=number % 23 == 0,
        doors=number % 61 == 0,
        gradients=number % 13 == 0,
        formulas=number % 19 == 0,
    )


def run(record: Record, goals: Goals, path: Path, show: Show, failures: Path = FAILURES) -> None:
    """Go on with a record until its goals or its time are reached."""
    start = saved = time.monotonic()
    kept = 0
    for kind, number in cases(record, goals):
        label = f"{kind} {record.seed}/{number}"
        case, depth = make(kind, record.seed, number)
        began = time.process_time()
        try:
            verdict = _judge_in_time(case, depth)
        except KeyboardInterrupt:
            setattr(record, f"next_{kind}", number)
            record.save(path)
            raise
        record.add(case, verdict, label, time.process_time() - began)
        if verdict.findings and kept < _MOST_KEPT:
            kept += 1
            keep(case, depth, f"{kind}-{record.seed}-{number}", verdict.findings[0], failures)
        now = time.monotonic()
        show(record, now - start)
        if now - saved > _SAVE_EVERY:
            record.save(path)
            saved = now
        if now - start > 60 * goals.minutes:
            break
    record.save(path)


def judge_again(record: Record) -> None:
    """Judge the cases that have findings once more, after a change of the judge; what still stands stays."""
    labels = list(dict.fromkeys(finding.partition(":")[0] for finding in record.findings))
    record.findings = []
    for label in labels:
        kind, _, number = label.partition(" ")
        case, depth = make(kind, record.seed, int(number.partition("/")[2]))
        record.findings += [f"{label}: {text}" for text in _judge_in_time(case, depth).findings]
    record.checks["judged again"] = record.checks.get("judged again", 0) + len(labels)


def keep(case: Case, depth: Depth, name: str, finding: str, failures: Path) -> Path:
    """Make a failing case small and write it."""
    kind = finding.partition(":")[0]

    def fails(candidate: Case) -> bool:
        return any(text.startswith(kind + ":") for text in _judge_in_time(candidate, depth).findings)

    return save(shrink(case, fails), name, finding, failures)


def _judge_in_time(case: Case, depth: Depth) -> Verdict:
    try:
        with time_limit(CASE_SECONDS, HangError):
            return judge(case, depth)
    except HangError:
        return Verdict(findings=[f"hang: more than {CASE_SECONDS:g} seconds"], statuses=Counter())


def _merge(into: dict[str, int], more: Counter[str]) -> None:
    for key, count in more.items():
        into[key] = into.get(key, 0) + count
