"""Constraint files: what is written comes back, what a user writes means what it says, errors name the place."""

from __future__ import annotations

import json
import sys
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import linsat
from linsat import Constraints
from linsat.files import read_model

A = np.array([[3.0, 1.0, 0.1, 0.0], [0.0, -2.0, 0.0, 1 / 3]])
C = np.array([[1.0, 1.0, 0.0, 0.0]])
E = np.array([[1.0, 1.0, 1.0, 1.0]])


def _mixed(**other) -> linsat.Constraints:
    arguments = {
        "A": A,
        "b": [2.5, 0.1],
        "C": C,
        "d": 0.3,
        "E": E,
        "f": [1.7],
        "lower": -0.25,
        "upper": [1, 2, 3, 1e-7],
    }
    return linsat.Constraints(**(arguments | other))


def _write(path, content) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_every_number_and_name_comes_back(ending, tmp_path):
    names = ["cost", "with space", "ä", "sum = 1"]
    _mixed(names=names).save(tmp_path / f"set.{ending}")
    found = Constraints.load(tmp_path / f"set.{ending}")
    assert np.array_equal(found.matrix.to_dense().numpy(), np.vstack([A, C, E]))
    assert found.rhs.tolist() == [2.5, 0.1, 0.3, 1.7]
    assert found.senses == ("<=", "<=", ">=", "==")
    assert list(found.names) == names
    assert np.broadcast_to(found.lower.numpy(), 4).tolist() == [-0.25] * 4
    assert found.upper.tolist() == [1, 2, 3, 1e-7]


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_right_sides_and_bounds_of_instances_come_back(ending, tmp_path):
    b, upper = np.arange(6.0).reshape(3, 2), np.arange(12.0).reshape(3, 4) + 1
    _mixed(b=b, upper=upper).save(tmp_path / f"set.{ending}")
    found = Constraints.load(tmp_path / f"set.{ending}")
    assert found.batch_shape == (3,)
    assert np.array_equal(found.right_sides["b"].numpy(), b)
    assert np.array_equal(found.upper.numpy(), upper)


def test_large_sparse_sets_stay_sparse(tmp_path):
    linsat.constraints.doubly_stochastic(60).save(tmp_path / "set.npz")
    with zipfile.ZipFile(tmp_path / "set.npz") as archive:
        assert sum(info.file_size for info in archive.infolist()) < 500_000  # dense: 120 * 3600 * 8 = 3.4 million
    rows = Constraints.load(tmp_path / "set.npz").matrix.to_dense().numpy().reshape(120, 60, 60)
    assert np.array_equal(rows.sum(0), np.full((60, 60), 2.0))
    assert np.array_equal(rows.sum((1, 2)), np.full(120, 60.0))


def test_json_by_hand_with_names(tmp_path):
    content = {
        "version": 1,
        "comment": "rows dense or by name",
        "variables": ["apples", "pears", "plums"],
        "A": [[3, 1, 4], {"pears": 2.5}],
        "b": [4, 5],
        "C": [{"plums": 1, "apples": -1}],
        "d": 0,
        "lower": {"pears": -1},
        "upper": [1, 2, 3],
        "names": ["budget", "few pears", "plums first"],
    }
    model = read_model(_write(tmp_path / "fruit.json", content))
    assert model.variables == ("apples", "pears", "plums")
    cons = model.constraints
    assert cons.matrix.to_dense().tolist() == [[3, 1, 4], [0, 2.5, 0], [-1, 0, 1]]
    assert cons.rhs.tolist() == [4, 5, 0]
    assert cons.lower.tolist() == [0, -1, 0]
    assert cons.upper.tolist() == [1, 2, 3]


def test_json_without_rows_keeps_the_number_of_variables(tmp_path):
    cons = Constraints.load(_write(tmp_path / "box.json", {"version": 1, "variables": 3, "upper": 2}))
    assert cons.num_variables == 3
    assert len(cons) == 0


def test_npz_takes_what_numpy_and_scipy_write(tmp_path):
    path, sparse = tmp_path / "set.npz", sp.csr_array(A)
    parts = {"A_data": sparse.data, "A_indices": sparse.indices, "A_indptr": sparse.indptr, "A_shape": sparse.shape}
    np.savez(path, **parts, b=np.array([2.5, 0.1]), E=np.asfortranarray(E), f=1, variables=np.array(list("abcd")))
    model = read_model(path)
    assert np.array_equal(model.constraints.matrix.to_dense().numpy(), np.vstack([A, E]))
    assert model.variables == ("a", "b", "c", "d")


LP = r"""\ a small model
Maximize
 profit: 3 x + 2 y - z
Subject To
 cap: x + y + z <= 4
 floor: x - 2 y >= -1
 even: x + 3 y + z = 5
Bounds
 0 <= x <= 4
 -1 <= y <= 1
 z <= 7
General
 z
End
"""


def test_lp_rows_bounds_objective_and_integers(tmp_path):
    pytest.importorskip("highspy")
    model = read_model(_write(tmp_path / "model.lp", LP))
    cons = model.constraints
    order = [model.variables.index(name) for name in "xyz"]
    assert cons.names == ("cap", "floor", "even")
    assert cons.senses == ("<=", ">=", "==")
    assert cons.matrix.to_dense()[:, order].tolist() == [[1, 1, 1], [1, -2, 0], [1, 3, 1]]
    assert cons.rhs.tolist() == [4, -1, 5]
    assert cons.lower[order].tolist() == [0, -1, 0]
    assert cons.upper[order].tolist() == [4, 1, 7]
    assert model.scores[order].tolist() == [3, 2, -1]  # it maximises, so the objective is the scores
    notes = " ".join(model.notes)
    assert "1 integer variables are relaxed" in notes
    assert "objective" in notes
    with pytest.warns(linsat.LinSATWarning, match=r"model\.lp: 1 integer variables are relaxed"):
        Constraints.load(tmp_path / "model.lp")


MPS = """NAME          TEST
ROWS
 N  COST
 L  LIM1
 G  NEED
 E  BAL
COLUMNS
    X         COST         1.0   LIM1         1.0
    X         NEED         1.0   BAL          2.0
    Y         COST        -2.0   LIM1         1.0
    Y         BAL          1.0
RHS
    RHS       LIM1         4.0   NEED         1.0
    RHS       BAL          3.0
RANGES
    RNG       LIM1         2.5
BOUNDS
 UP BND       X            4.0
ENDATA
"""


def test_mps_with_ranges_and_missing_bounds(tmp_path):
    pytest.importorskip("highspy")
    path = _write(tmp_path / "model.mps", MPS)
    assert Constraints.load(path).upper.tolist() == [4, float("inf")]
    model = read_model(path, box=(-9, 9))
    cons = model.constraints
    assert cons.names == ("LIM1 (at most)", "LIM1 (at least)", "NEED", "BAL")
    assert cons.rhs.tolist() == [4, 1.5, 1, 3]
    assert cons.matrix.to_dense().tolist() == [[1, 1], [1, 1], [1, 0], [2, 1]]
    assert (cons.lower.tolist(), cons.upper.tolist()) == ([0, 0], [4, 9])
    assert model.scores.tolist() == [-1, 2]  # it minimises
    assert any("box [-9, 9]" in note for note in model.notes)


def test_a_row_with_one_coefficient_supplies_a_missing_bound(tmp_path):
    pytest.importorskip("highspy")
    text = "Minimize\n obj: x\nSubject To\n sum: x + y <= 3\n one: -2 x >= -5\n two: y <= 1\nBounds\n y <= 2\nEnd\n"
    cons = Constraints.load(_write(tmp_path / "model.lp", text))
    assert cons.upper.tolist() == [2.5, 2]
    assert cons.names == ("sum", "two")  # y had a bound, so its row stays


@pytest.mark.parametrize("ending", ["lp", "mps"])
def test_lp_and_mps_written_by_us_mean_the_same(ending, tmp_path):
    pytest.importorskip("highspy")
    names = ["A[0]", "2nd row", "e1", "A[0]"]
    _mixed(upper=[1, 2, 3, 0.5], names=names).save(tmp_path / f"set.{ending}")
    found = Constraints.load(tmp_path / f"set.{ending}")
    np.testing.assert_allclose(found.matrix.to_dense().numpy(), np.vstack([A, C, E]), rtol=1e-9)
    np.testing.assert_allclose(found.rhs.numpy(), [2.5, 0.1, 0.3, 1.7], rtol=1e-9)
    assert found.senses == ("<=", "<=", ">=", "==")
    assert (found.lower.tolist(), found.upper.tolist()) == ([-0.25] * 4, [1, 2, 3, 0.5])
    assert len(set(found.names)) == 4


def test_without_highs_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(ImportError, match=r'reading LP and MPS files needs highspy.*pip install "linsat\[highs\]"'):
        Constraints.load(_write(tmp_path / "model.lp", LP))


def test_refused_by_save(tmp_path):
    with pytest.raises(linsat.ConstraintError, match="ends in '.txt'"):
        _mixed().save(tmp_path / "set.txt")
    with pytest.raises(linsat.ConstraintError, match="any number of variables"):
        linsat.Constraints().save(tmp_path / "set.json")
    pytest.importorskip("highspy")
    with pytest.raises(linsat.ConstraintError, match=r"batch \(2,\)"):
        _mixed(f=torch.ones(2, 1)).save(tmp_path / "set.lp")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    _mixed().save(tmp_path / "set.npz")
    before = (tmp_path / "set.npz").read_bytes()

    def full(path, **arrays):
        path.write_bytes(b"PK half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space left"):
        _mixed(b=[9, 9]).save(tmp_path / "set.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["set.npz"]
    assert (tmp_path / "set.npz").read_bytes() == before
