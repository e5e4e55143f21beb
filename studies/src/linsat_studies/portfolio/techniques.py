"""From scores to weights: softmax, the layer, and softmax followed by a Euclidean projection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import linsat

Weigh = Callable[[Tensor], Tensor]


def softmax_weights(scores: Tensor) -> Tensor:
    """Weights that sum to 1 and know no preference, (..., assets)."""
    return scores.softmax(-1)


class LayerWeights:
    """Weights on the rows of a constraint set, by `linsat.LinSAT`.

    Args:
        constraints: their rows.
        tau: temperature.
        technique: ``"layer"``, the paper's, in which slacks have entropy too; ``"slack-free"``, the same without it;
            ``"euclidean"``, the nearest point.

    Scores are multiplied by tau before the layer divides by it. Where no row but the sum binds, weights are then those
    of a softmax (up to the box's upper side), so both techniques start from the same scale at any tau. The nearest
    point has no temperature: scores are multiplied by 2 / assets, which spreads normal scores over as many assets as
    softmax does (assets / e of them, by 1 / sum of squared weights).
    """

    def __init__(self, constraints: linsat.Constraints, tau: float, technique: str = "layer") -> None:
        self.constraints, self.scale = constraints, tau
        objective: linsat.Objective = linsat.Entropy(tau)
        if technique == "slack-free":
            objective = linsat.Entropy(tau, slack="none")
        elif technique == "euclidean":
            assets = constraints.num_variables
            assert assets is not None
            self.scale, objective = nearest_scale(assets), linsat.Euclidean()
        self.layer = linsat.LinSAT(constraints, objective=objective)

    def __call__(self, scores: Tensor) -> Tensor:
        return self.layer(self.scale * scores)


def nearest_scale(assets: int) -> float:
    """What scores are multiplied by where the nearest weights are taken; see `LayerWeights`."""
    return 2 / assets


def project_preference(weights: Tensor, preferred: Sequence[int], at_least: float) -> Tensor:
    """The nearest weights (..., assets) of which the preferred ones hold at least ``at_least``; exact.

    ``weights`` are on the simplex. Where the preference fails its row binds, and the projection falls apart into two
    onto simplices: the preferred weights summing to ``at_least``, the others to the rest.
    """
    mask = torch.zeros(weights.shape[-1], dtype=torch.bool)
    mask[list(preferred)] = True
    projected = torch.empty_like(weights)
    projected[..., mask] = project_simplex(weights[..., mask], at_least)
    projected[..., ~mask] = project_simplex(weights[..., ~mask], 1 - at_least)
    holds = weights[..., mask].sum(-1, keepdim=True) >= at_least
    return torch.where(holds, weights, projected)


def project_simplex(x: Tensor, total: float) -> Tensor:
    """The nearest point (..., n) with entries of at least 0 that sum to ``total``, by sorting."""
    if x.shape[-1] == 0:
        return x
    ordered = x.sort(-1, descending=True).values
    ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    excess = (ordered.cumsum(-1) - total) / ranks
    support = (ordered > excess).sum(-1, keepdim=True).clamp_min(1)
    return (x - excess.gather(-1, support - 1)).clamp_min(0)
