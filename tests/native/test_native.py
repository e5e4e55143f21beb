"""The C core called from C: the programs of this folder, compiled and run; C and Python agree on its header."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import c_tests
import constants
import platforms
from linsat.arrays.result import SOLVERS
from linsat.native import binding
from linsat.native.batch import make_layout
from linsat.status import Status

HEADER = (c_tests.CORE / "linsat.h").read_text()

needs_compiler = pytest.mark.skipif(c_tests.compiler() is None, reason="no C compiler: neither gcc, clang nor cc")
needs_kernel = pytest.mark.skipif(binding.unavailable() is not None, reason=f"no kernel: {binding.unavailable()}")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return c_tests.build(tmp_path_factory.mktemp("native"), c_tests.compiler() or "")


def _run(program: Path, *options: str) -> str:
    done = subprocess.run([str(program), *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_compiler
@pytest.mark.parametrize("options", [[], *c_tests.VARIANTS], ids=["as it is", "without AVX-512", "without AVX2"])
def test_in_c(program, options):
    *tests, last = _run(program, *options).splitlines()
    assert last == f"{sum(line.startswith('passed') for line in tests)} passed, 0 failed"
    assert len(tests) > 10


@needs_compiler
def test_random_and_hostile_calls_break_no_promise(program):
    assert _run(program, "--fuzz", "5000", "3", "0").endswith("5000 calls, 0 promises broken\n")


@needs_compiler
def test_instruction_sets_agree(program):
    here = _run(program, "--answers")
    for options in c_tests.VARIANTS:
        assert list(platforms.compare(here, _run(program, "--answers", *options))) == []


def test_constants_are_those_of_python():
    assert constants.HEADER.read_text() == constants.text(), "Fix: python scripts/constants.py"


def _enumeration(first: str) -> list[str]:
    names = re.search(rf"enum {{ ({first}[^}}]*) }}", HEADER)
    assert names is not None
    return [name.split("=")[0].strip().lower() for name in names[1].split(",")]


def test_enumerations_are_those_of_python():
    assert _enumeration("CONVERGED") == [status.value for status in Status]
    assert _enumeration("NEWTON") == list(SOLVERS[:2])
    assert _enumeration("ENTROPY") == list(binding.OBJECTIVES)
    version = re.search(r"LINSAT_ABI = (\d+)", HEADER)
    assert version is not None
    assert int(version[1]) == binding._ABI


_KINDS = {"int64_t": "q", "double": "d", "Numbers": binding.NUMBERS, "Gradient": binding.GRADIENT}


@pytest.mark.parametrize("name", ["Numbers", "Statement", "Solve", "Gradient", "Pull"])
def test_structures_are_those_of_the_header(name):
    body = re.search(rf"typedef struct {{([^}}]*)}} {name};", HEADER)
    assert body is not None
    fields = []
    for line in re.sub(r"/\*.*?\*/", "", body[1], flags=re.S).split(";"):
        if not line.strip():
            continue
        kind, names = re.match(r"\s*(?:const )?(\w+)\s+(.*)", line.strip(), flags=re.S).groups()
        for field in names.split(","):
            times = re.search(r"\[(\d+)\]", field)
            stated = re.sub(r"\[.*|\*", "", field).strip(), "P" if "*" in field else _KINDS[kind]
            fields += [stated] * (int(times[1]) if times else 1)
    assert getattr(binding, name.upper()).fields == fields


def test_answers_that_differ_are_seen():
    here = "x, a: 0 1.0 2.0\nx, b: 3 1.0 2.0\n"
    assert list(platforms.compare(here, here.replace("3 1.0", "3 7.0"))) == []
    assert list(platforms.compare(here, here.replace("0 1.0", "0 1.00000000001"))) == ["x, a differs by 1.0e-11"]
    assert list(platforms.compare(here, here.replace("0 1.0", "0 nan"))) == ["x, a differs by nan"]
    assert len(list(platforms.compare(here, here.replace(": 3", ": 0")))) == 1
    assert len(list(platforms.compare(here, here[:15]))) == 1
    assert len(list(platforms.compare("", ""))) == 1


@needs_kernel
def test_patterns_that_are_no_matrix_are_rejected():
    def layout(row, col, shape):
        return make_layout(np.array(row), np.array(col), np.zeros(shape[0], np.int8), shape[1], binding.load())

    for row, col in ([0, 5], [0, 1]), ([0, 0], [1, 1]), ([0, -1], [0, 1]):
        with pytest.raises(ValueError, match="outside of the matrix, or in the same place"):
            layout(row, col, (2, 2))
    assert layout([0], [0], (70_000, 1)) == "70000 rows are more than 65536"
