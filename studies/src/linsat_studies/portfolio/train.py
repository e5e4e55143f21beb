"""Training: the learner of a network and its technique, and the runs of the study."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linsat_studies.checkpoints import CheckpointError, load_weights, read_run
from linsat_studies.portfolio.config import LAYERS, PortfolioConfig, config_from_checkpoint
from linsat_studies.portfolio.constraints import Universe, universe, weight_rules
from linsat_studies.portfolio.data import Prices, Windows, held_out, training_windows
from linsat_studies.portfolio.model import LSTMNet, Prediction, StemNet, build_network
from linsat_studies.portfolio.sharpe import sharpe_ratio
from linsat_studies.portfolio.techniques import LayerWeights, Weigh, softmax_weights
from linsat_studies.settings import expect, to_json
from linsat_studies.training import LAST, fit, share

_VALIDATED = 48  # windows that a validation looks at, evenly spread


class PortfolioLearner:
    """A network and its losses, for `fit`; the windows of a step depend on the plan's seed and the step alone.

    Args:
        config: of the run.
        prices: of which the training period is used, and nothing later.
        sectors: one for each asset, for rules about them; None for clusters of the training returns.
    """

    def __init__(self, config: PortfolioConfig, prices: Prices, sectors: list[str] | None = None) -> None:
        self.config = config
        windows = training_windows(prices, config.periods)
        self.fitted, self.validated = windows, windows
        if config.held_out_from is not None:
            self.fitted, self.validated = held_out(windows, config.held_out_from)
        self.about = rules_universe(config, prices, sectors)
        self.weigh = training_weights(config, self.about)
        self.drawn = min(config.assets or self.about.count, self.about.count)
        if config.assets is not None:  # the first columns drawn are the preferred ones
            preferred = range(len(self.about.preferred))
            expect(len(preferred) < self.drawn, "assets", self.drawn, f"more than the {len(preferred)} preferred")
            self.weigh_drawn = training_weights(config, Universe(self.drawn, preferred))
        self.scale = return_scale(self.fitted)
        torch.manual_seed(config.plan.seed)
        self.module = build_network(config.network, config.periods, assets=len(prices.tickers), scale=self.scale)
        self.unit = float((spread(self.fitted, _VALIDATED).growth() ** 2).mean())

    def loss(self, step: int) -> Tensor:
        """Mean over this process's share of the batch."""
        rng = np.random.default_rng((self.config.plan.seed, step))
        chosen = rng.choice(len(self.fitted), self.config.batch, replace=len(self.fitted) < self.config.batch)
        windows = self.fitted[chosen[share(self.config.batch)]]
        if self.config.assets is None:
            return self._loss(windows)
        return self._loss(windows, rng.permutation(self.about.count)[: self.drawn])

    def _loss(self, windows: Windows, columns: np.ndarray | None = None) -> Tensor:
        ratio, error = self.figures(windows, columns)
        of_ratio, of_error = self.config.weights_of_losses
        return of_error * error if of_ratio == 0 else of_error * error - of_ratio * ratio

    def figures(self, windows: Windows, columns: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
        """(mean Sharpe ratio, prediction error over that of predicting no change) on windows.

        The ratio of a layer includes ``softmax_weight`` times that of a softmax of the same scores.
        ``columns`` are the assets to look at, preferred ones first; None for all, and the preferred ones of the rules.
        """
        weigh, taken = (self.weigh, slice(None)) if columns is None else (self.weigh_drawn, columns)
        said: Prediction = self.module(floats(windows.seen()[..., taken]))
        error = (said.growth - floats(windows.growth()[..., taken])).square().mean() / self.unit
        if self.config.weights_of_losses[0] == 0:
            return torch.zeros(()), error
        returns = floats(windows.returns()[..., taken])
        ratio = sharpe_ratio(weigh(said.scores), returns).mean()
        if self.config.technique in LAYERS and self.config.softmax_weight:
            ratio = ratio + self.config.softmax_weight * sharpe_ratio(softmax_weights(said.scores), returns).mean()
        return ratio, error

    @torch.no_grad()
    def validate(self) -> float:
        """The loss on windows held out, or on training windows where none are."""
        windows = spread(self.validated, _VALIDATED)
        parts = [windows[first : first + 16] for first in range(0, len(windows), 16)]
        return sum(len(part) * float(self._loss(part)) for part in parts) / len(windows)


def floats(values: np.ndarray) -> Tensor:
    """As float32."""
    return torch.from_numpy(values.astype(np.float32))


def spread(windows: Windows, count: int) -> Windows:
    """At most ``count`` of the windows, evenly spread."""
    return windows[np.unique(np.linspace(0, len(windows) - 1, min(count, len(windows))).astype(int))]


def return_scale(windows: Windows) -> float:
    """Standard deviation of the daily log returns in all days of the windows, all assets together."""
    first, last = windows.starts[0] - windows.past, windows.starts[-1] + windows.future
    return float(np.diff(windows.prices.log_values[first:last], axis=0).std())


def rules_universe(config: PortfolioConfig, prices: Prices, sectors: list[str] | None = None) -> Universe:
    """What the rules of a run are about; sectors and factors, where needed, from the training period."""
    preferred = prices.preferred(config.rules.prefer)
    if config.rules.sector_limit is None and config.rules.exposure is None:
        return Universe(len(prices.tickers), preferred)
    return universe(training_windows(prices, config.periods), preferred, sectors)


def training_weights(config: PortfolioConfig, about: Universe) -> Weigh:
    """From scores to weights, as the run's technique does it."""
    if config.technique in LAYERS:
        return LayerWeights(weight_rules(config.rules, about), config.tau, config.technique)
    return softmax_weights


def run_name(predictor: str, technique: str, seed: int) -> str:
    """The name of a run's folder."""
    return f"{predictor}_{technique}_{seed}"


def train(config: PortfolioConfig, prices: Prices, folder: str | Path, *, sectors: list[str] | None = None) -> Path:
    """Train as configured; resumes or extends the run in ``folder``. Returns the checkpoint's path.

    Raises:
        CheckpointError: the folder holds a run on other prices or with other settings.
    """
    path = Path(folder) / LAST
    said = {"run": json.loads(to_json(config)), "prices": prices.fingerprint}
    if path.exists():
        _check_same(path, config, prices)
    learner = PortfolioLearner(config, prices, sectors)
    return fit(learner, config.plan, folder, config={**said, "scale": learner.scale})


def _check_same(path: Path, config: PortfolioConfig, prices: Prices) -> None:
    saved = read_run(path, "run", "prices", "scale")
    if saved["config"]["prices"] != prices.fingerprint:
        raise CheckpointError(f"{path} was trained on other prices. Fix: another folder, or remove that run.")
    before = config_from_checkpoint(saved)
    if replace(before, plan=config.plan) != config:  # a larger budget extends a run
        raise CheckpointError(f"{path} was trained with other settings. Fix: another folder, or remove that run.")


def load_run(path: str | Path, prices: Prices) -> tuple[LSTMNet | StemNet, PortfolioConfig]:
    """The trained network of a checkpoint, ready for evaluation, and its settings.

    Raises:
        CheckpointError: no such file, or one trained on prices of other assets.
    """
    saved = read_run(path, "run", "prices", "scale")
    if saved["config"]["prices"] != prices.fingerprint:
        raise CheckpointError(f"{path} was trained on other prices than {prices.source}. Fix: train on these.")
    return network_of(saved, path, len(prices.tickers)), config_from_checkpoint(saved)


def network_of(saved: dict[str, Any], path: str | Path, assets: int) -> LSTMNet | StemNet:
    """The network that a checkpoint of so many assets holds, ready for evaluation; ``path`` is where it was read."""
    config = config_from_checkpoint(saved)
    network = build_network(config.network, config.periods, assets=assets, scale=saved["config"]["scale"])
    load_weights(network, path)
    return network.eval()
