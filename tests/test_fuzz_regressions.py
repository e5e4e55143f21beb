"""Cases on which the library once failed, made small by the fuzzer: none may fail again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "fuzz"
sys.path.insert(0, str(FOLDER))

from judge import Depth, judge  # noqa: E402
from shrink import FAILURES, is_true, load  # noqa: E402


@pytest.mark.parametrize("path", sorted(FAILURES.glob("*.json")), ids=lambda path: path.stem)
def test_once_failed(path: Path) -> None:
    case = load(path)
    assert is_true(case)
    assert judge(case, Depth(optimum=True, highs=True)).findings == []
