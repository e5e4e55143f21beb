"""From scores or soft matchings to matchings: Hungarian, exactly phi pairs, plain rounding. No gradients here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from linsat_studies.matching.batches import Batch


def hungarian(soft: Tensor, batch: Batch, *, top_phi: bool) -> Tensor:
    """The matching of the largest total, then only its phi highest entries: the paper's decoder.

    Args:
        soft: (B, n1, n2) soft matchings or scores.
        batch: whose masks say which keypoints are real, and whose phi how many pairs are kept.
        top_phi: keep the phi highest; otherwise as many pairs as the smaller side has keypoints.

    Returns:
        Tensor: (B, n1, n2) bool.
    """
    phi = batch.phi.tolist()

    def choose(values: np.ndarray, pair: int) -> tuple[np.ndarray, np.ndarray]:
        row, column = linear_sum_assignment(values, maximize=True)
        if top_phi:
            best = np.argsort(-values[row, column], kind="stable")[: int(phi[pair])]
            return row[best], column[best]
        return row, column

    return _each(soft, batch, choose)


def best_matchings(scores: Tensor, batch: Batch, *, partial: bool) -> Tensor:
    """The matching of the largest total score of each pair: exactly phi pairs, or all keypoints of the smaller side.

    Returns:
        Tensor: (B, n1, n2) bool.
    """
    phi = batch.phi.tolist()

    def choose(values: np.ndarray, pair: int) -> tuple[np.ndarray, np.ndarray]:
        return exactly(values, int(phi[pair])) if partial else linear_sum_assignment(values, maximize=True)

    return _each(scores, batch, choose)


def exactly(values: np.ndarray, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the assignment of exactly so many pairs with the largest total; exact.

    Matrix (n1, n2) is extended by n2 - pairs dummy rows and n1 - pairs dummy columns of score 0 that may not meet each
    other: they absorb exactly the keypoints that stay alone. Cost: an assignment of n1 + n2 - pairs items.
    """
    n1, n2 = values.shape
    if not 0 <= pairs <= min(n1, n2):
        raise ValueError(f"pairs is {pairs}; expected 0 to {min(n1, n2)}, for a matrix of {n1} x {n2}.")
    size = n1 + n2 - pairs
    extended = np.zeros((size, size))
    extended[:n1, :n2] = values
    extended[n1:, n2:] = -np.inf
    row, column = linear_sum_assignment(extended, maximize=True)
    real = (row < n1) & (column < n2)
    return row[real], column[real]


def _each(values: Tensor, batch: Batch, choose: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]) -> Tensor:
    """Chosen rows and columns of each pair's real part, as a mask of the padded batch."""
    array = values.detach().cpu().numpy().astype(np.float64)
    counts_l, counts_r = batch.mask_l.sum(1).tolist(), batch.mask_r.sum(1).tolist()
    chosen = np.zeros(array.shape, dtype=bool)
    for pair, (n1, n2) in enumerate(zip(counts_l, counts_r, strict=True)):
        row, column = choose(array[pair, :n1, :n2], pair)
        chosen[pair, row, column] = True
    return torch.from_numpy(chosen).to(values.device)


def rounding(soft: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Entries of at least 0.5 are matched, others not; and whether that is a matching of at most phi pairs.

    Returns:
        tuple: matched (B, n1, n2) bool and feasible (B,) bool. Padded entries of ``soft`` must be below 0.5.
    """
    matched = soft.detach() >= 0.5
    once = (matched.sum(2) <= 1).all(1) & (matched.sum(1) <= 1).all(1)
    return matched, once & (matched.sum((1, 2)) <= batch.phi)
