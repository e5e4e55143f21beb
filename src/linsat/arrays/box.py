"""The standard form, from flat arrays of torch, JAX or numpy: slack masses, row scales, bounds on duals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from linsat._array_namespace import Tensor, namespace
from linsat._senses import EQUAL, GREATER, LESS
from linsat.arrays.problem import StandardForm
from linsat.objectives.base import Objective


@dataclass(frozen=True)
class Box:
    """What follows from coefficients and bounds alone: the same for sets that differ in their right-hand sides only."""

    rows: Any  # RowMatrix, or that of JAX
    lower: Tensor  # (., l)
    upper: Tensor  # (., l)
    least: Tensor  # (., k) of a x over the box
    most: Tensor  # (., k)
    scale: Tensor  # (., k)
    signed: Tensor  # (., k) whether the row has negative coefficients

    @classmethod
    def of(cls, rows: Any, lower: Tensor, upper: Tensor, objective: Objective, ends: tuple[Tensor, Tensor]) -> Box:
        """``ends``: the bounds of the variable of each coefficient, (., nnz), or (1, 1) where all have the same."""
        coefficients = rows.values
        xp = namespace(coefficients)
        if objective.finite_box:
            low, high = ends
            at_lower, at_upper, width = low * coefficients, high * coefficients, high - low
            reach = abs(coefficients) * width
            counts = rows.row_sums(xp.cast((coefficients != 0) & (width > 0), reach))
            scale = rows.row_sums(reach) / xp.at_least(counts, 1.0)
            least, most = rows.row_sums(xp.minimum(at_lower, at_upper)), rows.row_sums(xp.maximum(at_lower, at_upper))
        else:
            counts = rows.row_sums(xp.cast(coefficients != 0, coefficients))
            # A scale changes the path of the solver only; without entropic slack it has no gradient.
            sizes = xp.constant(abs(coefficients))
            if objective.multiplies:
                scale = rows.row_sums(sizes) / xp.at_least(counts, 1.0)
            else:
                scale = xp.sqrt(rows.row_sums(sizes**2))
            least = most = xp.zeros_like(scale)
        return cls(
            rows=rows,
            lower=lower,
            upper=upper,
            least=least,
            most=most,
            scale=xp.where(counts > 0, scale, xp.ones_like(scale)),
            signed=rows.row_sums(xp.cast(coefficients < 0, coefficients)) > 0,
        )

    def form(
        self, rhs: Tensor, price: Tensor | None, senses: Tensor, *, entropic: bool, gamma_shift: float = 0.0
    ) -> StandardForm:
        """The standard form with right-hand sides and prices (., k), as `linsat.arrays.problem` wants it.

        With the paper's entropic slack every inequality gets a slack mass, so that the row holds exactly when its share
        z is in [0, 1]:

            a x <= b   becomes   a x + S z = b,       S = b - min over the box of a x  (b for a >= 0, box [0, 1])
            c x >= d   becomes   c x + S z = d + S,   S = max over the box of c x - d
            c x >= d, c >= 0:    the same with S = g d, g = floor(sum c / d), the multiplier of the paper
            e x = f    becomes   e x = f,             S = 0

        Without it, and for soft rows always, S = 0 and the sense of a row is a bound on its dual; the price of a soft
        row is a second bound. Rows are scaled by the mean |coefficient * width| of their non-zeros in a finite box (the
        paper's slack temperature is in these units), the mean |coefficient| where duals multiply shares, else by the
        norm of the row. ``gamma_shift`` is added to d in the paper's multiplier, as the published package does with
        1e-4.

        Rows with an infinite side hold for every x: their duals are 0, and `StandardForm.absent` knows them by that.
        """
        xp = namespace(rhs)
        absent = ((senses == LESS) & xp.isposinf(rhs)) | ((senses == GREATER) & xp.isneginf(rhs))
        some_absent = not xp.known_false(absent)
        if some_absent:  # an infinite side would spoil the arithmetic: a finite one that says nothing takes its place
            rhs = xp.where(absent, xp.where(senses == LESS, self.most, self.least), rhs)
        if entropic:
            covering = _covering_slack(rhs - self.least, self.most - self.least, gamma_shift)
            slack = xp.where(
                senses == LESS,
                rhs - self.least,
                xp.where(senses == EQUAL, xp.zeros_like(rhs), xp.where(self.signed, self.most - rhs, covering)),
            )
            if price is not None:
                slack = xp.where(xp.isfinite(price[:1]), 0.0, slack)
            rhs = xp.where(senses == GREATER, rhs + slack, rhs)
        else:
            slack = xp.zeros_like(xp.constant(rhs[:1]))
        if price is None:
            price = xp.full_like(self.scale[:1], math.inf)
        # With entropic slack a hard row, of infinite price, has a multiplier of any sign.
        signed = xp.isfinite(price) if entropic else xp.ones_like(price) > 0
        low = xp.where(signed & (senses == GREATER), 0.0, -price)
        high = xp.where(signed & (senses == LESS), 0.0, price)
        if some_absent:
            low, high = xp.where(absent, 0.0, low), xp.where(absent, 0.0, high)
        return StandardForm(self.rows, self.lower, self.upper, rhs, slack, self.scale, low, high)


def _covering_slack(need: Tensor, total: Tensor, gamma_shift: float) -> Tensor:
    """g d for rows c x >= d with c >= 0, measured from the row's smallest value."""
    xp = namespace(need)
    safe = xp.where(need > 0, need, xp.ones_like(need))
    # The relative nudge keeps ratios that are whole numbers in exact arithmetic (0.3 / 0.1) from rounding down.
    nudge = 1 + max(1e-12, 8 * xp.eps(need))
    return xp.floor(xp.constant(total / (safe + gamma_shift)) * nudge) * need
