"""Projection of a file killed with SIGKILL or out of disk: a clear line, and the next start ends as if nothing were."""

from __future__ import annotations

import os
import random
import resource
import signal
from pathlib import Path

import pytest

pytest.importorskip("typer")
if not hasattr(os, "fork"):
    pytest.skip("programs are started by forking", allow_module_level=True)


from fuzz import kills

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def projecting(inputs, tmp_path_factory):
    program = kills.bulk(inputs, 30)
    return program, kills.undisturbed(program, tmp_path_factory.mktemp("projecting") / "whole")[0]


def test_killed_twice_and_started_again(projecting, tmp_path):
    program, _ = projecting
    trials = kills.trials(program, tmp_path, 2, random.Random(1))
    assert all(trial.equal for trial in trials), trials
    assert all(trial.left == () for trial in trials), trials
    assert sum(trial.killed for trial in trials) == 2


def _no_more_than(size: int):
    """Every write beyond ``size`` bytes of a file fails, as on a full disk."""

    def limits() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limits


def test_no_room_on_the_disk(projecting, tmp_path):
    program, expected = projecting
    log = tmp_path / "log"
    assert kills.wait(kills.start(program, tmp_path / "run", log, limits=_no_more_than(4000))) == 2
    lines = [line for line in log.read_text().splitlines() if "error:" in line]
    assert len(lines) == 1, log.read_text()
    assert "File too large" in lines[0]
    assert "Traceback" not in log.read_text()
    assert kills.wait(kills.start(program, tmp_path / "run", log)) == 0
    assert kills.equal(program.result(tmp_path / "run"), expected)
    assert kills.half_written(tmp_path / "run") == []
