"""Figures of a matching against counts by hand and brute force; rows checked by numpy."""

from functools import partial

import numpy as np
import pytest
import torch

from linsat_studies.matching.batches import collate
from linsat_studies.matching.decode import best_matchings, hungarian, rounding
from linsat_studies.matching.evaluate import (
    Method,
    by_class,
    evaluate_method,
    figures,
    is_matching,
    over_classes,
    violations,
)
from linsat_studies.matching.measurements import feature_scores, position_scores
from linsat_studies.matching.synthetic import synthetic_pairs
from linsat_studies.matching.techniques import layer


def test_figures_are_the_textbook_ones():
    precision, recall, f1 = figures(np.array([2, 0, 3]), np.array([4, 0, 3]), np.array([3, 5, 3]))
    assert precision.tolist() == [0.5, 0.0, 1.0]
    assert recall == pytest.approx([2 / 3, 0.0, 1.0])
    assert f1 == pytest.approx([2 * 0.5 * (2 / 3) / (0.5 + 2 / 3), 0.0, 1.0])


def test_classes_count_alike_however_many_pairs_they_have():
    values, classes = np.array([1.0, 0.0, 0.5, 0.2]), ["cat", "cat", "cat", "dog"]
    assert by_class(values, classes) == pytest.approx({"cat": 0.5, "dog": 0.2})
    assert over_classes(values, classes) == pytest.approx(0.35)
    assert np.isnan(over_classes(np.array([]), []))


def test_violations_by_hand():
    fine = torch.tensor([[[0.5, 0.5], [0.5, 0.0]]])
    assert violations(fine, torch.tensor([2])) == (0.0, 0.0)
    assert violations(fine, torch.tensor([1])) == (0.0, 0.5)
    assert violations(torch.tensor([[[0.75, 0.5], [0.0, 0.0]]]), torch.tensor([3])) == (0.25, 0.0)
    assert violations(torch.tensor([[[0.75, 0.0], [0.5, 0.0]]]), torch.tensor([3])) == (0.25, 0.0)
    assert violations(torch.tensor([[[-0.125, 0.0], [0.0, 0.0]]]), torch.tensor([3])) == (0.125, 0.0)
    assert violations(torch.tensor([[[1.5, -0.5], [0.0, 0.0]]]), torch.tensor([3])) == (0.5, 0.0)


def test_is_matching_on_every_two_by_three_matrix():
    bits = (np.arange(64)[:, None] >> np.arange(6)) & 1
    matches = bits.reshape(64, 2, 3).astype(bool)
    for phi in (0, 1, 2):
        expected = [
            all(sum(row) <= 1 for row in one) and all(sum(column) <= 1 for column in zip(*one)) and one.sum() <= phi
            for one in matches
        ]
        assert is_matching(torch.from_numpy(matches), torch.full((64,), phi)).tolist() == expected


@pytest.fixture(scope="module")
def pairs():
    return synthetic_pairs(20, seed=3)


def batches(pairs, size=6):
    return [collate(pairs[first : first + size]) for first in range(0, len(pairs), size)]


def noisy(batch):
    """The truth with noise: right here, wrong there."""
    random = torch.Generator().manual_seed(int(batch.phi.sum()))
    return batch.truth + 0.6 * torch.randn(batch.truth.shape, generator=random)


def test_counts_agree_with_those_of_each_pair(pairs):
    method = Method(noisy, partial(layer, tau=0.1), partial(hungarian, top_phi=True))
    found = evaluate_method(method, batches(pairs), ["synthetic"] * len(pairs))
    hits, predicted = [], []
    for batch, some in zip(batches(pairs), (pairs[k : k + 6] for k in range(0, 20, 6))):
        matches = hungarian(layer(noisy(batch), batch, tau=0.1), batch, top_phi=True).numpy()
        for one, pair in zip(matches, some):
            truth = {tuple(ends) for ends in pair.truth.tolist()}
            hits.append(sum(tuple(ends) in truth for ends in np.argwhere(one).tolist()))
            predicted.append(int(one.sum()))
    assert found.hits.tolist() == hits
    assert found.predicted.tolist() == predicted == [pair.phi for pair in pairs]
    assert found.phi.tolist() == [pair.phi for pair in pairs]
    assert 0.1 < found.summary()["f1"] < 1
    assert found.valid.all()
    assert max(found.violation, found.excess) < 1e-6
    assert set(found.seconds) == {"network", "layer", "decoder"}


def test_a_perfect_score_is_perfect_when_phi_is_known(pairs):
    def truth(batch):
        return batch.truth

    partly = Method(truth, lambda scores, batch: scores, partial(best_matchings, partial=True))
    found = evaluate_method(partly, batches(pairs), ["a"] * 10 + ["b"] * 10).summary()
    assert found["f1"] == found["precision"] == found["recall"] == 1.0
    assert found["by_class"] == {"a": 1.0, "b": 1.0}
    fully = Method(truth, lambda scores, batch: scores, partial(best_matchings, partial=False))
    whole = evaluate_method(fully, batches(pairs), ["synthetic"] * 20).summary()
    smaller = np.array([min(len(pair.left.names), len(pair.right.names)) for pair in pairs])
    phi = np.array([pair.phi for pair in pairs])
    assert whole["recall"] == 1.0
    assert whole["precision"] == pytest.approx(np.mean(phi / smaller))
    assert whole["f1"] == pytest.approx(np.mean(2 * phi / (smaller + phi)))


def test_rounding_of_an_undecided_matching_is_told_apart(pairs):
    half = Method(lambda batch: batch.truth, lambda scores, batch: 0.5 + 0 * scores, lambda x, b: rounding(x, b)[0])
    found = evaluate_method(half, batches(pairs), ["synthetic"] * 20)
    assert not found.valid.any()
    assert found.violation > 0.5


def test_number_of_classes_must_fit(pairs):
    method = Method(noisy, partial(layer, tau=0.1), partial(hungarian, top_phi=True))
    with pytest.raises(ValueError, match="20 pairs and classes names 19"):
        evaluate_method(method, batches(pairs), ["synthetic"] * 19)


def test_baseline_scores_against_numpy(pairs):
    batch = collate(pairs[:1])
    left, right = pairs[0].left.points, pairs[0].right.points
    expected = [[-float(((a - b) ** 2).sum()) for b in right] for a in left]
    assert position_scores(batch)[0].numpy() == pytest.approx(np.array(expected), rel=1e-5)

    class Store:
        width, image_width = 3, 2

        def __getitem__(self, id):
            from linsat_studies.matching.features import Features

            count = len(pairs[0].left.names if id == pairs[0].left.id else pairs[0].right.names)
            values = np.random.default_rng(len(id) + count).normal(size=(count, 3)).astype(np.float16)
            return Features(values, np.zeros(2, np.float16))

    store = Store()
    a, b = (store[thing.id].points.astype(float) for thing in (pairs[0].left, pairs[0].right))
    cosine = (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)[None]
    assert feature_scores(collate(pairs[:1], store))[0].numpy() == pytest.approx(cosine, abs=1e-5)
