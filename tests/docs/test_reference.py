"""The reference lists every public name, once, and shows doctests as code."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest

import linsat
import linsat.files

ROOT = Path(__file__).parents[2]
ENTRIES = re.findall(r"^::: (linsat\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)


def _public() -> set[str]:
    """Every public name by its shortest path; modules are stood for by what they hold."""
    names = {f"linsat.{name}" for name in linsat.__all__ if not inspect.ismodule(getattr(linsat, name))}
    for module in (linsat.constraints, linsat.files):
        names |= {f"{module.__name__}.{name}" for name in module.__all__ if name not in linsat.__all__}
    own = inspect.getmembers(linsat.decode, lambda member: getattr(member, "__module__", "") == "linsat.decode")
    return names | {f"linsat.decode.{name}" for name, _ in own if not name.startswith("_")}


def test_every_public_name_is_in_the_reference() -> None:
    assert sorted(_public() - set(ENTRIES)) == []


def test_no_name_is_there_twice() -> None:
    assert sorted(set(ENTRIES)) == sorted(ENTRIES)


def test_every_public_name_has_a_docstring() -> None:
    for name in _public():
        owner: object = linsat
        for part in name.split(".")[1:]:
            owner = getattr(owner, part)
        assert inspect.getdoc(owner), name


def test_doctests_are_fenced() -> None:
    pytest.importorskip("griffe")
    fenced = runpy.run_path(str(ROOT / "docs" / "extensions" / "doctests.py"))["fenced"]
    text = "First line.\n\n>>> 1 + 1\n2\n\nAn example::\n\n    code"
    assert fenced(text) == "First line.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nAn example:\n\n    code"
    assert fenced(">>> [1]\n[1]") == "```pycon\n>>> [1]\n[1]\n```"
    assert fenced("no code") == "no code"
