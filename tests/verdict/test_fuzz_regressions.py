"""Cases on which the library once failed, made small by the fuzzer: none may fail again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "fuzz"

from fuzz.judge import Depth, judge  # noqa: E402
from fuzz.shrink import FAILURES, is_true, load  # noqa: E402


@pytest.mark.parametrize("path", sorted(FAILURES.glob("*.json")), ids=lambda path: path.stem)
def test_once_failed(path: Path) -> None:
    case = load(path)
    assert is_true(case)
    finding = json.loads(path.read_text())["finding"]
    doors, formulas = finding.startswith("doors"), "formulas" in finding
    verdict = judge(case, Depth(optimum=True, highs=True, gradients=True, doors=doors, formulas=formulas))
    assert verdict.findings == []
    if finding.startswith("stalled"):  # reported then, solved now
        assert set(verdict.statuses) == {"converged"}
