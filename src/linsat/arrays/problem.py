r"""The mathematics, written once: x, residual, dual potential and Hessian of a batch of projections.

Every projection minimises a smooth convex function of one dual per row, over a box of duals. With rows divided by their
scale rho, and a slack share z of mass S where an inequality has the paper's entropic slack (S = 0 otherwise):

    u = linear(y) + A' mu / rho              x = psi'(u)              z = sigmoid(mu / tau)
    theta(mu) = sum_j psi_j(u_j) + tau sum_i (S_i / rho_i) softplus(mu_i / tau) - <B / rho, mu>
    r(mu) = (A x + S z - B) / rho            the gradient of theta
    H(mu) = A D A' / rho rho' + diag(S z (1 - z) / (rho tau)),     D = diag psi''(u)

    minimise theta over  dual_lower <= mu <= dual_upper:   (-inf, 0] for a x <= b,  [0, inf) for c x >= d,  all of R for
    equalities and for rows with entropic slack, and at most a price in absolute value for soft rows.

psi is the conjugate of the objective (`linsat.objectives`). With entropic slacks and rows whose non-zero coefficients
are equal, the minimum is the fixed point of the multi-set Sinkhorn algorithm of Wang et al., LinSATNet, ICML 2023.

Arrays are those of torch, JAX or numpy; a field called a tensor may be any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from linsat._array_namespace import Tensor, namespace, to_numpy
from linsat._senses import EQUAL, GREATER, LESS
from linsat.objectives.base import Objective

if TYPE_CHECKING:
    from linsat.arrays.rows import RowMatrix


@dataclass(frozen=True)
class Presolved:
    """What presolve decided, per instance (N, .) or shared (1, .): nothing here is differentiated.

    ``at_upper`` says of variables that every feasible point fixes at a bound at which one; ``tight`` marks inequality
    rows that hold with equality at every feasible point (their slack share is ``tight_share``); rows that cannot bind
    or have no free variable left are not ``active``.
    """

    free: Tensor  # (., l) bool
    at_upper: Tensor  # (., l) bool, where not free
    active: Tensor  # (., k) bool
    tight: Tensor  # (., k) bool
    tight_share: Tensor  # (., k) slack share of tight rows
    infeasible: Tensor  # (.,) bool: no point of the box satisfies the rows

    def select(self, index: Tensor) -> Presolved:
        return Presolved(**{f.name: _select(getattr(self, f.name), index) for f in fields(self)})

    def flags(self, count: int | None = None) -> Tensor:
        """What every solver hands on, in one array of bool, (., 2 l + 2 k), or of ``count`` instances."""
        xp, parts = namespace(self.free), [self.free, self.at_upper, self.active, self.tight]
        if count is not None:
            parts = [xp.broadcast_to(part, (count, part.shape[1])) for part in parts]
        return xp.concatenate(parts, -1)

    def where(self, these: Tensor, other: Presolved) -> Presolved:
        """This for some instances, (N,) bool, and ``other`` for the rest."""
        xp = namespace(self.free)
        parts = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        which = {name: these[:, None] if own.ndim == 2 else these for name, (own, _) in parts.items()}
        return Presolved(**{name: xp.where(which[name], own, rest) for name, (own, rest) in parts.items()})


@dataclass(frozen=True)
class StandardForm:
    """Rows A x + S z = B over a box, with a box of duals; any first dimension of 1 is shared by all instances."""

    rows: RowMatrix
    lower: Tensor  # (., l)
    upper: Tensor  # (., l)
    rhs: Tensor  # (., k) B
    slack: Tensor  # (., k) S; 0 without entropic slack
    scale: Tensor  # (., k) rho
    dual_lower: Tensor  # (., k) of the multipliers of the rows as written
    dual_upper: Tensor  # (., k)

    @classmethod
    def of(
        cls,
        rows: RowMatrix,
        lower: Tensor,
        upper: Tensor,
        rhs: Tensor,
        price: Tensor,
        senses: Tensor,
        objective: Objective,
        gamma_shift: float,
    ) -> StandardForm:
        """From what is stated: bounds (., l), right-hand sides and prices (., k).

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

        Rows with an infinite side hold for every x: their duals are 0, and `absent` knows them by that.
        """
        xp, entropic = namespace(rhs), objective.entropic_slack
        least, most, scale = _measured(rows, lower, upper, objective)
        absent = ((senses == LESS) & xp.isposinf(rhs)) | ((senses == GREATER) & xp.isneginf(rhs))
        some_absent = not xp.known_false(absent)
        if some_absent:  # an infinite side would spoil the arithmetic: a finite one that says nothing takes its place
            rhs = xp.where(absent, xp.where(senses == LESS, most, least), rhs)
        if entropic:
            signed = rows.row_sums(xp.cast(rows.values < 0, rows.values)) > 0
            covering = xp.where(signed, most - rhs, _covering_slack(rhs - least, most - least, gamma_shift))
            slack = xp.where(senses == LESS, rhs - least, xp.where(senses == EQUAL, xp.zeros_like(rhs), covering))
            slack = xp.where(xp.isfinite(price[:1]), 0.0, slack)
            rhs = xp.where(senses == GREATER, rhs + slack, rhs)
        else:
            slack = xp.zeros_like(xp.constant(rhs[:1]))
        # With entropic slack a hard row, of infinite price, has a multiplier of any sign.
        one_way = xp.isfinite(price) if entropic else xp.ones_like(price) > 0
        low = xp.where(one_way & (senses == GREATER), 0.0, -price)
        high = xp.where(one_way & (senses == LESS), 0.0, price)
        if some_absent:
            low, high = xp.where(absent, 0.0, low), xp.where(absent, 0.0, high)
        return cls(rows, lower, upper, rhs, slack, scale, low, high)

    @property
    def soft(self) -> Tensor:
        """(1, k) bool: rows that may be broken at a price, which bounds their duals on both sides."""
        xp, low, high = namespace(self.dual_lower), self.dual_lower, self.dual_upper
        if low.shape[0] == 1 == high.shape[0]:
            return xp.isfinite(low) & xp.isfinite(high) & (low < high)
        # An instance without the row says nothing about the others.
        return (xp.isfinite(low) & xp.isfinite(high) & (low < high)).any(0)[None]

    @property
    def absent(self) -> Tensor:
        """(1 or N, k) bool: rows whose side is infinite, which every x satisfies."""
        return (self.dual_lower == 0) & (self.dual_upper == 0)

    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that may carry a gradient, in the order of the fields; `with_tensors` takes it back."""
        return (self.rows.values, *(getattr(self, f.name) for f in fields(StandardForm)[1:]))

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> StandardForm:
        return StandardForm(self.rows.with_values(tensors[0]), *tensors[1:])

    def problem(
        self,
        scores: Tensor,
        objective: Objective,
        presolved: Presolved,
        cache: dict[str, Any] | None = None,
        senses: Tensor | None = None,
        side: Tensor | None = None,
    ) -> Problem:
        """The problem of scores (N, l) over these rows."""
        form: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(StandardForm)}
        return Problem(
            **form, scores=scores, objective=objective, presolved=presolved, cache=cache, senses=senses, side=side
        )


class Evaluation(NamedTuple):
    """Everything at some duals."""

    u: Tensor  # (N, l)
    x: Tensor  # (N, l)
    z: Tensor  # (N, k)
    residual: Tensor  # (N, k)
    theta: Tensor  # (N,)
    size: Tensor  # (N,) sum of the absolute terms of theta: what its rounding is relative to


@dataclass(frozen=True)
class Problem(StandardForm):
    """A batch of N instances: standard form, scores, objective and what presolve decided.

    Duals mu are those of the rows divided by their scale: the multipliers of the rows as written, times the scale.
    """

    scores: Tensor  # (N, l) y; x has its dtype, everything else is float64
    objective: Objective
    presolved: Presolved
    cache: dict[str, Any] | None = None  # where a back end may keep what it derives from numbers that never change
    # Of the rows as written, for verdicts: an entropic slack does not show the senses, and rounds the sides.
    senses: Tensor | None = None  # (k,)
    side: Tensor | None = None  # (., k)

    @property
    def size(self) -> int:
        """The number of instances."""
        return self.scores.shape[0]

    def in_double(self) -> Problem:
        """The same with scores in float64, as torch operations need them; the kernel reads float32 too."""
        import torch

        return self if self.scores.dtype is torch.float64 else replace(self, scores=self.scores.to(torch.float64))

    def in_numpy(self) -> Problem:
        """The same as float64 arrays of the host, without gradients."""
        form = self.with_tensors(tuple(map(to_numpy, self.tensors())))
        presolved = Presolved(**{f.name: to_numpy(getattr(self.presolved, f.name)) for f in fields(Presolved)})
        scores, objective = to_numpy(self.scores).astype(np.float64), self.objective.changed(to_numpy)
        senses, side = (None if part is None else to_numpy(part) for part in (self.senses, self.side))
        return form.problem(scores, objective, presolved, senses=senses, side=side)

    def in_single(self) -> Problem:
        """The same with every number in float32, for steps whose last digits do not matter."""
        form = self.with_tensors(tuple(tensor.float() for tensor in self.tensors()))
        numbers = {name: value.float() for name, value in self.objective.parameters().items()}
        objective = replace(self.objective, **numbers) if numbers else self.objective  # type: ignore[type-var]
        presolved = replace(self.presolved, tight_share=self.presolved.tight_share.float())
        return form.problem(self.scores.float(), objective, presolved)

    def select(self, index: Tensor) -> Problem:
        """The problem of some instances only."""
        tensors = {f.name: _select(getattr(self, f.name), index) for f in fields(StandardForm)[1:]}
        return replace(
            self,
            rows=self.rows.select(index),
            **tensors,
            scores=self.scores[index],
            objective=self.objective if self.size == 1 else self.objective.changed(lambda n: _select(n, index)),
            presolved=self.presolved.select(index),
            side=None if self.side is None else _select(self.side, index),
        )

    def dual_bounds(self) -> tuple[Tensor, Tensor]:
        """The box of the normalised duals; rows that always hold with equality are equalities."""
        xp = namespace(self.dual_lower)
        tight = self.presolved.tight
        low = xp.where(tight, -math.inf, self.dual_lower * self.scale)
        high = xp.where(tight, math.inf, self.dual_upper * self.scale)
        return low, high

    def follow_prices(self, mu: Tensor) -> Tensor:
        """The duals mu, those at a bound as functions of that bound; for gradients."""
        xp = namespace(mu)
        low, high = self.dual_bounds()
        for bound, dual, reached in ((low, self.dual_lower, mu <= low), (high, self.dual_upper, mu >= high)):
            at = reached & xp.isfinite(bound)
            # Not the bound itself: times infinity, a gradient of zero would not be one.
            mu = xp.where(at, xp.where(at, dual, 0.0) * self.scale, mu)
        return mu

    def multipliers(self, mu: Tensor) -> Tensor:
        """The multipliers of the rows as written, exactly at their bounds where the duals mu are at theirs."""
        xp = namespace(mu)
        low, high = self.dual_bounds()
        return xp.where(mu <= low, self.dual_lower, xp.where(mu >= high, self.dual_upper, mu / self.scale))

    def clip(self, mu: Tensor) -> Tensor:
        """Duals brought into their box."""
        xp = namespace(mu)
        return xp.clip(mu, *self.dual_bounds())

    def mu_at_rest(self) -> Tensor:
        """Duals at which no row pushes, (N, k)."""
        xp = namespace(self.scores)
        return self.clip(xp.zeros((self.size, self.rows.shape[0]), self.scores))

    def error(self, mu: Tensor, residual: Tensor) -> Tensor:
        """How far mu is from optimal, (N,): from where a step along -r, clipped, would leave it."""
        xp = namespace(mu)
        moved = abs(mu - self.clip(mu - residual))
        return xp.amax(moved) if moved.shape[-1] else xp.zeros((moved.shape[0],), moved)

    def anchor(self) -> Tensor:
        """x of the variables that presolve fixed, 0 elsewhere."""
        xp = namespace(self.lower)
        p = self.presolved
        return xp.where(p.free, 0.0, xp.where(p.at_upper, self.upper, self.lower))

    def adjusted(self, mu: Tensor) -> Tensor:
        """u at duals mu."""
        return self.objective.linear(self.scores) + self.rows.rmatvec(mu / self.scale)

    def point(self, u: Tensor, objective: Objective | None = None) -> Tensor:
        """x at u."""
        xp = namespace(u)
        p = self.presolved
        fixed = xp.where(p.at_upper, self.upper, self.lower)
        return xp.where(p.free, (objective or self.objective).point(u, self.lower, self.upper), fixed)

    def slack_shares(self, mu: Tensor, objective: Objective | None = None) -> Tensor:
        """z at mu, (N, k)."""
        xp = namespace(mu)
        if not self.objective.entropic_slack:
            return xp.zeros_like(mu)
        p = self.presolved
        return xp.where(p.tight, p.tight_share, xp.sigmoid(mu / (objective or self.objective).temperature))

    def residual(self, x: Tensor, z: Tensor) -> Tensor:
        xp = namespace(x)
        r = self.rows.matvec(x)
        if self.objective.entropic_slack:
            r = r + self.slack * z
        r = (r - self.rhs) / self.scale
        return xp.where(self.presolved.active, r, xp.zeros_like(r))

    def linear_term(self) -> Tensor:
        """What multiplies mu in theta: B less what fixed variables and tight slacks take up, over the scale."""
        xp = namespace(self.scores)
        p = self.presolved
        taken = self.rows.matvec_each(self.anchor())
        if self.objective.entropic_slack:
            taken = taken + self.slack * xp.where(p.tight, p.tight_share, 0.0)
        return xp.where(p.active, (self.rhs - taken) / self.scale, 0.0)

    def evaluate(self, mu: Tensor, objective: Objective, linear: Tensor) -> Evaluation:
        """Everything at mu; ``objective`` may be hotter, ``linear`` is `linear_term`, which does not change with mu."""
        xp = namespace(mu)
        p = self.presolved
        u = self.adjusted(mu)
        x, z = self.point(u, objective), self.slack_shares(mu, objective)
        terms = xp.where(p.free, objective.conjugate(u, self.lower, self.upper), 0.0)
        dual = linear * mu
        theta, size = terms.sum(-1) - dual.sum(-1), abs(terms).sum(-1) + abs(dual).sum(-1)
        if objective.entropic_slack:
            weight = (self.slack / self.scale) * (p.active & ~p.tight)
            slack = weight * (objective.temperature * xp.softplus(mu / objective.temperature))
            theta, size = theta + slack.sum(-1), size + slack.sum(-1)
        return Evaluation(u, x, z, self.residual(x, z), theta, size)

    def curvature(self, u: Tensor, z: Tensor, objective: Objective, moving: Tensor) -> Curvature:
        """H at u, z over the rows that ``move``; the others get a unit diagonal and nothing else."""
        xp = namespace(u)
        p = self.presolved
        weights = xp.where(p.free, objective.slope(u, self.lower, self.upper), 0.0)
        inverse = xp.where(moving, 1.0 / self.scale, 0.0)
        diagonal = xp.where(moving, 0.0, xp.ones_like(inverse))
        if objective.entropic_slack:
            own = self.slack * inverse * z * (1 - z) / objective.temperature
            diagonal = xp.where(p.tight, diagonal, own + diagonal)
        return Curvature(self.rows, weights, inverse, xp.broadcast_to(diagonal, z.shape))

    def drift(self, e: Evaluation, mu: Tensor, objective: Objective) -> Tensor:
        """Derivative of the residual with respect to the temperature, mu held."""
        xp = namespace(mu)
        p, T = self.presolved, objective.temperature
        slope = xp.where(p.free, objective.slope(e.u, self.lower, self.upper), 0.0)
        change = self.rows.matvec(-slope * e.u / T)
        if objective.entropic_slack:
            change = change + xp.where(p.tight, 0.0, -self.slack * e.z * (1 - e.z) * mu / T**2)
        return xp.where(p.active, change / self.scale, 0.0)

    def row_sizes(self, x: Tensor) -> Tensor:
        """sum_j |a_ij x_j| of each row, (N, k): what a violation is relative to, where it exceeds one."""
        return self.rows.row_sums(abs(x[:, self.rows.col] * self.rows.values))

    def violation(self, x: Tensor) -> Tensor:
        """The worst violation of any hard row as written, relative to ``max(1, sum_j |a_ij x_j|)``, (N,).

        Of rows that presolve has dropped, too. It needs ``senses`` and ``side``.
        """
        xp = namespace(x)
        if not self.rows.shape[0]:
            return xp.zeros((x.shape[0],), x)
        assert self.side is not None
        below, above = self.senses == GREATER, self.senses == LESS
        excess = self.rows.matvec(x) - self.side
        gap = xp.where(below, -excess, xp.where(above, excess, abs(excess)))
        return xp.amax(xp.where(self.soft | self.absent, 0.0, gap / xp.at_least(self.row_sizes(x), 1.0)))

    def row_ranges(self) -> tuple[Tensor, Tensor]:
        """The least and the largest value of A x, scaled, over what presolve left free, slack included; (., k) each."""
        xp = namespace(self.lower)
        rows, p = self.rows, self.presolved
        low, high = self.lower[:, rows.col] * rows.values, self.upper[:, rows.col] * rows.values
        free = p.free[:, rows.col]
        least = rows.row_sums(xp.where(free, xp.minimum(low, high), 0.0))
        most = rows.row_sums(xp.where(free, xp.maximum(low, high), 0.0))
        if self.objective.entropic_slack:
            most = most + xp.where(p.tight, 0.0, self.slack)
        return least / self.scale, most / self.scale


@dataclass(frozen=True)
class Curvature:
    """H = A D A' with the rows of A divided by their scale, plus a diagonal: as an operator or as a matrix."""

    rows: RowMatrix
    weights: Tensor  # (N, l) D
    inverse: Tensor  # (., k) 1 / rho, 0 for rows that do not move
    diagonal_term: Tensor  # (N, k)

    def product(self, v: Tensor) -> Tensor:
        """H v for v (N, k), in O(nnz) per instance."""
        pulled = self.weights * self.rows.rmatvec(self.inverse * v)
        return self.inverse * self.rows.matvec(pulled) + self.diagonal_term * v

    def diagonal(self) -> Tensor:
        """(N, k)."""
        return self.inverse**2 * self.rows.gram_diagonal(self.weights) + self.diagonal_term

    def dense(self) -> Tensor:
        """(N, k, k)."""
        xp = namespace(self.weights)
        H = self.rows.gram(self.weights) * (self.inverse[:, :, None] * self.inverse[:, None, :])
        return H + xp.diagonal_matrix(self.diagonal_term)


def _select(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[index]


def _measured(rows: RowMatrix, lower: Tensor, upper: Tensor, objective: Objective) -> tuple[Tensor, Tensor, Tensor]:
    """The least and the largest value of each row over a finite box, else 0, and its scale; (., k) each."""
    coefficients = rows.values
    xp = namespace(coefficients)
    if objective.finite_box:
        low, high = lower[:, rows.col], upper[:, rows.col]
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
    return least, most, xp.where(counts > 0, scale, xp.ones_like(scale))


def _covering_slack(need: Tensor, total: Tensor, gamma_shift: float) -> Tensor:
    """g d for rows c x >= d with c >= 0, measured from the row's smallest value."""
    xp = namespace(need)
    safe = xp.where(need > 0, need, xp.ones_like(need))
    # The relative nudge keeps ratios that are whole numbers in exact arithmetic (0.3 / 0.1) from rounding down.
    nudge = 1 + max(1e-12, 8 * xp.eps(need))
    return xp.floor(xp.constant(total / (safe + gamma_shift)) * nudge) * need
