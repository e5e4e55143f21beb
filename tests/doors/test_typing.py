"""What type checkers see of the public names: `typed_uses.py` says what they should."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
USES = HERE / "typed_uses.py"
LINES = USES.read_text().splitlines()
REVEALED = {i: line.split("# ")[-1] for i, line in enumerate(LINES, 1) if line.startswith("reveal_type(")}
REJECTED = {i for i, line in enumerate(LINES, 1) if line.endswith("# error")}


def _plain(text: str) -> str:
    """A type without modules and without the parameters of numpy's arrays."""
    text = re.sub(r"(?:\w+\.)+(\w+)", r"\1", text)
    return re.sub(
        r"ndarray\[tuple\[Any, \.\.\.\], dtype\[Any\]\]|ndarray\[[^\[\]]*(\[[^\[\]]*\])*[^\[\]]*\]", "ndarray", text
    )


def _mypy() -> tuple[dict[int, str], set[int]]:
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(USES)]
    output = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True).stdout
    found = [re.match(r".*typed_uses\.py:(\d+): (\w+): (.*)", line) for line in output.splitlines()]
    revealed = {int(m[1]): m[3] for m in found if m and m[3].startswith("Revealed type is")}
    return {i: text.split('"')[1] for i, text in revealed.items()}, {int(m[1]) for m in found if m and m[2] == "error"}


def _pyright(tmp_path: Path) -> tuple[dict[int, str], set[int]]:
    settings = {"include": [USES.name], "extraPaths": [str(HERE.parent / "src")], "pythonVersion": "3.10"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    (tmp_path / USES.name).write_text(USES.read_text())
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(output.stdout)["generalDiagnostics"]
    at = [(entry["range"]["start"]["line"] + 1, entry["severity"], entry["message"]) for entry in found]
    revealed = {line: text.rsplit(' is "', 1)[1].rstrip('"') for line, kind, text in at if kind == "information"}
    return revealed, {line for line, kind, _ in at if kind == "error"}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_right_uses_have_their_types_and_wrong_ones_are_rejected(checker, tmp_path):
    revealed, rejected = _mypy() if checker == "mypy" else _pyright(tmp_path)
    assert {line: _plain(text) for line, text in revealed.items()} == REVEALED
    assert rejected == REJECTED
    assert len(REVEALED) >= 10
    assert len(REJECTED) >= 10
