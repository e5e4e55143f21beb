"""Weights of every technique in every test window, what they earned, whether their rows hold, and the time it took."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

import linsat
from linsat_studies.portfolio.config import Rules
from linsat_studies.portfolio.constraints import YESTERDAY, Universe, turnover, weight_rules
from linsat_studies.portfolio.data import Prices, Windows
from linsat_studies.portfolio.model import Prediction
from linsat_studies.portfolio.programs import Preference, two_stage
from linsat_studies.portfolio.sharpe import DAYS, annual_sharpe, daily_returns, held_returns, ladder_value
from linsat_studies.portfolio.techniques import LayerWeights, Weigh, nearest_scale, project_preference, softmax_weights
from linsat_studies.portfolio.train import floats, load_run, rules_universe, training_weights
from linsat_studies.progress import Progress

_REPEATS = 5
_REPEATS_ONE = 40
_CHUNK = 16  # windows the network sees at once


@dataclass(frozen=True, eq=False)
class Outcome:
    """Weights (windows, assets) and what is worth knowing about how they were made."""

    windows: Windows
    weights: np.ndarray
    preference: Preference
    notes: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """What the JSON file of a result holds.

        ``sharpe`` is by window (daily rebalanced), ``held_sharpe`` the mean of the same weights left alone;
        ``violation`` is the largest amount by which the sum, the box and the preference fail in any window, and
        ``simplex_violation`` the same without the preference, for techniques that know none; ``assets`` is 1 / sum of
        squared weights and ``volatility`` the yearly deviation of returns, means over windows; ``value`` is that of
        `ladder_value`.
        """
        returns = self.windows.returns()
        daily = daily_returns(self.weights, returns)
        ratios = annual_sharpe(daily)
        held = annual_sharpe(held_returns(self.weights, returns))
        simplex, preference = violations(self.weights, self.preference)
        return {
            "mean_sharpe": float(ratios.mean()),
            "held_sharpe": float(held.mean()),
            "sharpe": [round(float(ratio), 6) for ratio in ratios],
            "violation": max(simplex, preference),
            "simplex_violation": simplex,
            "preferred_share": float(self.weights[:, list(self.preference.preferred)].sum(1).mean()),
            "assets": float((1 / (self.weights**2).sum(1)).mean()),
            "volatility": float(DAYS**0.5 * daily.std(1, ddof=1).mean()),
            "turnover": float(turnover(self.weights).mean()) if len(self.weights) > 1 else 0.0,
            "value": [round(float(value), 8) for value in ladder_value(daily)],
            **self.notes,
        }


def violations(weights: np.ndarray, preference: Preference) -> tuple[float, float]:
    """Largest failure in any window of (sum to 1 and box [0, 1], preference); 0 where all hold."""
    sums = np.abs(weights.sum(1) - 1).max()
    box = max(float(-weights.min()), float(weights.max() - 1), 0.0)
    short = float((preference.at_least - weights[:, list(preference.preferred)].sum(1)).max())
    return max(float(sums), box), max(short, 0.0)


@torch.no_grad()
def predict(network: nn.Module, windows: Windows) -> Prediction:
    """Scores and growth of all windows, in float64."""
    parts: list[Prediction] = [
        network(floats(windows[first : first + _CHUNK].seen())) for first in range(0, len(windows), _CHUNK)
    ]
    return Prediction(torch.cat([p.scores for p in parts]).double(), torch.cat([p.growth for p in parts]).double())


@torch.no_grad()
def timed_weights(network: nn.Module, windows: Windows, weigh: Weigh) -> tuple[np.ndarray, dict[str, Any]]:
    """Weights of all windows, and seconds of network and technique.

    Times are medians of passes after one that warms up: over all windows (``network``, ``layer``), and for one window
    alone, many times over (``network_one``, ``layer_one``). Reading prices is no part of either.
    """
    seen = [floats(windows[first : first + _CHUNK].seen()) for first in range(0, len(windows), _CHUNK)]
    spent: dict[str, list[float]] = {"network": [], "layer": [], "network_one": [], "layer_one": []}

    def scores_of(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([network(part).scores for part in parts]).double()

    def measure(parts: list[torch.Tensor], suffix: str, repeats: int) -> torch.Tensor:
        for turn in range(repeats + 1):
            start = perf_counter()
            scores = scores_of(parts)
            between = perf_counter()
            weights = weigh(scores)
            end = perf_counter()
            if turn > 0:
                spent["network" + suffix].append(between - start)
                spent["layer" + suffix].append(end - between)
        return weights

    weights = measure(seen, "", _REPEATS)
    measure([seen[0][:1]], "_one", _REPEATS_ONE)
    return weights.numpy(), {"seconds": {name: median(times) for name, times in spent.items()}}


def softmax_outcome(network: nn.Module, windows: Windows, preference: Preference) -> Outcome:
    """Softmax of the scores; the preference is not asked for."""
    return Outcome(windows, softmax_weights(predict(network, windows).scores).numpy(), preference)


def projected_outcome(network: nn.Module, windows: Windows, preference: Preference) -> Outcome:
    """Softmax of the scores, then the nearest weights with the preference."""
    soft = softmax_weights(predict(network, windows).scores)
    return Outcome(windows, project_preference(soft, preference.preferred, preference.at_least).numpy(), preference)


def layer_outcome(network: nn.Module, windows: Windows, preference: Preference, layer: LayerWeights) -> Outcome:
    """The layer on the scores, with the time that network and layer take."""
    weights, notes = timed_weights(network, windows, layer)
    return Outcome(windows, weights, preference, notes)


def two_stage_outcome(
    network: nn.Module,
    windows: Windows,
    preference: Preference,
    *,
    past_covariance: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Predicted prices, then a program for each window; ``fallbacks`` counts those without a positive prediction.

    Args:
        past_covariance: take the covariance from the days seen, not from the predicted returns.
        progress: called as ``progress(done, count)``.
    """
    start = perf_counter()
    growth = predict(network, windows).growth.numpy()
    between = perf_counter()
    past = windows.past_returns() if past_covariance else None
    weights, fallbacks = np.empty(growth[:, 0].shape), 0
    for k in range(len(windows)):
        weights[k], found = two_stage(growth[k], preference, None if past is None else past[k])
        fallbacks += not found
        if progress is not None:
            progress(k + 1, len(windows))
    seconds = {"network": between - start, "layer": perf_counter() - between}
    return Outcome(windows, weights, preference, {"seconds": seconds, "fallbacks": fallbacks})


@torch.no_grad()
def ruled_weights(
    scores: torch.Tensor,
    rules: Rules,
    about: Universe,
    tau: float,
    *,
    past: np.ndarray | None = None,
    progress: Progress | None = None,
) -> tuple[np.ndarray, float]:
    """Weights (windows, assets) of scores under any rules, and the worst violation of any row in any window.

    With a turnover limit windows are taken in order, each against the weights of the one before; the first has no
    yesterday and is free of that limit.

    Args:
        scores: (windows, assets).
        rules: with ``risk`` the nearest weights, less those that vary; otherwise the layer.
        about: the assets.
        tau: temperature of the layer.
        past: (windows, days, assets) returns seen, for ``risk``.
        progress: called as ``progress(done, count)``.

    Cost: with 494 assets 0.3 ms a window, 15 ms with turnover or risk, 0.4 s with both.
    """
    free = weight_rules(replace(rules, turnover=None), about)
    limited = weight_rules(rules, about)
    scale = tau if rules.risk is None else nearest_scale(about.count)
    chosen: list[torch.Tensor] = []
    worst = 0.0
    for k, said in enumerate(scores):
        today = limited.with_rhs({YESTERDAY: chosen[-1]}) if chosen and rules.turnover is not None else free
        objective: linsat.Objective = linsat.Entropy(tau)
        if rules.risk is not None:
            assert past is not None
            variance = DAYS * np.cov(past[k], rowvar=False)
            objective = linsat.Quadratic(torch.from_numpy(np.eye(about.count) + rules.risk * variance).to(said))
        chosen.append(linsat.project(scale * said, today, objective=objective))
        worst = max(worst, float(today.violation(chosen[-1]).max()))
        if progress is not None:
            progress(k + 1, len(scores))
    return torch.stack(chosen).numpy(), worst


def newest_weights(path: str | Path, prices: Prices) -> dict[str, float]:
    """Weights by ticker, largest first, for the days after the last price, from a run of the layer or softmax.

    Raises:
        ValueError: a two-stage run, which has no scores; too few days.
    """
    network, config = load_run(path, prices)
    if config.technique == "two-stage":
        raise ValueError(f"{path} was trained for two-stage, which predicts prices only. Fix: a run of the layer.")
    if len(prices.dates) < config.periods.past:
        raise ValueError(f"{prices.source} has {len(prices.dates)} days; expected at least {config.periods.past}.")
    today = Windows(prices, np.array([len(prices.dates)]), config.periods.past, config.periods.future)
    weigh = training_weights(config, rules_universe(config, prices))
    weights = weigh(predict(network, today).scores)[0]
    order = weights.argsort(descending=True).tolist()
    return {prices.tickers[i]: float(weights[i]) for i in order}
