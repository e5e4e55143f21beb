"""The rules for the weights as rows of a `linsat.Constraints`: each rule is a line or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import linsat
from linsat_studies.files import read_table
from linsat_studies.portfolio.config import Rules
from linsat_studies.portfolio.data import PriceError, Windows

_CLUSTERS = 11  # as many as the S&P 500 has sectors


@dataclass(frozen=True, eq=False)
class Universe:
    """What rules are about.

    Args:
        count: number of assets.
        preferred: indices of the preferred ones.
        sectors: one label for each asset.
        loadings: (factors, assets), any sign.
        factors: their names.
    """

    count: int
    preferred: Sequence[int]
    sectors: Sequence[str] = ()
    loadings: np.ndarray | None = None
    factors: Sequence[str] = ()


def universe(windows: Windows, preferred: Sequence[int], sectors: Sequence[str] | None = None) -> Universe:
    """The assets of training windows: sectors as given or else clusters by correlation, factors from their returns."""
    first, last = windows.starts[0] - windows.past, windows.starts[-1] + windows.future
    values = windows.prices.values[first:last]
    returns = values[1:] / values[:-1] - 1  # (days, assets)
    names, loadings = factor_loadings(returns)
    found = correlation_clusters(returns) if sectors is None else sectors
    return Universe(returns.shape[1], preferred, found, loadings, names)


YESTERDAY = "yesterday"  # name of the weights that a turnover limit compares with


def weight_rules(rules: Rules, about: Universe) -> linsat.Constraints:
    """Rows over the weights.

    A turnover limit is against the weights that come by the name `YESTERDAY` with a call, as a right-hand side does.

    Raises:
        linsat.InfeasibleError: no weights satisfy all rules (at the first projection, or by ``check()``).
    """
    if (rules.cap, rules.sector_limit, rules.exposure, rules.turnover) == (None, None, None, None):
        return linsat.constraints.portfolio(about.count, about.preferred, rules.at_least)
    w = linsat.Variable(about.count, name="w", lower=0.0, upper=1.0 if rules.cap is None else rules.cap)
    return linsat.subject_to(*_relations(w, rules, about), variables=[w])


def _relations(w: linsat.Variable, rules: Rules, about: Universe) -> list[Any]:
    rows: list[Any] = [(w.sum() == 1).named("weights sum to 1")]
    if rules.at_least:
        rows.append((w[list(about.preferred)].sum() >= rules.at_least).named("share of the preferred assets"))
    if rules.sector_limit is not None:
        for sector in sorted(set(about.sectors)):
            members = [i for i, label in enumerate(about.sectors) if label == sector]
            rows.append((w[members].sum() <= rules.sector_limit).named(f"sector {sector}"))
    if rules.exposure is not None and about.loadings is not None:
        for name, loading in zip(about.factors, about.loadings):
            rows.append((w @ loading <= rules.exposure).named(f"{name} exposure, above"))
            rows.append((w @ loading >= -rules.exposure).named(f"{name} exposure, below"))
    if rules.turnover is not None:  # what is bought and what is sold
        trades = (w - np.zeros(about.count)).named(YESTERDAY)
        rows.append((abs(trades).sum() <= 2 * rules.turnover).named("turnover"))
    return rows


def turnover(weights: np.ndarray) -> np.ndarray:
    """(days - 1,): half the sum of the changes from day to day of weights (days, assets)."""
    return np.abs(np.diff(weights, axis=0)).sum(1) / 2


def factor_loadings(returns: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Names and (2, assets) signed loadings from daily returns (days, assets).

    Market tilt: the slope on the mean of all assets, less 1. Volatility tilt: the log of the standard deviation in
    standard deviations from its mean over the assets.
    """
    market = returns.mean(1) - returns.mean()
    beta = market @ (returns - returns.mean(0)) / (market @ market)
    volatility = np.log(returns.std(0) + np.finfo(float).tiny)
    spread = volatility.std()
    tilt = (volatility - volatility.mean()) / (spread if spread > 0 else 1.0)
    return ("market", "volatility"), np.stack([beta - 1, tilt])


def correlation_clusters(returns: np.ndarray, count: int = _CLUSTERS) -> list[str]:
    """A label for each asset, from Ward's clusters of the distances sqrt(2 - 2 correlation) of daily returns."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if returns.shape[1] == 1:
        return ["1"]
    correlation = np.nan_to_num(np.corrcoef(returns, rowvar=False), nan=0.0)
    distance = np.sqrt(np.clip(2 - 2 * correlation, 0, None))
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(distance, checks=False), method="ward")
    labels = fcluster(tree, min(count, returns.shape[1]), criterion="maxclust")
    return [str(int(label)) for label in labels]


def read_sectors(path: str | Path, tickers: Sequence[str]) -> list[str]:
    """A sector for each ticker from a CSV file of lines ``ticker,sector``; a header ``ticker,...`` is skipped."""
    pairs = {line[0].strip(): line[1].strip() for line in read_table(Path(path)) if len(line) >= 2}
    missing = [ticker for ticker in tickers if ticker not in pairs]
    if missing:
        raise PriceError(
            f"{path} names no sector of {missing[0]} ({len(missing)} such assets); expected ticker,sector."
        )
    return [pairs[ticker] for ticker in tickers]
