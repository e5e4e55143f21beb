"""The Kullback-Leibler objective: softmax and Sinkhorn's matrices, over any rows."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from linsat._array_namespace import Tensor, namespace
from linsat.objectives.base import POSITIVE_TAU, Costs, Range, Tempered, times_log

_PRIOR = "numbers that are positive, or 0 for a variable that stays at its lower bound. Fix: for example prior=1.0."
_LARGEST = 700.0  # power of e that float64 still holds


@dataclass(frozen=True, eq=False)
class KL(Tempered):
    r"""``max <y, x> - tau sum_j [t_j log(t_j / prior_j) - t_j + prior_j]`` with ``t = x - lower``.

    Args:
        tau: temperature, a positive number or a tensor of the batch shape, which may be learned. Small values give
            nearly discrete answers, large ones stay close to the prior.
        prior: what x - lower is where neither scores nor rows push: a number, (variables,), (batch..., variables), or
            in the shape of the set's variable; may be learned. Default: all one. Where it is 0 the variable stays at
            its lower bound, as with a score of -inf.

    The softmax on the simplex, the limit of Sinkhorn's iteration on doubly stochastic matrices, the plan of entropic
    optimal transport. A row does nothing until it binds. x lies strictly above its lower bound, which must be finite,
    wherever the rows allow it; the upper bound may be infinite, and is reached exactly where it binds:
    ``x = lower + min(prior exp((y + A'duals) / tau), upper - lower)``. Cost and failure: see `linsat.Newton`.
    """

    tau: Any = 1.0
    prior: Any = None

    native = "kl"
    per_instance = ("tau",)
    per_variable = ("prior",)
    finite_lower = True
    interior = True
    multiplies = "shares"
    ranges = {"tau": POSITIVE_TAU, "prior": Range(0.0, _PRIOR, zero=True)}  # noqa: RUF012

    def probe(self, like: Tensor) -> KL:
        return KL(namespace(like).zeros((1, 1), like) + 1.0)

    @property
    def constant_key(self) -> Hashable:
        return (KL, self.tau) if type(self.tau) is float and self.prior is None and type(self) is KL else None

    def parameters(self) -> dict[str, Any]:
        return {"tau": self.tau} | ({} if self.prior is None else {"prior": self.prior})

    @property
    def held(self) -> Tensor | None:
        return None if self.prior is None else self.prior == 0

    def linear(self, y: Tensor) -> Tensor:
        if self.prior is None:
            return y
        xp = namespace(y)
        return y + self.tau * xp.log(xp.where(self.prior > 0, self.prior, 1.0))

    def cost_slope(self, x: Tensor, lower: Tensor) -> Tensor:
        xp, t = namespace(x), x - lower
        return xp.where(t > 0, self.tau * xp.log(xp.where(t > 0, t, 1.0)), xp.inf)

    def costs(self, lower: np.ndarray, upper: np.ndarray) -> Costs:
        # t log(t / prior) is t log(t / w) and a linear term, whatever w is; below w multipliers have one sign.
        width = upper - lower
        w = np.where(np.isfinite(width) & (width > 0), width, 1.0)
        return Costs(entropy=self.tau, prior=w, linear=-self.tau * np.log(w))

    def _cut(self, u: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x - lower, the logarithm at which it ends, and whether that is farther away than u asks for."""
        xp = namespace(u)
        width, power = upper - lower, u / self.tau
        end = xp.where(width > 0, xp.log(xp.where(width > 0, width, 1.0)), -xp.inf)
        inside = power < end
        # Not min: where the exponential overflows its derivative would be no number, not even times zero.
        t = xp.where(inside, xp.exp(xp.at_most(xp.where(inside, power, 0.0), _LARGEST)), width)
        return t, end, inside

    def conjugate(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        xp = namespace(u)
        t, end, inside = self._cut(u, lower, upper)
        beyond = xp.where(inside | (t <= 0), 0.0, t) * (u / self.tau - xp.where(inside | (t <= 0), 0.0, end))
        return lower * u + self.tau * (t + beyond)

    def point(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        t, _, inside = self._cut(u, lower, upper)
        return namespace(u).where(inside, lower + t, upper)

    def slope(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        t, _, inside = self._cut(u, lower, upper)
        return namespace(u).where(inside, t, 0.0) / self.tau

    def excess(self, u: Tensor, t: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        xp = namespace(u)
        x, end, inside = self._cut(u, lower, upper)
        power, given = u / self.tau, xp.at_least(t - lower, 0.0)
        finite = xp.where(inside, power, xp.where(x > 0, end, 0.0))  # log x
        pushes = xp.where(inside | (x <= 0), 0.0, (power - finite) * (x - given))
        return self.tau * (times_log(given) - given * finite - given + x + pushes)
