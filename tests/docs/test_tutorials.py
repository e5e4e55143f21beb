"""The tutorials: notebooks are those of their sources, and what the sources find holds against other solvers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import coo_array

import linsat

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "docs" / "tutorials" / "src").glob("*.py"))
EXTENSION = runpy.run_path(str(ROOT / "docs" / "extensions" / "notebooks.py"))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a tutorial as a script; returns the variables it leaves behind."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pytest.importorskip("highspy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield lambda name: runpy.run_path(str(ROOT / "docs" / "tutorials" / "src" / f"{name}.py"))
    pyplot.close("all")


def best_decision(scores: torch.Tensor, cons: linsat.Constraints) -> float:
    """The value of the best 0/1 point, by branch and bound."""
    rows = cons.statement()
    matrix = coo_array((rows.values, (rows.row, rows.col)), shape=(len(rows.rhs), rows.num_variables))
    low, high = np.where(rows.senses < 0, -np.inf, rows.rhs), np.where(rows.senses > 0, np.inf, rows.rhs)
    y = scores.double().flatten().numpy()
    found = milp(
        -y, constraints=LinearConstraint(matrix.tocsr(), low, high), bounds=Bounds(0, 1), integrality=np.ones(len(y))
    )
    return -found.fun


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_notebook_is_that_of_its_source(source):
    written = json.loads((source.parents[1] / f"{source.stem}.ipynb").read_text(encoding="utf-8"))
    assert written == EXTENSION["notebook"](source.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in written["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 4
    for text in cells:
        compile(text, source.name, "exec")


def test_every_notebook_has_a_source():
    assert {path.stem for path in SOURCES[0].parents[1].glob("*.ipynb")} == {path.stem for path in SOURCES}


def test_pages_have_code_and_outputs():
    content = EXTENSION["notebook"]("# %% [markdown]\n# # One\n# See [two](two.ipynb).\n\n# %%\nprint(1)\n")
    content["cells"][1]["outputs"] = [{"text": "1\n"}, {"data": {"image/png": "aGk=", "text/plain": "<Figure>"}}]
    text, pictures = EXTENSION["page"](content, "one")
    assert "# One\nSee [two](two.md)." in text
    assert "```python\nprint(1)\n```\n\n```text\n1\n```\n\n![One](one-0.png)" in text
    assert pictures == {"one-0.png": b"hi"}


def test_a_notebook_is_executed_in_a_folder_that_goes_away(capfd):
    pytest.importorskip("nbclient")
    content = EXTENSION["notebook"]("# %%\nimport os\n\nprint(6 * 7)\n\n# %%\nprint(os.getcwd())\n")
    cells = EXTENSION["executed"](content)["cells"]
    assert cells[0]["outputs"][0]["text"] == "42\n"
    assert not Path(cells[1]["outputs"][0]["text"].strip()).exists()
    assert capfd.readouterr().err == ""  # where a kernel would warn


def test_a_cell_that_raises_stops_the_build():
    client = pytest.importorskip("nbclient")
    with pytest.raises(client.exceptions.CellExecutionError, match="ZeroDivisionError"):
        EXTENSION["executed"](EXTENSION["notebook"]("# %%\n1 / 0\n"))


def test_first_layer(run):
    found = run("first_layer")
    assert found["losses"][-1] < 0.2 * found["losses"][0]
    values = found["values"]
    position = found["decided"].x.argmax(-1)
    placed = torch.empty_like(values).scatter_(1, position, values)
    in_order = (placed.diff(dim=1) > 0).all(-1).float().mean().item()
    assert in_order == pytest.approx(found["sorted_right"])
    assert in_order > 0.9


def test_roster(run):
    found = run("roster")
    x = found["decided"].x
    assert x.sum(0).tolist() == [2.0] * 7
    assert x.sum(1).max() <= 4
    assert found["reached"] == pytest.approx(best_decision(found["wishes"], found["roster"]), abs=1e-5)
    assert found["solution"].broken.sum().item() == pytest.approx(2.0, abs=1e-6)  # 14 turns, 12 are allowed


def test_moe_router(run):
    found = run("moe_router")
    decided, scores, room, experts = (found[name] for name in ("decided", "scores", "room", "experts"))
    assert decided.sum(2).eq(1).all()
    assert decided.sum(1).max() <= room
    seats = np.repeat(np.arange(experts), room)
    for one, y in zip(decided[:4], scores[:4].numpy(), strict=True):
        best = y[:, seats][linear_sum_assignment(y[:, seats], maximize=True)].sum()
        assert float((one.numpy() * y).sum()) == pytest.approx(best, rel=1e-5)
    assert found["losses"][-1] < 0.1 * found["losses"][0]
    assert found["dropped"] > 0


def test_shortest_path(run):
    found = run("shortest_path")
    size, streets, times = found["size"], found["streets"], found["times"]
    for day in range(20):  # crossings are in an order in which every street leads forward
        length = {(0, 0): 0.0}
        for (a, b), time in zip(streets, times[day].tolist(), strict=True):
            length[b] = min(length.get(b, np.inf), length[a] + time)
        assert float(found["best"][day] @ times[day]) == pytest.approx(length[size - 1, size - 1], rel=1e-9)
    assert found["regrets"]["decision"] < 0.7 * found["regrets"]["prediction"]


def test_matching(run):
    found = run("matching")
    partial, scores = found["partial"], found["scores"]
    assert (partial - partial.round()).abs().max() < 1e-6
    for one, y in zip(partial[:5], scores[:5], strict=True):
        assert float((one * y).sum()) == pytest.approx(best_decision(y, found["rules"]), rel=1e-5)
    assert found["score"]["partial"] > 0.8 > found["score"]["full"]
    assert found["x"].sum((1, 2)).tolist() == pytest.approx([2.0, 4.0, 6.0], abs=0.05)
