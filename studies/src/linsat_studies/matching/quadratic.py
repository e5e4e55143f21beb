"""Matchings that score pairs of edges as well as pairs of keypoints: quadratic assignment, and its black box.

A matching X is worth ``sum_ij U_ij X_ij + sum_c <X, L_c X R_c'>``: the scores of its pairs of keypoints and, for every
two of its pairs (i, j) and (i', j') that are joined on both sides, a score of the pair of edges, which is an inner
product over channels c. The best matching is NP-hard to find; Frank-Wolfe steps over exact linear assignments find a
local optimum, as good solvers for graphs of this size do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linsat_studies.matching.batches import Batch
from linsat_studies.matching.decode import best_matchings
from linsat_studies.matching.techniques import centred

_STEPS = 8  # of Frank-Wolfe, from each start
_LEAST_GAIN = 1e-9


@dataclass(frozen=True)
class EdgeScores:
    """Scores of B pairs.

    Args:
        nodes: (B, n1, n2), U.
        left, right: (B, c, n1, n1) and (B, c, n2, n2), L and R; 0 where there is no edge.
    """

    nodes: Tensor
    left: Tensor
    right: Tensor

    def around(self, X: Tensor) -> Tensor:
        """(B, n1, n2): ``sum_c L_c X R_c'``, what the pairs in X add to each pair."""
        return (self.left @ X.unsqueeze(1) @ self.right.transpose(2, 3)).sum(1)

    def worth(self, X: Tensor) -> Tensor:
        """(B,): the value of X."""
        return (X * (self.nodes + self.around(X))).sum((1, 2))

    def slope(self, X: Tensor) -> Tensor:
        """(B, n1, n2): gradient of `worth`."""
        turned = self.left.transpose(2, 3) @ X.unsqueeze(1) @ self.right
        return self.nodes + self.around(X) + turned.sum(1)

    def detach(self) -> EdgeScores:
        """The same numbers without gradients."""
        return EdgeScores(self.nodes.detach(), self.left.detach(), self.right.detach())

    def with_margin(self, batch: Batch, margin: float, *, scaled: bool = True) -> EdgeScores:
        """In training: scores of deviation 1 in each pair if ``scaled``, and true pairs must win by a margin.

        The deviation is that of what each pair would add to the true matching, edges included. Were it that of the node
        scores, edges could outgrow them until moving node scores changes no matching, and nothing would be learned.
        """
        truth = batch.truth.to(self.nodes.dtype)
        if not scaled:
            return EdgeScores(self.nodes + margin * (0.5 - truth), self.left, self.right)
        _, deviation = centred(self.slope(truth), batch)
        nodes, _ = centred(self.nodes, batch)
        return EdgeScores(nodes / deviation + margin * (0.5 - truth), self.left / deviation.unsqueeze(1), self.right)


@torch.no_grad()
def best_quadratic(scores: EdgeScores, batch: Batch, *, partial: bool, start: Tensor | None = None) -> Tensor:
    """A matching of high total score for each pair: exactly phi pairs, or all keypoints of the smaller side.

    The best of two local optima: one from the middle of the polytope of matchings, one from the best matching of the
    node scores. Never worse than the latter.

    Args:
        scores: of all pairs of keypoints and edges.
        batch: whose masks say which keypoints are real.
        partial: exactly phi pairs.
        start: (B, n1, n2) where a third search begins.

    Returns:
        Tensor: (B, n1, n2) bool.
    """
    linear = best_matchings(scores.nodes, batch, partial=partial).to(scores.nodes.dtype)
    best, value = linear, scores.worth(linear)
    starts = [_middle(linear, batch), linear] + ([] if start is None else [start.to(linear.dtype)])
    for X in starts:
        found = _climb(scores, batch, X, partial=partial)
        reached = scores.worth(found)
        best = torch.where((reached > value)[:, None, None], found, best)
        value = torch.maximum(value, reached)
    return best > 0.5


def _middle(linear: Tensor, batch: Batch) -> Tensor:
    """Every pair matched alike, as much in all as the matchings have pairs."""
    pairs = (batch.mask_l.unsqueeze(2) & batch.mask_r.unsqueeze(1)).to(linear.dtype)
    return pairs * (linear.sum((1, 2), keepdim=True) / pairs.sum((1, 2), keepdim=True))


def _climb(scores: EdgeScores, batch: Batch, X: Tensor, *, partial: bool) -> Tensor:
    """Frank-Wolfe with exact line search, then the matching nearest to where it ends."""
    slope = scores.slope(X)
    for _ in range(_STEPS):
        way = best_matchings(slope, batch, partial=partial).to(X.dtype) - X
        gain = (slope * way).sum((1, 2))
        if not (gain > _LEAST_GAIN).any():
            break
        turn = scores.slope(way) - scores.nodes  # slope(X + t way) = slope(X) + t turn
        bend = (way * turn).sum((1, 2)) / 2  # worth(X + t way) = worth(X) + t gain + t^2 bend
        top = torch.where(bend < 0, -gain / (2 * bend).clamp_max(-_LEAST_GAIN), torch.ones_like(gain)).clamp(0, 1)
        step = torch.where(gain > _LEAST_GAIN, top, 0.0)[:, None, None]
        X, slope = X + step * way, slope + step * turn
    return best_matchings(X, batch, partial=partial).to(X.dtype)


def black_box_loss(scores: EdgeScores, batch: Batch, *, strength: float, partial: bool) -> Tensor:
    """Hamming loss of the best matching, with the gradient of Pogancic et al. (ICLR 2020) to keypoints and edges.

    Backwards, node scores are moved against the loss and the solver runs once more. Scores enter the worth of a
    matching linearly, so the gradient is that of (worth of the best matching - worth of the moved one) / lambda.

    Args:
        scores: of training, margin included.
        batch: with the truth.
        strength: how far a score is moved; lambda is this over the loss's gradient.
        partial: exactly phi pairs.
    """
    fixed = scores.detach()
    truth = batch.truth.to(fixed.nodes.dtype)
    sign = 1 - 2 * truth  # of the Hamming loss's gradient
    share = 1 / (len(batch) * torch.minimum(batch.mask_l.sum(1), batch.mask_r.sum(1)).to(truth.dtype))
    chosen = best_quadratic(fixed, batch, partial=partial)
    shifted = EdgeScores(fixed.nodes - strength * sign, fixed.left, fixed.right)
    moved = best_quadratic(shifted, batch, partial=partial, start=chosen)
    X, Y = chosen.to(truth.dtype), moved.to(truth.dtype)
    loss = (((X - truth).abs()).sum((1, 2)) * share).sum()
    slope = ((scores.worth(X) - scores.worth(Y)) * share / strength).sum()
    return loss + slope - slope.detach()
