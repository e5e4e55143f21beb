"""A part of `make test-machines`: a few files as other processors compute, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

import machines  # noqa: E402

# Together: without AVX2 in the kernel, torch and MKL.
PLAIN = machines.SETTINGS["kernel plain"] | machines.SETTINGS["torch default"] | machines.SETTINGS["MKL SSE4.2"]
# Bits beside other instances, and answers in closed form; torch's compiler and other processes take the longest.
FEW = ["tests/verdict/test_failures.py", "tests/doors/test_layers_cases.py", "-k", "not compile and not one_rank"]


@pytest.mark.parametrize("setting", [PLAIN, machines.SETTINGS["kernel off"], machines.SETTINGS["4 threads"]], ids=str)
def test_as_other_processors_compute(setting):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *FEW]
    environment = machines.environment(setting)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_settings_beyond_the_processor_are_left_out():
    """torch does not check what it is told to use: the process would be killed."""
    settings = machines.SETTINGS
    assert not machines.possible(settings["torch AVX512"], "avx2")
    assert machines.possible(settings["torch AVX2"], "avx512")
    assert not machines.possible(settings["MKL AVX2"], "neon")
    assert machines.possible(settings["kernel plain"], "neon")


def test_no_setting_is_inherited(monkeypatch):
    monkeypatch.setenv("LINSAT_KERNEL", "off")
    assert "LINSAT_KERNEL" not in machines.environment({})
    assert machines.environment({"LINSAT_KERNEL": "plain"})["LINSAT_KERNEL"] == "plain"


def test_every_file_of_the_list_is_there():
    assert [name for name in machines.TESTS if not (ROOT / name).exists()] == []
