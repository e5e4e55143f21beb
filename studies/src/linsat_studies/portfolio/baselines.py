"""What a practitioner would compare with: portfolios from the days seen alone, without any network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import linsat
from linsat_studies.portfolio.programs import Covariance, Preference, minimum_variance
from linsat_studies.portfolio.sharpe import DAYS, RISK_FREE
from linsat_studies.portfolio.techniques import LayerWeights

TAU = 0.01  # as in the study's runs; equal scores make the same weights at any temperature
Baseline = Callable[[np.ndarray, Preference | None], np.ndarray]


def scaled_to_preference(weights: np.ndarray, preference: Preference | None) -> np.ndarray:
    """Weights (assets,) with the preferred ones scaled up together to their least share, the others down."""
    if preference is None:
        return weights
    chosen = list(preference.preferred)
    share = weights[chosen].sum()
    if share >= preference.at_least:
        return weights
    if share <= 0:
        raise ValueError("the preferred assets hold nothing, so they cannot be scaled up. Fix: another baseline.")
    scaled = weights * (1 - preference.at_least) / (1 - share)
    scaled[chosen] = weights[chosen] * preference.at_least / share
    return scaled


def equal_weight(past_returns: np.ndarray, preference: Preference | None = None) -> np.ndarray:
    """1 / assets each; with a preference, scaled to it."""
    count = past_returns.shape[1]
    return scaled_to_preference(np.full(count, 1 / count), preference)


def inverse_volatility(past_returns: np.ndarray, preference: Preference | None = None) -> np.ndarray:
    """In proportion to 1 / standard deviation of the returns seen (days, assets); with a preference, scaled to it."""
    volatility = past_returns.std(0, ddof=1)
    if not (volatility > 0).all():
        raise ValueError("an asset did not move in the days seen, so its volatility has no inverse. Fix: drop it.")
    weights = 1 / volatility
    return scaled_to_preference(weights / weights.sum(), preference)


def least_variance(past_returns: np.ndarray, preference: Preference | None = None) -> np.ndarray:
    """Least variance for the shrunk covariance of the returns seen (days, assets)."""
    return minimum_variance(Covariance.of(past_returns), preference)


def mean_variance(past_returns: np.ndarray, preference: Preference | None = None) -> np.ndarray:
    """Highest Sharpe ratio for the mean and the Ledoit-Wolf covariance of the returns seen, by skfolio.

    Where that program has no solution (no portfolio beats the risk-free rate), minimum variance.
    """
    from skfolio import RiskMeasure
    from skfolio.exceptions import SkfolioError
    from skfolio.moments import LedoitWolf
    from skfolio.optimization import MeanRisk, ObjectiveFunction
    from skfolio.prior import EmpiricalPrior

    extra: dict[str, Any] = {}
    if preference is not None:
        chosen = set(preference.preferred)
        groups = [["preferred" if i in chosen else "other" for i in range(past_returns.shape[1])]]
        extra = {"groups": groups, "linear_constraints": [f"preferred >= {preference.at_least}"]}
    model = MeanRisk(
        objective_function=ObjectiveFunction.MAXIMIZE_RATIO,
        risk_measure=RiskMeasure.VARIANCE,
        prior_estimator=EmpiricalPrior(covariance_estimator=LedoitWolf()),
        risk_free_rate=RISK_FREE / DAYS,
        **extra,
    )
    try:
        return np.asarray(model.fit(past_returns).weights_, dtype=float)
    except SkfolioError:
        return least_variance(past_returns, preference)


def equal_scores(past_returns: np.ndarray, preference: Preference | None = None) -> np.ndarray:
    """What the layer makes of scores that are all alike: the study's layer without a network."""
    count = past_returns.shape[1]
    if preference is None:
        return equal_weight(past_returns)
    rows = linsat.constraints.portfolio(count, preference.preferred, preference.at_least)
    return LayerWeights(rows, tau=TAU)(torch.zeros(count, dtype=torch.float64)).numpy()


BASELINES: dict[str, Baseline] = {
    "equal weight": equal_weight,
    "layer of equal scores": equal_scores,
    "inverse volatility": inverse_volatility,
    "minimum variance": least_variance,
    "mean-variance (skfolio)": mean_variance,
}
