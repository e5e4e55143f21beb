"""The Tsallis objective: entmax, over any rows."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from linsat._array_namespace import Tensor, namespace
from linsat.objectives.base import POSITIVE_TAU, Costs, Range, Tempered

if TYPE_CHECKING:
    import numpy as np

_ALPHA = "a number above 1. Fix: for example alpha=1.5; alpha=1 is linsat.KL."


@dataclass(frozen=True, eq=False)
class Tsallis(Tempered):
    r"""``max <y, x> - tau sum_j (t_j^alpha - t_j) / (alpha (alpha - 1))`` with ``t = x - lower``.

    Args:
        alpha: above 1, a number or a tensor of the batch shape, which may be learned. 2 is sparsemax (`Euclidean`), 1.5
            the usual entmax; towards 1 answers become those of `KL`.
        tau: temperature, positive, likewise.

    Answers are sparse, and smoother in the scores than the nearest point is: where x leaves its lower bound, it does so
    with slope 0 (alpha < 2). Lower bounds must be finite, upper ones may be infinite; both are reached exactly. A row
    does nothing until it binds. ``x = lower + [(alpha - 1) (y + A'duals) / tau + 1 / alpha]_+^(1 / (alpha - 1))``, cut
    at upper. Cost and failure: see `linsat.Newton`.
    """

    alpha: Any = 1.5
    tau: Any = 1.0

    native = "tsallis"
    per_instance = ("alpha", "tau")
    finite_lower = True
    ranges = {"tau": POSITIVE_TAU, "alpha": Range(1.0, _ALPHA)}  # noqa: RUF012

    @property
    def constant_key(self) -> Hashable:
        constant = type(self.tau) is float and type(self.alpha) is float and type(self) is Tsallis
        return (Tsallis, self.alpha, self.tau) if constant else None

    def parameters(self) -> dict[str, Any]:
        return {"tau": self.tau, "alpha": self.alpha}

    def cost_slope(self, x: Tensor, lower: Tensor) -> Tensor:
        xp, t = namespace(x), x - lower
        power = xp.where(t > 0, xp.where(t > 0, t, 1.0) ** (self.alpha - 1), 0.0)
        return self.tau * (self.alpha * power - 1) / (self.alpha * (self.alpha - 1))

    def costs(self, lower: np.ndarray, upper: np.ndarray) -> Costs:
        return Costs(quadratic=self.tau)  # where its models begin (`linsat.arrays.interior.instances`)

    def _cut(self, u: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x - lower, v (1 where x is at a bound), and whether x is strictly between its bounds, or at the upper one."""
        xp = namespace(u)
        width, v = upper - lower, (self.alpha - 1) * u / self.tau + 1 / self.alpha
        end = xp.where(width > 0, width, 0.0) ** (self.alpha - 1)
        above, inside = v >= end, (v > 0) & (v < end)
        v = xp.where(inside, v, 1.0)
        return xp.where(inside, v ** (1 / (self.alpha - 1)), xp.where(above, width, 0.0)), v, inside, above

    def conjugate(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        xp = namespace(u)
        t, v, inside, above = self._cut(u, lower, upper)
        at_end = xp.where(above, t, 0.0)
        beyond = at_end * u - self.tau * (at_end**self.alpha - at_end) / (self.alpha * (self.alpha - 1))
        return lower * u + xp.where(inside, self.tau * t * v / self.alpha, beyond)

    def point(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        t, _, _, above = self._cut(u, lower, upper)
        return namespace(u).where(above, upper, lower + t)

    def slope(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        t, v, inside, _ = self._cut(u, lower, upper)
        return namespace(u).where(inside, t / v, 0.0) / self.tau

    def excess(self, u: Tensor, t: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        xp = namespace(u)
        given = xp.at_least(t - lower, 0.0)
        power = xp.where(given > 0, given, 1.0) ** self.alpha  # and not 0, whose logarithm is in the derivative
        omega = self.tau * (xp.where(given > 0, power, 0.0) - given) / (self.alpha * (self.alpha - 1))
        return self.conjugate(u, lower, upper) + omega - u * (lower + given)
