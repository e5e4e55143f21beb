"""Sinkhorn for one and for several sets of marginals, against independent loops and Clarabel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import linsat
from linsat.marginals import iteration_bound, multi_set_sinkhorn, sinkhorn
from tests.helpers.marginal_problems import by_hand, cuturi, entropic_program, multi_set_problem, single_set_problem

F64 = torch.float64

# ---------------------------------------------------------------------- answers


@pytest.mark.parametrize("seed", range(4))
def test_sinkhorn_agrees_with_cuturis_loop(seed):
    S, u, v = single_set_problem(seed)
    result = sinkhorn(S, u, v, max_iter=15, tol=0.0)
    np.testing.assert_allclose(result.matrix * u, cuturi(S, u, v, 15), rtol=1e-11)


@pytest.mark.parametrize("seed", range(4))
def test_sinkhorn_reaches_both_marginals(seed):
    S, u, v = single_set_problem(seed)
    result = sinkhorn(S, u, v, tol=1e-10)
    assert result.converged
    np.testing.assert_allclose(result.matrix @ u, v, atol=1e-10)
    np.testing.assert_allclose(result.matrix.sum(0), 1.0, atol=1e-12)


def test_sinkhorn_is_the_one_set_case():
    S, u, v = single_set_problem(7)
    one, several = sinkhorn(S, u, v), multi_set_sinkhorn(S, u[None], v[None])
    np.testing.assert_array_equal(one.matrix, several.matrix)
    np.testing.assert_array_equal(one.l1, several.l1)


@pytest.mark.parametrize("seed", range(4))
def test_multi_set_agrees_with_the_loop_entry_by_entry_and_its_errors(seed):
    S, U, V, _ = multi_set_problem(seed)
    U[0, U[0] > 0] = 0.5  # one set with another weight than the others
    V[0] *= 0.5
    result = multi_set_sinkhorn(S, U, V, max_iter=11, tol=0.0)  # stops inside a sweep of three
    gamma, l1, kl = by_hand(S, U, V, 11)
    assert result.iterations == 11
    assert not result.converged
    np.testing.assert_allclose(result.matrix, gamma, rtol=1e-11)
    np.testing.assert_allclose(result.l1, l1, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(result.kl, kl, rtol=1e-9, atol=1e-14)


def test_unequal_weights_follow_the_loop_too():
    rng = np.random.default_rng(3)
    S, Z, U = rng.random((3, 5)) + 0.1, rng.random((3, 5)), rng.random((2, 5)) * 3
    V = U @ (Z / Z.sum(0)).T
    gamma, l1, kl = by_hand(S, U, V, 8)
    result = multi_set_sinkhorn(S, U, V, max_iter=8, tol=0.0)
    np.testing.assert_allclose(result.matrix, gamma, rtol=1e-11)
    np.testing.assert_allclose(result.l1, l1, rtol=1e-9)
    np.testing.assert_allclose(result.kl, kl, rtol=1e-9)


@pytest.mark.parametrize(("seed", "tau"), [(0, 1.0), (1, 1.0), (2, 0.3), (3, 0.1)])
def test_multi_set_solves_the_entropic_program(seed, tau):
    W, U, V, _ = multi_set_problem(seed, k=2)
    S = np.exp(np.log(W) / tau)
    result = multi_set_sinkhorn(S, U, V, max_iter=50_000, tol=1e-9)
    assert result.converged
    np.testing.assert_allclose(result.matrix, entropic_program(S, U, V, tau), atol=1e-6)


def test_zero_pattern_is_kept_and_the_program_on_it_solved():
    S, U, _, Z = multi_set_problem(5, m=3, n=8, k=2)
    S[[0, 1, 2, 0], [0, 3, 5, 7]] = 0.0
    Z = np.where(S > 0, Z, 0.0)
    V = U @ (Z / Z.sum(0)).T
    result = multi_set_sinkhorn(S, U, V, max_iter=50_000, tol=1e-9)
    assert result.converged
    assert (result.matrix[S == 0] == 0).all()
    np.testing.assert_allclose(result.matrix, entropic_program(S, U, V, 1.0), atol=1e-6)


def test_row_without_mass_is_emptied_only_where_its_set_has_weight():
    S = torch.ones(3, 4, dtype=F64)
    U, V = torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=F64), torch.tensor([[0.0, 0.5, 1.5]], dtype=F64)
    result = multi_set_sinkhorn(S, U, V)
    expected = torch.tensor([[0.0, 0.0, 1 / 3, 1 / 3], [0.25, 0.25, 1 / 3, 1 / 3], [0.75, 0.75, 1 / 3, 1 / 3]])
    torch.testing.assert_close(result.matrix, expected.to(F64))
    assert result.converged
    assert torch.isfinite(result.kl).all()


def test_set_without_any_mass_changes_nothing():
    S, u, v = single_set_problem(2)
    U, V = np.stack([u, 0 * u]), np.stack([v, 0 * v])
    result = multi_set_sinkhorn(S, U, V, tol=1e-9)
    np.testing.assert_allclose(result.matrix, sinkhorn(S, u, v, tol=1e-9).matrix, rtol=1e-8)
    assert (result.kl[1::2] == 0).all()


def test_impossible_zero_pattern_is_reported_not_hidden():
    # Row 0 can only take from column 0, which holds 1, but asks for 1.5.
    S = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=F64)
    with pytest.warns(linsat.LinSATWarning, match="not converged"):
        result = sinkhorn(S, [1.0, 1.0], [1.5, 0.5], max_iter=50)
    assert not result.converged
    assert result.iterations == 50
    assert float(result.l1[-1].max()) > 0.4

    # Both rows of a column must be empty: the column's mass is lost, and missed.
    with pytest.warns(linsat.LinSATWarning, match="not converged"):
        result = multi_set_sinkhorn([[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 1.0]], [[0.0, 1.0], [2.0, 0.0]])
    assert not result.converged
    assert result.matrix[:, 1].tolist() == [0.0, 0.0]

    # Row 0 has no entry at all where its mass should come from: an infinite divergence, and no NaN.
    S = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)
    with pytest.warns(linsat.LinSATWarning, match="not converged"):
        result = sinkhorn(S, [1.0, 1.0], [1.0, 1.0], max_iter=5)
    assert not result.converged
    torch.testing.assert_close(result.matrix, S)
    assert math.isinf(float(result.kl[0, 0]))


def test_scores_of_any_magnitude_give_the_same_answer():
    # The limit does not change when rows and columns of S are rescaled (Sinkhorn's theorem).
    S, u, v = single_set_problem(9)
    rows, columns = 10.0 ** np.array([150, -150, 0, 90]), 10.0 ** np.array([-150, 0, 100, -40, 60, 150])
    wild = S * rows[:, None] * columns
    expected = sinkhorn(S, u, v, tol=1e-12).matrix
    np.testing.assert_allclose(sinkhorn(wild, u, v, tol=1e-12).matrix, expected, rtol=1e-9)


# ---------------------------------------------------------------------- batches, libraries, dtypes


def batch_of_problems():
    """Six instances of very different speed that share one U."""
    _, U, _, Z = multi_set_problem(0)
    rng = np.random.default_rng(1)
    S = np.exp(np.array([0.1, 1.0, 3.0, 5.0, 0.5, 2.0])[:, None, None] * rng.standard_normal((6, *Z.shape)))
    return torch.from_numpy(S), torch.from_numpy(U), torch.from_numpy(U @ Z.T)


def test_an_answer_does_not_depend_on_batch_mates():
    S, U, V = batch_of_problems()
    together = multi_set_sinkhorn(S, U, V, max_iter=20_000)
    assert together.converged.all()
    assert len(set(together.iterations.tolist())) > 3
    assert (together.iterations % len(U) == 0).all()  # whole sweeps
    for i in range(len(S)):
        alone = multi_set_sinkhorn(S[i], U, V, max_iter=20_000)
        steps = int(alone.iterations)
        assert int(together.iterations[i]) == steps
        torch.testing.assert_close(together.matrix[i], alone.matrix, rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(together.l1[i, :steps], alone.l1, rtol=1e-9, atol=1e-14)
        assert together.l1[i, steps:].isnan().all()
        assert together.kl[i, steps:].isnan().all()


def test_leading_dimensions_and_marginals_per_instance():
    S, U, V = batch_of_problems()
    flat = multi_set_sinkhorn(S, U.expand(6, -1, -1), V.expand(6, -1, -1), max_iter=2000)
    nested = multi_set_sinkhorn(S.reshape(2, 3, 3, 8), U, V.expand(3, -1, -1), max_iter=2000)
    assert nested.matrix.shape == (2, 3, 3, 8)
    assert nested.l1.shape == (2, 3, flat.l1.shape[1], 2)
    assert nested.iterations.shape == nested.converged.shape == (2, 3)
    torch.testing.assert_close(nested.matrix.reshape(6, 3, 8), flat.matrix)


def test_one_matrix_against_a_batch_of_marginals():
    S, u, v = (torch.from_numpy(part) for part in single_set_problem(0))
    v_batch = torch.stack([v, v.flip(0)])
    result = sinkhorn(S, u, v_batch, tol=1e-10)
    assert result.matrix.shape == (2, 4, 6)
    torch.testing.assert_close(result.matrix @ u, v_batch)


def test_empty_batch():
    S, U, V = batch_of_problems()
    result = multi_set_sinkhorn(S[:0], U, V)
    assert result.matrix.shape == (0, 3, 8)
    assert result.l1.shape == result.kl.shape == (0, 0, 2)
    assert result.iterations.shape == result.converged.shape == (0,)
    assert iteration_bound(S[:0], U, V, l1_error=0.1).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_of_the_scores_comes_back_and_the_work_is_done_wider(dtype):
    S, u, v = single_set_problem(4)
    scores = torch.from_numpy(S).to(dtype)
    result = sinkhorn(scores, u, v)
    assert result.matrix.dtype == dtype
    assert result.converged
    wide = sinkhorn(scores.double(), u, v).matrix
    torch.testing.assert_close(result.matrix, wide.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_in_numpy_out(dtype):
    S, u, v = single_set_problem(4)
    result = sinkhorn(S.astype(dtype), u, v)
    assert result.matrix.dtype == dtype
    for part in (result.matrix, result.l1, result.kl, result.iterations, result.converged):
        assert isinstance(part, (np.ndarray, np.generic))


def test_lists_and_integers_are_read_as_float64():
    listed = sinkhorn([[1, 2], [3, 4]], [1, 1], [1, 1], tol=1e-12)
    assert listed.matrix.dtype == np.float64
    integers = sinkhorn(torch.tensor([[1, 2], [3, 4]]), [1, 1], [1, 1], tol=1e-12)
    assert integers.matrix.dtype == F64
    # Doubly stochastic [[a, 1-a], [1-a, a]] with the cross ratio of S: a^2 / (1-a)^2 = 1*4 / (2*3).
    ratio = math.sqrt(4 / 6)
    assert listed.matrix[0, 0] == pytest.approx(ratio / (1 + ratio), abs=1e-11)
    torch.testing.assert_close(integers.matrix, torch.from_numpy(listed.matrix))


def test_input_is_not_changed():
    S, U, V = batch_of_problems()
    before = [part.clone() for part in (S, U, V)]
    multi_set_sinkhorn(S, U, V, max_iter=5, tol=0.0)
    for part, copy in zip((S, U, V), before, strict=True):
        torch.testing.assert_close(part, copy, rtol=0, atol=0)


# ---------------------------------------------------------------------- gradients


def test_gradcheck_in_scores_and_marginals():
    S, U, V, _ = multi_set_problem(0, m=3, n=5, k=2)
    scores = torch.from_numpy(np.stack([S, S[::-1].copy()])).requires_grad_()
    masses = torch.from_numpy(V).log().requires_grad_()
    weights = torch.from_numpy(U)

    def run(scores, masses):
        rows = masses.softmax(-1) * weights.sum(-1, keepdim=True)  # totals stay equal when masses move
        return multi_set_sinkhorn(scores, weights, rows, max_iter=7, tol=0.0).matrix

    assert torch.autograd.gradcheck(run, (scores, masses))


def test_gradcheck_in_column_marginals():
    S, u, v = (torch.from_numpy(part) for part in single_set_problem(1, m=3, n=4))
    share = u.log().requires_grad_()

    def run(share):
        return sinkhorn(S, share.softmax(-1) * v.sum(), v, max_iter=6, tol=0.0).matrix

    assert torch.autograd.gradcheck(run, (share,))


def test_gradient_beside_entries_that_dwarf_those_of_the_set():
    scores = torch.tensor([[2e-200, 1e-200, 1.0], [1e200, 1e200, 1.0]], dtype=F64)
    S = scores.clone().requires_grad_()
    result = multi_set_sinkhorn(S, [[1.0, 1.0, 0.0]], [[0.5, 1.5]], max_iter=100, tol=0.0)
    # Row 0 holds (q, p) with q + p = 0.5 and odds in the ratio 2 : 1, hence p^2 + 2.5 p - 0.5 = 0.
    p = (math.sqrt(8.25) - 2.5) / 2
    torch.testing.assert_close(result.matrix[0].detach(), torch.tensor([0.5 - p, p, 0.5], dtype=F64))
    (gradient,) = torch.autograd.grad(result.matrix[0, 0], S)
    # d q / d log s_00 with q + p fixed: the harmonic mean of both slopes x (1 - x).
    slope, other = (0.5 - p) * (0.5 + p), p * (1 - p)
    expected = slope * other / (slope + other) * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]], dtype=F64)
    torch.testing.assert_close(gradient * scores, expected)


def test_gradient_with_zeros_and_per_instance_stopping():
    S, U, V = batch_of_problems()
    S[:, 0, 0] = 0.0
    S.requires_grad_()
    with pytest.warns(linsat.LinSATWarning, match="not converged"):
        result = multi_set_sinkhorn(S, U, V, max_iter=300)
    assert len(set(result.iterations.tolist())) > 1
    weight = torch.linspace(-1, 1, S[0].numel(), dtype=F64).reshape(S[0].shape)
    (gradient,) = torch.autograd.grad((result.matrix * weight).sum(), S)
    assert torch.isfinite(gradient).all()
    assert (gradient[:, 0, 0] == 0).all()
    assert not result.l1.requires_grad
    for i in range(len(S)):
        one = S[i].detach().clone().requires_grad_()
        steps = int(result.iterations[i])
        alone = multi_set_sinkhorn(one, U, V, max_iter=steps, tol=0.0).matrix
        (expected,) = torch.autograd.grad((alone * weight).sum(), one)
        torch.testing.assert_close(gradient[i], expected)


def test_many_small_matrices_are_not_left_halfway_without_a_word():
    """Of 8,192 matrices of 4x4 some need more than 1,000 iterations: said with their error, not said once enough."""
    S = (4 * torch.randn(8192, 4, 4, dtype=F64, generator=torch.Generator().manual_seed(0))).exp()
    ones = torch.ones(4, dtype=F64)
    with pytest.warns(
        linsat.LinSATWarning, match=r"\d+ of 8192 instances have not converged in max_iter = 1000"
    ) as said:
        result = sinkhorn(S, ones, ones)
    off = (result.matrix.sum(-1) - 1).abs().sum(-1)
    assert torch.equal(off <= 1e-6, result.converged)
    assert f"{int((off > 1e-6).sum())} of 8192" in str(said[0].message)
    assert f"{float(off.max()):.1e}" in str(said[0].message)
    assert said[0].filename == __file__
    enough = sinkhorn(S[:64], ones, ones, max_iter=1_000_000)
    assert enough.converged.all()
