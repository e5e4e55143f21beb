"""The weights that come with the package: each file has a licence, an origin and a hash, and is read as data."""

import ast
import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDERS = sorted((ROOT / "studies" / "src" / "linsat_studies").glob("*/checkpoints"))


def test_every_study_ships_weights():
    assert [folder.parent.name for folder in FOLDERS] == ["matching", "portfolio", "tsp"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_licence_origin_and_hash(folder):
    text = (folder / "WEIGHTS.md").read_text(encoding="utf-8")
    assert re.search(r"^Licence: MIT", text, re.MULTILINE)
    rows = re.findall(r"^\| `([\w.-]+)` \| (.+) \| `([0-9a-f]{64})` \|$", text, re.MULTILINE)
    stated = {name: digest for name, _, digest in rows}
    assert stated == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.pt")}
    assert all(len(origin) > 10 for _, origin, _ in rows)


def test_every_load_reads_plain_data():
    """No call of torch.load in the project may run code from a file."""
    calls = []
    for path in (
        p
        for folder in ("src", "studies/src", "tools/src", "examples", "benchmarks", "fuzz")
        for p in (ROOT / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                options = {word.arg: ast.unparse(word.value) for word in node.keywords}
                calls.append((path.name, options.get("weights_only")))
    assert calls
    assert [call for call in calls if call[1] != "True"] == []
