"""Decoders against brute force: all permutations, all subsets, all single flips."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.optimize import linprog

import linsat
from linsat.constraints import Constraints
from linsat.decode import assign, greedy_repair, hungarian, rounding, top_k


def doubly_stochastic(n1, n2):
    """Each of n1 rows and n2 columns of the flattened matrix sums to at most 1."""
    rows = np.kron(np.eye(n1), np.ones(n2))
    columns = np.kron(np.ones(n1), np.eye(n2))
    return Constraints(A=np.vstack([rows, columns]), b=1.0)


def random_rows(seed, *, width=6):
    """Signed and unequal coefficients in all three senses, feasible at a random 0/1 point."""
    rng = np.random.default_rng(seed)
    inside = rng.integers(0, 2, width)
    A, C, E = (np.round(rng.normal(size=(count, width)) * 3, 1) for count in (2, 1, 1))
    rows = {"A": A, "b": A @ inside + 0.3, "C": C, "d": C @ inside - 0.3, "E": E, "f": E @ inside}
    return Constraints(**rows), rows, rng.random(width)


def gaps(rows, x):
    """Violation of each row, in original and in normalised units, without the library."""
    original = [max(a @ x - b, 0.0) for a, b in zip(rows["A"], rows["b"], strict=True)]
    original += [max(d - c @ x, 0.0) for c, d in zip(rows["C"], rows["d"], strict=True)]
    original += [abs(e @ x - f) for e, f in zip(rows["E"], rows["f"], strict=True)]
    coefficients = [*rows["A"], *rows["C"], *rows["E"]]
    scale = [np.mean([abs(c) for c in row if c != 0]) for row in coefficients]
    return np.array(original), np.array(original) / scale


# ---------------------------------------------------------------------- rounding


def test_rounding_goes_to_the_nearer_end_and_up_from_the_middle():
    cons = Constraints(A=[[1.0, 1.0, 1.0]], b=[2.0])
    decoded = rounding(torch.tensor([[0.49, 0.5, 0.51], [0.9, 0.9, 0.9]]), cons)
    assert decoded.x.tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert decoded.feasible.tolist() == [True, False]
    np.testing.assert_allclose(decoded.violation, [0.0, 1 / 3])  # of a row of size 3


def test_rounding_uses_the_units_of_the_box():
    cons = Constraints(lower=[-2.0, 10.0, 3.0], upper=[4.0, 20.0, 3.0])
    decoded = rounding(np.array([[1.0, 14.9, 3.0], [0.9, 15.0, 3.0]]), cons)
    assert decoded.x.tolist() == [[4.0, 10.0, 3.0], [-2.0, 20.0, 3.0]]
    assert decoded.feasible.all()


@pytest.mark.parametrize("seed", range(8))
def test_verdict_is_that_of_the_rows(seed):
    cons, rows, x = random_rows(seed)
    decoded = rounding(x, cons)
    original, normalised = gaps(rows, decoded.x)
    size = np.array([np.abs(row) @ np.abs(decoded.x) for row in (*rows["A"], *rows["C"], *rows["E"])])
    assert decoded.violation == pytest.approx((original / np.maximum(1.0, size)).max(), abs=1e-12)
    assert bool(decoded.feasible) == bool((normalised <= 1e-6).all())


def test_verdict_does_not_depend_on_the_units_of_a_row():
    for scale in (1e-9, 1.0, 1e9):
        cons = Constraints(E=scale * np.ones((1, 3)), f=[scale * 2])
        assert not rounding([1.0, 0.0, 0.0], cons).feasible
        assert rounding([1.0, 1.0, 0.0], cons).feasible


def test_zeros_of_a_learned_matrix_do_not_count_in_its_scale():
    A = torch.zeros(1, 100, dtype=torch.float64)
    A[0, :2] = 1.0
    for matrix in (A, A.clone().requires_grad_()):
        cons = Constraints(A=matrix, b=[1.9])
        assert rounding(torch.ones(100), cons, tol=0.11).feasible
        assert not rounding(torch.ones(100), cons, tol=0.09).feasible


def test_tolerance_is_the_callers():
    cons = Constraints(A=[[2.0, 2.0]], b=[3.9])
    assert not rounding([0.9, 0.9], cons).feasible
    assert rounding([0.9, 0.9], cons, tol=0.051).feasible  # 0.1 over, in units of 2
    assert not rounding([0.9, 0.9], cons, tol=0.049).feasible


# ---------------------------------------------------------------------- top-k


@pytest.mark.parametrize("seed", range(5))
def test_top_k_is_the_best_of_all_subsets(seed):
    x = np.random.default_rng(seed).normal(size=6)
    for k in range(7):
        best = max(itertools.combinations(range(6), k), key=lambda chosen: sum(x[list(chosen)]))
        assert np.flatnonzero(top_k(x, k).x).tolist() == sorted(best)


def test_top_k_of_equal_entries_takes_the_first():
    assert top_k([0.5, 0.7, 0.5, 0.5], 2).x.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert top_k(torch.zeros(5000), 7).x.nonzero().reshape(-1).tolist() == list(range(7))


def test_top_k_per_instance_box_and_verdict():
    cons = Constraints(A=[[1.0, 1.0, 1.0]], b=[3.0], upper=2.0)
    x = torch.tensor([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [1.0, 2.0, 0.0]])
    decoded = top_k(x, torch.tensor([0, 1, 2]), cons)
    assert decoded.x.tolist() == [[0.0, 0.0, 0.0], [2.0, 0.0, 0.0], [2.0, 2.0, 0.0]]
    assert decoded.feasible.tolist() == [True, True, False]
    assert decoded.violation.tolist() == [0.0, 0.0, 0.25]  # of a row of size 4


# ---------------------------------------------------------------------- Hungarian


def best_matching(scores):
    """All injections of the shorter side into the longer."""
    n1, n2 = scores.shape
    if n1 > n2:
        return {(i, j) for j, i in best_matching(scores.T)}
    options = itertools.permutations(range(n2), n1)
    return set(enumerate(max(options, key=lambda to: sum(scores[i, j] for i, j in enumerate(to)))))


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (4, 4), (2, 4), (4, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_hungarian_is_the_best_of_all_permutations(seed, shape):
    scores = np.random.default_rng(seed).normal(size=shape)
    pairs = best_matching(scores)
    ranked = sorted(pairs, key=lambda pair: -scores[pair])
    for keep in (None, *range(min(shape) + 1)):
        decoded = hungarian(scores.reshape(-1), doubly_stochastic(*shape), shape=shape, keep=keep)
        found = {tuple(map(int, pair)) for pair in np.argwhere(decoded.x.reshape(shape))}
        assert found == set(ranked[:keep])
        assert decoded.feasible


def test_hungarian_keeps_per_instance():
    scores = torch.rand(2, 3, 12, generator=torch.Generator().manual_seed(0))
    keep = torch.tensor([[0, 1, 2], [3, 2, 1]])
    decoded = hungarian(scores, shape=(3, 4), keep=keep)
    assert torch.equal(decoded.x.sum(-1).to(torch.int64), keep)
    for index in np.ndindex(2, 3):
        alone = hungarian(scores[index], shape=(3, 4), keep=int(keep[index]))
        assert torch.equal(decoded.x[index], alone.x)


def test_hungarian_says_when_other_rows_fail():
    cons = Constraints(A=[[0.0, 1.0, 1.0, 0.0]], b=[1.0])
    decoded = hungarian([[0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]], cons, shape=(2, 2))
    assert decoded.feasible.tolist() == [False, True]


@pytest.mark.parametrize("decode", [lambda x: top_k(x, 1), lambda x: hungarian(x, shape=(1, 2))])
def test_without_a_set_there_is_no_verdict(decode):
    decoded = decode([0.2, 0.8])
    assert decoded.x.tolist() == [0.0, 1.0]
    assert decoded.feasible is None
    assert decoded.violation is None


# ---------------------------------------------------------------------- k for each item, within capacities


def best_assignment(scores, k, capacity):
    """The best total by HiGHS, whose vertices are whole numbers here; None: there is none."""
    n1, n2 = scores.shape
    items, places = np.kron(np.eye(n1), np.ones(n2)), np.kron(np.ones(n1), np.eye(n2))
    upper = np.isfinite(scores).reshape(-1).astype(float)
    cost = -np.where(np.isfinite(scores), scores, 0.0).reshape(-1)
    bounds = np.stack([np.zeros(n1 * n2), upper], axis=1)
    found = linprog(cost, A_ub=places, b_ub=capacity, A_eq=items, b_eq=k, bounds=bounds)
    return -found.fun if found.success else None


@pytest.mark.parametrize("seed", range(60))
def test_assign_is_the_best_by_linear_programming(seed):
    rng = np.random.default_rng(seed)
    n1, n2 = int(rng.integers(1, 12)), int(rng.integers(1, 6))
    scores = rng.normal(size=(n1, n2)) * rng.choice([0.1, 1, 100]) + rng.choice([0, 3]) * rng.normal(size=n2)
    if seed % 3 == 0:
        scores = np.round(scores)  # ties
    k = rng.integers(0, n2 + 1, n1) if seed % 2 else np.full(n1, min(2, n2))
    capacity = rng.integers(0, n1 + 1, n2) + (0 if seed % 4 == 0 else int(np.ceil(k.sum() / n2)))
    upper = np.ones((n1, n2)) if seed % 5 else (rng.random((n1, n2)) < 0.8).astype(float)
    cons = Constraints(
        A=np.kron(np.ones(n1), np.eye(n2)),
        b=capacity.astype(float),
        E=np.kron(np.eye(n1), np.ones(n2)),
        f=k.astype(float),
        upper=upper.reshape(-1),
    )
    best = best_assignment(np.where(upper > 0, scores, -np.inf), k, capacity)
    if best is None:
        with pytest.raises(linsat.ConstraintError, match="Fix: "):
            assign(scores.reshape(-1), cons, k=k, capacity=capacity, shape=(n1, n2))
        return
    decoded = assign(scores.reshape(-1), cons, k=k, capacity=capacity, shape=(n1, n2))
    chosen = decoded.x.reshape(n1, n2)
    assert decoded.feasible
    assert set(np.unique(chosen)) <= {0.0, 1.0}
    np.testing.assert_array_equal(chosen.sum(1), k)
    assert (chosen.sum(0) <= capacity).all()
    assert not chosen[upper == 0].any()
    np.testing.assert_allclose((chosen * scores).sum(), best, rtol=1e-9, atol=1e-9)


def test_assign_takes_batches_of_tensors_in_the_shape_of_the_variable():
    X = linsat.Variable(6, 3)
    cons = linsat.subject_to(X.sum(1) == 2, X.sum(0) <= 4)
    scores = torch.randn(5, 6, 3, generator=torch.Generator().manual_seed(0))
    decoded = assign(scores, cons, k=2, capacity=4)
    assert decoded.x.shape == (5, 6, 3)
    assert decoded.x.dtype == torch.float32
    assert decoded.feasible.all()
    for one, given in zip(decoded.x.numpy(), scores.double().numpy(), strict=True):
        np.testing.assert_allclose((one * given).sum(), best_assignment(given, np.full(6, 2), np.full(3, 4)), rtol=1e-6)


def test_assign_balances_a_router_whose_tokens_want_the_same_experts():
    """512 x 16, every place needed; the optimum by HiGHS."""
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(512, 16)) + 3 * rng.normal(size=16)
    chosen = assign(scores.reshape(-1), k=2, capacity=64, shape=(512, 16)).x.reshape(512, 16)
    assert (chosen.sum(0) == 64).all()
    assert (chosen.sum(1) == 2).all()
    items, places = sp.kron(sp.eye_array(512), np.ones((1, 16))), sp.kron(np.ones((1, 512)), sp.eye_array(16))
    best = linprog(
        -scores.reshape(-1), A_ub=places, b_ub=np.full(16, 64), A_eq=items, b_eq=np.full(512, 2), bounds=(0, 1)
    )
    np.testing.assert_allclose((chosen * scores).sum(), -best.fun, rtol=1e-9)


def test_assign_says_what_does_not_fit():
    scores = np.zeros((4, 3))
    with pytest.raises(linsat.ConstraintError, match="capacity has 6 places and k asks for 8"):
        assign(scores.reshape(-1), k=2, capacity=2, shape=(4, 3))
    with pytest.raises(linsat.ConstraintError, match="k is 4; expected an integer from 0 to 3"):
        assign(scores.reshape(-1), k=4, capacity=9, shape=(4, 3))
    with pytest.raises(
        linsat.ConstraintError, match=r"capacity has shape \(2,\); expected an int or one per item, \(3,\)"
    ):
        assign(scores.reshape(-1), k=1, capacity=[1, 2], shape=(4, 3))


# ---------------------------------------------------------------------- repair


def naive_repair(rows, x, max_flips):
    """The same rule, trying every single flip in full."""
    now = (x >= 0.5).astype(float)
    for _ in range(max_flips):
        total = gaps(rows, now)[1].sum()
        tried = [np.where(np.arange(len(x)) == j, 1 - now, now) for j in range(len(x))]
        gain = np.array([total - gaps(rows, option)[1].sum() for option in tried])
        if (gaps(rows, now)[1] <= 1e-6).all() or gain.max() <= 1e-6:
            break
        equals = [j for j in range(len(x)) if gain[j] >= gain.max() - 1e-6]
        now = tried[min(equals, key=lambda j: abs(x[j] - 0.5))]
    return now


@pytest.mark.parametrize("seed", range(30))
def test_repair_follows_its_rule_and_its_verdict_that_of_all_subsets(seed):
    cons, rows, x = random_rows(seed)
    for max_flips in (0, 1, 6):
        decoded = greedy_repair(x, cons, max_flips=max_flips)
        np.testing.assert_array_equal(decoded.x, naive_repair(rows, x, max_flips))
    feasible = [p for p in itertools.product([0.0, 1.0], repeat=6) if (gaps(rows, np.array(p))[1] <= 1e-6).all()]
    assert bool(decoded.feasible) == (tuple(decoded.x.tolist()) in feasible)
    assert gaps(rows, decoded.x)[1].sum() <= gaps(rows, rounding(x, cons).x)[1].sum()


def test_repair_mends_what_rounding_breaks():
    mended = [
        bool(greedy_repair(x, cons).feasible) - bool(rounding(x, cons).feasible)
        for cons, _, x in (random_rows(seed) for seed in range(30))
    ]
    assert min(mended) >= 0
    assert sum(mended) >= 5


@pytest.mark.parametrize("seed", range(5))
def test_repair_of_matching_rows_always_succeeds(seed):
    # Removing a pair never breaks a "<=" row with positive coefficients.
    x = torch.rand(7, 16, generator=torch.Generator().manual_seed(seed))
    cons = doubly_stochastic(4, 4)
    assert not rounding(x, cons).feasible.all()
    decoded = greedy_repair(x, cons)
    assert decoded.feasible.all()
    sums = decoded.x.reshape(7, 4, 4)
    assert (sums.sum(-1) <= 1).all()
    assert (sums.sum(-2) <= 1).all()


def test_repair_breaks_ties_by_x_then_by_index():
    cons = Constraints(A=[[1.0, 1.0, 1.0]], b=[2.0])
    assert greedy_repair([0.9, 0.6, 0.8], cons).x.tolist() == [1.0, 0.0, 1.0]
    assert greedy_repair([0.9, 0.8, 0.8], cons).x.tolist() == [1.0, 0.0, 1.0]


def test_repair_says_so_when_no_flip_helps():
    # One per row and column, but x takes both of a row and none of the other: one flip only moves the fault.
    cons = Constraints(E=[[1.0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]], f=1.0)
    decoded = greedy_repair([[0.9, 0.9, 0.1, 0.1], [0.9, 0.1, 0.1, 0.9]], cons)
    assert decoded.feasible.tolist() == [False, True]
    assert decoded.violation.tolist() == [1.0, 0.0]


def test_repair_weighs_doubt_in_widths_of_the_box():
    # Both flips mend the row; x_0 is 1 of 10 from its middle, x_1 0.4 of 1, so x_0 is the one in doubt.
    cons = Constraints(A=[[1.0, 1.0]], b=[10.0], upper=[10.0, 1.0])
    assert greedy_repair([6.0, 0.9], cons).x.tolist() == [0.0, 1.0]


def test_repair_in_a_general_box_with_a_fixed_variable():
    cons = Constraints(A=[[1.0, 1.0, 1.0]], b=[4.0], lower=[-1.0, 0.0, 3.0], upper=[2.0, 1.0, 3.0])
    decoded = greedy_repair([1.5, 0.6, 3.0], cons)  # rounds to 2 + 1 + 3
    assert decoded.x.tolist() == [-1.0, 1.0, 3.0]
    assert decoded.feasible


def test_repair_of_an_infeasible_set_ends_and_says_so():
    cons = Constraints(A=[[1.0, 1.0]], b=[0.0], C=[[1.0, 1.0]], d=[1.0])
    assert not greedy_repair([0.9, 0.2], cons).feasible
