"""The report: what is measured is stored and read again, what is missing is said, and the page holds it all."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from linsat_studies.figures import embed
from linsat_studies.page import Page
from linsat_studies.tsp import measurements, paper
from linsat_studies.tsp.charts import equal_time_chart, learning_chart
from linsat_studies.tsp.data import random_instances
from linsat_studies.tsp.document import tables
from linsat_studies.tsp.measurements import Measured, Scope
from linsat_studies.tsp.pictures import tour_grid
from linsat_studies.tsp.report import build_page, duration, shipped_curves, write_report
from linsat_studies.tsp.tours import lengths

SCOPE = Scope("pri", count=3, trained=2, slow=0, seed=3)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("linsat_studies.tsp.evaluate.available_threads", lambda: 1)


def test_the_table_of_the_page_by_hand():
    one = {"mean_length": 3.7, "seconds": {"total": 44.0, "layer": 2.04}, "threads": 1}
    rival = {"mean_length": 4.0, "seconds": 0.02}
    rivals = {"optimum": {"se": 3.6, "pri": 3.65}, "rows": {"nearest neighbour": {"se": rival, "pri": rival}}}
    lines = tables({"se": one, "pri": one, "rivals": rivals})["results"].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    time = "44 s, of it the layer 2 s (threads: 1)"
    assert cells[0] == ["**LinSAT, beam 2,048**", "3.811", "3.7000", "2.78 %", "3.943", "3.7000", "1.37 %", time, time]
    assert cells[1] == [
        "nearest neighbour",
        "4.367",
        "4.0000",
        "11.11 %",
        "4.674",
        "4.0000",
        "9.59 %",
        "0.02 s",
        "0.02 s",
    ]


def test_a_part_is_measured_once_for_its_scope(tmp_path, monkeypatch):
    calls: list[int] = []
    monkeypatch.setitem(measurements.PARTS, "restarts", lambda *_: calls.append(1) or {"rows": {}})
    for _ in range(2):
        assert Measured(SCOPE, tmp_path).part("restarts")["rows"] == {}
    assert len(calls) == 1
    Measured(dataclasses.replace(SCOPE, count=4), tmp_path).part("restarts")
    assert len(calls) == 2


def test_what_is_missing_is_noted_and_tried_again(tmp_path, monkeypatch):
    def missing(*_: object) -> dict:
        raise ImportError("needs a solver")

    notes: list[str] = []
    monkeypatch.setitem(measurements.PARTS, "solvers", missing)
    assert Measured(SCOPE, tmp_path, notes.append).part("solvers") is None
    assert notes == ["solvers (pri) left out: needs a solver"]
    assert not list(tmp_path.glob("*solvers*"))


def test_parts_state_gaps_to_the_optimum(tmp_path):
    measured = Measured(SCOPE, tmp_path)
    best = measured.part("optimum")["mean_length"]
    rows = measured.part("heuristics")["rows"] | measured.part("restarts")["rows"]
    assert rows.keys() >= {"nearest neighbour", "farthest insertion", "1", "50"}
    for row in rows.values():
        assert row["gap_percent"] == pytest.approx(100 * (row["mean_length"] / best - 1))
        assert row["gap_percent"] > -1e-9
    assert rows["50"]["gap_percent"] == pytest.approx(0, abs=1e-6)


def test_the_whole_report_on_a_few_instances(tmp_path, monkeypatch):
    wanted = ("optimum", "heuristics", "restarts", "solvers", "linsat", "rounding", "equal_time", "examples")
    kept = {name: part for name, part in measurements.PARTS.items() if name in wanted}
    monkeypatch.setattr(measurements, "SEARCH_WIDTHS", (1, 4))
    monkeypatch.setattr("linsat_studies.tsp.report.PARTS", kept)
    path = write_report(tmp_path / "out", lambda task: dataclasses.replace(SCOPE, task=task))
    text = path.read_text()
    for words in ("Table 1", "Table 4", "Table 7", "At equal time", "Figure 3", "Figure 4", "TSP-PRI"):
        assert words in text
    assert "Table 6" not in text  # its part was not measured
    assert "http" not in text  # nothing is fetched from elsewhere
    assert text.count("data:image/png;base64,") >= 3
    stored = json.loads((tmp_path / "out" / "results" / "pri_linsat.json").read_text())
    assert f"{stored['rows']['beam']['mean_length']:.4f}" in text
    tours = json.loads((tmp_path / "out" / "results" / "se_examples.json").read_text())["tours"]
    instances = random_instances("se", 3, seed=3)
    shortest = lengths(instances.coords, np.array(tours["shortest"]))
    assert all((lengths(instances.coords, np.array(found)) >= shortest - 1e-9).all() for found in tours.values())


def test_the_papers_figures_stand_beside_ours():
    row = {"mean_length": 5.4321, "gap_percent": 12.3, "seconds": 3.0, "count": 9}
    both = {task: {"rows": {"nearest neighbour": row}} for task in ("se", "pri")}
    table = {key: {"plain": 7.7, "merged": 6.6, "seconds": 75.0, "count": 9} for key in paper.TABLE_6}
    parts = {"heuristics": both, "ablation": {task: {"rows": table} for task in ("se", "pri")}}
    page = build_page(parts, {task: dataclasses.replace(SCOPE, task=task) for task in ("se", "pri")}, ["no LKH"])
    text = re.sub(r"<[^>]+>", " ", "".join(page.parts))
    for words in ("4.367", "4.674", "5.4321", "12.30 %", "7.414", "7.700", "1 min 15 s", "no LKH"):
        assert words in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.31, "0.31 s"), (45.2, "45 s"), (164, "2 min 44 s"), (3720, "1 h 2 min"), (59.7, "60 s")]
)
def test_durations_read_as_a_person_says_them(seconds, text):
    assert duration(seconds) == text


def test_a_page_escapes_what_it_is_given(tmp_path):
    page = Page("a < b")
    page.text("use `x < y` & more")
    page.table(["<h>"], [["<c>"]])
    page.write(tmp_path / "deep" / "page.html")
    text = (tmp_path / "deep" / "page.html").read_text()
    assert "<code>x &lt; y</code> &amp; more" in text
    assert "<c>" not in text
    assert "<title>a &lt; b</title>" in text


def test_pictures_are_drawn_from_any_start_and_with_gaps_of_zero():
    few = random_instances("pri", 2, seed=1)
    tour = np.array([[0, 1, *range(2, 20)]] * 2)
    assert embed(tour_grid(few, {"a": tour, "b": tour}, reference="a")).startswith("data:image/png;base64,iVBOR")
    rows = {"1": {"gap_percent": 1.0, "seconds": 0.1}, "5": {"gap_percent": 0.0, "seconds": 0.4}}
    assert embed(equal_time_chart({"se": (rows, rows), "pri": (rows, {})}))


def test_learning_curves_are_read_from_their_files(tmp_path):
    (tmp_path / "tour_se.jsonl").write_text(
        '{"step": 1, "seconds": 60.0, "se": 4.0}\n{"step": 2, "seconds": 120, "se": 3.9}\n'
    )
    curves = shipped_curves(tmp_path)
    assert [line["se"] for line in curves["tour_se"]] == [4.0, 3.9]
    lines = learning_chart(curves).axes[0].lines
    np.testing.assert_allclose(lines[0].get_xydata(), [[1.0, 4.0], [2.0, 3.9]])
