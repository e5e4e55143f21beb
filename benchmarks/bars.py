"""What the library has to show: each bar, what was measured for it, and whether it is met.

Ratios are taken within one run only. Ours is the fused kernel; where it was not measured, the torch path
stands in and is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import methods
import problems
from results import Record, Run, timed

OURS_HOLDS = 1e-6  # the violation at which our times count
_KERNEL, _TORCH, _PUBLISHED = methods.KERNEL.name, methods.TORCH.name, methods.PUBLISHED.name


@dataclass(frozen=True)
class Line:
    """One line of the headline table; ``met`` is None when something was not measured."""

    case: str
    ours: str
    peer: str
    ratio: str
    bar: str
    met: bool | None

    @property
    def verdict(self) -> str:
        return {True: "pass", False: "FAIL", None: "not measured"}[self.met]


@dataclass(frozen=True)
class Faster:
    """At least so many times faster than a peer, forward and backward together."""

    problem: problems.Problem
    peer: str
    factor: float
    ours: str = _KERNEL

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, self.ours), (self.problem.name, self.peer)]

    def lines(self, run: Run) -> list[Line]:
        ours, peer = _ours(run, self.problem, self.ours), timed(run, self.problem.name, self.peer)
        ratio = peer["total_s"] / ours["total_s"] if ours and peer else None
        met = None if ratio is None or ours is None else ratio >= self.factor and _holds(ours)
        bar = f">= {self.factor:,.0f}x"
        title = self.problem.title + (" (torch path)" if self.ours == _TORCH else "")
        texts = _timing(ours), _timing(peer) if peer else _why(run, self)
        return [Line(title, *texts, _times(ratio), bar, met)]


@dataclass(frozen=True)
class Smaller:
    """At least so many times less peak memory than a peer."""

    problem: problems.Problem
    peer: str
    factor: float

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, _KERNEL), (self.problem.name, self.peer)]

    def lines(self, run: Run) -> list[Line]:
        ours, peer = _ours(run, self.problem, _KERNEL), timed(run, self.problem.name, self.peer)
        # Below a megabyte the measurement is allocator noise, so ours counts as at least one.
        ratio = peer["memory_mb"] / max(1.0, ours["memory_mb"]) if ours and peer else None
        met = None if ratio is None else ratio >= self.factor
        texts = [f"{r['memory_mb']:,.1f} MB ({r['method']})" if r else "not measured" for r in (ours, peer)]
        return [Line(self.problem.title + ": memory", *texts, _times(ratio), f">= {self.factor:,.0f}x", met)]


@dataclass(frozen=True)
class HoldsRows:
    """We hold the rows and the peer, at its defaults, does not."""

    problem: problems.Problem
    peer: str

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, _KERNEL), (self.problem.name, self.peer)]

    def lines(self, run: Run) -> list[Line]:
        ours, peer = _ours(run, self.problem, _KERNEL), timed(run, self.problem.name, self.peer)
        met = None if not ours or not peer else _holds(ours) and peer["status"] == "rows not held"
        texts = [f"{r['violation']:.1e} ({r['method']})" if r else "not measured" for r in (ours, peer)]
        return [Line(self.problem.title + ": violation", *texts, "", "ours holds, theirs does not", met)]


@dataclass(frozen=True)
class Absolute:
    """Within so many seconds (compilation included), megabytes and violation."""

    problem: problems.Problem
    seconds: float
    megabytes: float

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, _KERNEL), (self.problem.name, _TORCH)]  # the kernel may find it too large

    def lines(self, run: Run) -> list[Line]:
        ours = _ours(run, self.problem, _KERNEL)
        bar = f"< {self.seconds:g} s, < {self.megabytes / 1000:g} GB, <= {OURS_HOLDS:g}"
        if not ours:
            return [Line(self.problem.title, _why_ours(run, self.problem), "", "", bar, None)]
        seconds, size = ours["prepare_s"] + ours["first_run_s"], ours["process_mb"]
        text = f"{seconds:.1f} s, {size / 1000:.2f} GB (whole process), violation {ours['violation']:.1e}"
        met = seconds < self.seconds and size < self.megabytes and _holds(ours)
        return [Line(self.problem.title, f"{text} ({ours['method']})", "", "", bar, met)]


@dataclass(frozen=True)
class FirstCall:
    """`import linsat` beyond torch and the first forward and backward of a fresh process."""

    seconds: float

    def pairs(self) -> list[tuple[str, str]]:
        return [(problems.LATENCY.name, _KERNEL)]

    def lines(self, run: Run) -> list[Line]:
        ours, bar = _ours(run, problems.LATENCY, _KERNEL), f"< {self.seconds:g} s"
        title = "first call in a fresh process, with the import beyond torch"
        if not ours:
            return [Line(title, _why_ours(run, problems.LATENCY), "", "", bar, None)]
        total = ours["import_s"] + ours["first_call_s"]
        text = f"{total:.2f} s = {ours['import_s']:.2f} import + {ours['first_call_s']:.2f} call"
        return [Line(title, f"{text} ({ours['method']})", "", "", bar, total < self.seconds)]


@dataclass(frozen=True)
class Growth:
    """Time per instance: flat in the batch, and its exponent in the number of variables."""

    spread: float
    exponent: float

    def pairs(self) -> list[tuple[str, str]]:
        return []  # the sweeps belong to the full run

    def lines(self, run: Run) -> list[Line]:
        found = []
        method, points = per_instance(run, problems.BATCH_SWEEP)
        wide = max(points.values()) / min(points.values()) - 1 if len(points) > 1 else None
        text = "not measured"
        if wide is not None:
            rise = points[max(points)] / points[min(points)] - 1
            text = f"spread {wide:.0%}, batch {max(points)} against {min(points)}: {rise:+.0%} ({method})"
        title = f"growth: time per instance, batch {problems.BATCHES[0]} to {problems.BATCHES[-1]}"
        met = None if wide is None else wide <= self.spread
        found.append(Line(title, text, "", "", f"flat to {self.spread:.0%}", met))
        method, points = per_instance(run, problems.SIZE_SWEEP)
        slope = exponent(points)
        text = "not measured" if slope is None else f"exponent {slope:.2f} in l ({method})"
        title = f"growth: time per instance, n = {problems.SIZES[0]} to {problems.SIZES[-1]}"
        met = None if slope is None else slope <= self.exponent
        return [*found, Line(title, text, "", "", f"exponent <= {self.exponent:g}", met)]


Bar = Faster | Smaller | HoldsRows | Absolute | FirstCall | Growth
BARS: tuple[Bar, ...] = (
    Faster(problems.FIRST, _PUBLISHED, 150),
    Faster(problems.FIRST, "cvxpylayers-entropic", 2000),
    Faster(problems.COLD, _PUBLISHED, 1500),
    Smaller(problems.COLD, _PUBLISHED, 500),
    Faster(problems.TOUR, _PUBLISHED, 100),
    Faster(problems.MATCHING, _PUBLISHED, 100),
    Faster(problems.PORTFOLIO, _PUBLISHED, 150),
    HoldsRows(problems.PORTFOLIO, _PUBLISHED),
    Faster(problems.LATENCY, _PUBLISHED, 80),
    Absolute(problems.ASSIGNMENT, 30, 2000),
    Faster(problems.FIRST, _PUBLISHED, 10, ours=_TORCH),
    Growth(0.2, 1.6),
    FirstCall(2.0),
)


def pairs_needed() -> list[tuple[str, str]]:
    """The pairs the bars compare, ours first and the longest last; the torch path where it stands in for a kernel."""
    pairs = [pair for bar in BARS for pair in bar.pairs()]
    if not methods.KERNEL.applies_to(problems.FIRST).ok:
        pairs += [(case, _TORCH) for case, method in pairs if method == _KERNEL]
    order, longest = {_KERNEL: 0, _TORCH: 1, _PUBLISHED: 2}, (problems.COLD.name, _PUBLISHED)
    return sorted(dict.fromkeys(pairs), key=lambda pair: (pair == longest, order.get(pair[1], 3)))


def headline(run: Run) -> list[Line]:
    return [line for bar in BARS for line in bar.lines(run)]


def per_instance(run: Run, group: str, method: str | None = None) -> tuple[str, dict[int, float]]:
    """Seconds per instance over a sweep, by batch or by number of variables, of a method (default: ours)."""
    cases = [case for case in problems.all_problems().values() if group in case.groups]
    for name in (method,) if method else (_KERNEL, _TORCH):
        points = {
            case.batch if group == problems.BATCH_SWEEP else case.size**2: record["total_s"] / case.batch
            for case in cases
            if (record := timed(run, case.name, name))
        }
        if points:
            return name, dict(sorted(points.items()))
    return method or _KERNEL, {}


def exponent(points: dict[int, float]) -> float | None:
    """Slope of log(time) against log(size)."""
    if len(points) < 2:
        return None
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])


# ------------------------------------------------------------------ texts


def _ours(run: Run, problem: problems.Problem, name: str) -> Record | None:
    names: Sequence[str] = (name,) if name == _TORCH else (name, _TORCH)
    return next((record for n in names if (record := timed(run, problem.name, n))), None)


def _holds(record: Record) -> bool:
    return record["status"] == "ok" and record["violation"] <= OURS_HOLDS


def _timing(record: Record | None) -> str:
    if record is None:
        return "not measured"
    held = "" if record["status"] == "ok" else f", {record['status']}"
    return f"{seconds_text(record['total_s'])} ({record['method']}{held})"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:,.1f}x" if ratio < 100 else f"{ratio:,.0f}x"


def _why(run: Run, bar: Faster) -> str:
    record = run.get((bar.problem.name, bar.peer))
    return f"{record['status']} ({bar.peer})" if record else f"not measured ({bar.peer})"


def _why_ours(run: Run, problem: problems.Problem) -> str:
    for name in (_KERNEL, _TORCH):
        record = run.get((problem.name, name))
        if record and record["status"] != "not applicable":
            return f"{record['status']}: {record['message'][:80]} ({name})"
    return "not measured"


def seconds_text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
