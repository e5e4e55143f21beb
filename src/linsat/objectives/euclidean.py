"""The Euclidean objective: the nearest point."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from linsat._array_namespace import Tensor, namespace
from linsat.objectives.base import Costs, Objective, Range

if TYPE_CHECKING:
    import numpy as np

    from linsat.constraints.layout import Layout


@dataclass(frozen=True, eq=False)
class Euclidean(Objective):
    """``min sum_j q_j (x_j - y_j)^2 / 2``: the point of the set nearest to the scores.

    Args:
        weights: q, positive, (variables,) or (batch..., variables), or in the shape of the set's variable; may be
            learned. Default: all one. Or a metric, a symmetric, positive definite matrix W, (variables, variables) or
            (batch..., variables, variables): ``min (x - y)'W(x - y) / 2``, at the cost of `Quadratic`.

    Scores that satisfy the rows come back unchanged, answers are sparse (sparsemax on the simplex), and bounds may be
    infinite. Piecewise linear in y: at a kink (a variable at a bound, a row tight with multiplier 0) the gradient is
    that of the piece on which the variable or the row stays where it is. Cost and failure: see `linsat.Newton`.
    """

    weights: Any = None

    native = "euclidean"
    per_variable = ("weights",)
    ranges = {"weights": Range(0.0, "positive numbers. Fix: for example weights=1.0.")}  # noqa: RUF012

    def read(self, layout: Layout | None, batch_shape: Sequence[int], num_variables: int) -> Objective:
        if type(self) is Euclidean and self.weights is not None:
            from linsat.objectives.quadratic import as_metric

            metric = as_metric(self.weights, batch_shape, num_variables)
            if metric is not None:
                return metric
        return super().read(layout, batch_shape, num_variables)

    def probe(self, like: Tensor) -> Euclidean:
        return Euclidean()

    @property
    def constant_key(self) -> Hashable:
        return Euclidean if self.weights is None and type(self) is Euclidean else None

    def parameters(self) -> dict[str, Any]:
        return {} if self.weights is None else {"weights": self.weights}

    def linear(self, y: Tensor) -> Tensor:
        return y if self.weights is None else self.weights * y

    def cost_slope(self, x: Tensor, lower: Tensor) -> Tensor:
        return x if self.weights is None else self.weights * x

    def costs(self, lower: np.ndarray, upper: np.ndarray) -> Costs:
        return Costs(quadratic=1.0 if self.weights is None else self.weights)

    def conjugate(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        x = self.point(u, lower, upper)
        return x * (u - 0.5 * (x if self.weights is None else self.weights * x))

    def point(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        x = u if self.weights is None else u / self.weights
        # Not clip: its derivative at a bound is not 0, as `slope` and the solvers say.
        xp = namespace(u)
        return xp.where(x <= lower, lower, xp.where(x >= upper, upper, x))

    def slope(self, u: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        x = u if self.weights is None else u / self.weights
        inside = (x > lower) & (x < upper)
        return namespace(u).cast(inside, u) if self.weights is None else inside / self.weights

    def excess(self, u: Tensor, t: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        x = self.point(u, lower, upper)
        middle = (t + x) / 2
        return (t - x) * ((middle if self.weights is None else self.weights * middle) - u)
