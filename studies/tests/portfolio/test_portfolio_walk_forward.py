"""The walk-forward: nothing known too early, interrupted and continued, ensembles that keep their rows, the placebo."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from linsat_studies.portfolio.commands import app
from linsat_studies.portfolio.config import Rules
from linsat_studies.portfolio.data import PriceError, Prices, training_windows
from linsat_studies.portfolio.findings import COMPARISONS, findings, random_sets
from linsat_studies.portfolio.walk_forward import PLAIN, TECHNIQUES, Job, Protocol, WalkForward
from linsat_studies.settings import ConfigError

RULES = Rules(("A", "B"), 0.5)
PROTOCOL = Protocol(cuts=2, first=250, until="2020-12-31", every=20, seeds=2, batch=4, steps=2)


def make_prices(change_from=None):
    days = np.arange(np.datetime64("2018-06-01"), np.datetime64("2021-06-01"))
    dates = days[np.is_busday(days)]
    rng = np.random.default_rng(0)
    steps = rng.normal(0.0005, 0.01, size=(len(dates), 8)) + rng.normal(0, 0.008, size=(len(dates), 1))
    if change_from is not None:
        steps[change_from:] = rng.normal(0.001, 0.03, size=steps[change_from:].shape)
    return Prices(dates, tuple("ABCDEFGH"), 30 * np.exp(np.cumsum(steps, axis=0)))


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    made = WalkForward(tmp_path_factory.mktemp("walk"), make_prices(), RULES, PROTOCOL)
    made.run()
    return made


def test_training_ends_before_its_cut_and_nothing_after_the_last_day_is_read(walk):
    assert walk.prices.dates[-1] == np.datetime64("2020-12-31")
    held = []
    for cut in range(2):
        day = walk.prices.dates[walk.cuts[cut]]
        learned = training_windows(walk.prices, walk.config(Job(cut, "layer", 0)).periods)
        assert learned.last_held().max() < day
        assert walk.block(cut).first_held().min() >= day
        held += walk.block(cut).starts.tolist()
    assert held == walk.windows.starts.tolist()
    assert walk.last_day <= len(walk.prices.dates)


def test_the_lstm_with_the_sum_of_losses(tmp_path):
    protocol = replace(PROTOCOL, predictor="lstm", softmax_weight=1.0)
    made = WalkForward(tmp_path, make_prices(), RULES, protocol)
    config = made.config(Job(1, "layer", 0))
    assert (config.network.kind, config.softmax_weight, config.plan.steps) == ("lstm", 1.0, 2)
    made._keep(Job(1, "layer", 0))
    with np.load(tmp_path / "weights" / "layer_1_0.npz") as file:
        assert file["layer"].shape == (len(made.block(1)), 8)
        assert file["layer"][:, :2].sum(1).min() >= 0.5 - 1e-6
    with pytest.raises(ConfigError, match="predictor is 'gru'"):
        replace(protocol, predictor="gru")


@pytest.mark.slow
def test_later_prices_change_no_earlier_choice(walk, tmp_path):
    """Prices after the first windows of the second cut are others: all choices of the first cut stay the same."""
    changed = make_prices(change_from=int(walk.cuts[1]))
    other = WalkForward(tmp_path, changed, RULES, PROTOCOL)
    for name in ("layer", "two-stage"):
        other._keep(Job(0, name, 0))
        now, before = (np.load(folder / "weights" / f"{name}_0_0.npz")[name] for folder in (tmp_path, walk.folder))
        np.testing.assert_array_equal(now, before)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_says_how_far_it_is(walk, tmp_path):
    told = []

    def stop(text):
        told.append(text)
        if len(told) == 3:
            raise KeyboardInterrupt

    again = WalkForward(tmp_path, make_prices(), RULES, PROTOCOL)
    with pytest.raises(KeyboardInterrupt):
        again.run(note=stop)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("weights/*")}
    assert len(files) == 6
    again.run(note=told.append)
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert told[3].startswith("4 of 20, ")
    assert "min left: " in told[3]
    assert told[-1].startswith("20 of 20, 0 min left")
    for name in TECHNIQUES:
        np.testing.assert_array_equal(again.ensemble(name), walk.ensemble(name))


def test_ensembles_keep_their_rows(walk):
    for name in TECHNIQUES:
        weights = walk.ensemble(name)
        assert weights.shape == (len(walk.windows), 8)
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-9)
        assert weights.min() > -1e-9
        assert walk.worst_violation(name) < (1e-6 if name == "two-stage" else 1e-9)
        if name != "softmax":
            assert weights[:, :2].sum(1).min() > 0.5 - (1e-6 if name == "two-stage" else 1e-9)
    np.testing.assert_allclose(walk.plain("equal weight, preference")[0], [0.25] * 2 + [0.5 / 6] * 6)


def test_series_by_hand(walk):
    """Equal weights earn the mean return of all assets, whichever windows are open."""
    days = slice(walk.cuts[0], walk.last_day)
    expected = walk.prices.values[days] / walk.prices.values[walk.cuts[0] - 1 : walk.last_day - 1] - 1
    np.testing.assert_allclose(walk.series(walk.plain("equal weight")), expected.mean(1), atol=1e-12)


def test_record_and_placebo(walk):
    record = findings(walk, sets=40)
    assert set(record["rows"]) == {*TECHNIQUES, *PLAIN}
    assert [(row["of"], row["less"]) for row in record["differences"]] == list(COMPARISONS)
    for row in record["differences"]:
        assert row["low"] <= row["value"] <= row["high"]
        ratios = [record["rows"][row[key]]["sharpe"]["value"] for key in ("of", "less")]
        assert row["value"] == pytest.approx(ratios[0] - ratios[1], abs=2e-4)
    assert record["placebo"]["sets"] == 28  # pairs of eight
    placebo = {row["of"] for row in record["placebo"]["differences"]}
    assert placebo == {"layer", "layer, slack-free", "layer, Euclidean"}
    json.dumps(record)


def test_placebo_with_the_names_of_the_study_is_the_study(walk):
    from linsat_studies.portfolio.findings import _with_preference

    scores = {name: list(walk.members("scores", name)) for name in ("softmax", "layer", "slack-free", "euclidean")}
    for name, weights in _with_preference(walk, scores, walk.preference).items():
        expected = walk.plain(name) if name in PLAIN else walk.ensemble(name)
        np.testing.assert_allclose(weights, expected, atol=1e-8)


def test_random_sets_differ():
    sets = random_sets(494, 6, 200)
    assert len({tuple(one) for one in sets}) == 200
    assert all(len(set(one)) == 6 and max(one) < 494 for one in sets)
    assert random_sets(4, 2, 200) == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]


def test_too_few_days_are_named(tmp_path):
    with pytest.raises(PriceError, match="days until 2020-12-31; expected at least 240 before the first cut"):
        WalkForward(tmp_path, make_prices(), RULES, Protocol(first=200, until="2020-12-31"))


@pytest.mark.slow
def test_the_command_prints_intervals_and_writes_a_record(tmp_path):
    prices = make_prices()
    lines = ["date," + ",".join(prices.tickers)]
    lines += [f"{day}," + ",".join(f"{v:.6f}" for v in row) for day, row in zip(prices.dates, prices.values)]
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    words = [
        "walk-forward",
        "--prices",
        tmp_path / "p.csv",
        "--prefer",
        "A,B",
        "--cuts",
        1,
        "--first",
        450,
        "--seeds",
        1,
    ]
    words += ["--steps", 1, "--batch", 2, "--sets", 3, "--out", tmp_path / "o"]
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "o" / "record.json").read_text())
    assert record["scope"]["preferred"] == ["A", "B"]
    assert "95 % interval" in result.output
    assert "random preferred sets" in result.output
