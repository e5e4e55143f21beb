r"""The paper's solver: multi-set Sinkhorn on the rows (Algorithms 2 and 3), in the log domain.

Every row is a pair of marginals (b1, b2): what the shares p, z must add up to, and what their complements must. One
step multiplies the odds p / (1 - p) of everything in a row by one factor so that both hold; rows with disjoint supports
step together. In terms of the row's log factor m = mu / tau:

    m += log(b1 / b2) - log(sum a p + s z) + log(sum a (1 - p) + s (1 - z))

For rows whose non-zero coefficients are equal the fixed point is the optimum of the entropic problem, as `Newton` finds
it. For unequal coefficients it is another point, and where two rows share their support it need not exist at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

from linsat._transforms import plain_tensors
from linsat.arrays.problem import Problem, Tensor
from linsat.arrays.result import Claim, Stop
from linsat.arrays.rows import RowMatrix, disjoint_groups
from linsat.errors import ConstraintError
from linsat.objectives import Entropy

_PUBLISHED_TOLERANCE = 1e-3
_PUBLISHED_MARGIN = 1e-7  # added to all marginals when any is zero
_PUBLISHED_GAMMA_SHIFT = 1e-4


@dataclass(frozen=True)
class Sinkhorn:
    """Solve by the paper's multi-set Sinkhorn iterations. Needs non-negative coefficients (any box).

    Args:
        max_sweeps: hard limit of sweeps over all rows.
        tol: largest residual of any row, relative to the row's mean coefficient, at which an instance has converged.
        variant: ``"v2"`` keeps one complement per variable, as the paper writes; ``"v1"`` one per variable and row,
            as the first published code did (its fixed point differs where a variable is in several rows).
        grouped: step rows with disjoint supports together (greedily, in order), else one after another.
        gradient: ``"implicit"`` differentiates the fixed point (constant memory; v2 with equal coefficients within
            each row only), ``"unrolled"`` differentiates the iterations (memory grows with the sweeps).
        stop: ``"residual"`` stops each instance by itself at ``tol``; ``"published"`` uses the published package's
            rules and constants, which look at the batch as a whole.

    Cost per sweep and instance: O(non-zeros). The number of sweeps grows like 1/tau; see docs/convergence.md.
    """

    max_sweeps: int = 1000
    tol: float = 1e-6
    variant: Literal["v1", "v2"] = "v2"
    grouped: bool = True
    gradient: Literal["implicit", "unrolled"] = "implicit"
    stop: Literal["residual", "published"] = "residual"

    def __post_init__(self) -> None:
        if not isinstance(self.max_sweeps, int) or self.max_sweeps < 1:
            raise ConstraintError(
                f"max_sweeps is {self.max_sweeps}; expected a positive integer. Fix: max_sweeps=1000."
            )
        if not 0 <= self.tol < 1:
            raise ConstraintError(f"tol is {self.tol}; expected a number in [0, 1). Fix: tol=1e-6.")
        for name, value, choices in (
            ("variant", self.variant, ("v1", "v2")),
            ("gradient", self.gradient, ("implicit", "unrolled")),
            ("stop", self.stop, ("residual", "published")),
        ):
            if value not in choices:
                raise ConstraintError(
                    f"{name} is {value!r}; expected {choices[0]!r} or {choices[1]!r}. Fix: leave {name} out."
                )
        if self.variant == "v1" and self.gradient == "implicit":
            raise ConstraintError(
                "variant='v1' has no implicit gradient: its fixed point is not that of the entropic problem. "
                "Fix: gradient='unrolled', or variant='v2'."
            )

    @property
    def as_published(self) -> bool:
        return self.stop == "published"

    @property
    def holds(self) -> float:
        """The violation of a row, as `Solution.violation` states it, up to which an instance may have converged."""
        return max(self.tol, _PUBLISHED_TOLERANCE * self.as_published)

    @property
    def gamma_shift(self) -> float:
        """Added to d in the multiplier of covering rows (`linsat.arrays.problem.StandardForm.of`)."""
        return _PUBLISHED_GAMMA_SHIFT if self.as_published else 0.0

    @property
    def presolves(self) -> bool:
        """Whether forced variables and rows that cannot bind are taken out first."""
        return not self.as_published

    def run(self, problem: Problem, start: Tensor | None = None) -> Claim:
        """Duals of every instance, without gradients through the iterations."""
        _entropy_of(problem)
        _require_non_negative(problem)
        _require_equal_coefficients(problem)
        with torch.no_grad():
            return _Sweeps(self, problem, start).claim()

    def unrolled(self, problem: Problem, start: Tensor | None = None) -> Claim:
        """Duals and x of every instance, differentiable through every sweep."""
        return _Sweeps(self, problem, start).claim()


@dataclass(frozen=True)
class _Group:
    """Rows with disjoint supports, padded to the longest."""

    members: Tensor  # (g,) rows
    entries: Tensor  # (g, m) positions among the coefficients; padding points at 0
    cols: Tensor  # (g, m)
    filled: Tensor  # (g, m) bool


class _Sweeps:
    """The state of one batch: log odds of the shares, and log factors m = mu / tau of the rows."""

    def __init__(self, options: Sinkhorn, problem: Problem, start: Tensor | None) -> None:
        tau = _entropy_of(problem).tau
        if bool(problem.soft.any()):
            raise ConstraintError(
                f"Sinkhorn has no prices: row {int(problem.soft[0].nonzero()[0])} is soft. Fix: use linsat.Newton()."
            )
        _require_non_negative(problem)
        self.options, self.problem, self.tau = options, problem, tau
        self.width = problem.upper - problem.lower
        r = problem.presolved
        count = problem.scores.shape[0]
        rows = problem.rows
        self.factors = problem.scores.new_zeros((count, rows.shape[0])) if start is None else start.nan_to_num() / tau
        support = (rows.values != 0).to(problem.scores.dtype)
        lift = self.factors.new_zeros(count, rows.shape[1]).index_add(1, rows.col, self.factors[:, rows.row] * support)
        self.odds = self.width * problem.scores / tau + lift
        self.log_x = self.odds  # v1 only: log of the upper row, not yet normalised, as published
        self.complement = torch.zeros_like(self.odds[:, rows.col])  # v1 only: (N, nnz), log of the lower row
        weights = rows.values * self.width[:, rows.col]
        free = r.free[:, rows.col] & (rows.values != 0)
        self.log_weights = torch.where(free, torch.log(torch.where(free, weights, 1.0)), -torch.inf)
        slack = torch.where(r.tight | ~r.active, 0.0, problem.slack)
        self.log_slack = torch.where(slack > 0, torch.log(torch.where(slack > 0, slack, 1.0)), -torch.inf)
        self.log_upper, self.log_lower = self._log_marginals(weights, free, slack)
        # The published ungrouped code starts each slack pair at (1, 1) instead of (1/2, 1/2), until its first step.
        unnormalised = math.log(2.0) if options.variant == "v1" or not options.grouped else 0.0
        self.slack_start = torch.full_like(self.factors.detach(), unnormalised)
        self.groups = _group_rows(problem, grouped=options.grouped)

    def _log_marginals(self, weights: Tensor, free: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
        problem, r = self.problem, self.problem.presolved
        total = torch.where(free, weights, 0.0)
        total = total.new_zeros(total.shape[0], problem.rows.shape[0]).index_add(1, problem.rows.row, total) + slack
        base = problem.rows.matvec_each(torch.where(r.free, problem.lower, 0.0))
        upper = problem.linear_term() * problem.scale - torch.where(r.active, base, 0.0)
        lower = total - upper
        active = r.active
        if self.options.as_published and bool(((upper.abs() <= 1e-12) | (lower.abs() <= 1e-12)).any()):
            upper, lower = upper + _PUBLISHED_MARGIN, lower + _PUBLISHED_MARGIN
        if bool((active & ((upper <= 0) | (lower <= 0))).any()):
            row = int((active & ((upper <= 0) | (lower <= 0))).nonzero()[0, 1])
            raise ConstraintError(
                f"Row {row} leaves no mass for one side ({float(upper[0, row]):g}, {float(lower[0, row]):g}). "
                f"Fix: use linsat.Newton(), or loosen the row."
            )
        return torch.log(torch.where(active, upper, 1.0)), torch.log(torch.where(active, lower, 1.0))

    def claim(self) -> Claim:
        count = self.odds.shape[0]
        running = torch.ones(count, dtype=torch.bool, device=self.odds.device)
        steps = torch.zeros(count, dtype=torch.int64, device=self.odds.device)
        for _ in range(self.options.max_sweeps):
            before = self.log_x
            settled = [self._step(group, running) for group in self.groups]
            steps = steps + running
            running = self._still_running(running, settled, before)
            if not bool(running.any()):
                break
        shares = self._shares()
        done = self._residual(shares) <= self.options.holds
        claim = Claim.empty(self.problem, "sinkhorn")
        claim.stops[done], claim.steps[:] = Stop.ARRIVED, steps
        return replace(claim, mu=self.factors * self.tau, x=self.problem.lower + self.width * shares)

    def _shares(self) -> Tensor:
        """p (N, l) at the present iterate."""
        shares = torch.sigmoid(self.odds)
        if self.options.variant == "v1":
            by_rows = torch.exp(self.log_x)
            if not self.options.as_published:  # which leaves variables in no row unnormalised
                covered = torch.zeros_like(self.odds[:1], dtype=torch.bool).index_fill(1, self.problem.rows.col, True)
                by_rows = torch.where(covered, by_rows, shares)
            shares = by_rows
        p = self.problem.presolved
        return torch.where(p.free, shares, p.at_upper.to(shares.dtype))

    def _still_running(self, running: Tensor, settled: list[bool], before: Tensor) -> Tensor:
        if not self.options.as_published:
            with torch.no_grad():
                return running & (self._residual(self._shares()) > self.options.tol)
        if self.options.variant == "v2":
            return running & (not all(settled))
        moved = (self.log_x - before).norm(dim=-1).max()
        problem = self.problem
        activity = problem.rows.matvec(problem.lower + self.width * torch.exp(self.log_x))
        outside = (activity - problem.rhs).clamp_min(0) + (problem.rhs - problem.slack - activity).clamp_min(0)
        still = bool(moved > _PUBLISHED_TOLERANCE) or bool(outside.sum() >= _PUBLISHED_TOLERANCE)
        return running & still

    def _residual(self, shares: Tensor) -> Tensor:
        """Largest residual of any row, slack included, as `Newton` measures it: by its scale and by its size at x."""
        r = self.problem.presolved
        z = torch.where(r.tight, r.tight_share, torch.sigmoid(self.factors))
        x = self.problem.lower + self.width * shares
        residual = self.problem.residual(x, z).detach().abs()
        if not self.options.as_published:
            size = self.problem.row_sizes(x.detach()).clamp_min(1.0)
            residual = residual * (self.problem.scale.detach() / size).clamp_min(1.0)
        return residual.amax(-1) if residual.shape[-1] else residual.new_zeros(residual.shape[0])

    def _step(self, group: _Group, running: Tensor) -> bool:
        """Normalise one group of rows; returns whether it already held by the published rule (and was left alone)."""
        weights = self.log_weights[:, group.entries].masked_fill(~group.filled, -torch.inf)  # (., g, m)
        slack = self.log_slack[:, group.members] + self.slack_start[:, group.members]
        factors = self.factors[:, group.members]
        log_p, log_q = self._log_shares(group)
        upper = _log_row_sum(log_p + weights, slack + F.logsigmoid(factors))  # (N, g)
        lower = _log_row_sum(log_q + weights, slack + F.logsigmoid(-factors))
        up = self.log_upper[:, group.members] - upper
        down = self.log_lower[:, group.members] - lower
        if self.options.as_published and self.options.variant == "v2":
            mass = torch.logaddexp(self.log_upper[:, group.members], self.log_lower[:, group.members])
            held = torch.logaddexp(upper, lower)
            off = torch.maximum((up - mass + held).abs(), (down - mass + held).abs())
            if bool((off < _PUBLISHED_TOLERANCE).all()):
                return True
        moves = running[:, None] & self.problem.presolved.active[:, group.members]
        self._move(group, torch.where(moves, up - down, 0.0), moves)
        return False

    def _log_shares(self, group: _Group) -> tuple[Tensor, Tensor]:
        if self.options.variant == "v2":
            odds = self.odds[:, group.cols]
            return F.logsigmoid(odds), F.logsigmoid(-odds)
        return self.log_x[:, group.cols], self.complement[:, group.entries]

    def _move(self, group: _Group, change: Tensor, moves: Tensor) -> None:
        """Multiply the odds of everything in the group's rows by exp(change); change is (N, g)."""
        self.factors = self.factors.index_add(1, group.members, change)
        self.slack_start = self.slack_start.index_fill(1, group.members, 0.0)
        spread = (change[:, :, None] * group.filled).flatten(1)
        self.odds = self.odds.index_add(1, group.cols.flatten(), spread)
        if self.options.variant == "v1":
            x, other = self.log_x[:, group.cols], self.complement[:, group.entries]
            norm = torch.logaddexp(x + change[:, :, None], other)
            moved = group.filled & moves[:, :, None]
            new_x = torch.where(moved, x + change[:, :, None] - norm, x)
            new_other = torch.where(moved, other - norm, other)
            inside = group.filled.flatten()
            cols, entries = group.cols.flatten()[inside], group.entries.flatten()[inside]
            self.log_x = self.log_x.index_copy(1, cols, new_x.flatten(1)[:, inside])
            self.complement = self.complement.index_copy(1, entries, new_other.flatten(1)[:, inside])


def _log_row_sum(terms: Tensor, slack: Tensor) -> Tensor:
    return torch.logsumexp(torch.cat([terms, slack[:, :, None]], dim=-1), dim=-1)


def _group_rows(problem: Problem, *, grouped: bool) -> list[_Group]:
    """The groups of rows that step together, padded; found once per sparsity pattern."""
    key = f"sinkhorn groups {grouped}"
    if key not in problem.rows.cache:
        with plain_tensors():  # kept, so it must be plain tensors even inside a transform
            problem.rows.cache[key] = _find_groups(problem.rows, grouped)
    return problem.rows.cache[key]


def _find_groups(rows: RowMatrix, grouped: bool) -> list[_Group]:
    entries: list[list[int]] = [[] for _ in range(rows.shape[0])]
    for position, i in enumerate(rows.row.tolist()):
        entries[i].append(position)
    groups = [[i] for i in range(rows.shape[0])]
    if grouped:
        groups = disjoint_groups(rows.row.cpu().numpy(), rows.col.cpu().numpy(), rows.shape[0])
    device = rows.row.device
    made = []
    for members in groups:
        longest = max((len(entries[i]) for i in members), default=0)
        lists = [entries[i] + [0] * (longest - len(entries[i])) for i in members]
        flags = [[True] * len(entries[i]) + [False] * (longest - len(entries[i])) for i in members]
        padded = torch.tensor(lists, dtype=torch.int64, device=device).reshape(len(members), longest)
        filled = torch.tensor(flags, dtype=torch.bool, device=device).reshape(len(members), longest)
        made.append(_Group(torch.tensor(members, device=device), padded, rows.col[padded], filled))
    return made


def _entropy_of(problem: Problem) -> Entropy:
    objective = problem.objective
    if isinstance(objective, Entropy) and objective.entropic_slack:
        return objective
    raise ConstraintError(
        "Sinkhorn solves the paper's program, linsat.Entropy(tau=...), only. Fix: use linsat.Newton()."
    )


def _require_non_negative(problem: Problem) -> None:
    negative = problem.rows.values < 0
    if bool(negative.any()):
        instance, at = (int(i) for i in negative.nonzero()[0])
        value = float(problem.rows.values[instance, at])
        raise ConstraintError(
            f"Sinkhorn needs non-negative coefficients; row {int(problem.rows.row[at])} has {value:g} at variable "
            f"{int(problem.rows.col[at])}. Fix: use linsat.Newton()."
        )


def _require_equal_coefficients(problem: Problem) -> None:
    """The implicit gradient is that of the entropic problem, which Sinkhorn solves only for equal coefficients."""
    rows = problem.rows
    weights = (rows.values * (problem.upper - problem.lower)[:, rows.col]).detach()
    used = problem.presolved.free[:, rows.col] & (rows.values != 0)
    ratio = weights / problem.scale.detach()[:, rows.row]
    wrong = used & ((ratio - 1).abs() > 1e-9)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0, 1])
        raise ConstraintError(
            f"Row {int(rows.row[at])} has unequal coefficients, for which Sinkhorn's fixed point has no implicit "
            f"gradient (and may not exist). Fix: use linsat.Newton(), or Sinkhorn(gradient='unrolled')."
        )
