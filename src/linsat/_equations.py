r"""The mathematics, written once: x, residual, potential and Hessian of a batch of entropic programs.

Every row is an equality with a private slack share z in [0, 1] (`linsat._compile` says how each sense becomes one):

    A x + S z = B,    x = lower + width * p,   p, z in [0, 1]

With rows divided by their scale rho (mean |coefficient * width| over non-zeros), one dual mu per row gives everything:

    p_j = sigmoid(width_j (y_j + sum_i a_ij mu_i / rho_i) / tau)           z_i = sigmoid(mu_i / tau)
    r_i(mu) = (sum_j a_ij x_j + S_i z_i - B_i) / rho_i                       the gradient of the convex potential
    phi(mu) = tau sum_j softplus(.) + tau sum_i (S_i / rho_i) softplus(mu_i / tau) - <b, mu>
    H(mu) = (A D A' + diag(s z (1 - z))) / tau,   D = diag(width^2 p (1 - p)), rows of A over rho, s = S / rho

r(mu) = 0 is the optimality condition of

    min_x  -<y, x> + tau sum_j [p_j log p_j + (1 - p_j) log(1 - p_j)] + tau sum_i s_i [z_i log z_i + (1-z_i) log(1-z_i)]

over the rows. For rows whose non-zero coefficients are equal it is the fixed point of the multi-set Sinkhorn algorithm
of Wang et al., LinSATNet, ICML 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F

from linsat._rows import RowMatrix

Tensor = torch.Tensor


@dataclass(frozen=True)
class Reduction:
    """What presolve decided, per instance (N, .) or shared (1, .): nothing here is differentiated.

    ``pinned`` holds the share p of variables that every feasible point fixes at a bound; ``tight`` marks inequality
    rows that hold with equality at every feasible point (their slack share is ``tight_share``); rows that cannot bind
    or have no free variable left are not ``active``.
    """

    free: Tensor  # (., l) bool
    pinned: Tensor  # (., l) 0 or 1 where not free
    active: Tensor  # (., k) bool
    tight: Tensor  # (., k) bool
    tight_share: Tensor  # (., k) slack share of tight rows
    infeasible: Tensor  # (.,) bool: no point of the box satisfies the rows

    def select(self, index: Tensor) -> Reduction:
        return Reduction(**{f.name: _select(getattr(self, f.name), index) for f in fields(self)})

    def expand(self, count: int) -> Reduction:
        """One of its own for each of ``count`` instances."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return Reduction(**{name: t.expand(count, *t.shape[1:]).clone() for name, t in parts.items()})

    def replace(self, instance: int, other: Reduction) -> None:
        """Overwrite one instance with a reduction (1, .) of its own."""
        for f in fields(self):
            getattr(self, f.name)[instance] = getattr(other, f.name)[0]


@dataclass(frozen=True)
class Equalities:
    """Rows as equalities A x + S z = B over the box; any first dimension of 1 is shared by all instances."""

    rows: RowMatrix
    lower: Tensor  # (., l)
    width: Tensor  # (., l)
    rhs: Tensor  # (., k) B
    slack: Tensor  # (., k) S
    scale: Tensor  # (., k) rho

    def program(self, scores: Tensor, reduction: Reduction) -> Program:
        """The program of scores (N, l) over these rows."""
        parts = {f.name: getattr(self, f.name) for f in fields(Equalities)}
        return Program(**parts, scores=scores, reduction=reduction)


@dataclass(frozen=True)
class Program(Equalities):
    """A batch of N instances: rows as equalities, scores and what presolve decided."""

    scores: Tensor  # (N, l) y
    reduction: Reduction

    def select(self, index: Tensor) -> Program:
        """The program of some instances only."""
        return Program(
            rows=self.rows,
            lower=_select(self.lower, index),
            width=_select(self.width, index),
            rhs=_select(self.rhs, index),
            slack=_select(self.slack, index),
            scale=_select(self.scale, index),
            scores=_select(self.scores, index),
            reduction=self.reduction.select(index),
        )

    def shares(self, mu: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
        """p (N, l) and z (N, k) at duals mu (N, k) and temperature tau (N, 1)."""
        r = self.reduction
        p = torch.sigmoid(self.logits(mu, tau))
        z = torch.sigmoid(mu / tau)
        return torch.where(r.free, p, r.pinned), torch.where(r.tight, r.tight_share, z)

    def logits(self, mu: Tensor, tau: Tensor) -> Tensor:
        return self.width * (self.scores + self.rows.pull(mu / self.scale)) / tau

    def point(self, p: Tensor) -> Tensor:
        return self.lower + self.width * p

    def residual_at(self, p: Tensor, z: Tensor) -> Tensor:
        r = (self.rows.apply(self.point(p)) + self.slack * z - self.rhs) / self.scale
        return torch.where(self.reduction.active, r, torch.zeros_like(r))

    def residual(self, mu: Tensor, tau: Tensor) -> Tensor:
        return self.residual_at(*self.shares(mu, tau))

    def linear_term(self) -> Tensor:
        """b of the potential: the right side less what lower bounds, pinned variables and tight slacks take up."""
        r = self.reduction
        start = self.point(torch.where(r.free, torch.zeros_like(r.pinned), r.pinned))
        taken = self.rows.apply_each(start) + self.slack * torch.where(r.tight, r.tight_share, 0.0)
        return torch.where(r.active, (self.rhs - taken) / self.scale, 0.0)

    def row_totals(self) -> Tensor:
        """The largest value of each normalised left side, slack included; 0 for rows with negative coefficients."""
        r = self.reduction
        rows = self.rows
        weights = rows.values * (self.width * r.free)[:, rows.col]
        blank = weights.new_zeros((weights.shape[0], rows.shape[0]))
        signed = blank[:1].index_add(1, rows.row, (rows.values < 0).to(weights.dtype)[None]) > 0
        total = blank.index_add(1, rows.row, weights) + torch.where(r.tight, 0.0, self.slack)
        return torch.where(r.active & ~signed, total / self.scale, 0.0)

    def evaluate(self, mu: Tensor, tau: Tensor, linear: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """p, z, residual and potential at once; ``linear`` is `linear_term`, which does not change with mu."""
        r = self.reduction
        logits = self.logits(mu, tau)
        p = torch.where(r.free, torch.sigmoid(logits), r.pinned)
        z = torch.where(r.tight, r.tight_share, torch.sigmoid(mu / tau))
        slack_free = (self.slack / self.scale) * (r.active & ~r.tight)
        phi = (_softplus(logits) * r.free).sum(-1) + (_softplus(mu / tau) * slack_free).sum(-1)
        return p, z, self.residual_at(p, z), tau.squeeze(-1) * phi - (linear * mu).sum(-1)

    def curvature(self, p: Tensor, z: Tensor, tau: Tensor) -> Curvature:
        """H at shares p, z; rows that are not active get a unit diagonal and nothing else."""
        r = self.reduction
        weights = self.width**2 * p * (1 - p) * r.free  # D
        inverse = torch.where(r.active, 1.0 / self.scale, torch.zeros_like(self.scale))
        own = torch.where(r.tight, 0.0, self.slack * inverse * z * (1 - z))
        own = torch.where(r.active, own, tau)
        return Curvature(self.rows, weights.expand(p.shape), inverse, own.expand(z.shape), tau)


@dataclass(frozen=True)
class Curvature:
    """H = (A D A' + diag(own)) / tau with the rows of A divided by their scale: as an operator or as a matrix."""

    rows: RowMatrix
    weights: Tensor  # (N, l) D
    inverse: Tensor  # (., k) 1 / rho
    own: Tensor  # (N, k)
    tau: Tensor  # (N, 1)

    def product(self, v: Tensor) -> Tensor:
        """H v for v (N, k), in O(nnz) per instance."""
        pulled = self.weights * self.rows.pull(self.inverse * v)
        return (self.inverse * self.rows.apply(pulled) + self.own * v) / self.tau

    def diagonal(self) -> Tensor:
        """(N, k)."""
        return (self.inverse**2 * self.rows.squares(self.weights) + self.own) / self.tau

    def dense(self) -> Tensor:
        """(N, k, k)."""
        H = self.rows.gram(self.weights) * (self.inverse[:, :, None] * self.inverse[:, None, :])
        return (H + torch.diag_embed(self.own)) / self.tau[:, :, None]


def _softplus(u: Tensor) -> Tensor:
    """log(1 + exp(u)); torch's own default drops the exponential above 20, an error the line search would see."""
    return F.softplus(u, threshold=40.0)


def _select(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[index]
