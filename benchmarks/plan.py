"""Which pairs are measured, in which order and how long each may take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import bars
import methods
import problems

_SWEEPS = (problems.BATCH_SWEEP, problems.SIZE_SWEEP, problems.TAU_SWEEP)
_OURS = (methods.OURS.name,)
# What a run that is short of time can do without: peers that mostly fail or time out.
_LATE = ("qpth",)
# A weaker setting of a peer, measured where a bar asks for it only.
_FOR_BARS = ("pinet-50",)
# Beside ours, whose cold start a bar needs.
_COLD_START_PEERS = (methods.PUBLISHED_SPARSE.name, "moreau-entropy", "moreau-euclidean", "pinet-100")


@dataclass(frozen=True)
class Limits:
    """Seconds of repeated timing of a pair, and after how many seconds its process is ended."""

    budget: float
    timeout: float


_BAR, _BAR_QUICK, _HEADLINE, _SWEEP = Limits(2, 120), Limits(0.6, 100), Limits(0.8, 12), Limits(0.6, 12)
_START_SECONDS = 2.0  # of a process: linsat and the peer are imported anew for every pair


@dataclass(frozen=True)
class Pair:
    problem: problems.Problem
    method: methods.Method
    limits: Limits

    @property
    def key(self) -> tuple[str, str]:
        return self.problem.name, self.method.name

    @property
    def expected_seconds(self) -> float:
        return _START_SECONDS + 2 * self.limits.budget

    @property
    def sweep(self) -> str | None:
        """The sweep in which a failure means that the points after it would fail too."""
        return next((group for group in self.problem.groups if group in _SWEEPS), None)


def full(everything: dict[str, methods.Method]) -> list[Pair]:
    """What the bars need first, so that a run cut short still answers them; then our sweeps, then peers."""
    cases = problems.all_problems().values()
    headline = [case for case in cases if problems.HEADLINE in case.groups]
    sweeps = [case for case in cases if set(case.groups) & set(_SWEEPS)]
    swept = [name for name, method in everything.items() if method.in_sweeps and name not in _OURS]
    stages: list[tuple[Sequence[problems.Problem], Sequence[str], Limits]] = [
        (sweeps, _OURS, _SWEEP),
        (headline, [name for name in everything if name not in (*_LATE, *_FOR_BARS)], _HEADLINE),
        (problems.COLD_STARTS, _COLD_START_PEERS, _HEADLINE),
        (sweeps, swept, _SWEEP),
        (headline, _LATE, _HEADLINE),
    ]
    pairs = quick(everything, _BAR)
    for stage_cases, names, limits in stages:
        pairs += [Pair(case, everything[name], limits) for name in names for case in stage_cases if name in everything]
    return _without_repeats(pair for pair in pairs if pair.problem.objective in pair.method.objectives)


def quick(everything: dict[str, methods.Method], limits: Limits = _BAR_QUICK) -> list[Pair]:
    """The pairs that the bars compare."""
    cases = problems.all_problems()
    pairs = [
        Pair(cases[case], everything[method], limits) for case, method in bars.pairs_needed() if method in everything
    ]
    return _without_repeats(pairs)


def chosen(everything: dict[str, methods.Method], cases: Sequence[str], names: Sequence[str]) -> list[Pair]:
    """The pairs of named cases and methods."""
    known = problems.all_problems()
    return [Pair(known[case], everything[name], _HEADLINE) for case in cases for name in names]


def _without_repeats(pairs: Iterable[Pair]) -> list[Pair]:
    first: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        first.setdefault(pair.key, pair)
    return list(first.values())
