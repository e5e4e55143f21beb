"""Return and risk of fixed weights. Everything annual: 252 trading days, 3 % risk free.

With daily returns r[t, i] of the assets, weights w earn r[t] . w on day t: they are kept constant, so the portfolio is
rebalanced every day, for which the paper's return w . mu and risk sqrt(w' Sigma w) are exact. Then

    Sharpe ratio = (252 mean_t(r[t] . w) - 0.03) / (sqrt(252) std_t(r[t] . w)),     std with T - 1.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

DAYS = 252
RISK_FREE = 0.03


def sharpe_ratio(weights: Tensor, returns: Tensor) -> Tensor:
    """(windows,) from weights (windows, assets) and daily returns (windows, days, assets); differentiable."""
    daily = (returns @ weights[..., None])[..., 0]  # (windows, days)
    return (DAYS * daily.mean(-1) - RISK_FREE) / (math.sqrt(DAYS) * daily.std(-1))


def daily_returns(weights: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """(windows, days): of the portfolio that is rebalanced to ``weights`` (windows, assets) every day."""
    return np.einsum("wtn,wn->wt", returns, weights)


def held_returns(weights: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """(windows, days): of the portfolio that is bought on the first day and left alone."""
    values = np.einsum("wtn,wn->wt", np.cumprod(1 + returns, axis=1), weights)
    before = np.concatenate([weights.sum(1, keepdims=True), values[:, :-1]], axis=1)
    return values / before - 1


def annual_sharpe(daily: np.ndarray) -> np.ndarray:
    """(windows,) from the daily returns of a portfolio (windows, days)."""
    return (DAYS * daily.mean(-1) - RISK_FREE) / (math.sqrt(DAYS) * daily.std(-1, ddof=1))


def ladder(daily: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """(days,) return of one unit spread over windows, from their daily returns (windows, days held).

    Window k is held from day ``starts[k]`` on. Each day's return is the mean over the portfolios held that day, so that
    every portfolio counts, each for exactly the days it was chosen for. From the first start to the last day held.
    """
    held = daily.shape[1]
    total, count = np.zeros(starts[-1] - starts[0] + held), np.zeros(starts[-1] - starts[0] + held)
    for returns, start in zip(daily, starts - starts[0]):
        total[start : start + held] += returns
        count[start : start + held] += 1
    return total / count


def ladder_value(daily: np.ndarray) -> np.ndarray:
    """(windows + days,) value of one unit spread over windows that start day by day; see `ladder`."""
    return np.concatenate([[1.0], np.cumprod(1 + ladder(daily, np.arange(len(daily))))])
