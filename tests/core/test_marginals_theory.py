"""The convergence theorem: its bound, the identity behind it, and the case in which it fails."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from linsat.marginals import iteration_bound, multi_set_sinkhorn
from tests.helpers.marginal_problems import multi_set_problem

F64 = torch.float64


def bound_by_formula(S, U, V, eps):
    k, alpha = len(U), S[S > 0].min() / S.max()
    most = max(int((S[:, j] > 0).sum()) for j in range(S.shape[1]))
    delta = eps**2 / (2 * max(v.sum() for v in V) ** 2)
    return k * math.log(1 + 2 * most / alpha) / delta + k


def test_bound_is_the_papers_formula():
    S, U, V, _ = multi_set_problem(2)
    S[0, 1] = S[2, 4] = 0.0
    assert iteration_bound(S, U, V, l1_error=0.3) == pytest.approx(bound_by_formula(S, U, V, 0.3), rel=1e-12)
    S = torch.from_numpy(S)
    batch = iteration_bound(torch.stack([S, 2 * S]), U, V, l1_error=0.3)
    torch.testing.assert_close(batch, torch.full((2,), bound_by_formula(S.numpy(), U, V, 0.3), dtype=F64))


def test_bound_for_scores_too_far_apart_to_divide():
    S = np.array([[1e300, 1.0], [1.0, 1e-300]])
    bound = iteration_bound(S, [[1.0, 1.0]], [[1.0, 1.0]], l1_error=1.0)
    assert bound == pytest.approx((math.log(4) + 600 * math.log(10)) * 2 * 2**2 + 1, rel=1e-12)


@pytest.mark.parametrize("share", [1.5, 0.5, 0.1, 0.01])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_iterations_stay_below_the_bound(seed, k, share):
    S, U, V, _ = multi_set_problem(seed, k=k, spread=[0.3, 1.0, 3.0][seed % 3])
    eps = share * V.sum(1).max()
    bound = iteration_bound(S, U, V, l1_error=eps)
    result = multi_set_sinkhorn(S, U, V, max_iter=50_000, tol=eps)
    assert result.converged
    assert result.iterations < bound
    # The theorem's own words: some iteration t below T with an error of at most eps in one of its halves.
    longer = multi_set_sinkhorn(S, U, V, max_iter=int(result.iterations) + k, tol=0.0)
    hit = np.flatnonzero(longer.l1.min(-1) <= eps)
    assert hit.size
    assert hit[0] < bound


@pytest.mark.parametrize("proportional", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_step_brings_the_matrix_closer_by_what_the_histories_say(seed, proportional):
    # Weights u = c w, with w_j common to all sets, make each half step a projection:
    # sum_ij w_j Z log(Z / Gamma) falls by h / c times the divergence of that half.
    S, U, _, Z = multi_set_problem(seed)
    rng = np.random.default_rng(seed)
    w = rng.random(U.shape[1]) * 3 + 0.1 if proportional else np.ones(U.shape[1])
    c = rng.random(len(U)) + 0.5 if proportional else np.ones(len(U))
    U = U * w * c[:, None]
    result = multi_set_sinkhorn(S, U, U @ Z.T, max_iter=60, tol=0.0)
    fallen = sum(U[t % 3].sum() / c[t % 3] * result.kl[t].sum() for t in range(60))
    distance = [float((w * Z * np.log(Z / gamma)).sum()) for gamma in (S / S.sum(0), result.matrix)]
    assert distance[0] - distance[1] == pytest.approx(fallen, rel=1e-10)
    eps = 0.01 * U.sum(1).max()
    quick = multi_set_sinkhorn(S, U, U @ Z.T, max_iter=50_000, tol=eps)
    assert quick.converged
    assert quick.iterations < iteration_bound(S, U, U @ Z.T, l1_error=eps)


def test_unequal_weights_break_the_theorem():
    # x1 + 2 x2 = 1.2, 2 x1 + x2 = 1.2 holds at (0.4, 0.4) only, whose odds ratio is 1; the steps keep exp(3).
    S = torch.tensor([[2.0, -1.0], [0.0, 0.0]], dtype=F64).exp()
    U, V = [[1.0, 2.0], [2.0, 1.0]], [[1.2, 1.8], [1.2, 1.8]]
    result = multi_set_sinkhorn(S, U, V, max_iter=2000, tol=0.0)
    assert not result.converged
    odds = result.matrix[0] / result.matrix[1]
    assert float(odds[0] / odds[1]) == pytest.approx(math.exp(3.0), rel=1e-9)
    assert iteration_bound(S, U, V, l1_error=0.5) < 1000
    assert float(result.l1[1000:].min()) > 0.5
    feasible = torch.tensor([[0.4, 0.4], [0.6, 0.6]], dtype=F64)
    assert multi_set_sinkhorn(feasible, U, V, max_iter=2).converged
