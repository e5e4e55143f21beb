"""Matchings that score edges too: their worth, the solver against brute force, and the gradient of the black box."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
import torch
from matching_cases import RandomFeatures, batch, collection
from torch import Tensor

from linsat_studies.matching.batches import Batch, collate
from linsat_studies.matching.bbgm import Bbgm
from linsat_studies.matching.config import NetworkConfig
from linsat_studies.matching.data import random_pairs
from linsat_studies.matching.decode import best_matchings
from linsat_studies.matching.quadratic import EdgeScores, best_quadratic, black_box_loss
from linsat_studies.matching.techniques import black_box, hamming_loss


def random_scores(b: Batch, *, edges: float, channels: int = 3, seed: int = 0) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    count, n1, n2 = b.truth.shape
    left = edges * draw(count, channels, n1, n1) * b.adjacency_l.unsqueeze(1)
    return EdgeScores(draw(count, n1, n2), left, draw(count, channels, n2, n2) * b.adjacency_r.unsqueeze(1))


def spelled_out(scores: EdgeScores, row: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> float:
    """The worth of a matching as the module's first lines define it, edge by edge."""
    pairs = list(zip(rows, columns, strict=True))
    total = sum(float(scores.nodes[row, i, j]) for i, j in pairs)
    for i, j in pairs:
        for k, m in pairs:
            total += float(scores.left[row, :, i, k] @ scores.right[row, :, j, m])
    return total


def small() -> Batch:
    made = collection(12, keypoints=5)
    return collate(random_pairs(made, "train", None, 8, 3), RandomFeatures(made))


def test_worth_and_slope() -> None:
    b = batch(3)
    scores = random_scores(b, edges=0.5)
    X = best_matchings(scores.nodes, b, partial=True)
    for row in range(len(b)):
        i, j = X[row].nonzero(as_tuple=True)
        expected = spelled_out(scores, row, tuple(i.tolist()), tuple(j.tolist()))
        assert float(scores.worth(X.double())[row]) == pytest.approx(expected)
    at = torch.rand(b.truth.shape, dtype=torch.float64, requires_grad=True)
    (expected_slope,) = torch.autograd.grad(scores.worth(at).sum(), at)
    torch.testing.assert_close(scores.slope(at.detach()), expected_slope)


@pytest.mark.parametrize("partial", [True, False])
def test_solver_against_all_matchings(partial: bool) -> None:
    """Oracle: brute force. Of what edges can add to the best matching of the nodes, four fifths are found, or more."""
    b = small()
    for edges in (0.05, 0.5):
        scores = random_scores(b, edges=edges)
        X = best_quadratic(scores, b, partial=partial)
        found, linear = (
            scores.worth(X.double()),
            scores.worth(best_matchings(scores.nodes, b, partial=partial).double()),
        )
        gaps, leads = [], []
        for row in range(len(b)):
            n1, n2 = int(b.mask_l[row].sum()), int(b.mask_r[row].sum())
            size = int(b.phi[row]) if partial else min(n1, n2)
            assert X[row].sum() == X[row, :n1, :n2].sum() == size
            assert X[row].sum(0).max() <= 1
            assert X[row].sum(1).max() <= 1
            best = max(
                spelled_out(scores, row, rows, columns)
                for rows in combinations(range(n1), size)
                for columns in permutations(range(n2), size)
            )
            assert float(linear[row]) - 1e-9 <= float(found[row]) <= best + 1e-9
            gaps.append(best - float(found[row]))
            leads.append(best - float(linear[row]))
        assert sum(leads) > 0.5
        assert sum(gaps) <= 0.2 * sum(leads)


def test_without_edges_it_is_the_black_box_of_keypoints() -> None:
    """Oracle: the autograd function for linear scores, whose solver is exact."""
    b = batch(5)
    nodes = random_scores(b, edges=0.0).nodes.requires_grad_()
    none = (
        torch.zeros(len(b), 1, nodes.shape[1], nodes.shape[1]),
        torch.zeros(len(b), 1, nodes.shape[2], nodes.shape[2]),
    )
    for partial in (True, False):
        loss = black_box_loss(EdgeScores(nodes, none[0].double(), none[1].double()), b, strength=0.8, partial=partial)
        expected = hamming_loss(black_box(nodes, b, strength=0.8, partial=partial), b)
        torch.testing.assert_close(loss, expected.double(), rtol=1e-6, atol=1e-7)
        (one,), (other,) = (torch.autograd.grad(each, nodes) for each in (loss, expected))
        assert other.abs().sum() > 0
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_gradient_of_edges_is_the_difference_of_two_matchings() -> None:
    """Oracle: what Pogancic et al. state, (y - y') / lambda for the indicator y of pairs of edges, spelled out."""
    b = batch(4, seed=1)
    scores = random_scores(b, edges=0.3, seed=2)
    strength = 1.5
    left = scores.left.clone().requires_grad_()
    loss = black_box_loss(EdgeScores(scores.nodes, left, scores.right), b, strength=strength, partial=True)
    (found,) = torch.autograd.grad(loss, left)
    chosen = best_quadratic(scores, b, partial=True)
    shifted = EdgeScores(scores.nodes - strength * (1 - 2 * b.truth), scores.left, scores.right)
    moved = best_quadratic(shifted, b, partial=True, start=chosen)
    assert (chosen != moved).any()
    expected = torch.zeros_like(found)
    for row in range(len(b)):
        per = 1 / (len(b) * float(min(b.mask_l[row].sum(), b.mask_r[row].sum())))
        for sign, X in ((1, chosen), (-1, moved)):
            pairs = X[row].nonzero().tolist()
            for i, j in pairs:
                for k, m in pairs:
                    expected[row, :, i, k] += sign * per / strength * scores.right[row, :, j, m]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_network_scores_its_edges_and_no_others() -> None:
    b = batch(3)
    torch.manual_seed(0)
    sizes = NetworkConfig("bbgm", width=8, dropout=0.0, kernel=3, layers=1, channels=4)
    network = Bbgm(b.features_l.shape[-1], b.image_l.shape[-1], sizes).eval()
    network.weight.data.fill_(0.5)
    scores = network.scores(b)
    torch.testing.assert_close(scores.nodes, network(b))
    assert (scores.left.abs().sum(1) > 0).equal(b.adjacency_l)
    assert (scores.right.abs().sum(1) > 0).equal(b.adjacency_r)
