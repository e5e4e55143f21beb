"""The command line, run as a person runs it: train, evaluate, show and report on synthetic point sets."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
from typer.testing import CliRunner

from linsat_studies.matching import commands
from linsat_studies.matching.data import test_pairs as fixed_test_pairs
from linsat_studies.matching.document import longer_table, phi_table, rounding_table, rows_table
from linsat_studies.matching.measurements import LONGER, ROWS, find_runs, over_seeds
from linsat_studies.matching.report import summary
from linsat_studies.matching.source import demo_collection

runner = CliRunner()
SMALL = {"width": 8, "channels": 4, "kernel": 3, "layers": 1, "rounds": 1}


@pytest.fixture(autouse=True)
def _without_data(monkeypatch):
    monkeypatch.delenv("LINSAT_DATA", raising=False)


def run(*words):
    result = runner.invoke(commands.app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LINSAT_DATA", raising=False)
        settings = {"network": SMALL, "batch": 4, "validated": 2, "iterations": 5}
        (folder / "small.json").write_text(json.dumps(settings))
        words = ("--steps", 2, "--seeds", 2, "--phi", "--config", folder / "small.json", "--out", folder)
        code, text = run("train", *words)
    assert code == 0, text
    assert text.count("trained:") == 22
    return folder


def test_training_makes_every_run_of_table_2(study):
    runs = find_runs(study)
    wanted = {(row.network, row.trained) for row in ROWS.values()}
    assert {(one.network, one.trained) for one in runs} == wanted
    assert sorted(one.seed for one in runs) == [0] * len(wanted) + [1] * len(wanted)
    assert {path.parent.name for path in study.glob("phi/*/last.pt")} == {
        "regression-0",
        "regression-1",
        "bound-0",
        "bound-1",
    }


def test_evaluate_writes_the_table_it_prints(study, tmp_path):
    code, text = run("evaluate", "--out", study, "--pairs", 15, "--json", tmp_path / "t.json")
    assert code == 0, text
    content = json.loads((tmp_path / "t.json").read_text())
    assert content["scope"]["pairs"] == 60
    assert set(content["table"]) == set(ROWS)
    pairs = fixed_test_pairs(demo_collection(), per_class=15)
    phi = np.array([pair.phi for pair in pairs])
    smaller = np.array([min(len(pair.left.names), len(pair.right.names)) for pair in pairs])
    for name, row in content["table"].items():
        assert f"{100 * row['f1']:.2f}" in text
        assert row["seeds"] == 2
        if not name.startswith("BBGM") and "Sinkhorn" not in name:
            assert max(row["violation"], row["excess"]) < 1e-6
        # The figure is what the counts on disk say, by the textbook formula, pair by pair.
        each = []
        for seed in (0, 1):
            file = study / "results" / f"{re.sub('[^a-z0-9.]+', '_', name.lower())}_{seed}.npz"
            with np.load(file, allow_pickle=False) as counts:
                assert counts["phi"].tolist() == phi.tolist()
                kept = phi if ROWS[name].kept == "phi" else smaller
                assert counts["predicted"].tolist() == kept.tolist()
                precision, recall = counts["hits"] / counts["predicted"], counts["hits"] / phi
            f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-30)
            each.append(np.mean([f1[15 * k : 15 * (k + 1)].mean() for k in range(4)]))
        assert row["each"] == pytest.approx(each, abs=1e-12)
        assert row["f1"] == pytest.approx(np.mean(each))
        assert row["error"] == pytest.approx(abs(each[0] - each[1]) / 2)


def test_report_is_one_page_and_continues(study, tmp_path):
    words = ("report", "--out", study, "--pairs", 4, "--record", tmp_path / "report.json")
    code, text = run(*words)
    assert code == 0, text
    page = (study / "index.html").read_text()
    for phrase in ("Table 2", "Table 5", "Table 8", "position alone", "61.2", "83.99", "81.4 %", "phi estimated"):
        assert phrase in page
    assert page.count("data:image/png;base64") == 6
    assert not re.search(r'(src|href)="(?!data:)', page)
    before = {path: path.stat().st_mtime_ns for path in (study / "results").glob("*.json")}
    assert len(before) > 20
    assert run(*words)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (study / "results").glob("*.json")} == before
    record = json.loads((tmp_path / "report.json").read_text())
    shown = rows_table(record)
    for name, row in record["table"].items():
        assert f"| {100 * row['f1']:.1f} | {100 * row['error']:.1f} | 2 |" in shown
        for ours, leads in record["paired"].items():
            if name != ours:
                lead = record["table"][ours]["f1"] - row["f1"]
                assert leads[name]["mean"] == pytest.approx(lead, abs=1e-12)
                assert f"{100 * lead:.1f} (" in (longer_table(record) if ours == LONGER else shown)
    assert f"| {record['estimated']['bound']['phi_error']:.2f} |" in phi_table(record["estimated"]).splitlines()[-1]
    assert f"{100 * record['rounded']['0.05']['feasible']:.1f} %" in rounding_table(record)
    run("evaluate", "--out", study, "--pairs", 5)  # other pairs: measured again
    changed = [path for path in before if path.stat().st_mtime_ns != before[path]]
    assert len(changed) == 2 * len(ROWS)


def test_show_draws_two_named_objects(study, tmp_path):
    collection = demo_collection()
    pair = fixed_test_pairs(collection, per_class=1)[0]
    path = tmp_path / "pair.svg"
    code, text = run("show", pair.left.id, pair.right.id, "--out", study, "--picture", path)
    assert code == 0, text
    assert f"phi = {pair.phi}" in text
    lines = [line.strip() for line in text.splitlines() if " - " in line]
    assert len(lines) == pair.phi
    for line in lines:
        first, second = line.removesuffix("  wrong").split(" - ")
        assert first in pair.left.names
        assert second in pair.right.names
        assert line.endswith("wrong") == (first != second)
    right = sum(not line.endswith("wrong") for line in lines)
    assert f"{right} of {pair.phi} matches right" in text
    assert path.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("evaluate", "--data", "nothing/here"), "holds annotations.json.gz"),
        (("show", "shape0-0001"), "only one object is named"),
        (("show", "shape0-0001", "shape1-0001"), "is a shape0 and shape1-0001 a shape1"),
        (("show", "shape0-0001", "dog"), "there is no object 'dog'"),
        (("show", "--picture", "drawn.gif"), "expected .png, .svg or .pdf"),
        (("show", "--run", "none.pt"), "none.pt is not a file"),
        (("train", "--network", "pca-gm", "--technique", "layer", "--config", "none.json"), "none.json"),
        (("prepare",), "no keypoint data named"),
        (("finetune",), "no keypoint data named"),
    ],
)
def test_mistakes_end_in_one_line(words, named, study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, text = run(*words, "--out", study)
    assert code == 2, text
    assert named in text
    assert len(text.strip().splitlines()) == 1


def test_data_named_by_the_environment_must_be_there(study, tmp_path, monkeypatch):
    monkeypatch.setenv("LINSAT_DATA", str(tmp_path))
    code, text = run("evaluate", "--out", study)
    assert code == 2
    assert str(tmp_path) in text


def test_runs_of_a_person_s_own_combination():
    assert commands.chosen_runs("pca-gm", "layer") == [("pca-gm", "layer")]
    assert commands.chosen_runs("bbgm", "all") == [
        ("bbgm", "black-box"),
        ("bbgm", "black-box-partial"),
        ("bbgm", "sinkhorn"),
    ]
    assert commands.chosen_runs("all", "layer") == [("ngm", "layer")]


def test_spread_and_leads_over_seeds():
    def results(*values):
        rest = {"precision": 0.5, "recall": 0.25, "violation": 1e-9, "excess": 0.0}
        return [{"f1": value, "by_class": {"cat": value}, **rest} for value in values]

    row = over_seeds(results(0.1, 0.2, 0.3))
    assert row["f1"] == pytest.approx(0.2)
    assert row["spread"] == pytest.approx(0.1)
    assert row["error"] == pytest.approx(0.1 / np.sqrt(3))
    assert row["by_class"]["cat"] == pytest.approx(0.2)
    table = summary({"NGMv2, layer": results(0.5, 0.6), "PCA-GM, Sinkhorn": results(0.48, 0.52)})
    ours = table["NGMv2, layer"]
    assert ours["leads"]["PCA-GM, Sinkhorn"] == pytest.approx(0.05)
    assert ours["errors"]["PCA-GM, Sinkhorn"] == pytest.approx(np.hypot(0.05, 0.02))
    assert ours["passes"]["PCA-GM, Sinkhorn"] is False
