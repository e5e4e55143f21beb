"""Coherent, non-negative forecasts: a solver for hierarchicalforecast, and the layer for whoever trains through it.

    reconcilers = [hierarchicalforecast.methods.MinTrace("wls_struct", nonnegative=True)]           # before
    reconcilers = [linsat.interop.hierarchicalforecast.MinTrace("wls_struct", nonnegative=True)]    # after

The program is minimise (x - base)' W^-1 (x - base) over x = S b, b >= 0: a projection, in the metric W^-1, onto the
rows "aggregate = sum of its bottom series". One call solves all horizons and sample paths. `MinTrace` needs the extra
``hierarchicalforecast``; `coherent` and `metric` do not.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat._optional import require
from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError
from linsat.objectives import Euclidean
from linsat.projection import project


def coherent(S: Any) -> Constraints:
    """The coherent forecasts whose bottom series are not negative: ``project(base, coherent(S), objective=metric(W))``.

    Args:
        S: summing matrix (series, bottom), dense or sparse, whose last rows are the identity, as hierarchicalforecast
            makes it.

    Returns:
        Rows over (series,), aggregates first; scores of shape (..., series) are the base forecasts. Gradients reach
        them. Cost of a projection: a few factorisations of a matrix of aggregates by aggregates.

    Raises:
        ConstraintError: S does not end in an identity.
    """
    S = sp.csr_matrix(S, dtype=np.float64)
    aggregates, bottom = S.shape[0] - S.shape[1], S.shape[1]
    if aggregates < 0 or (S[aggregates:] != sp.eye(bottom)).nnz:
        raise ConstraintError(
            f"S has shape {S.shape} and does not end in an identity; expected (series, bottom) with the bottom series "
            "last. Fix: sort the series as hierarchicalforecast.utils.aggregate does."
        )
    rows = sp.hstack([sp.eye(aggregates), -S[:aggregates]], format="csr")
    lower = np.concatenate([np.full(aggregates, -np.inf), np.zeros(bottom)])
    return Constraints(E=rows, f=np.zeros(aggregates), lower=lower, upper=np.inf)


def metric(W: Any) -> Euclidean:
    """What `MinTrace` minimises: W is the covariance of the base forecasts' errors, or its diagonal."""
    W = np.asarray(W, dtype=np.float64)
    if W.ndim == 2 and not np.any(W - np.diag(np.diag(W))):
        W = np.diag(W)
    if W.ndim == 1:
        return Euclidean(weights=1 / W)
    precision = np.linalg.pinv(W)
    return Euclidean(weights=(precision + precision.T) / 2)


try:
    from hierarchicalforecast.methods import BottomUp
    from hierarchicalforecast.methods import MinTrace as _MinTrace
except ImportError:  # the layer above needs nothing of it

    class _MinTrace:  # type: ignore[no-redef]
        def __init__(self, *_: Any, **__: Any) -> None:
            require("hierarchicalforecast.methods", extra="hierarchicalforecast", purpose="MinTrace")


class MinTrace(_MinTrace):
    """hierarchicalforecast's ``MinTrace`` with its non-negative programs solved in one projection.

    Arguments, attributes and results are those of the class it derives from; base forecasts below zero are replaced by
    zero with a warning, as there. With ``nonnegative=False`` nothing is different.
    """

    def fit(
        self,
        S: Any,
        y_hat: np.ndarray,
        y_insample: np.ndarray | None = None,
        y_hat_insample: np.ndarray | None = None,
        sigmah: np.ndarray | None = None,
        intervals_method: str | None = None,
        num_samples: int | None = None,
        seed: int | None = None,
        tags: dict[str, np.ndarray] | None = None,
    ) -> MinTrace:
        """As ``hierarchicalforecast.methods.MinTrace.fit``."""
        sampled: dict[str, Any] = {"sigmah": sigmah, "intervals_method": intervals_method, "num_samples": num_samples}
        sampled |= {"seed": seed, "tags": tags, "y_insample": y_insample, "y_hat_insample": y_hat_insample}
        if not self.nonnegative:
            return super().fit(S, y_hat, **sampled)
        _, W = self._get_PW_matrices(S=S, y_hat=y_hat, y_insample=y_insample, y_hat_insample=y_hat_insample)
        if (y_hat < 0).any():
            warnings.warn("Replacing negative forecasts with zero.", stacklevel=2)
        base = np.maximum(y_hat, 0.0).T  # (horizon, series)
        x = project(np.ascontiguousarray(base, dtype=np.float64), coherent(S), objective=metric(W))
        self.y_hat = S @ x.T[-S.shape[1] :]
        self.P, self.W = BottomUp()._get_PW_matrices(S=S)
        self.sampler = self._get_sampler(S=S, P=self.P, W=self.W, y_hat=self.y_hat, **sampled)
        self.fitted = True
        return self
