"""Decoders against enumeration of every matching."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from matching_cases import batch, scores, sizes

from linsat_studies.matching.decode import best_matchings, exactly, hungarian, rounding


def totals(values: np.ndarray, pairs: int) -> list[float]:
    """Totals of all matchings of exactly so many pairs."""
    n1, n2 = values.shape
    return [
        values[list(rows), list(columns)].sum()
        for rows in combinations(range(n1), pairs)
        for columns in permutations(range(n2), pairs)
    ]


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (4, 3), (4, 4)])
def test_exactly_so_many_pairs_is_optimal_for_every_number(shape):
    random = np.random.default_rng(sum(shape))
    for pairs in range(min(shape) + 1):
        values = random.normal(size=shape) - 1.0  # mostly negative: fewer pairs would have a larger total
        row, column = exactly(values, pairs)
        assert len(row) == len(set(row.tolist())) == len(set(column.tolist())) == pairs
        assert values[row, column].sum() == pytest.approx(max(totals(values, pairs)))


def test_a_number_of_pairs_that_cannot_be():
    with pytest.raises(ValueError, match="pairs is 4; expected 0 to 3"):
        exactly(np.zeros((3, 5)), 4)


def test_hungarian_is_the_best_full_matching_and_keeps_its_phi_highest():
    b = batch(30, seed=1)
    s = scores(b)
    full, kept = hungarian(s, b, top_phi=False), hungarian(s, b, top_phi=True)
    assert torch.equal(full, best_matchings(s, b, partial=False))
    enumerated = 0
    for i, (n1, n2) in enumerate(sizes(b)):
        phi = int(b.phi[i])
        assert int(full[i].sum()) == min(n1, n2)
        assert int(kept[i].sum()) == phi
        assert bool((kept[i] <= full[i]).all())
        assert float(s[i][kept[i]].min()) >= float(s[i][full[i] & ~kept[i]].max())
        if max(n1, n2) <= 6:
            enumerated += 1
            values = s[i, :n1, :n2].numpy()
            assert float(s[i][full[i]].sum()) == pytest.approx(max(totals(values, min(n1, n2))))
            exact = best_matchings(s, b, partial=True)
            assert float(s[i][exact[i]].sum()) == pytest.approx(max(totals(values, phi)))
    assert enumerated >= 3


def test_rounding_says_whether_it_is_a_matching_of_at_most_phi_pairs():
    b = batch(4)
    soft = torch.zeros(b.truth.shape)
    soft[0] = b.truth[0] * 0.5  # the truth itself, at the very edge
    soft[1] = b.truth[1]
    row, column = (b.truth[1] > 0).nonzero()[0].tolist()
    free = next(j for j in range(sizes(b)[1][1]) if j != column)
    soft[1, row, free] = 0.7  # one keypoint twice
    soft[2] = b.truth[2]
    n1, n2 = sizes(b)[2]
    lonely = (int((~b.truth[2, :n1].any(1)).nonzero()[0]), int((~b.truth[2, :, :n2].any(0)).nonzero()[0]))
    soft[2][lonely] = 0.9  # a matching, of one pair too many
    matched, feasible = rounding(soft, b)
    assert feasible.tolist() == [True, False, False, True]  # the last matches nothing, which is allowed
    assert torch.equal(matched[0], b.truth[0] > 0)
    assert int(matched[3].sum()) == 0
