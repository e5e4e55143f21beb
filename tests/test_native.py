"""The C core called from C: tests/native, compiled and run."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from linsat.backends.cpu_kernel import native
from linsat.backends.cpu_kernel.layout import layout_of
from linsat.compile.rows import RowMatrix
from linsat.solvers.newton import MOST_GROUPS

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import c_tests
import platforms

needs_compiler = pytest.mark.skipif(c_tests.compiler() is None, reason="no C compiler: neither gcc, clang nor cc")
needs_kernel = pytest.mark.skipif(native.unavailable() is not None, reason=f"no kernel: {native.unavailable()}")


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    return c_tests.build(tmp_path_factory.mktemp("native"), c_tests.compiler() or "")


def _run(program: Path, *options: str) -> str:
    done = subprocess.run([str(program), *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_compiler
@pytest.mark.parametrize("options", [[], ["--plain"]], ids=["as it is", "without AVX2"])
def test_in_c(program, options):
    *tests, last = _run(program, *options).splitlines()
    assert last == f"{sum(line.startswith('passed') for line in tests)} passed, 0 failed"
    assert len(tests) > 10


@needs_compiler
def test_instruction_sets_agree(program):
    here = _run(program, "--answers")
    assert list(platforms.compare(here, _run(program, "--answers", "--plain"))) == []


@needs_compiler
def test_constants_are_those_of_python(program):
    expected = native._constants()
    assert [float(line) for line in _run(program, "--constants").split()] == [
        getattr(expected, name) for name, _ in native.Constants._fields_
    ]


def test_answers_that_differ_are_seen():
    here = "x, a: 0 1.0 2.0\nx, b: 3 1.0 2.0\n"
    assert list(platforms.compare(here, here.replace("3 1.0", "3 7.0"))) == []
    assert list(platforms.compare(here, here.replace("0 1.0", "0 1.00000000001"))) == ["x, a differs by 1.0e-11"]
    assert list(platforms.compare(here, here.replace("0 1.0", "0 nan"))) == ["x, a differs by nan"]
    assert len(list(platforms.compare(here, here.replace(": 3", ": 0")))) == 1
    assert len(list(platforms.compare(here, here[:15]))) == 1
    assert len(list(platforms.compare("", ""))) == 1


# ---- layouts, from Python


def _layout(row, col, shape):
    row, col = (torch.as_tensor(np.asarray(index, dtype=np.int64)) for index in (row, col))
    return layout_of(RowMatrix(row, col, torch.ones(1, len(row), dtype=torch.float64), shape), native.load())


def _table(address: int, count: int) -> np.ndarray:
    return np.array((ctypes.c_int32 * count).from_address(address)[:])


@needs_kernel
def test_tables_of_a_layout_list_every_coefficient_once():
    rng = np.random.default_rng(0)
    for density in (0.02, 0.2, 0.6):
        dense = rng.random((14, 50)) < density
        row, col = np.nonzero(dense)
        layout = _layout(row, col, dense.shape)  # lives as long as what it points to is read
        s = native.Layout.from_address(layout.address)
        order, entry = _table(s.order, s.rows), _table(s.entry, s.entries)
        assert sorted(order) == list(range(14))
        assert sorted(entry) == list(range(len(row)))
        np.testing.assert_array_equal(order[_table(s.entry_row, s.entries)], row[entry])
        np.testing.assert_array_equal(_table(s.entry_col, s.entries), col[entry])
        leading = order[: s.leading]
        assert (dense[leading].sum(0) <= 1).all()
        counts = dense.sum(0)
        assert s.pairs == (counts * (counts + 1) // 2).sum()


@needs_kernel
@pytest.mark.parametrize("groups", [1, MOST_GROUPS, MOST_GROUPS + 1])
def test_rows_are_swept_in_as_many_groups_as_pay(groups):
    """Every row has all variables, so each is a group of its own; C and Python agree on how many are too many."""
    row, col = np.nonzero(np.ones((groups, 3)))
    layout = _layout(row, col, (groups, 3))
    assert native.Layout.from_address(layout.address).groups == (groups if groups <= MOST_GROUPS else 0)


@needs_kernel
def test_patterns_that_are_no_matrix_are_rejected():
    for row, col in ([0, 5], [0, 1]), ([0, 0], [1, 1]), ([0, -1], [0, 1]):
        with pytest.raises(ValueError, match="outside of the matrix, or in the same place"):
            _layout(row, col, (2, 2))
    assert _layout([0], [0], (70_000, 1)) == "70000 rows are more than 65536"
