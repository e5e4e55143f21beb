"""Two small trained networks that come with the package, and what they earn: portfolio curves within seconds.

LSTMs for the embedded twenty stocks, trained for softmax and for the layer by ``linsat-studies portfolio train
--predictor lstm --seeds 1`` with no file of prices given: seed 0 of the study's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from linsat_studies.checkpoints import CheckpointError, read_checkpoint
from linsat_studies.portfolio.baselines import equal_weight
from linsat_studies.portfolio.charts import value_chart, weights_chart
from linsat_studies.portfolio.config import PortfolioConfig, config_from_checkpoint
from linsat_studies.portfolio.constraints import weight_rules
from linsat_studies.portfolio.data import Prices, Windows, embedded_prices, test_windows
from linsat_studies.portfolio.evaluate import Outcome, predict
from linsat_studies.portfolio.model import LSTMNet, StemNet
from linsat_studies.portfolio.programs import Preference
from linsat_studies.portfolio.techniques import LayerWeights, project_preference, softmax_weights
from linsat_studies.portfolio.train import network_of, rules_universe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHECKPOINTS = Path(__file__).parent / "checkpoints"
_FILES = {"layer": "lstm_layer.pt", "softmax": "lstm_softmax.pt"}


@dataclass(frozen=True, eq=False)
class Curves:
    """What the shipped networks and equal weights earn in the test windows of the embedded prices.

    ``outcomes`` go by name: ``layer``, ``softmax``, ``softmax + projection``, ``equal weight``, ``equal weight,
    preference``; each has the weights (windows, assets) and ``summary()``, as in the study.
    """

    windows: Windows
    preference: Preference
    outcomes: Mapping[str, Outcome]

    @property
    def dates(self) -> np.ndarray:
        """(days + 1,): of `values`; the first is the day before the test period."""
        first, last = self.windows.starts[0] - 1, self.windows.starts[-1] + self.windows.future
        return self.windows.prices.dates[first:last]

    def values(self) -> dict[str, np.ndarray]:
        """Value of 1 invested, (days + 1,) by name."""
        return {name: np.array(outcome.summary()["value"]) for name, outcome in self.outcomes.items()}

    def value_figure(self) -> Figure:
        """Value over the test period; needs matplotlib."""
        values = self.values()
        networks = {name: value[None] for name, value in values.items() if "equal" not in name}
        plain = {name: value for name, value in values.items() if "equal" in name}
        return value_chart(self.dates, {"lstm": networks}, plain)

    def weights_figure(self) -> Figure:
        """The layer's weights over time; needs matplotlib."""
        chosen = self.windows.prices.dates[self.windows.starts - 1]
        shown = {"LSTM with the layer": self.outcomes["layer"].weights}
        return weights_chart(chosen, shown, self.windows.prices.tickers, self.preference)


def load_shipped(technique: str, prices: Prices | None = None) -> tuple[LSTMNet | StemNet, PortfolioConfig]:
    """The shipped network trained for ``"layer"`` or ``"softmax"``, ready for evaluation, and its settings.

    Args:
        technique: which one.
        prices: the embedded ones, if they were read already.

    Raises:
        CheckpointError: another technique; embedded prices of other assets than it was trained on.
    """
    if technique not in _FILES:
        raise CheckpointError(f"technique is {technique!r}; expected {' or '.join(_FILES)}, which are shipped.")
    path = CHECKPOINTS / _FILES[technique]
    assets = len((embedded_prices() if prices is None else prices).tickers)
    saved = read_checkpoint(path)
    return network_of(saved, path, assets), config_from_checkpoint(saved)


def shipped_curves() -> Curves:
    """Evaluate the shipped networks on the embedded prices: 94 test windows of 20 stocks.

    Cost: about a second, after a few for imports. Needs skfolio, which carries the prices; no network, no data folder.
    """
    prices = embedded_prices()
    network, config = load_shipped("layer", prices)
    windows = test_windows(prices, config.periods)
    preference = Preference(prices.preferred(config.rules.prefer), config.rules.at_least)
    layer = LayerWeights(weight_rules(config.rules, rules_universe(config, prices)), config.tau)
    soft = softmax_weights(predict(load_shipped("softmax", prices)[0], windows).scores)
    past = windows.past_returns()
    weights = {
        "layer": layer(predict(network, windows).scores).numpy(),
        "softmax": soft.numpy(),
        "softmax + projection": project_preference(soft, preference.preferred, preference.at_least).numpy(),
        "equal weight": np.stack([equal_weight(one) for one in past]),
        "equal weight, preference": np.stack([equal_weight(one, preference) for one in past]),
    }
    return Curves(windows, preference, {name: Outcome(windows, w, preference) for name, w in weights.items()})
