"""Bulk projection on Ray: the callable alone, and on a local Ray with two workers, one of which is killed midway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import linsat
from linsat_tools.ray import ProjectBatches, project_dataset

CONS = linsat.constraints.top_k(4, 2)
Y = np.random.default_rng(0).normal(size=(10, 4))


def _exact(y: np.ndarray, tau: float) -> np.ndarray:
    """x = sigmoid((y + mu) / tau) with sum x = 2, the multiplier by bisection."""
    low, high = np.full((len(y), 1), -100.0), np.full((len(y), 1), 100.0)
    for _ in range(200):
        mu = (low + high) / 2
        few = (1 / (1 + np.exp(-(y + mu) / tau))).sum(1, keepdims=True) < 2
        low, high = np.where(few, mu, low), np.where(few, high, mu)
    return 1 / (1 + np.exp(-(y + mu) / tau))


def test_a_column_of_vectors():
    batch = {"scores": Y, "id": np.arange(10)}
    found = ProjectBatches(CONS, tau=0.5)(batch)
    assert set(found) == {"scores", "id", "x", "status"}
    np.testing.assert_allclose(found["x"], _exact(Y, 0.5), rtol=0, atol=1e-8)
    assert set(found["status"]) == {"converged"}
    assert "x" not in batch  # Ray's block is left alone


def test_a_column_for_each_variable():
    names, outs = ["a", "b", "c", "d"], ["xa", "xb", "xc", "xd"]
    batch = {name: Y[:, i] for i, name in enumerate(names)}
    found = ProjectBatches(CONS, tau=0.5, scores=names, out=outs)(batch)
    np.testing.assert_allclose(np.stack([found[n] for n in outs], 1), _exact(Y, 0.5), rtol=0, atol=1e-8)


def test_vectors_that_came_as_lists():
    rows = np.empty(10, dtype=object)
    rows[:] = [list(row) for row in Y]
    np.testing.assert_allclose(ProjectBatches(CONS)({"scores": rows})["x"], _exact(Y, 0.1), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scores": ["a", "b"]}, "scores is .*expected the name of a column, or 4 different names"),
        ({"out": "scores"}, "the column 'scores' is named twice"),
        ({"status": "x"}, "the column 'x' is named twice"),
        ({"tau": 0.0}, "tau is 0.0"),
    ],
)
def test_bad_names_are_told_at_once(options, message):
    with pytest.raises(linsat.ConstraintError, match=message):
        ProjectBatches(CONS, **options)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"y": Y}, "scores names the column 'scores'; there is y"),
        ({"scores": np.array(["a", "b"])}, "dtype <U1 and shape"),
        ({"scores": np.array([[1.0], [1.0, 2.0]], dtype=object)}, "no matrix"),
        ({"scores": Y[:, :3]}, "y has shape"),
    ],
)
def test_bad_batches_are_told(batch, message):
    with pytest.raises(linsat.ConstraintError, match=message):
        ProjectBatches(CONS)(batch)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.data", raising=False)
    with pytest.raises(ImportError, match=r'pip install "linsat-tools\[ray\]"'):
        project_dataset(None, CONS)


SCRIPT = """
import os, pathlib, signal, sys
import numpy as np
import ray
import linsat
from linsat.interop import ray as bulk

marker = pathlib.Path(sys.argv[1])

class Killed(bulk.ProjectBatches):
    '''One worker dies, without a chance to tidy up, in the middle of the data.'''
    def __call__(self, batch):
        if 300 in batch["id"] and not marker.exists():
            marker.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)

bulk.ProjectBatches = Killed
ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=150 * 2**20)
ray.data.DataContext.get_current().enable_progress_bars = False
y = np.random.default_rng(0).normal(size=(600, 4))
table = ray.data.from_items([{"id": i, "scores": row} for i, row in enumerate(y)], override_num_blocks=12)
done = bulk.project_dataset(table, linsat.constraints.top_k(4, 2), tau=0.5, workers=2, batch_size=20)
rows = done.take_all()
np.savez(sys.argv[2], id=[row["id"] for row in rows], x=np.stack([row["x"] for row in rows]), y=y,
         status=[row["status"] for row in rows])
"""


def test_a_worker_killed_midway_loses_no_row_and_doubles_none(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "program.py").write_text(SCRIPT)
    marker, result = tmp_path / "killed", tmp_path / "rows.npz"
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(marker), str(result)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert marker.exists()  # the kill took place
    with np.load(result, allow_pickle=False) as found:
        assert sorted(found["id"].tolist()) == list(range(600))
        order = np.argsort(found["id"])
        np.testing.assert_allclose(found["x"][order], _exact(found["y"], 0.5), rtol=0, atol=1e-8)
        assert set(found["status"].tolist()) == {"converged"}
