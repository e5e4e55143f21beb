"""What a run of the study is made of: periods, rules for the weights, network, losses and the plan of training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from linsat_studies.settings import ConfigError, Plan, expect, from_dict, from_file

PREDICTORS = ("lstm", "stemgnn")
# What a network can be trained for. Two-stage learns prices only; its weights come from a program afterwards.
# "layer" is the paper's; the other two have no slack entropy, and the second takes the nearest point.
TRAINED = ("softmax", "two-stage", "layer", "slack-free", "euclidean")
LAYERS = TRAINED[2:]
PAPER_PREFERRED = ("AAPL", "MSFT", "AMZN", "TSLA", "GOOGL", "GOOG")


def _expect_date(name: str, value: str) -> None:
    try:
        date.fromisoformat(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {value!r}; expected a date such as 2021-03-01.") from None


@dataclass(frozen=True)
class Periods:
    """Which days belong to which windows; all dates are included.

    A training window lies in the training period with its input and its future. The future of a test window lies in the
    test period; its input is the days before, which were known by then. (The paper's test period has 213 trading days,
    fewer than the 240 of input and future together, so inputs cannot lie in it too.)
    """

    train_from: str = "2018-01-01"
    train_to: str = "2020-12-30"
    test_from: str = "2021-03-01"
    test_to: str = "2021-12-30"
    past: int = 120  # trading days that the network sees
    future: int = 120  # trading days that the weights are held

    def __post_init__(self) -> None:
        for name in ("train_from", "train_to", "test_from", "test_to"):
            _expect_date(name, getattr(self, name))
        expect(self.train_from < self.train_to, "train_to", self.train_to, f"a date after {self.train_from}")
        expect(self.train_to < self.test_from, "test_from", self.test_from, f"a date after {self.train_to}")
        expect(self.test_from < self.test_to, "test_to", self.test_to, f"a date after {self.test_from}")
        expect(self.past >= 10, "past", self.past, "at least 10 days")
        expect(self.future >= 2, "future", self.future, "at least 2 days, or there is no risk")


@dataclass(frozen=True)
class Rules:
    """What weights must satisfy besides being in [0, 1] and summing to 1; None leaves a rule out.

    Args:
        prefer: tickers; empty for the paper's six, as far as the prices have them.
        at_least: smallest share of the preferred assets together.
        cap: largest weight of any asset.
        sector_limit: largest share of any sector.
        exposure: each factor exposure, a signed sum over the weights, stays within plus or minus this.
        turnover: largest share of the portfolio that changes hands from one day to the next, half of the sum of
            |w - yesterday's w|. Only at evaluation, where there is a yesterday.
        risk: no rule but another objective: the weights nearest to the scores, whose variance over the days seen, of a
            year, counts this much beside half the squared distance. Only at evaluation.
    """

    prefer: tuple[str, ...] = ()
    at_least: float = 0.5
    cap: float | None = None
    sector_limit: float | None = None
    exposure: float | None = None
    turnover: float | None = None
    risk: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefer", tuple(self.prefer))
        expect(0 <= self.at_least <= 1, "at_least", self.at_least, "a share from 0 to 1")
        for name in ("cap", "sector_limit", "turnover"):
            value = getattr(self, name)
            expect(value is None or 0 < value <= 1, name, value, "a share above 0, at most 1")
        expect(self.exposure is None or self.exposure > 0, "exposure", self.exposure, "a positive number")
        expect(self.risk is None or self.risk >= 0, "risk", self.risk, "a number of at least 0")


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of a predictor."""

    kind: str = "lstm"
    hidden: int = 32  # width of the LSTM's state, or of StemGNN's features of a node
    dropout: float = 0.0  # on what the heads read, in training
    identity: bool = True  # StemGNN: a learned score of each asset, whatever its prices; the LSTM always has one
    relative: bool = False  # StemGNN reads returns less their mean over the assets, and scores are standardised

    def __post_init__(self) -> None:
        expect(self.kind in PREDICTORS, "kind", self.kind, " or ".join(PREDICTORS))
        expect(self.hidden >= 1, "hidden", self.hidden, "at least 1")
        expect(0 <= self.dropout < 1, "dropout", self.dropout, "a share from 0 to below 1")
        expect(not self.relative or self.kind == "stemgnn", "relative", self.relative, "false for the LSTM")


@dataclass(frozen=True)
class PortfolioConfig:
    """One training run. Loss = - sharpe_weight * Sharpe ratio + prediction_weight * error of the predicted prices.

    The Sharpe ratio of a layer is that plus ``softmax_weight`` times the one of a softmax of the same scores; the
    paper's sum of losses has weight 1. The error is the mean square of the predicted log price relative to today's,
    over that of predicting no change.
    """

    technique: str = "layer"
    network: NetworkConfig = field(default_factory=NetworkConfig)
    periods: Periods = field(default_factory=Periods)
    rules: Rules = field(default_factory=Rules)
    plan: Plan = field(default_factory=lambda: Plan(steps=240, warmup=10, every=60, average=0.9))
    batch: int = 32  # windows a step
    assets: int | None = None  # drawn at random each step, the preferred ones among them; None: all, as they are
    tau: float = 0.01  # temperature of the layer
    sharpe_weight: float = 1.0
    softmax_weight: float = 0.0
    prediction_weight: float = 1.0
    held_out_from: str | None = None  # training futures from this day on only validate; those before end before it

    def __post_init__(self) -> None:
        expect(self.technique in TRAINED, "technique", self.technique, " or ".join(TRAINED))
        expect(self.batch >= 1, "batch", self.batch, "at least 1")
        expect(self.tau > 0, "tau", self.tau, "a positive number")
        if self.assets is not None:
            self._expect_exchangeable()
        expect(self.sharpe_weight >= 0, "sharpe_weight", self.sharpe_weight, "a number of at least 0")
        expect(self.softmax_weight >= 0, "softmax_weight", self.softmax_weight, "a number of at least 0")
        expect(self.prediction_weight >= 0, "prediction_weight", self.prediction_weight, "a number of at least 0")
        expect(self.rules.turnover is None, "turnover", self.rules.turnover, "none in training: it needs a yesterday")
        expect(self.rules.risk is None, "risk", self.rules.risk, "none in training: techniques are trained by name")
        if self.held_out_from is not None:
            _expect_date("held_out_from", self.held_out_from)

    def _expect_exchangeable(self) -> None:
        """Assets drawn at random need a network without parameters of an asset, and rules that know only a set."""
        assert self.assets is not None
        alike = self.network.kind == "stemgnn" and not self.network.identity
        expect(alike, "assets", self.assets, "none, but for StemGNN without identity: others know their assets")
        expect(self.assets >= 2, "assets", self.assets, "at least 2")
        others = (self.rules.sector_limit, self.rules.exposure)
        expect(others == (None, None), "assets", self.assets, "none with rules about sectors or factors")

    @property
    def weights_of_losses(self) -> tuple[float, float]:
        """(of the Sharpe ratio, of the prediction error); two-stage learns prices alone."""
        return (0.0, 1.0) if self.technique == "two-stage" else (self.sharpe_weight, self.prediction_weight)


# (predictor, technique) -> steps and highest rate of training; chosen inside the training period, see `search.py`.
_CHOSEN = {
    ("lstm", "softmax"): (480, 1e-3),
    ("lstm", "two-stage"): (120, 1e-3),
    ("lstm", "layer"): (480, 1e-3),
    ("lstm", "slack-free"): (480, 1e-3),
    ("lstm", "euclidean"): (480, 1e-3),
}
_STEMGNN = Plan(steps=120, rate=3e-3, warmup=10, every=120, average=0.98)


def default_config(predictor: str, technique: str, seed: int = 0) -> PortfolioConfig:
    """The settings of the study's runs.

    LSTM: steps and rate are those with the highest Sharpe ratio of the technique's own weights on windows held out of
    the training period (``linsat-studies portfolio search``, 494 assets); every technique had the same candidates, and
    the layers without slack entropy take the paper's layer's. StemGNN: one plan for every technique; the network has no
    parameter of an asset, and each step draws 164 assets and the preferred ones among them at random, because six fixed
    series are soon learned by heart.
    """
    network = NetworkConfig(kind=predictor)
    expect(technique in TRAINED, "technique", technique, " or ".join(TRAINED))
    if predictor == "stemgnn":
        network = replace(network, identity=False, relative=True)
        return PortfolioConfig(technique, network, plan=replace(_STEMGNN, seed=seed), batch=16, assets=164)
    steps, rate = _CHOSEN[predictor, technique]
    plan = Plan(steps=steps, rate=rate, warmup=10, every=max(steps // 4, 1), average=0.9, seed=seed)
    return PortfolioConfig(technique=technique, network=network, plan=plan, batch=32)


def read_config(path: str | Path) -> PortfolioConfig:
    """The `PortfolioConfig` in a JSON file; what it leaves out takes the defaults."""
    return from_file(PortfolioConfig, path)


def config_from_checkpoint(saved: dict[str, Any]) -> PortfolioConfig:
    """The configuration that a training checkpoint carries."""
    return from_dict(PortfolioConfig, saved["config"]["run"])
