"""Networks with two heads: scores of the assets, and their future prices.

Both read log prices relative to today's (windows, past, assets) and return `Prediction`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from linsat_studies.portfolio.config import NetworkConfig, Periods
from linsat_studies.portfolio.stemgnn import StemGNN

_LEAST_VARIANCE = 1e-12  # of scores that count as different, far below that of a network's first weights


class Prediction(NamedTuple):
    """What a network says about a batch of windows.

    ``scores`` (windows, assets) are in units of a softmax's exponent. ``growth`` (windows, future, assets) is the log
    of the future price relative to today's.
    """

    scores: Tensor
    growth: Tensor


class LSTMNet(nn.Module):
    """One LSTM over the days, which reads the returns of all assets at once; its last state feeds both heads.

    The price head adds an embedding of each future day to the state, so that its size does not grow with their number.
    Cost: a window takes about 8 * past * assets * hidden operations.
    """

    def __init__(self, config: NetworkConfig, periods: Periods, assets: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.lstm = nn.LSTM(assets, config.hidden, batch_first=True)
        self.dropout = nn.Dropout(config.dropout)
        self.scores = small(nn.Linear(config.hidden, assets))
        self.days = nn.Parameter(0.1 * torch.randn(periods.future, config.hidden))
        self.path = small(nn.Linear(config.hidden, assets))

    def forward(self, seen: Tensor) -> Prediction:
        """See the module."""
        returns = seen.diff(dim=1) / self.scale
        _, (state, _) = self.lstm(returns)
        state = self.dropout(state[-1])  # (windows, hidden)
        # The head is linear, so days are summed before it: in ``hidden`` numbers each, not in one for each asset.
        summed = torch.tanh(state[:, None] + self.days).cumsum(1)
        days = torch.arange(1, len(self.days) + 1, dtype=state.dtype, device=state.device)[:, None]
        growth = summed @ (self.scale * self.path.weight.T) + days * (self.scale * self.path.bias)
        return Prediction(self.scores(state), growth)  # (windows, assets), (windows, future, assets)


class StemNet(nn.Module):
    """`StemGNN` with two heads that all assets share, and a learned score of each asset if ``identity``.

    If ``relative``, it reads returns less their mean over the assets of the window, and scores have mean 0 and standard
    deviation 1 over them. Without ``identity`` it takes any number of assets.
    """

    def __init__(self, config: NetworkConfig, periods: Periods, assets: int, scale: float) -> None:
        super().__init__()
        self.scale, self.relative = scale, config.relative
        self.body = StemGNN(weeks(periods.past), config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.scores = nn.Sequential(
            nn.Linear(config.hidden, config.hidden), nn.GELU(), small(nn.Linear(config.hidden, 1))
        )
        self.identity = nn.Parameter(torch.zeros(assets)) if config.identity else None
        self.path = small(nn.Linear(config.hidden, periods.future))

    def forward(self, seen: Tensor) -> Prediction:
        """See the module."""
        series = weekly(seen).transpose(1, 2) / (5**0.5 * self.scale)  # (windows, assets, weeks)
        if self.relative:
            series = series - series.mean(1, keepdim=True)
        features = self.dropout(self.body(series))
        scores = self.scores(features)[..., 0]  # (windows, assets)
        if self.identity is not None:
            scores = scores + self.identity
        if self.relative:
            scores = standardised(scores)
        # Daily log returns are linear in the features; their sums over days are so by summed coefficients.
        weight, bias = self.scale * self.path.weight.cumsum(0), self.scale * self.path.bias.cumsum(0)
        return Prediction(scores, weight @ features.transpose(1, 2) + bias[:, None])  # growth (windows, future, assets)


def standardised(scores: Tensor) -> Tensor:
    """Scores (..., assets) less their mean, over their standard deviation; equal scores become zero."""
    centred = scores - scores.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + _LEAST_VARIANCE).sqrt()


def small(layer: nn.Linear) -> nn.Linear:
    """Start near zero: near equal weights, and near no change of prices."""
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)
    return layer


def weeks(past: int) -> int:
    """Number of returns that `weekly` makes."""
    return past // 5


def weekly(seen: Tensor) -> Tensor:
    """(windows, past // 5, assets): log returns over five days each, counted back from the last day.

    The first one is over four days where ``past`` is a multiple of 5, because ``past`` prices make one return less.
    """
    count = weeks(seen.shape[1])
    last = seen.shape[1] - 1
    ends = [last - 5 * k for k in range(count)][::-1]
    begins = [max(end - 5, 0) for end in ends]
    return seen[:, ends] - seen[:, begins]


def build_network(config: NetworkConfig, periods: Periods, *, assets: int, scale: float) -> LSTMNet | StemNet:
    """The configured network for so many assets; ``scale`` is the standard deviation of daily log returns."""
    kind = LSTMNet if config.kind == "lstm" else StemNet
    return kind(config, periods, assets, scale)
