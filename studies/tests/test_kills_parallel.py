"""Data parallel training when one of its processes is killed: the other says so, and the run continues as it was."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

pytest.importorskip("typer")
if not hasattr(os, "fork"):
    pytest.skip("programs are started by forking", allow_module_level=True)


from fuzz import kills
from killed_programs import matching, portfolio
from linsat_studies.checkpoints import read_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _start_two(program, folder: Path, logs: Path) -> list[int]:
    """What torchrun does: two processes that find each other by their environment."""
    port = str(_free_port())

    def environment(rank: int):
        names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
        return lambda: os.environ.update(names)

    kills.warm(program.modules)
    return [kills.start(program, folder, logs / f"{rank}.log", limits=environment(rank)) for rank in (0, 1)]


@pytest.mark.parametrize("killed", [0, 1])
def test_one_of_two_processes_killed(killed, tmp_path):
    program = (portfolio, matching)[killed](tmp_path, 9)
    for child in _start_two(program, tmp_path / "whole", tmp_path):
        assert kills.wait(child) == 0, [path.read_text() for path in tmp_path.glob("*.log")]
    expected = program.result(tmp_path / "whole")

    children = _start_two(program, tmp_path / "cut", tmp_path)
    until = time.monotonic() + 300
    while not list((tmp_path / "cut").rglob("last.pt")) and time.monotonic() < until:
        time.sleep(0.001)  # until there is something to lose
    assert kills.wait(children[killed], kill_at=time.monotonic()) is None
    assert kills.wait(children[1 - killed]) == 2
    said = (tmp_path / f"{1 - killed}.log").read_text()
    assert "another process of this run has ended" in said
    assert "Traceback" not in said
    (path,) = (tmp_path / "cut").rglob("last.pt")
    assert read_checkpoint(path)["step"] < 9

    for child in _start_two(program, tmp_path / "cut", tmp_path):
        assert kills.wait(child) == 0, [path.read_text() for path in tmp_path.glob("*.log")]
    assert kills.equal(program.result(tmp_path / "cut"), expected)
