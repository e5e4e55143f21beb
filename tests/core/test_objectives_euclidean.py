"""The Euclidean objective: the nearest point, against Clarabel and closed forms."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import linsat
from tests.helpers.arithmetic import assert_same_answer
from tests.helpers.oracles import System, nearest_point, open_system

KINDS = ("signed", "positive", "boundary", "unbounded", "dependent")
NEAREST = linsat.Euclidean()
FEW = pytest.param(range(15), id="few")
MANY = pytest.param(range(15, 60), id="many", marks=pytest.mark.slow)


def project(scores, system, **options):
    objective = options.pop("objective", NEAREST)
    return linsat.project(scores, linsat.Constraints(**system.arguments()), objective=objective, **options)


def sparsemax(scores):
    """The nearest point of the simplex, by sorting (Martins and Astudillo, 2016)."""
    falling = np.sort(scores)[::-1]
    threshold = (np.cumsum(falling) - 1) / np.arange(1, len(scores) + 1)
    return np.maximum(scores - threshold[falling > threshold][-1], 0)


@pytest.mark.parametrize("seeds", [FEW, MANY])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_clarabel(kind, seeds):
    judged = 0
    for seed in seeds:
        rng = np.random.default_rng([seed, KINDS.index(kind)])
        system = open_system(rng, kind)
        scores = rng.normal(0.3, rng.choice([0.3, 1.0, 5.0]), len(system.point))
        expected = nearest_point(system, scores)
        found = project(scores, system, on_failure="raise")
        assert system.violation(found) <= 1e-8
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=f"{kind} {seed}")
    assert judged >= 0.9 * len(seeds)


@pytest.mark.parametrize("kind", KINDS)
def test_weighted_equals_clarabel(kind):
    for seed in range(4):
        rng = np.random.default_rng([seed, 7])
        system = open_system(rng, kind)
        scores, weights = rng.normal(size=len(system.point)), 10.0 ** rng.uniform(-1, 1, len(system.point))
        expected = nearest_point(system, scores, weights)
        found = project(scores, system, objective=linsat.Euclidean(weights=weights), on_failure="raise")
        if expected is not None:
            np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_idempotent(kind):
    for seed in range(8):
        rng = np.random.default_rng([seed, 1])
        system = open_system(rng, kind)
        cons = linsat.Constraints(**system.arguments())
        once = linsat.project(rng.normal(size=len(system.point)), cons, objective=NEAREST)
        np.testing.assert_allclose(linsat.project(once, cons, objective=NEAREST), once, atol=1e-10)
        np.testing.assert_allclose(linsat.project(system.point, cons, objective=NEAREST), system.point, atol=1e-10)


def test_points_inside_come_back_bit_for_bit():
    cons = linsat.Constraints(A=[[1.0, 2.0, -1.0]], b=[2.0], C=[[1.0, 1.0, 1.0]], d=[0.2], lower=-1.0, upper=np.inf)
    scores = np.array([[0.1, 0.7, 3.0], [0.3, -0.2, 0.4]])
    solution = linsat.solve(scores, cons, objective=NEAREST)
    assert np.array_equal(solution.x, scores)
    assert np.array_equal(solution.duals, np.zeros((2, 2)))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS), distance=st.sampled_from([1e-6, 1e-2, 1.0, 100.0]))
def test_never_expands_a_distance(seed, kind, distance):
    rng = np.random.default_rng(seed)
    system = open_system(rng, kind, largest=20, rows=8)
    first = rng.normal(size=len(system.point))
    second = first + distance * rng.normal(size=len(first))
    a, b = project(np.stack([first, second]), system)
    assert np.linalg.norm(a - b) <= np.linalg.norm(first - second) * (1 + 1e-9) + 1e-9


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-20, 20, allow_subnormal=False), min_size=1, max_size=12))
def test_sparsemax_on_the_simplex(scores):
    scores = np.array(scores)
    found = linsat.project(scores, linsat.constraints.simplex(len(scores)), objective=NEAREST)
    np.testing.assert_allclose(found, sparsemax(scores), atol=1e-9)
    assert set(np.flatnonzero(found)) <= set(np.flatnonzero(sparsemax(scores) > -1e-9))


def test_sparse_answers_are_exact_zeros():
    found = linsat.project(np.array([2.0, 1.5, 0.0, -3.0]), linsat.constraints.simplex(4), objective=NEAREST)
    assert found.tolist() == pytest.approx([0.75, 0.25, 0.0, 0.0], abs=1e-12)
    assert (found[2:] == 0).all()


def test_half_space_and_plane_in_closed_form():
    rng = np.random.default_rng(3)
    a, y, q = rng.normal(size=6), 3 * rng.normal(size=(5, 6)), rng.uniform(0.2, 4.0, 6)
    open_box = {"lower": -np.inf, "upper": np.inf}
    over = y @ a - 0.7
    plane = linsat.Constraints(E=a[None], f=[0.7], **open_box)
    np.testing.assert_allclose(linsat.project(y, plane, objective=NEAREST), y - np.outer(over, a) / (a @ a), atol=1e-10)
    np.testing.assert_allclose(
        linsat.project(y, plane, objective=linsat.Euclidean(weights=q)),
        y - np.outer(over, a / q) / (a @ (a / q)),
        atol=1e-10,
    )
    half = linsat.Constraints(A=a[None], b=[0.7], **open_box)
    np.testing.assert_allclose(
        linsat.project(y, half, objective=NEAREST), y - np.outer(np.maximum(over, 0), a) / (a @ a), atol=1e-10
    )


def test_without_rows_it_clips():
    cons = linsat.Constraints(lower=[0.0, -np.inf, 2.0], upper=[1.0, 0.5, np.inf])
    found = linsat.project(np.array([1.7, -40.0, 0.0]), cons, objective=NEAREST)
    assert found.tolist() == [1.0, -40.0, 2.0]


def test_right_hand_sides_and_weights_per_instance():
    rng = np.random.default_rng(5)
    system = open_system(rng, "unbounded", largest=12, rows=6)
    l, k = len(system.point), len(system.rhs)
    system = System(system.matrix, ["<="] * k, system.matrix @ system.point, system.point, system.lower, system.upper)
    sides = system.rhs + rng.uniform(0, 0.4, (7, k))
    scores, weights = 2 * rng.normal(size=(7, l)), rng.uniform(0.3, 3.0, (7, l))
    cons = linsat.Constraints(**system.arguments()).with_rhs(b=sides)
    found = linsat.project(scores, cons, objective=linsat.Euclidean(weights=weights))
    for i in range(7):
        own = System(system.matrix, system.senses, sides[i], system.point, system.lower, system.upper)
        np.testing.assert_allclose(found[i], nearest_point(own, scores[i], weights[i]), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_answers_have_the_dtype_of_the_scores(dtype):
    cons = linsat.constraints.simplex(6)
    scores = torch.randn(4, 6, dtype=torch.float64).to(dtype).requires_grad_(True)
    found = linsat.project(scores, cons, objective=NEAREST)
    found.sum().backward()
    assert found.dtype == scores.grad.dtype == dtype
    expected = np.stack([sparsemax(row) for row in scores.detach().double().numpy()])
    np.testing.assert_allclose(found.detach().double().numpy(), expected, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_numpy_in_numpy_out(dtype):
    scores = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(dtype)
    found = linsat.project(scores, linsat.constraints.simplex(5), objective=NEAREST)
    assert found.dtype == dtype
    expected = np.apply_along_axis(sparsemax, -1, scores.astype(np.float64))
    np.testing.assert_allclose(found.astype(np.float64), expected, atol=np.finfo(dtype).eps)


def test_doubly_stochastic():
    rng = np.random.default_rng(2)
    n = 8
    cons = linsat.constraints.doubly_stochastic(n)
    rows = np.vstack([np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))])
    system = System(rows, ["=="] * (2 * n), np.ones(2 * n), np.full(n * n, 1 / n))
    scores = rng.normal(size=(5, n * n))
    found = linsat.project(scores, cons, objective=NEAREST)
    for x, y in zip(found, scores):
        np.testing.assert_allclose(x, nearest_point(system, y), atol=1e-6)
    permutation = np.eye(n)[rng.permutation(n)].ravel()
    np.testing.assert_allclose(linsat.project(permutation, cons, objective=NEAREST), permutation, atol=1e-12)


def test_project_each_and_the_layer_agree_with_project():
    sets = [linsat.constraints.simplex(4), linsat.constraints.top_k(5, 2)]
    scores = [torch.randn(4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    each = linsat.project_each(scores, sets, objective=NEAREST)
    for x, y, cons in zip(each, scores, sets, strict=True):
        assert_same_answer(x, linsat.LinSAT(cons, objective=NEAREST)(y))
        assert_same_answer(x, linsat.project(y, cons, objective=NEAREST))


def test_infeasible_rows_are_named():
    cons = linsat.Constraints(E=[[1.0, 1.0]], f=[1.0], A=[[1.0, 1.0]], b=[0.5], lower=-np.inf, upper=np.inf)
    with pytest.raises(linsat.InfeasibleError):
        linsat.project(np.zeros(2), cons, objective=NEAREST)


@pytest.mark.parametrize(
    ("weights", "words"), [([1.0, -1.0], "weights is -1"), ([1.0, 2.0, 3.0], "weights has shape"), ("a", "weights is")]
)
def test_bad_weights(weights, words):
    with pytest.raises(linsat.ConstraintError, match=words):
        linsat.project(np.zeros(2), linsat.constraints.simplex(2), objective=linsat.Euclidean(weights=weights))


def test_infinite_bounds_belong_to_this_objective():
    cons = linsat.Constraints(E=[[1.0, 1.0]], f=[1.0], lower=-np.inf, upper=np.inf)
    assert linsat.project(np.array([3.0, 0.0]), cons, objective=NEAREST).tolist() == pytest.approx([2.0, -1.0])
    with pytest.raises(linsat.ConstraintError, match=r"finite box.*Euclidean"):
        linsat.project(np.zeros(2), cons)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_an_answer_beyond_the_range_of_the_scores_is_rejected(dtype):
    """The row asks for more than the dtype can hold, and no bound does."""
    largest = torch.finfo(dtype).max
    cons = linsat.Constraints(C=[[1.0]], d=[4.0 * largest], lower=-np.inf, upper=np.inf)
    y = torch.tensor([0.4], dtype=dtype)
    for backend in ("auto", "arrays"):
        solver = linsat.Newton(backend=backend)
        with pytest.raises(
            linsat.ConstraintError,
            match=r"x of instance 0 is beyond the range of .* Fix: y.double\(\), or finite bounds",
        ):
            linsat.project(y, cons, objective=linsat.Euclidean(), solver=solver)
        assert linsat.project(y, cons, objective=linsat.Euclidean(), solver=solver, on_failure="nan").isnan().all()
    found = linsat.project(y.double(), cons, objective=linsat.Euclidean())
    torch.testing.assert_close(found, torch.tensor([4.0 * largest], dtype=torch.float64))
