"""Projection of a file killed with SIGKILL or out of disk: a clear line, and the next start ends as if nothing were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("typer")
if not hasattr(os, "fork"):
    pytest.skip("programs are started by forking", allow_module_level=True)

from fuzz import kills
from tests.helpers.kills import assert_a_full_disk_is_told, assert_kills_change_nothing

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("inputs")


@pytest.fixture(scope="module")
def projecting(inputs, tmp_path_factory):
    program = kills.bulk(inputs, 30)
    return program, kills.undisturbed(program, tmp_path_factory.mktemp("projecting") / "whole")[0]


def test_killed_twice_and_started_again(projecting, tmp_path):
    assert_kills_change_nothing(projecting[0], tmp_path)


def test_no_room_on_the_disk(projecting, tmp_path):
    assert_a_full_disk_is_told(*projecting, tmp_path, 4000)
