"""Techniques against brute force, explicit dummies, finite differences and the definitions of the losses."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from matching_cases import batch, scores, sizes

from linsat_studies.matching.config import LAYERS
from linsat_studies.matching.techniques import (
    black_box,
    hamming_loss,
    layer,
    permutation_loss,
    sinkhorn,
    with_margin,
)


def best_by_enumeration(values: np.ndarray, pairs: int) -> np.ndarray:
    """The matching of exactly so many pairs with the largest total, out of all there are."""
    n1, n2 = values.shape
    every = ((rows, columns) for rows in combinations(range(n1), pairs) for columns in permutations(range(n2), pairs))
    rows, columns = max(every, key=lambda found: values[list(found[0]), list(found[1])].sum())
    chosen = np.zeros((n1, n2), dtype=bool)
    chosen[list(rows), list(columns)] = True
    return chosen


def small_batch():
    """Pairs small enough to enumerate."""
    made = batch(40, seed=3)
    few = [i for i, (n1, n2) in enumerate(sizes(made)) if max(n1, n2) <= 6][:4]
    assert len(few) == 4
    picked = {name: getattr(made, name)[few] for name in made.__dataclass_fields__}
    return replace(made, **picked)


def test_sinkhorn_is_that_of_a_square_matrix_with_explicit_dummies():
    b = batch()
    s = scores(b)
    ours = sinkhorn(s, b, tau=0.5, iterations=200)
    for i, (n1, n2) in enumerate(sizes(b)):
        size = max(n1, n2)
        square = np.zeros((size, size))
        square[:n1, :n2] = s[i, :n1, :n2].numpy()
        square = np.exp(square / 0.5)
        for _ in range(2000):
            square /= square.sum(1, keepdims=True)
            square /= square.sum(0, keepdims=True)
        np.testing.assert_allclose(ours[i, :n1, :n2].numpy(), square[:n1, :n2], atol=1e-9)
        assert float(ours[i].sum()) == pytest.approx(min(n1, n2), abs=1e-8)  # and nothing on padded keypoints


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("tau", [0.5, 0.05])
def test_every_row_of_the_layer_holds_and_padding_is_zero(tau, kind):
    b = batch(12)
    x = layer(scores(b), b, tau=tau, kind=kind)
    for i, (n1, n2) in enumerate(sizes(b)):
        assert float(x[i, n1:].abs().sum() + x[i, :, n2:].abs().sum()) == 0.0
    assert float(x.min()) >= 0
    assert float((x.sum(1) - 1).max()) <= 1e-8
    assert float((x.sum(2) - 1).max()) <= 1e-8
    assert float((x.sum((1, 2)) - b.phi).max()) <= 1e-8


def test_the_cold_layer_is_the_best_partial_matching():
    b = small_batch()
    s = scores(b).abs() + 0.1  # positive, so that phi pairs are better than fewer
    x = layer(s, b, tau=0.002)
    for i, (n1, n2) in enumerate(sizes(b)):
        best = best_by_enumeration(s[i, :n1, :n2].numpy(), int(b.phi[i]))
        np.testing.assert_allclose(x[i, :n1, :n2].numpy(), best, atol=1e-3)


@pytest.mark.parametrize("kind", LAYERS[1:])
def test_layers_without_slacks_against_a_conic_program(kind):
    """Oracle: Clarabel through cvxpy; the row of phi binds in one pair and not in the other."""
    import cvxpy as cp

    b, tau = batch(2), 0.4
    s = scores(b)
    phi = torch.stack([b.phi[0] - 1.0, torch.tensor(50.0)]).double()
    x = layer(s, b, tau=tau, phi=phi, kind=kind)
    for i, (n1, n2) in enumerate(sizes(b)):
        X = cp.Variable((n1, n2))
        spread = cp.entr(X) + X if kind == "kl" else cp.entr(X) + cp.entr(1 - X)
        rows = [cp.sum(X, axis=0) <= 1, cp.sum(X, axis=1) <= 1, cp.sum(X) <= float(phi[i])]
        goal = cp.sum(cp.multiply(s[i, :n1, :n2].numpy(), X)) + tau * cp.sum(spread)
        cp.Problem(cp.Maximize(goal), rows).solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
        np.testing.assert_allclose(x[i, :n1, :n2].numpy(), X.value, atol=1e-5)


def test_a_pair_does_not_depend_on_its_batch_mates():
    b = batch()
    s = scores(b)
    together = layer(s, b, tau=0.2)
    for i, (n1, n2) in enumerate(sizes(b)):
        cut = {name: tensor[i : i + 1] for name, tensor in vars(b).items()}
        masks = {"mask_l": cut["mask_l"][:, :n1], "mask_r": cut["mask_r"][:, :n2]}
        alone = replace(b, **(cut | masks))
        x = layer(s[i : i + 1, :n1, :n2], alone, tau=0.2)
        torch.testing.assert_close(x[0], together[i, :n1, :n2], atol=1e-9, rtol=0)


def test_gradients_of_the_layer_reach_scores_and_phi():
    b = batch(2)
    s = scores(b).requires_grad_()
    phi = (b.phi.double() - 0.3).requires_grad_()
    weights = torch.randn(s.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def value(of_scores, of_phi):
        return (weights * layer(of_scores, b, tau=0.3, phi=of_phi)).sum()

    by_scores, by_phi = torch.autograd.grad(value(s, phi), (s, phi))
    step = 1e-5
    with torch.no_grad():
        for i in range(2):
            for at, of in ((phi, by_phi[i]), (s, by_scores[i, 1, 2])):
                moved = torch.zeros_like(at)
                moved[i if at is phi else (i, 1, 2)] = step
                if at is phi:
                    slope = (value(s, phi + moved) - value(s, phi - moved)) / (2 * step)
                else:
                    slope = (value(s + moved, phi) - value(s - moved, phi)) / (2 * step)
                assert float(of) == pytest.approx(float(slope), rel=1e-4, abs=1e-7)
    assert float(by_phi.abs().min()) > 1e-3  # the bound binds here, so there is something to reach it


@pytest.mark.parametrize("partial", [False, True])
def test_black_box_solves_exactly_and_its_gradient_is_the_difference_of_two_solutions(partial):
    b = small_batch()
    s = scores(b).requires_grad_()
    pull = torch.randn(s.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    matched = black_box(s, b, strength=2.0, partial=partial)
    (gradient,) = torch.autograd.grad((matched * pull).sum(), s)
    for i, (n1, n2) in enumerate(sizes(b)):
        count = int(b.phi[i]) if partial else min(n1, n2)
        values = s[i, :n1, :n2].detach().numpy()
        first = best_by_enumeration(values, count)
        np.testing.assert_array_equal(matched[i, :n1, :n2].detach().numpy(), first)
        reach = 2.0 / float(pull[i].abs().max())
        second = best_by_enumeration(values - reach * pull[i, :n1, :n2].numpy(), count)
        np.testing.assert_allclose(gradient[i, :n1, :n2].numpy(), (first * 1.0 - second) / reach)
        assert float(matched[i].detach().sum()) == count
        assert float(gradient[i, n1:].abs().sum() + gradient[i, :, n2:].abs().sum()) == 0.0


def test_losses_are_what_their_formulas_say():
    b = batch()
    soft = layer(scores(b), b, tau=0.5)
    entropy, wrong = 0.0, 0.0
    for i, (n1, n2) in enumerate(sizes(b)):
        for j in range(n1):
            for k in range(n2):
                x, t = float(soft[i, j, k]), float(b.truth[i, j, k])
                entropy -= (np.log(x) if t else np.log(1 - x)) / min(n1, n2)
                wrong += abs(x - t) / min(n1, n2)
    assert float(permutation_loss(soft, b)) == pytest.approx(entropy / len(b), rel=1e-9)
    assert float(hamming_loss(soft, b)) == pytest.approx(wrong / len(b), rel=1e-9)


def test_the_margin_favours_wrong_pairs_only():
    b = batch()
    for scaled in (True, False):
        moved = with_margin(torch.zeros(b.truth.shape), b, 2.0, scaled=scaled)
        assert set(moved[b.truth > 0].tolist()) == {-1.0}
        assert set(moved[b.truth == 0].tolist()) == {1.0}
    torch.testing.assert_close(with_margin(scores(b), b, 0.0, scaled=False), scores(b))


def test_scores_for_the_black_box_have_mean_0_and_deviation_1_in_each_pair():
    b = batch()
    s = scores(b)
    moved = with_margin(5 * s - 3, b, 0.0)
    for i, (n1, n2) in enumerate(sizes(b)):
        values = s[i, :n1, :n2].numpy()
        np.testing.assert_allclose(moved[i, :n1, :n2].numpy(), (values - values.mean()) / values.std(), atol=1e-9)
