"""What the documents say is true: their code runs, names and links exist, the demo draws its picture."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import runpy
import subprocess
import sys
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import linsat

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DEMO = ROOT / "examples" / "demo.py"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
CASES = ("doubly stochastic", "top-k", "matching", "portfolio")

RIVALS = sorted((ROOT / "docs").glob("from-*.md"))
RIVAL = "{.python .rival}"  # code for another package, which may not be installed

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"(?<![\w./-])linsat\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


@dataclass(frozen=True)
class Block:
    info: str  # what follows the opening fence
    code: str
    line: int  # of the first line of code, from 1


def _blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [
        Block(found["info"].strip(), textwrap.dedent(found["code"]), text.count("\n", 0, found.start("code")) + 1)
        for found in _FENCE.finditer(text)
    ]


# The others run the other package in ordinary blocks.
COMPARED = [path for path in RIVALS if any(block.info == RIVAL for block in _blocks(path))]


def _exists(dotted: str) -> bool:
    """Whether ``linsat.<dotted>`` is an attribute, a module, or a field of a dataclass."""
    owner: object = linsat
    for part in dotted.split("."):
        if hasattr(owner, part):
            owner = getattr(owner, part)
        elif part in getattr(owner, "__dataclass_fields__", {}):
            return True
        else:
            name = getattr(owner, "__name__", "")
            try:
                owner = importlib.import_module(f"{name}.{part}")
            except ImportError:
                return False
    return True


def _execute(block: Block, path: Path, namespace: dict[str, object]) -> None:
    # Empty lines in front make a traceback point at the line of the document.
    code = compile("\n" * (block.line - 1) + block.code, str(path), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, namespace)


@each_document
def test_python_blocks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace: dict[str, object] = {"__name__": "document"}
    for block in _blocks(path):
        if block.info == "python":
            _execute(block, path, namespace)


@pytest.mark.filterwarnings("ignore")  # those of the other packages
@pytest.mark.parametrize("path", COMPARED, ids=lambda path: path.name)
def test_translations_give_the_answer_of_the_other_package(path):
    """A block of the other package leaves ``theirs``, the translation after it ``ours``: they must agree."""
    blocks = _blocks(path)
    namespace: dict[str, object] = {"__name__": "document"}
    compared = 0
    for block in blocks:
        if block.info == RIVAL:
            assert "theirs" not in namespace, f"line {block.line}: the answer above it was not translated"
            try:
                _execute(block, path, namespace)
            except ModuleNotFoundError as error:
                pytest.skip(f"{error.name} is not installed")
        elif block.info == "python":
            _execute(block, path, namespace)
        if {"theirs", "ours"} <= namespace.keys():
            theirs, ours = (torch.as_tensor(np.array(namespace.pop(name))) for name in ("theirs", "ours"))
            # JAXopt's projections stop at 1e-3 and take no tolerance.
            atol = 1e-3 if path.name == "from-jaxopt.md" else 1e-4
            torch.testing.assert_close(ours, theirs, rtol=0, atol=atol, check_dtype=False)
            compared += 1
    assert compared == sum(block.info == RIVAL for block in blocks)


@each_document
def test_every_python_block_is_meant_to_run(path):
    """Neither an attribute after the language nor another spelling of it may keep a block from being run."""
    allowed = {"python", RIVAL} if path in RIVALS else {"python"}
    assert {block.info for block in _blocks(path) if "py" in block.info.lower()} <= allowed
    assert len(_FENCE.findall(path.read_text(encoding="utf-8"))) * 2 == sum(
        line.lstrip().startswith("```") for line in path.read_text(encoding="utf-8").splitlines()
    )


def test_the_readme_shows_code_that_prints():
    first = next(block for block in _blocks(README) if block.info == "python")
    assert first.line < 12
    assert "print(" in first.code
    assert len(first.code.splitlines()) <= 15


def test_recipes_are_as_short_as_they_say():
    blocks = [block.code.strip().splitlines() for block in _blocks(ROOT / "docs" / "recipes.md")]
    assert len(blocks) == 6
    assert max(len([line for line in lines if line.strip()]) for lines in blocks) <= 15


@each_document
def test_names_exist(path):
    names = set(_NAME.findall(path.read_text(encoding="utf-8")))
    assert names, f"{path.name} mentions no linsat.<name>"
    assert [name for name in sorted(names) if not _exists(name)] == []


def test_the_name_check_finds_what_is_missing():
    assert _exists("project")
    assert _exists("decode.hungarian")
    assert _exists("Solution.duals")
    assert _exists("marginals")
    assert not _exists("no_such_name")
    assert not _exists("decode.no_such_name")


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    missing = [link for link in _LINK.findall(prose) if not (path.parent / link).exists()]
    assert missing == []


def test_the_readme_names_both_commands():
    text, makefile = README.read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in text
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


CONTRIBUTING = ROOT / "CONTRIBUTING.md"
TO_THE_SOURCES = [CONTRIBUTING, ROOT / "docs" / "contributing.md", ROOT / "docs" / "reliability.md"]


def test_contributing_is_two_screens_and_draws_every_package():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    drawn = re.search(r"## The tree\n\n(.*?)\n\n", text, re.DOTALL)[1]
    packages = [path.parent.name for path in (ROOT / "src" / "linsat").glob("*/__init__.py")]
    assert [name for name in packages if f"{name}/" not in drawn] == []
    tests = [path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "_."]
    assert [name for name in tests if name != "helpers" and f"{name}/" not in drawn] == []


@pytest.mark.parametrize("path", TO_THE_SOURCES, ids=lambda path: path.name)
def test_files_that_contributors_are_sent_to_exist(path):
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"[`\s(,]((?:[\w.-]+/)*[\w-]+\.(?:py|h|c|md|yml|json))(?=[`\s),:])", text))
    named |= set(re.findall(r"`((?:src|tests|tools|studies|fuzz|docs|examples|scripts|benchmarks)/[\w/.-]*)`", text))
    places = [ROOT, path.parent, ROOT / "src" / "linsat", ROOT / "src" / "linsat" / "native"]
    missing = [name for name in sorted(named) if not any((place / name).exists() for place in places)]
    assert len(named) >= 10
    assert missing == []


def test_targets_that_contributors_are_told_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for path in TO_THE_SOURCES:
        targets = set(re.findall(r"\bmake ([a-z-]+)\b`", path.read_text(encoding="utf-8")))
        assert [one for one in sorted(targets) if not re.search(rf"^{one}:", makefile, re.MULTILINE)] == []


def test_versions_agree():
    version = re.escape(linsat.__version__)
    project = (ROOT / "pyproject.toml").read_text()
    assert 'version = { attr = "linsat.__version__" }' in project  # the packages take it from there
    assert re.search(r"^version =.*\d", project, re.MULTILINE) is None
    assert re.search(rf"^version: {version}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert re.search(rf"^## \[{version}\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_reference_has_every_public_name():
    shown = set(re.findall(r"^::: linsat\.(\S+)", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE))
    needed = set()
    for name in [*linsat.__all__, "losses"]:
        value = getattr(linsat, name)
        if not isinstance(value, types.ModuleType):
            needed.add(name)
            continue
        public = (entry for entry in vars(value).items() if not entry[0].startswith("_") and callable(entry[1]))
        ours = (one for one, what in public if getattr(what, "__module__", "").startswith(value.__name__))
        needed |= {one if one in linsat.__all__ else f"{name}.{one}" for one in ours}
    assert sorted(needed - shown) == []
    assert {"project", "decode.hungarian", "constraints.simplex"} <= needed


def test_the_demo_draws_and_prints_every_case(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(DEMO), "--out", str(tmp_path / "new"), "--layer-only", "--iterations", "20"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    picture = tmp_path / "new" / "demo.png"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert str(picture) in done.stdout
    table = re.compile(rf"^({'|'.join(CASES)}) +(\d+) +(\d+) +([\d.]+) +(\S+) +(\S+) +[\d.]+ +\d+ +", re.MULTILINE)
    lines = table.findall(done.stdout)
    assert {line[0] for line in lines} == set(CASES)
    assert max(float(line[4]) for line in lines) < 1e-6
    assert [float(line[5]) > 0.1 for line in lines if line[0] == "portfolio" and line[3] == "0.01"] == [True]
    assert "x = (0.400, 0.400)" in done.stdout
    assert "These rows cannot hold together" in done.stdout


@pytest.mark.parametrize("package", ["LinSATNet", "matplotlib", "rich"])
def test_the_demo_names_the_extra_it_needs(package, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == package] + [package]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"needs {package}.*pip install \"linsat\[demo\]\""):
        runpy.run_path(str(DEMO))
