"""What the judges found out about one case."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Verdict:
    """What one case added to the record."""

    statuses: Counter[str] = field(default_factory=Counter)  # per feasible system
    reports: Counter[str] = field(default_factory=Counter)  # per infeasible system: how it was reported
    checks: Counter[str] = field(default_factory=Counter)
    worst: float = 0.0  # violation of a converged row beyond rounding, relative to its size at x
    gap: float = 0.0  # duality gap of a converged instance beyond rounding, relative to 1 + its objective
    findings: list[str] = field(default_factory=list)

    def find(self, kind: str, text: str) -> None:
        self.findings.append(f"{kind}: {text}")
