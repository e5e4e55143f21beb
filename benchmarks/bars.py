"""What the library has to show: each bar, what was measured for it, and whether it is met.

Ratios are taken within one run only. Ours is `linsat` with the back end that it chooses itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import methods
import problems
from results import Record, Run, timed

HOLDS, HOLDS_EXACTLY = 1e-6, 1e-9  # violations at which our times count: of single and of double precision
_OURS, _TORCH, _PUBLISHED = methods.OURS.name, methods.TORCH.name, methods.PUBLISHED.name
_PINET = ("pinet-50", "pinet-100", "pinet-exact")
_UNITS = {"sigmoid_s": "sigmoid passes over the scores", "product_s": "1000^3 float64 products"}


@dataclass(frozen=True)
class Line:
    """One line of the table of bars; ``met`` is None when something was not measured."""

    case: str
    measured: str
    bar: str
    met: bool | None
    missed_by: str = ""

    @property
    def verdict(self) -> str:
        if self.met is None:
            return "not measured"
        return "met" if self.met else f"**missed** {self.missed_by}".rstrip()


def at_least(case: str, measured: str, ratio: float, factor: float) -> Line:
    return Line(case, measured, f">= {factor:,g}x", ratio >= factor, f"by {1 - ratio / factor:.0%}")


def at_most(case: str, measured: str, value: float, limit: float, unit: str = "") -> Line:
    return Line(case, measured, f"<= {limit:g}{unit}", value <= limit, f"by {value / limit - 1:.0%}")


def print_table(lines: Iterable[Line]) -> int:
    """Print each line when it has been measured; 1, the exit code, if a bar is missed."""
    print("| case | measured | bar | |\n|---|---|---|---|")
    missed = 0
    for line in lines:
        print(f"| {line.case} | {line.measured} | {line.bar} | {line.verdict} |", flush=True)
        missed += line.met is False
    return 1 if missed else 0


def shortest(
    runs: dict[str, Callable[[], Any]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The shortest time of each, in seconds; they take turns, and the first turn warms up."""
    times = dict.fromkeys(runs, float("inf"))
    for turn in range(repeats + 1):
        for name, run in runs.items():
            begin = clock()
            run()
            if turn:
                times[name] = min(times[name], clock() - begin)
    return times


@dataclass(frozen=True)
class Faster:
    """At least so many times faster than the fastest of some peers, forward and backward together."""

    problem: problems.Problem
    peers: tuple[str, ...]
    factor: float
    holds: float = HOLDS
    ours: str = _OURS

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, method) for method in (self.ours, *self.peers)]

    def lines(self, run: Run) -> list[Line]:
        case = self.problem.title + (" (torch path)" if self.ours == _TORCH else "")
        ours = timed(run, self.problem.name, self.ours)
        peers = [record for name in self.peers if (record := timed(run, self.problem.name, name))]
        if not ours or not peers:
            missing = [_why(run, self.problem, name) for name in (self.ours, *self.peers)]
            return [Line(case, "; ".join(filter(None, missing)), f">= {self.factor:,g}x", None)]
        peer = min(peers, key=lambda record: record["total_s"])
        ratio = peer["total_s"] / ours["total_s"]
        line = at_least(case, f"{_timing(ours)} against {_timing(peer)}: {times_text(ratio)}", ratio, self.factor)
        return [line if ours["violation"] <= self.holds else _not_held(line, ours, self.holds)]


@dataclass(frozen=True)
class Smaller:
    """At least so many times less growth of memory than a peer."""

    problem: problems.Problem
    peer: str
    factor: float

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, _OURS), (self.problem.name, self.peer)]

    def lines(self, run: Run) -> list[Line]:
        case = self.problem.title + ": memory"
        ours, peer = timed(run, self.problem.name, _OURS), timed(run, self.problem.name, self.peer)
        if not ours or not peer:
            return [Line(case, _why(run, self.problem, _OURS, self.peer), f">= {self.factor:,g}x", None)]
        # Below a megabyte the measurement is allocator noise, so ours counts as at least one.
        ratio = peer["memory_mb"] / max(1.0, ours["memory_mb"])
        text = f"{ours['memory_mb']:,.1f} MB against {peer['memory_mb']:,.0f} MB ({self.peer}): {times_text(ratio)}"
        return [at_least(case, text, ratio, self.factor)]


@dataclass(frozen=True)
class HoldsRows:
    """We hold the rows and the peer, at its defaults, does not."""

    problem: problems.Problem
    peer: str

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, _OURS), (self.problem.name, self.peer)]

    def lines(self, run: Run) -> list[Line]:
        case, bar = self.problem.title + ": violation", "ours holds, theirs does not"
        ours, peer = timed(run, self.problem.name, _OURS), timed(run, self.problem.name, self.peer)
        if not ours or not peer:
            return [Line(case, _why(run, self.problem, _OURS, self.peer), bar, None)]
        met = ours["violation"] <= HOLDS and peer["status"] == "rows not held"
        return [Line(case, f"{ours['violation']:.1e} against {peer['violation']:.1e} ({self.peer})", bar, met)]


@dataclass(frozen=True)
class InUnits:
    """Within so many units of work, timed in the same process."""

    problem: problems.Problem
    field: str  # what of the record: total_s, set_to_x_s
    unit: str
    limit: float
    holds: float = HOLDS

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, _OURS)]

    def lines(self, run: Run) -> list[Line]:
        case = self.problem.title + {"total_s": ": both ways", "set_to_x_s": ": from constraints to x"}[self.field]
        ours, bar = timed(run, self.problem.name, _OURS), f" {_UNITS[self.unit]}"
        if not ours or self.field not in ours:
            return [Line(case, _why(run, self.problem, _OURS), f"<= {self.limit:g}{bar}", None)]
        value = ours[self.field] / ours[self.unit]
        text = f"{value:.1f} = {seconds_text(ours[self.field])} / {seconds_text(ours[self.unit])}"
        line = at_most(case, text, value, self.limit, bar)
        return [line if ours["violation"] <= self.holds else _not_held(line, ours, self.holds)]


@dataclass(frozen=True)
class LargeInstance:
    """Memory up to x, and the same bits for any number of threads."""

    problem: problems.Problem
    megabytes: float

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, _OURS)]

    def lines(self, run: Run) -> list[Line]:
        ours = timed(run, self.problem.name, _OURS)
        titles = [f"{self.problem.title}: {what}" for what in ("growth of memory up to x", "one thread and all")]
        if not ours:
            why = _why(run, self.problem, _OURS)
            return [Line(titles[0], why, f"<= {self.megabytes:g} MB", None), Line(titles[1], why, "same bits", None)]
        grown, same = ours["forward_memory_mb"], ours["same_bits"]
        return [
            at_most(titles[0], f"{grown:,.0f} MB", grown, self.megabytes, " MB"),
            Line(titles[1], "same bits" if same else "other bits", "same bits", same),
        ]


@dataclass(frozen=True)
class Runs:
    """Ours solves the case at all."""

    problem: problems.Problem

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, _OURS)]

    def lines(self, run: Run) -> list[Line]:
        ours = timed(run, self.problem.name, _OURS)
        if not ours:
            tried = (self.problem.name, _OURS) in run
            return [Line(self.problem.title, _why(run, self.problem, _OURS), "runs", False if tried else None)]
        text = f"{seconds_text(ours['set_to_x_s'])} from constraints to x, {ours['forward_memory_mb']:,.0f} MB"
        return [Line(self.problem.title, f"{text}, violation {ours['violation']:.1e}", "runs", _holds(ours, HOLDS))]


@dataclass(frozen=True)
class ColdStart:
    """Import and first call of a fresh process in units of ``import torch``, with nothing and with all compiled."""

    problem: problems.Problem
    first: float
    second: float

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.problem.name, _OURS)]

    def lines(self, run: Run) -> list[Line]:
        title = self.problem.title + ": cold start, "
        found, unit = run.get((self.problem.name, _OURS), {}), " `import torch`"
        if "cold_s" not in found:
            return [Line(title + "empty caches", _why(run, self.problem, _OURS), f"<= {self.first:g}{unit}", None)]
        lines = []
        for what, field, limit in (("empty caches", "cold_s", self.first), ("second process", "second_s", self.second)):
            ratio = found[field] / found["import_torch_s"]
            text = f"{ratio:.2f} = {seconds_text(found[field])} / {seconds_text(found['import_torch_s'])}"
            lines.append(at_most(title + what, text, ratio, limit, unit))
        same = found["same_bits"]
        text = "same bits" if same else "other bits"
        return [*lines, Line(title + "first call, later calls, second process", text, "same bits", same)]


@dataclass(frozen=True)
class FlatInBatch:
    """Time per instance in a small batch against that in a large one."""

    small: problems.Problem
    large: problems.Problem
    limit: float

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.small.name, _OURS), (self.large.name, _OURS)]

    def lines(self, run: Run) -> list[Line]:
        sizes = f"batch {self.small.batch} / batch {self.large.batch:,}"
        title = f"time per instance, {sizes}, {self.small.label}, {self.small.title.rsplit(', ', 1)[1]}"
        small, large = timed(run, self.small.name, _OURS), timed(run, self.large.name, _OURS)
        if not small or not large:
            why = _why(run, self.small, _OURS) or _why(run, self.large, _OURS)
            return [Line(title, why, f"<= {self.limit:g}", None)]
        each = [record["total_s"] / record["batch"] for record in (small, large)]
        text = f"{each[0] / each[1]:.2f} = {seconds_text(each[0])} / {seconds_text(each[1])}"
        return [at_most(title, text, each[0] / each[1], self.limit)]


@dataclass(frozen=True)
class Growth:
    """The exponent of the time per instance in the number of variables."""

    exponent: float

    def pairs(self) -> list[tuple[str, str]]:
        return [(case.name, _OURS) for case in problems.all_problems().values() if problems.SIZE_SWEEP in case.groups]

    def lines(self, run: Run) -> list[Line]:
        title = f"growth: time per instance, doubly stochastic n = {problems.SIZES[0]} to {problems.SIZES[-1]}"
        slope = exponent(per_instance(run, problems.SIZE_SWEEP, _OURS))
        if slope is None:
            return [Line(title, "", f"exponent <= {self.exponent:g}", None)]
        met = slope <= self.exponent
        return [Line(title, f"exponent {slope:.2f} in l", f"exponent <= {self.exponent:g}", met)]


Bar = Faster | Smaller | HoldsRows | InUnits | LargeInstance | Runs | ColdStart | FlatInBatch | Growth
_BATCH = {case.name: case for case in problems.all_problems().values() if problems.BATCH_SWEEP in case.groups}
BARS: tuple[Bar, ...] = (
    *(ColdStart(case, 3.0, 0.7) for case in problems.COLD_STARTS),
    Faster(problems.FIRST_EUCLIDEAN, ("moreau-euclidean",), 60, HOLDS_EXACTLY),
    Faster(problems.FIRST_EUCLIDEAN, ("cvxpylayers-euclidean",), 200, HOLDS_EXACTLY),
    Faster(problems.FIRST_EUCLIDEAN, ("proxqp",), 500, HOLDS_EXACTLY),
    Faster(problems.DENSE, _PINET, 1, HOLDS_EXACTLY),
    Faster(problems.DENSE, ("moreau-euclidean",), 20, HOLDS_EXACTLY),
    Faster(problems.LARGE_DENSE, _PINET[:2], 1, HOLDS_EXACTLY),
    # "Not slower than before": the ratios of the last published run.
    Faster(problems.FIRST, (_PUBLISHED,), 226),
    Faster(problems.FIRST, ("cvxpylayers-entropy",), 2000),
    Faster(problems.COLD, (_PUBLISHED,), 7090),
    Smaller(problems.COLD, _PUBLISHED, 500),
    Faster(problems.TOUR, (_PUBLISHED,), 484),
    Faster(problems.MATCHING, (_PUBLISHED,), 402),
    Faster(problems.PORTFOLIO, (_PUBLISHED,), 194),
    HoldsRows(problems.PORTFOLIO, _PUBLISHED),
    Faster(problems.LATENCY, (_PUBLISHED,), 112),
    Faster(problems.FIRST, (_PUBLISHED,), 10, ours=_TORCH),
    InUnits(problems.FIRST, "total_s", "sigmoid_s", 60),
    InUnits(problems.ASSIGNMENTS[1000], "set_to_x_s", "product_s", 40),
    LargeInstance(problems.ASSIGNMENTS[1000], 400),
    Runs(problems.ASSIGNMENTS[2000]),
    InUnits(problems.MANY_EXPERTS, "total_s", "product_s", 3),
    InUnits(problems.MANY_EXPERTS.euclidean(), "total_s", "product_s", 3, HOLDS_EXACTLY),
    FlatInBatch(_BATCH["ds20-b16-t0.1"], _BATCH["ds20-b1024-t0.1"], 1.3),
    FlatInBatch(_BATCH["ds20-b16-euclidean"], _BATCH["ds20-b1024-euclidean"], 1.3),
    Growth(1.6),
)


def pairs_needed() -> list[tuple[str, str]]:
    """The pairs the bars compare, ours first and the longest last."""
    pairs = dict.fromkeys(pair for bar in BARS for pair in bar.pairs())
    order, longest = {_OURS: 0, _TORCH: 1, _PUBLISHED: 3}, (problems.COLD.name, _PUBLISHED)
    return sorted(pairs, key=lambda pair: (pair == longest, order.get(pair[1], 2)))


def table(run: Run) -> list[Line]:
    """The lines of every bar that the run has a pair of."""
    concerned = [bar for bar in BARS if any(pair in run for pair in bar.pairs())]
    return [line for bar in concerned for line in bar.lines(run)]


def per_instance(run: Run, group: str, method: str) -> dict[int, float]:
    """Seconds per instance of a method over an entropic sweep, by batch or by number of variables."""
    cases = [case for case in problems.all_problems().values() if group in case.groups]
    points = {
        case.batch if group == problems.BATCH_SWEEP else case.l: record["total_s"] / case.batch
        for case in cases
        if case.objective == problems.ENTROPY and (record := timed(run, case.name, method))
    }
    return dict(sorted(points.items()))


def exponent(points: dict[int, float]) -> float | None:
    """Slope of log(time) against log(size)."""
    if len(points) < 2:
        return None
    return float(np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)[0])


# ------------------------------------------------------------------ texts


def _holds(record: Record, limit: float) -> bool:
    return record["status"] == "ok" and record["violation"] <= limit


def _not_held(line: Line, record: Record, limit: float) -> Line:
    return Line(line.case, line.measured, line.bar, False, f"(violation {record['violation']:.1e} > {limit:g})")


def _timing(record: Record) -> str:
    held = "" if record["status"] == "ok" else f", {record['status']}"
    who = "" if record["method"] == _OURS else f" ({record['method']}{held}, violation {record['violation']:.0e})"
    return seconds_text(record["total_s"]) + who


def times_text(ratio: float) -> str:
    return f"{ratio:,.1f}x" if ratio < 100 else f"{ratio:,.0f}x"


def _why(run: Run, problem: problems.Problem, *names: str) -> str:
    """How the pairs without a time ended."""
    ends: Sequence[str] = [
        f"{name}: {record['status']}"
        for name in names
        if (record := run.get((problem.name, name))) and "total_s" not in record
    ]
    return ", ".join(ends)


def seconds_text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
