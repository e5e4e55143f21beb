"""Networks and training: shapes, independence of windows, the graph, learning, resuming, no look-ahead."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from linsat_studies.checkpoints import CheckpointError, read_checkpoint
from linsat_studies.portfolio.config import (
    NetworkConfig,
    Periods,
    PortfolioConfig,
    Rules,
    default_config,
    read_config,
)
from linsat_studies.portfolio.data import Prices, Windows, training_windows
from linsat_studies.portfolio.model import build_network, standardised, weekly
from linsat_studies.portfolio.stemgnn import Graph
from linsat_studies.portfolio.train import PortfolioLearner, load_run, train
from linsat_studies.settings import ConfigError, Plan, to_json

PERIODS = Periods("2020-01-01", "2020-09-30", "2020-10-10", "2020-12-31", past=20, future=10)
KINDS = ("lstm", "stemgnn")


def make_prices(seed=0, drift=None, assets=6):
    days = np.arange(np.datetime64("2020-01-01"), np.datetime64("2021-01-01"))
    dates = days[np.is_busday(days)]
    steps = np.random.default_rng(seed).normal(0, 0.01, size=(len(dates), assets))
    steps += 0 if drift is None else np.asarray(drift)
    return Prices(dates, tuple("ABCDEFGH"[:assets]), 50 * np.exp(np.cumsum(steps, axis=0)))


def small_config(kind="lstm", technique="layer", steps=4, **changes):
    config = PortfolioConfig(
        technique=technique,
        network=NetworkConfig(kind=kind, hidden=8),
        periods=PERIODS,
        rules=Rules(("A", "B"), 0.5),
        plan=Plan(steps=steps, every=2, warmup=2, rate=1e-2, average=0.5),
        batch=8,
    )
    return replace(config, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_gets_the_same_answer_alone_and_in_a_batch(kind):
    torch.manual_seed(0)
    network = build_network(NetworkConfig(kind=kind, hidden=8), PERIODS, assets=6, scale=0.01).eval()
    seen = torch.from_numpy(training_windows(make_prices(), PERIODS)[:5].seen()).float()
    together = network(seen)
    assert together.scores.shape == (5, 6)
    assert together.growth.shape == (5, 10, 6)
    for k in range(5):
        alone = network(seen[k : k + 1])
        torch.testing.assert_close(alone.scores[0], together.scores[k], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(alone.growth[0], together.growth[k], atol=1e-5, rtol=1e-4)


def test_the_graph_is_the_normalised_symmetric_attention():
    attention = torch.randn(2, 5, 5, dtype=torch.float64).softmax(-1)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    W = (attention + attention.transpose(1, 2)) / 2
    root = torch.diag_embed(W.sum(-1) ** -0.5)
    S = root @ W @ root
    torch.testing.assert_close(Graph.of(attention)(x), S @ x)
    assert torch.linalg.eigvalsh(S).abs().max() <= 1 + 1e-12


def test_weekly_returns_add_up():
    seen = torch.randn(2, 20, 3).cumsum(1)
    found = weekly(seen)
    assert found.shape == (2, 4, 3)
    torch.testing.assert_close(found[:, -1], seen[:, 19] - seen[:, 14])
    torch.testing.assert_close(found.sum(1), seen[:, 19] - seen[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_growth_is_the_running_sum_of_daily_log_returns(kind):
    """The networks sum before their linear head; here the days are made one by one and summed after it."""
    torch.manual_seed(0)
    network = build_network(NetworkConfig(kind=kind, hidden=8), PERIODS, assets=6, scale=0.01).eval()
    torch.nn.init.normal_(network.path.bias)
    seen = torch.from_numpy(training_windows(make_prices(), PERIODS)[:3].seen()).float()
    with torch.no_grad():
        if kind == "lstm":
            _, (state, _) = network.lstm(seen.diff(dim=1) / 0.01)
            daily = torch.stack([network.path(torch.tanh(state[-1] + day)) for day in network.days], dim=1)
        else:
            features = network.body(weekly(seen).transpose(1, 2) / (5**0.5 * 0.01))
            daily = network.path(features).transpose(1, 2)
        total = torch.zeros(3, 6)
        for day in range(10):
            total = total + 0.01 * daily[:, day]
            torch.testing.assert_close(network(seen).growth[:, day], total, atol=1e-6, rtol=1e-5)


def test_stemgnn_treats_assets_alike_without_identity():
    """Assets in another order: scores in that order."""
    torch.manual_seed(0)
    network = build_network(NetworkConfig("stemgnn", 8, identity=False), PERIODS, assets=6, scale=0.01).eval()
    seen = torch.from_numpy(training_windows(make_prices(), PERIODS)[:3].seen()).float()
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(network(seen[..., order]).scores, network(seen).scores[..., order], atol=1e-6, rtol=1e-4)


def test_relative_stemgnn_sees_neither_names_nor_the_market():
    """A return that all assets share changes no score; scores are standardised; any number of assets will do."""
    torch.manual_seed(0)
    config = NetworkConfig("stemgnn", 8, identity=False, relative=True)
    network = build_network(config, PERIODS, assets=6, scale=0.01).eval()
    seen = torch.from_numpy(training_windows(make_prices(), PERIODS)[:3].seen()).float()
    scores = network(seen).scores
    market = torch.linspace(-0.3, 0, seen.shape[1])[:, None]
    torch.testing.assert_close(network(seen + market).scores, scores, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(scores.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.std(1, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    assert network(seen[..., :4]).scores.shape == (3, 4)
    assert torch.equal(standardised(torch.full((1, 5), 3.0)), torch.zeros(1, 5))


@pytest.mark.parametrize("technique", ["softmax", "two-stage", "layer", "slack-free", "euclidean"])
def test_assets_drawn_at_random_make_names_irrelevant(technique):
    """Whoever is preferred, training is the same; and a step is the same whenever it is computed."""
    network = NetworkConfig("stemgnn", 8, identity=False, relative=True)
    made = [
        PortfolioLearner(small_config(technique=technique, network=network, assets=5, rules=Rules(who)), make_prices())
        for who in (("A", "B"), ("C", "F"))
    ]
    first, second = ([learner.loss(step).item() for step in (0, 1)] for learner in made)
    assert first == second
    assert first[0] != first[1]
    assert made[0].loss(0).item() == first[0]


def test_of_the_assets_drawn_the_first_are_preferred():
    network = NetworkConfig("stemgnn", 8, identity=False, relative=True)
    learner = PortfolioLearner(small_config(network=network, assets=5), make_prices())
    weights = learner.weigh_drawn(torch.tensor([[-2.0, -2.0, 3.0, 3.0, 3.0]]))
    assert weights[0, :2].sum() >= 0.5 - 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("technique", ["softmax", "layer", "slack-free", "euclidean", "two-stage"])
def test_gradients_reach_what_a_technique_trains(kind, technique):
    learner = PortfolioLearner(small_config(kind, technique), make_prices())
    learner.loss(0).backward()
    moved = {
        name.split(".")[0]
        for name, p in learner.module.named_parameters()
        if p.grad is not None and bool(p.grad.abs().sum() > 0)
    }
    assert "path" in moved
    assert ("scores" in moved) is (technique != "two-stage")


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_which_assets_rise(kind, tmp_path):
    """Asset C alone rises, B falls less than A: the layer puts all it may on C, and the rest on B."""
    prices = make_prices(drift=[-0.004, 0.0, 0.006, 0, 0, 0], assets=6)
    config = small_config(kind, steps=150, plan=Plan(steps=150, every=75, rate=3e-2, warmup=5, average=0.8))
    network, _ = load_run(train(config, prices, tmp_path / "run"), prices)
    learner = PortfolioLearner(config, prices)
    windows = training_windows(prices, PERIODS)[::10]
    with torch.no_grad():
        weights = learner.weigh(network(torch.from_numpy(windows.seen()).float()).scores).mean(0)
    assert weights[2] > 0.35
    assert weights[1] > 2 * weights[0]
    assert float(weights[:2].sum()) >= 0.5 - 1e-5


def test_losses_are_as_stated():
    prices, config = make_prices(), small_config(sharpe_weight=0.7, prediction_weight=0.3)
    learner = PortfolioLearner(config, prices)
    windows = training_windows(prices, PERIODS)[:4]
    with torch.no_grad():
        said = learner.module(torch.from_numpy(windows.seen()).float())
        weights = learner.weigh(said.scores).double().numpy()
        ratio, error = learner.figures(windows)
    daily = np.einsum("wtn,wn->wt", windows.returns(), weights)
    expected = ((252 * daily.mean(1) - 0.03) / (np.sqrt(252) * daily.std(1, ddof=1))).mean()
    assert float(ratio) == pytest.approx(expected, abs=1e-3)
    squares = (said.growth.numpy() - windows.growth()) ** 2
    assert float(error) == pytest.approx(squares.mean() / learner.unit, rel=1e-4)
    with torch.no_grad():
        assert float(learner._loss(windows)) == pytest.approx(0.3 * float(error) - 0.7 * float(ratio), abs=1e-5)
    summed = PortfolioLearner(replace(config, softmax_weight=2.0), prices)
    with torch.no_grad():
        both, _ = summed.figures(windows)
    spread = np.exp(said.scores.double().numpy())
    daily = np.einsum("wtn,wn->wt", windows.returns(), spread / spread.sum(1, keepdims=True))
    softmax = ((252 * daily.mean(1) - 0.03) / (np.sqrt(252) * daily.std(1, ddof=1))).mean()
    assert float(both) == pytest.approx(expected + 2 * softmax, abs=3e-3)


def test_training_sees_nothing_after_its_period(tmp_path):
    """Other prices after the training period: the same weights of the network, bit for bit."""
    prices = make_prices()
    values = prices.values.copy()
    values[prices.dates > np.datetime64("2020-09-30")] *= 2
    states = []
    for name, table in (("one", prices), ("other", Prices(prices.dates, prices.tickers, values))):
        states.append(read_checkpoint(train(small_config(), table, tmp_path / name))["averaged"])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_a_resumed_run_is_the_same_run_and_strangers_are_refused(tmp_path):
    prices = make_prices()
    train(small_config(steps=4), prices, tmp_path / "whole")

    class Killed(PortfolioLearner):
        def loss(self, step):
            if step == 3:
                raise KeyboardInterrupt
            return super().loss(step)

    from linsat_studies.training import fit

    config = small_config(steps=4)
    stated = {"run": json.loads(to_json(config)), "prices": prices.fingerprint}
    killed = Killed(config, prices)
    with pytest.raises(KeyboardInterrupt):
        fit(killed, config.plan, tmp_path / "killed", config={**stated, "scale": killed.scale})
    train(config, prices, tmp_path / "killed")
    one, other = (read_checkpoint(tmp_path / name / "last.pt") for name in ("whole", "killed"))
    assert all(torch.equal(one["averaged"][key], other["averaged"][key]) for key in one["averaged"])
    with pytest.raises(CheckpointError, match="other prices"):
        train(config, make_prices(seed=1), tmp_path / "whole")
    with pytest.raises(CheckpointError, match="other settings"):
        train(replace(config, tau=0.02), prices, tmp_path / "whole")
    with pytest.raises(CheckpointError, match="other prices"):
        load_run(tmp_path / "whole" / "last.pt", make_prices(seed=1))


def test_validation_uses_windows_held_out():
    learner = PortfolioLearner(small_config(held_out_from="2020-07-01"), make_prices())
    assert learner.fitted.last_held().max() < np.datetime64("2020-07-01")
    assert learner.validated.first_held().min() >= np.datetime64("2020-07-01")
    assert np.isfinite(learner.validate())


def test_settings_come_back_from_json_and_bad_ones_are_named(tmp_path):
    config = default_config("stemgnn", "softmax", seed=3)
    (tmp_path / "c.json").write_text(to_json(config))
    assert read_config(tmp_path / "c.json") == config
    for made, named in (
        (lambda: NetworkConfig(kind="gru"), "kind is 'gru'"),
        (lambda: Rules(at_least=1.5), "at_least is 1.5"),
        (lambda: Rules(cap=0.0), "cap is 0.0"),
        (lambda: Periods(train_to="2022-01-01"), "test_from"),
        (lambda: Periods(test_to="tomorrow"), "test_to is 'tomorrow'"),
        (lambda: PortfolioConfig(technique="magic"), "technique is 'magic'"),
        (lambda: PortfolioConfig(rules=Rules(turnover=0.1)), "turnover is 0.1"),
        (lambda: PortfolioConfig(rules=Rules(risk=1.0)), "risk is 1.0; expected none in training"),
        (lambda: PortfolioConfig(softmax_weight=-1.0), "softmax_weight is -1.0"),
        (lambda: PortfolioConfig(assets=50), "assets is 50; expected none, but for StemGNN without identity"),
        (lambda: replace(config, assets=1), "assets is 1"),
        (lambda: replace(config, rules=Rules(exposure=0.1)), "assets is 164; expected none with rules"),
        (lambda: NetworkConfig(relative=True), "relative is True"),
        (lambda: PortfolioLearner(small_config(network=config.network, assets=2), make_prices()), "assets is 2"),
    ):
        with pytest.raises(ConfigError, match=named):
            made()


def test_predictions_ignore_the_future():
    prices = make_prices()
    network = build_network(NetworkConfig(hidden=8), PERIODS, assets=6, scale=0.01).eval()
    values = prices.values.copy()
    values[60:] *= 1.7
    one = Windows(prices, np.array([60]), 20, 10)
    other = Windows(Prices(prices.dates, prices.tickers, values), np.array([60]), 20, 10)
    with torch.no_grad():
        first, second = (network(torch.from_numpy(w.seen()).float()) for w in (one, other))
    assert torch.equal(first.scores, second.scores)
