"""The networks that come with the package, on the synthetic point sets: what a person sees who has no data."""

import json

import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
from typer.testing import CliRunner

from linsat_studies.matching import commands
from linsat_studies.matching.source import SHIPPED


def run(*words):
    result = CliRunner().invoke(commands.app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_networks_that_come_with_the_package_beat_positions(tmp_path, monkeypatch):
    monkeypatch.delenv("LINSAT_DATA", raising=False)
    code, text = run("report", "--out", tmp_path, "--pairs", 25)
    assert code == 0, text
    table = json.loads((tmp_path / "summary.json").read_text())["table"]
    alone = json.loads((tmp_path / "results" / "position_alone.json").read_text())["f1"]
    assert alone < 0.7
    for name in ("NGMv2, Sinkhorn + top-phi", "NGMv2, layer"):
        assert table[name]["f1"] > 0.8
    assert table["NGMv2, Sinkhorn"]["precision"] < table["NGMv2, layer"]["precision"]  # outliers are matched there
    rounded = json.loads((tmp_path / "results" / "rounded_0.01_ngm_layer_0.json").read_text())
    assert rounded["feasible"] > 0.962  # the paper's share, on its own data


def test_they_are_small():
    files = list(SHIPPED.glob("*.pt"))
    assert len(files) == 2
    assert sum(file.stat().st_size for file in files) < 300_000
