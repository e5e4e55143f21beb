"""From scores of all pairs of keypoints to a matching, soft or hard, that a loss can train.

Bijective techniques match as many keypoints as the smaller side has; partial ones know phi, the number of inliers. A
padded keypoint is matched with nothing: its entries are exactly 0.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import linsat
from linsat_studies.matching.batches import Batch
from linsat_studies.matching.decode import best_matchings

_SMALLEST_VARIANCE = 1e-12  # of scores that are all alike
_LOWEST = -300.0  # a score further below the best one of its pair, in units of tau, counts as this: exp stays above 0


def sinkhorn(scores: Tensor, batch: Batch, *, tau: float, iterations: int = 20) -> Tensor:
    """Single-set Sinkhorn on matrices filled up with dummies: every keypoint of the smaller side is matched.

    Dummy rows or columns take what the larger side has too much; as all of them are alike, one with the mass of all
    does the same. Cost: ``iterations`` sweeps over B n1 n2 entries, all kept for the backward pass.

    Args:
        scores: (B, n1, n2).
        batch: whose masks say which keypoints are real.
        tau: temperature.
        iterations: sweeps over rows and columns. The last one leaves columns exact and rows nearly so.

    Returns:
        Tensor: (B, n1, n2), rows and columns of the smaller side sum to 1, of the larger one to at most 1.
    """
    pairs = batch.mask_l.unsqueeze(2) & batch.mask_r.unsqueeze(1)
    logits = torch.where(pairs, scores.double() / tau, -math.inf)
    top = logits.detach().amax((1, 2), keepdim=True)
    mass = torch.where(pairs, (logits - top).clamp_min(_LOWEST).exp(), 0.0)
    mass = torch.nn.functional.pad(mass, (0, 1, 0, 1), value=1.0)  # one dummy row and one dummy column
    surplus = batch.mask_l.sum(1, keepdim=True) - batch.mask_r.sum(1, keepdim=True)
    rows = torch.cat([batch.mask_l, -surplus.clamp_max(0)], 1).to(mass.dtype).unsqueeze(2)
    columns = torch.cat([batch.mask_r, surplus.clamp_min(0)], 1).to(mass.dtype).unsqueeze(2)
    # Rows without mass are divided by something positive, and stay without.
    idle_rows, idle_columns = (rows == 0).to(mass.dtype), (columns == 0).to(mass.dtype)
    turned = mass.transpose(1, 2)
    right = torch.ones_like(columns)
    for _ in range(iterations):
        left = rows / (mass @ right + idle_rows)
        right = columns / (turned @ left + idle_columns)
    return (left * mass * right.transpose(1, 2))[:, :-1, :-1].to(scores.dtype)


def layer(scores: Tensor, batch: Batch, *, tau: float, phi: Tensor | None = None, kind: str = "layer") -> Tensor:
    """The layer: every row and column sums to at most 1, all entries to at most phi, in each pair its own.

    Args:
        scores: (B, n1, n2).
        batch: whose masks say which keypoints are real: rows and columns of the others sum to at most 0.
        tau: temperature.
        phi: (B,) bounds in place of the batch's; gradients reach them.
        kind: "layer", the paper's entropy; "slack-free" or "kl", where a row does nothing until it binds.

    Returns:
        Tensor: (B, n1, n2) in [0, 1].
    """
    _, n1, n2 = scores.shape
    bound = batch.phi if phi is None else phi
    sides = torch.cat([batch.mask_l, batch.mask_r, bound.unsqueeze(1)], 1)
    rows = _matching_rows(n1, n2).with_rhs(b=sides.to(scores.dtype))
    return linsat.project(scores.flatten(1), rows, objective=_objective(kind, tau)).unflatten(1, (n1, n2))


def _objective(kind: str, tau: float) -> linsat.Objective:
    if kind == "kl":
        return linsat.KL(tau)
    return linsat.Entropy(tau, slack="entropic" if kind == "layer" else "none")


@lru_cache(maxsize=1024)  # all sizes that a data set has; a set keeps what it compiled
def _matching_rows(n1: int, n2: int) -> linsat.Constraints:
    return linsat.constraints.matching(n1, n2, at_most=min(n1, n2))


def black_box(scores: Tensor, batch: Batch, *, strength: float, partial: bool) -> Tensor:
    """The best matching itself, from a combinatorial solver, with the gradient of Pogancic et al. (ICLR 2020).

    Backwards, the solver runs once more on scores moved against the incoming gradient; the difference of both matchings
    is the gradient of a piecewise linear function that interpolates the loss.

    Args:
        scores: (B, n1, n2).
        batch: whose masks say which keypoints are real.
        strength: how far a score is moved where a pair's gradient is largest; lambda is this over that gradient.
        partial: exactly phi pairs, by an exact solver; otherwise all keypoints of the smaller side.

    Returns:
        Tensor: (B, n1, n2) of 0 and 1.
    """
    matched: Tensor = _BlackBox.apply(scores, batch, strength, partial)
    return matched


class _BlackBox(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, batch: Batch, strength: float, partial: bool) -> Tensor:
        matched = best_matchings(scores, batch, partial=partial).to(scores.dtype)
        ctx.save_for_backward(scores, matched)
        ctx.batch, ctx.strength, ctx.partial = batch, strength, partial
        return matched

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        scores, matched = ctx.saved_tensors
        largest = gradient.abs().amax((1, 2), keepdim=True)
        reach = ctx.strength / torch.where(largest > 0, largest, 1.0)  # lambda of each pair
        moved = best_matchings(scores - reach * gradient, ctx.batch, partial=ctx.partial)
        return (matched - moved.to(matched.dtype)) / reach, None, None, None


def with_margin(scores: Tensor, batch: Batch, margin: float, *, scaled: bool = True) -> Tensor:
    """Scores in training for the black box: true pairs must win by a margin; if ``scaled``, mean 0 and deviation 1.

    The best matching does not change with the scale of the scores. Left free, training with a margin (BBGM) shrinks
    that scale until nothing but the margin decides.
    """
    values, deviation = centred(scores, batch) if scaled else (scores, 1.0)
    return values / deviation + margin * (0.5 - batch.truth.to(scores.dtype))


def centred(scores: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Scores less their mean over the real pairs of keypoints, 0 elsewhere; and their deviation (B, 1, 1)."""
    pairs = (batch.mask_l.unsqueeze(2) & batch.mask_r.unsqueeze(1)).to(scores.dtype)
    count = pairs.sum((1, 2), keepdim=True)
    values = (scores - (scores * pairs).sum((1, 2), keepdim=True) / count) * pairs
    return values, (values.square().sum((1, 2), keepdim=True) / count + _SMALLEST_VARIANCE).sqrt()


def permutation_loss(matching: Tensor, batch: Batch) -> Tensor:
    """Binary cross-entropy of a soft matching to the truth, summed over entries, per keypoint of the smaller side."""
    truth = batch.truth.to(matching.dtype)
    entries = torch.nn.functional.binary_cross_entropy(matching.clamp(0, 1), truth, reduction="none")
    pairs = batch.mask_l.unsqueeze(2) & batch.mask_r.unsqueeze(1)
    return _per_keypoint((entries * pairs).sum((1, 2)), batch)


def hamming_loss(matching: Tensor, batch: Batch) -> Tensor:
    """Wrong pairs chosen and true pairs missed, per keypoint of the smaller side."""
    truth = batch.truth.to(matching.dtype)
    return _per_keypoint((matching * (1 - truth) + (1 - matching) * truth).sum((1, 2)), batch)


def _per_keypoint(sums: Tensor, batch: Batch) -> Tensor:
    """Mean over pairs, so that the loss of a batch is the mean of those of its halves."""
    return (sums / torch.minimum(batch.mask_l.sum(1), batch.mask_r.sum(1))).mean()
