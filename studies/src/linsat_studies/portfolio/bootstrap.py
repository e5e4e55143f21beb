"""Intervals of Sharpe ratios and of their differences, by the stationary block bootstrap.

Daily returns are drawn in blocks of random length (Politis and Romano, 1994): a block starts on any day, goes on with
probability 1 - 1 / length, and wraps around at the end. Blocks keep what days of a month have in common, and all series
are drawn by the same days, so that a difference of two portfolios loses what both share, the market above all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from linsat_studies.portfolio.sharpe import DAYS, RISK_FREE, annual_sharpe

BLOCK = 60  # mean days of a block: a quarter
DRAWS = 5000


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that holds the true value in ``level`` of all samples, roughly."""

    value: float
    low: float
    high: float
    level: float = 0.95

    def as_json(self) -> dict[str, Any]:
        """As a record holds it."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def stationary_days(days: int, draws: int, *, block: float = BLOCK, seed: int = 0) -> np.ndarray:
    """(draws, days) indices of days, in blocks of geometric length with mean ``block``."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(days, size=(draws, days))
    starts = rng.random((draws, days)) < 1 / block
    starts[:, 0] = True
    since = np.arange(days) - np.maximum.accumulate(np.where(starts, np.arange(days), 0), axis=1)
    begun = np.take_along_axis(chosen, np.arange(days) - since, axis=1)
    return (begun + since) % days


def sharpe_draws(daily: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """(draws, series) Sharpe ratios of daily returns (series, days) on the days drawn (draws, days).

    A ratio depends only on how often each day was drawn, so that sums over draws are two products of matrices.
    """
    days = drawn.shape[1]
    counts = np.stack([np.bincount(one, minlength=days) for one in drawn]).astype(float)
    usual = daily.mean(1, keepdims=True)  # taken off first, or the sums of squares would lose digits
    centred = (daily - usual).T
    mean = counts @ centred / days
    variance = (counts @ centred**2 - days * mean**2) / (days - 1)
    return (DAYS * (mean + usual.T) - RISK_FREE) / np.sqrt(DAYS * variance)


def interval(value: float, draws: np.ndarray, level: float = 0.95) -> Interval:
    """The percentile interval of bootstrap draws (draws,)."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), level)


def sharpe_interval(daily: np.ndarray, drawn: np.ndarray) -> Interval:
    """Of the Sharpe ratio of daily returns (days,)."""
    return interval(float(annual_sharpe(daily)), sharpe_draws(daily[None], drawn)[:, 0])


def paired_interval(daily: np.ndarray, other: np.ndarray, drawn: np.ndarray) -> Interval:
    """Of the Sharpe ratio of ``daily`` (days,) less that of ``other``, both on the same days drawn."""
    both = np.stack([daily, other])
    ratios = sharpe_draws(both, drawn)
    return interval(float(np.subtract(*annual_sharpe(both))), ratios[:, 0] - ratios[:, 1])


def mean_paired_interval(daily: np.ndarray, others: np.ndarray, drawn: np.ndarray) -> Interval:
    """Of the mean over pairs of the Sharpe ratio of ``daily`` (pairs, days) less that of ``others``."""
    ratios = [sharpe_draws(one, drawn).mean(1) for one in (daily, others)]
    value = float((annual_sharpe(daily) - annual_sharpe(others)).mean())
    return interval(value, ratios[0] - ratios[1])
