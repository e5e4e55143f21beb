"""The command line, run as a person runs it: train, evaluate, report and allocate on a file of one's own."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

from linsat_studies.portfolio.commands import app
from linsat_studies.portfolio.document import tables
from linsat_studies.portfolio.measurements import find_runs, over_seeds

runner = CliRunner()
PERIODS = ("--train", "2019-01-01:2020-06-30", "--test", "2020-07-06:2020-12-31")


def run(*words):
    result = runner.invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    days = np.arange(np.datetime64("2019-01-01"), np.datetime64("2021-01-01"))
    dates = days[np.is_busday(days)]
    rng = np.random.default_rng(0)
    steps = rng.normal(0.0005, 0.01, size=(len(dates), 9)) + rng.normal(0, 0.008, size=(len(dates), 1))
    values = 30 * np.exp(np.cumsum(steps, axis=0))
    path = tmp_path_factory.mktemp("data") / "my.csv"
    names = ["AAPL", "MSFT", "S3", "S4", "S5", "S6", "S7", "S8", "S9"]
    lines = ["date," + ",".join(names)]
    lines += [f"{day}," + ",".join(f"{value:.6f}" for value in row) for day, row in zip(dates, values)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def study(prices, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    code, text = run("train", "--prices", prices, "--seeds", 2, "--steps", 2, "--out", folder, *PERIODS)
    assert code == 0, text
    assert len(find_runs(folder)) == 20
    return folder


def test_evaluate_writes_the_table_it_prints(study, prices, tmp_path):
    code, text = run("evaluate", "--prices", prices, "--out", study, "--json", tmp_path / "t.json", *PERIODS)
    assert code == 0, text
    content = json.loads((tmp_path / "t.json").read_text())
    assert content["scope"]["preferred"] == ["AAPL", "MSFT"]
    for predictor in ("lstm", "stemgnn"):
        rows = content["table"][predictor]
        assert set(rows) >= {"softmax", "two-stage", "layer", "softmax + projection"}
        assert rows["layer"]["violation"] < 1e-6
        assert rows["softmax + projection"]["violation"] < 1e-6
        assert rows["two-stage"]["violation"] < 1e-6
        assert rows["layer"]["seeds"] == 2
        assert f"{rows['layer']['mean']:.3f}" in text
        # The stated figure is the mean over windows and seeds of what the weights on disk earn, recomputed by hand.
        table = np.loadtxt(prices, delimiter=",", skiprows=1, usecols=range(1, 10))
        dates = np.loadtxt(prices, delimiter=",", skiprows=1, usecols=0, dtype="datetime64[D]")
        first = int(np.searchsorted(dates, np.datetime64("2020-07-06")))
        ratios = []
        for seed in (0, 1):
            with np.load(study / "results" / f"{predictor}_layer_{seed}.npz") as file:
                weights = file["weights"]
            assert weights[:, :2].sum(1).min() >= 0.5 - 1e-9
            for k, w in enumerate(weights):
                held = table[first + k - 1 : first + k + 120]
                assert len(held) == 121
                daily = (held[1:] / held[:-1] - 1) @ w
                ratios.append((252 * daily.mean() - 0.03) / (np.sqrt(252) * daily.std(ddof=1)))
        assert rows["layer"]["mean"] == pytest.approx(np.mean(ratios), abs=1e-9)


def test_report_is_one_page_and_continues(study, prices):
    words = ("report", "--prices", prices, "--out", study, *PERIODS)
    code, text = run(*words)
    assert code == 0, text
    page = (study / "index.html").read_text()
    assert "Left out" not in page  # two preferred assets reach 50 %, so the cap shown is wider than 10 %
    for phrase in (
        "caps of 30% an asset",
        "Table 3",
        "Table 9",
        "softmax + projection",
        "Further rules",
        "equal weight",
        "2.27",
        "2.42",
    ):
        assert phrase in page
    assert page.count("data:image/png;base64") == 3
    assert not re.search(r'(src|href)="(?!data:)', page)
    before = {path: path.stat().st_mtime_ns for path in (study / "results").glob("*.json")}
    assert run(*words)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (study / "results").glob("*.json")} == before


def test_further_rules_are_kept_and_recorded_for_the_page(study, prices, tmp_path):
    """What the record says is recomputed from the weights on disk; few assets may leave no room for a rule."""
    words = ("--prices", prices, "--out", study, "--record", tmp_path / "report.json", *PERIODS)
    code, text = run("report", *words)
    assert code == 0, text
    record = json.loads((tmp_path / "report.json").read_text())
    made = tables({"report": record})
    assert {"caps", "turnover", "nearest", "nearest, risk"} <= set(record["rules"])
    table = np.loadtxt(prices, delimiter=",", skiprows=1, usecols=range(1, 10))
    dates = np.loadtxt(prices, delimiter=",", skiprows=1, usecols=0, dtype="datetime64[D]")
    first = int(np.searchsorted(dates, np.datetime64("2020-07-06")))
    seen = {}
    for name in ("turnover", "nearest", "nearest, risk"):
        with np.load(study / "results" / f"rules_{name.replace(', ', '_')}.npz") as file:
            weights = file["weights"]
        row = record["rules"][name]
        assert row["row_violation"] < 1e-6
        moved = np.abs(np.diff(weights, axis=0)).sum(1) / 2
        assert row["largest_turnover"] == pytest.approx(moved.max())
        past = [
            np.diff(table[first + k - 120 : first + k], axis=0) / table[first + k - 120 : first + k - 1]
            for k in range(len(weights))
        ]
        seen[name] = np.mean([w @ np.cov(days, rowvar=False) @ w for w, days in zip(weights, past)])
        assert f"| {name} | {row['mean_sharpe']:.3f} | {row['volatility']:.1%} |" in made["rules"]
    assert record["rules"]["turnover"]["largest_turnover"] <= 0.02 + 1e-6
    assert seen["nearest, risk"] < seen["nearest"]
    for predictor, name in (("lstm", "LSTM"), ("stemgnn", "StemGNN")):
        each = [json.loads((study / "results" / f"{predictor}_layer_{seed}.json").read_text()) for seed in (0, 1)]
        network, layer = (np.median([one["seconds"][part] for one in each]) for part in ("network_one", "layer_one"))
        share = layer / (network + layer)
        assert f"| {name}, one window | {1000 * network:.3g} ms | {1000 * layer:.3g} ms |" in made["times"]
        assert f"| {share:.1%} |".replace("%", " %") in made["times"]


def test_search_keeps_to_the_training_period_and_says_what_it_chose(prices, tmp_path):
    words = (
        "search",
        "--predictor",
        "lstm",
        "--fold",
        "2020-01-06",
        "--steps",
        1,
        "--steps",
        3,
        "--seeds",
        2,
        *PERIODS,
    )
    code, text = run(*words, "--prices", prices, "--out", tmp_path / "a")
    assert code == 0, text
    # Other prices after the training period change nothing.
    lines = prices.read_text().splitlines()
    later = [line.split(",") for line in lines[1:] if line > "2020-07"]
    changed = [",".join([day, *(str(2 * float(cell)) for cell in cells)]) for day, *cells in later]
    other = tmp_path / "other.csv"
    other.write_text(
        "\n".join([line for line in lines if line <= "2020-07" or line.startswith("date")] + changed) + "\n"
    )
    code, _ = run(*words, "--prices", other, "--out", tmp_path / "b")
    assert code == 0
    for technique in ("softmax", "two-stage", "layer"):
        first, second = (
            json.loads((tmp_path / name / "search" / f"lstm_{technique}" / "search.json").read_text()) for name in "ab"
        )
        assert first["candidates"] == second["candidates"]
        assert len(first["candidates"]) == 2
        means = {name: np.mean(list(tried["ratios"].values())) for name, tried in first["candidates"].items()}
        assert first["chosen"] == max(means, key=means.get)
        assert f"{means[first['chosen']]:.3f}" in text
    code, text = run(*words, "--prices", other, "--out", tmp_path / "a")
    assert code == 2
    assert "other prices" in text


def test_allocate_gives_weights_for_tomorrow(study, prices, tmp_path):
    path = study / "runs" / "lstm_layer_0" / "last.pt"
    code, text = run("allocate", path, "--prices", prices, "--json", tmp_path / "w.json")
    assert code == 0, text
    content = json.loads((tmp_path / "w.json").read_text())
    assert content["after"] == "2020-12-31"
    assert sum(content["weights"].values()) == pytest.approx(1, abs=1e-9)
    assert content["weights"]["AAPL"] + content["weights"]["MSFT"] >= 0.5 - 1e-9
    code, text = run("allocate", study / "runs" / "lstm_two-stage_0" / "last.pt", "--prices", prices)
    assert code == 2
    assert "two-stage" in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("train", "--prefer", "AAPL,TYPO"), "prefer names 'TYPO'"),
        (("train", "--train", "2019-01-01"), "expected FROM:TO"),
        (("train", "--out", "nothing/here", "--train", "2019-01-01:2019-03-01"), "too short for a training window"),
        (("evaluate", "--prefer", "S3"), "another preference"),
        (("evaluate", "--out", "nothing/here"), "holds no trained network"),
    ],
)
def test_mistakes_end_in_one_line(words, named, study, prices):
    given = [*words, "--prices", prices]
    if "--out" not in words:
        given += ["--out", study]
    if "--train" not in words:
        given += [*PERIODS]
    else:
        given += ["--test", PERIODS[3]]
    code, text = run(*given)
    assert code == 2, text
    assert named in text
    assert len(text.strip().splitlines()) == 1


def test_spread_and_standard_error_over_seeds():
    rest = {"held_sharpe": 0, "violation": 0, "simplex_violation": 0, "preferred_share": 0.5, "assets": 1}
    row = over_seeds([{"mean_sharpe": value, **rest} for value in (1.0, 2.0, 3.0)])
    assert row["mean"] == 2.0
    assert row["spread"] == pytest.approx(1.0)
    assert row["error"] == pytest.approx(1 / np.sqrt(3))
