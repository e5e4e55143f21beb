"""Portfolios as convex programs: minimum variance and maximum Sharpe ratio, with or without the preference.

Stated in cvxpy and solved by Clarabel, or by Gurobi where a licence for it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linsat_studies.portfolio.sharpe import DAYS, RISK_FREE

SHRINKAGE = 0.1


class ProgramError(ValueError):
    """Prices of which a program makes no portfolio; the message says why."""


@dataclass(frozen=True)
class Preference:
    """The preferred assets hold at least ``at_least``."""

    preferred: Sequence[int]
    at_least: float


@dataclass(frozen=True, eq=False)
class Covariance:
    """(1 - shrinkage) * sample covariance + shrinkage * mean variance * identity, kept as a product.

    ``root`` (days, assets) and ``ridge`` make variance(w) = |root w|^2 + ridge |w|^2. With fewer days than
    assets the sample alone is singular, and many portfolios would seem free of risk.
    """

    root: np.ndarray
    ridge: float

    @classmethod
    def of(cls, returns: np.ndarray, shrinkage: float = SHRINKAGE) -> Covariance:
        """From daily returns (days, assets); annual."""
        centred = (returns - returns.mean(0)) * np.sqrt(DAYS / (len(returns) - 1))
        return cls(np.sqrt(1 - shrinkage) * centred, shrinkage * float((centred**2).sum(0).mean()))


def minimum_variance(covariance: Covariance, preference: Preference | None = None) -> np.ndarray:
    """Weights (assets,) of least variance."""
    import cvxpy as cp

    w = cp.Variable(covariance.root.shape[1], nonneg=True)
    rows = [cp.sum(w) == 1]
    if preference is not None:
        rows.append(cp.sum(w[list(preference.preferred)]) >= preference.at_least)
    return _solve(cp, w, rows, covariance)


def maximum_sharpe(
    mean: np.ndarray, covariance: Covariance, preference: Preference | None = None
) -> tuple[np.ndarray, bool]:
    """Weights (assets,) of the highest Sharpe ratio, and whether there is one.

    The ratio does not change when weights are scaled, so with z = weights / excess return the program is: least
    variance of z, excess return of z equal to 1, and the rows with right-hand sides multiplied by sum z. Where no
    weights within the rows have a positive excess return, the weights are those of minimum variance, and the answer is
    false.

    Args:
        mean: annual return of each asset, (assets,).
        covariance: annual.
        preference: of some assets.
    """
    import cvxpy as cp

    excess = mean - RISK_FREE
    best = float(excess.max())
    if preference is not None and preference.at_least > 0:
        favoured = float(excess[list(preference.preferred)].max())
        best = preference.at_least * favoured + (1 - preference.at_least) * max(best, favoured)
    if best <= 0:
        return minimum_variance(covariance, preference), False
    z = cp.Variable(len(mean), nonneg=True)
    rows = [(excess / best) @ z == 1]  # scaled, so that z is of the size of weights
    if preference is not None:
        rows.append(cp.sum(z[list(preference.preferred)]) >= preference.at_least * cp.sum(z))
    return _solve(cp, z, rows, covariance), True


def _solve(cp: Any, z: Any, rows: list[Any], covariance: Covariance) -> np.ndarray:
    # The objective's size is chosen by the mean variance: predicted returns can vary a thousand times less than real
    # ones, and a solver's tolerances are absolute.
    size = float((covariance.root**2).sum() / covariance.root.shape[1]) + covariance.ridge
    if not size > 0:
        raise ProgramError("all assets have variance 0; expected prices that move.")
    objective = cp.sum_squares(_thin(covariance.root / np.sqrt(size)) @ z) + covariance.ridge / size * cp.sum_squares(z)
    problem = cp.Problem(cp.Minimize(objective), rows)
    problem.solve(solver=solver_name(cp))
    if z.value is None or problem.status not in ("optimal", "optimal_inaccurate"):
        raise ProgramError(f"{problem.status}: the program of {z.size} assets has no solution.")
    weights = np.maximum(z.value, 0.0)
    return weights / weights.sum()


def _thin(root: np.ndarray) -> np.ndarray:
    """As few rows as make the same product root' root, but for 1e-10 of its largest eigenvalue.

    That is a millionth of the ridge. A network of width 32 predicts returns that move in some 40 directions (the rest
    is rounding), not in 120, and the solver's time goes with the number of rows.
    """
    _, sizes, directions = np.linalg.svd(root, full_matrices=False)
    kept = sizes > 1e-5 * sizes[0]
    return sizes[kept, None] * directions[kept]


def solver_name(cp: Any) -> str:
    """GUROBI where it and a licence file are installed, else CLARABEL."""
    licence = os.environ.get("GRB_LICENSE_FILE", str(Path.home() / "gurobi.lic"))
    return "GUROBI" if Path(licence).is_file() and "GUROBI" in cp.installed_solvers() else "CLARABEL"


def two_stage(
    growth: np.ndarray, preference: Preference, past_returns: np.ndarray | None = None
) -> tuple[np.ndarray, bool]:
    """Weights (assets,) from predicted prices, and whether a positive excess return was predicted.

    Args:
        growth: (future, assets) predicted log price relative to today's.
        preference: of some assets.
        past_returns: (days, assets), to take the covariance from; None takes it from the predicted returns, as the
            paper's objective does. Means are predicted in both.
    """
    prices = np.exp(np.concatenate([np.zeros((1, growth.shape[1])), growth.astype(float)]))
    predicted = prices[1:] / prices[:-1] - 1
    covariance = Covariance.of(predicted if past_returns is None else past_returns)
    return maximum_sharpe(DAYS * predicted.mean(0), covariance, preference)
