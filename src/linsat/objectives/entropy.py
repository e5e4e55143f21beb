"""The entropic objective: the paper's layer, and its variant in which rows act only where they bind."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from linsat._array_namespace import Tensor, namespace
from linsat.errors import ConstraintError
from linsat.objectives.base import POSITIVE_TAU, Costs, Tempered, times_log


@dataclass(frozen=True, eq=False)
class Entropy(Tempered):
    r"""``max <y, x> - tau sum_j [p_j log p_j + (1 - p_j) log(1 - p_j)]`` with ``p = (x - lower) / (upper - lower)``.

    Args:
        tau: temperature, a positive number or a tensor of the batch shape, which may be learned. Small values give
            nearly discrete answers, large ones smooth ones.
        slack: ``"entropic"``, the paper's layer: the slack of an inequality row has entropy too, so the row pushes
            before it binds. ``"none"``: a row does nothing until it binds, and x is continuous in every number.

    x lies strictly inside the box wherever the rows allow it; every variable needs finite bounds. Cost and failure:
    see `linsat.Newton`.
    """

    tau: Any = 0.1
    slack: Literal["entropic", "none"] = "entropic"

    native = "entropy"
    per_instance = ("tau",)
    finite_box = True
    interior = True
    multiplies = "odds"
    ranges = {"tau": POSITIVE_TAU}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slack not in ("entropic", "none"):
            raise ConstraintError(
                f"slack is {self.slack!r}; expected 'entropic' (the paper's layer) or 'none'. Fix: slack='none'."
            )

    @property
    def entropic_slack(self) -> bool:
        return self.slack == "entropic"

    @property
    def constant_key(self) -> Hashable:
        return (Entropy, self.slack, self.tau) if type(self.tau) is float and type(self) is Entropy else None

    def parameters(self) -> dict[str, Any]:
        return {"tau": self.tau}

    def cost_slope(self, x: Tensor, lower: Tensor) -> Tensor:
        return namespace(x).full_like(x, float("inf"))

    def costs(self, lower: np.ndarray, upper: np.ndarray) -> Costs:
        return Costs(entropy=self.tau / np.maximum(upper - lower, 1e-300))

    def conjugate(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        width = upper - lower
        return lower * u + self.tau * namespace(u).softplus(width * u / self.tau)

    def point(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        width = upper - lower
        return lower + width * namespace(u).sigmoid(width * u / self.tau)

    def slope(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        width = upper - lower
        p = namespace(u).sigmoid(width * u / self.tau)
        return width**2 * p * (1 - p) / self.tau

    def excess(self, u: Tensor, t: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        xp = namespace(u)
        width = upper - lower
        wide = width > 0
        share = xp.where(wide, (t - lower) / xp.where(wide, width, 1.0), 0.5)
        return xp.where(wide, self.tau * self.divergence(share, width * u / self.tau), 0.0)

    def divergence(self, share: Tensor, logit: Tensor) -> Tensor:
        """KL of Bernoulli(share) from Bernoulli(sigmoid(logit)), elementwise."""
        xp = namespace(logit)
        share = xp.clip(share, 0.0, 1.0)
        return xp.softplus(logit) - share * logit + times_log(share) + times_log(1 - share)
