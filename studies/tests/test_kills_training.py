"""Training killed, out of disk, or with damaged files: a clear line, and the next start ends as if nothing were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("typer")
if not hasattr(os, "fork"):
    pytest.skip("programs are started by forking", allow_module_level=True)

from fuzz import kills
from killed_programs import portfolio
from tests.helpers.kills import assert_a_full_disk_is_told, assert_kills_change_nothing

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def training(inputs, tmp_path_factory):
    """(program, its undisturbed result)"""
    program = portfolio(inputs, 12)
    return program, kills.undisturbed(program, tmp_path_factory.mktemp("training") / "whole")[0]


def test_killed_twice_and_started_again(training, tmp_path):
    assert_kills_change_nothing(training[0], tmp_path)


def test_killed_between_the_second_name_and_the_new_checkpoint(tmp_path):
    """Both names then mean one file, and renaming one to the other would do nothing."""
    from linsat_studies.training import _keep_previous

    (tmp_path / "last.pt").write_bytes(b"written whole")
    os.link(tmp_path / "last.pt", tmp_path / "previous.pt")
    _keep_previous(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "previous.pt"]
    assert (tmp_path / "previous.pt").read_bytes() == b"written whole"


def test_killed_between_the_checkpoint_and_its_curve(training, tmp_path):
    """The last kill that could lose something: the run is over, but one of its two files is old."""
    program, expected = training
    assert kills.wait(kills.start(program, tmp_path / "run", tmp_path / "log")) == 0
    (curve,) = tmp_path.rglob("curve.jsonl")
    curve.write_text("".join(curve.read_text().splitlines(keepends=True)[:-1]))
    assert kills.wait(kills.start(program, tmp_path / "run", tmp_path / "log")) == 0
    assert kills.equal(program.result(tmp_path / "run"), expected)


def test_no_room_on_the_disk(training, tmp_path):
    assert_a_full_disk_is_told(*training, tmp_path, 3000)


def _trained(program: kills.Program, folder: Path, log: Path) -> Path:
    """The last checkpoint of a whole run."""
    assert kills.wait(kills.start(program, folder, log)) == 0
    (last,) = folder.rglob("last.pt")
    return last


def test_a_damaged_checkpoint_names_the_one_before(training, tmp_path):
    program, expected = training
    folder, log = tmp_path / "run", tmp_path / "log"
    last = _trained(program, folder, log)
    content = last.read_bytes()
    last.unlink()
    last.write_bytes(content[: len(content) // 2])
    assert kills.wait(kills.start(program, folder, log)) == 2
    said = log.read_text().splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"error: {last} cannot be read as a checkpoint")
    assert f"put {last.with_name('previous.pt')} in its place" in said[0]
    last.with_name("previous.pt").replace(last)
    assert kills.wait(kills.start(program, folder, log)) == 0
    assert kills.equal(program.result(folder), expected)


def test_a_checkpoint_whose_bits_have_changed_is_refused(training, tmp_path):
    program, log = training[0], tmp_path / "log"
    last = _trained(program, tmp_path / "run", log)
    content = bytearray(last.read_bytes())
    for position in range(len(content) // 3, 2 * len(content) // 3):
        content[position] ^= 0x55
    last.write_bytes(content)
    assert kills.wait(kills.start(program, tmp_path / "run", log)) == 2
    assert len(log.read_text().splitlines()) == 1
    assert "cannot be read as a checkpoint" in log.read_text()
