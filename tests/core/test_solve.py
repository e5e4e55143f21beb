"""What a projection promises: the rows hold for every feasible system, and x is the optimum of the program."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import linsat
from tests.helpers.arithmetic import NEWTON_BACKENDS
from tests.helpers.oracles import entropic_optimum, linear_optimum, random_system

TAUS = (1.0, 0.1, 0.01, 0.001)
KINDS = ("positive", "signed", "boundary")


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("kind", KINDS)
def test_random_feasible_systems_hold(kind, tau):
    rng = np.random.default_rng([KINDS.index(kind), TAUS.index(tau)])
    for _ in range(167):  # 2,004 systems over the twelve cases
        system = random_system(rng, kind)
        cons = linsat.Constraints(**system.arguments())
        scores = rng.normal(size=len(system.point))
        solution = linsat.solve(scores, cons, tau=tau)
        assert solution.converged, (system, solution)
        assert system.violation(solution.x) <= 1e-6
        narrow = linsat.solve(scores.astype(np.float32), cons, tau=tau)
        assert narrow.converged
        assert narrow.x.dtype == np.float32
        assert system.violation(narrow.x.astype(np.float64)) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_x_is_the_optimum_of_the_program(kind):
    rng = np.random.default_rng(100 + KINDS.index(kind))
    compared = 0
    while compared < 34:  # 102 systems over the three kinds
        system = random_system(rng, kind, largest=40, rows=12)
        tau = float(rng.choice([1.0, 0.3, 0.1, 0.01]))
        scores = rng.normal(size=len(system.point))
        expected = entropic_optimum(system, scores, tau)
        if expected is None:
            continue
        x = linsat.project(scores, linsat.Constraints(**system.arguments()), tau=tau)
        np.testing.assert_allclose(x, expected, atol=1e-5)
        compared += 1


def test_x_is_the_optimum_in_a_general_box():
    rng = np.random.default_rng(7)
    compared = 0
    while compared < 12:
        system = random_system(rng, "signed", largest=12, rows=5)
        low, high = rng.uniform(-3, 0, len(system.point)), rng.uniform(1, 4, len(system.point))
        system.lower, system.upper = low, high
        scores = rng.normal(size=len(system.point))
        expected = entropic_optimum(system, scores, 0.5)
        if expected is None:
            continue
        x = linsat.project(scores, linsat.Constraints(**system.arguments()), tau=0.5)
        np.testing.assert_allclose(x, expected, atol=1e-5)
        compared += 1


@pytest.mark.parametrize("kind", KINDS)
def test_small_tau_reaches_the_linear_programme(kind):
    rng = np.random.default_rng(200 + KINDS.index(kind))
    for _ in range(15):
        system = random_system(rng, kind, largest=60, rows=15)
        scores = rng.normal(size=len(system.point))
        best = linear_optimum(system, scores)
        x = linsat.project(scores, linsat.Constraints(**system.arguments()), tau=1e-5)
        assert system.violation(x) <= 1e-6
        assert abs(scores @ x - best) <= 1e-3


@pytest.mark.parametrize("tau", TAUS)
def test_unequal_coefficients_where_sinkhorn_fails(tau):
    cons = linsat.Constraints(E=[[1.0, 2.0], [2.0, 1.0]], f=[1.2, 1.2])
    scores = np.random.default_rng(0).normal(scale=3.0, size=(50, 2))
    np.testing.assert_allclose(linsat.project(scores, cons, tau=tau), 0.4, atol=1e-8)


def test_tour_rows_are_exact():
    cons = linsat.constraints.tour(20, 0, 19, priority=1, within=5)
    x = linsat.project(torch.rand(16, 400, dtype=torch.float64), cons, tau=0.1).reshape(16, 20, 20)
    assert (x[:, 0, 0] == 1).all()
    assert (x[:, 19, 19] == 1).all()
    assert (x[:, 0, 1:] == 0).all()
    assert (x[:, 1:, 0] == 0).all()
    assert float((x.sum(1) - 1).abs().max()) <= 1e-6
    assert float((x.sum(2) - 1).abs().max()) <= 1e-6
    assert float((x[:, 1, :6].sum(-1) - 1).abs().max()) <= 1e-6


def test_tour_that_differs_per_instance_equals_the_single_tours():
    ends = [(0, 19, 1), (4, 2, 7), (5, 0, 3)]
    start, end, priority = (list(column) for column in zip(*ends, strict=True))
    scores = torch.rand(3, 400, dtype=torch.float64)
    together = linsat.project(scores, linsat.constraints.tour(20, start, end, priority=priority, within=5))
    for i, (s, e, p) in enumerate(ends):
        alone = linsat.project(scores[i], linsat.constraints.tour(20, s, e, priority=p, within=5))
        assert float((together[i] - alone).abs().max()) <= 1e-8


@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_scaling_rows_changes_nothing(factor):
    rng = np.random.default_rng(3)
    for _ in range(20):
        system = random_system(rng, "signed", largest=40, rows=10)
        scores = rng.normal(size=len(system.point))
        x = linsat.project(scores, linsat.Constraints(**system.arguments()), tau=0.1)
        violation = system.violation(x)
        system.matrix, system.rhs = system.matrix * factor, system.rhs * factor
        scaled = linsat.project(scores, linsat.Constraints(**system.arguments()), tau=0.1)
        np.testing.assert_allclose(scaled, x, atol=1e-7)
        assert system.violation(scaled) / factor <= 1e-6
        assert violation <= 1e-6


def test_duplicate_rows_change_no_equality_answer():
    rng = np.random.default_rng(4)
    matrix = rng.uniform(-1, 1, (4, 10))
    rhs = matrix @ rng.uniform(0.2, 0.8, 10)
    once = linsat.Constraints(E=matrix, f=rhs)
    twice = linsat.Constraints(E=np.vstack([matrix, matrix, 2 * matrix[:1]]), f=np.concatenate([rhs, rhs, 2 * rhs[:1]]))
    scores = rng.normal(size=(5, 10))
    np.testing.assert_allclose(linsat.project(scores, twice), linsat.project(scores, once), atol=1e-7)


def test_no_rows_is_a_scaled_sigmoid():
    scores = np.array([[-1.0, 0.0, 3.0]])
    expected = 1 / (1 + np.exp(-scores / 0.5))
    np.testing.assert_allclose(linsat.project(scores, linsat.Constraints(), tau=0.5), expected, rtol=1e-12)
    boxed = linsat.project(scores, linsat.Constraints(lower=-1.0, upper=3.0), tau=0.5)
    np.testing.assert_allclose(boxed, -1 + 4 / (1 + np.exp(-4 * scores / 0.5)), rtol=1e-12)


def test_one_variable():
    assert linsat.project(np.array([5.0]), linsat.Constraints(E=[[2.0]], f=[0.5])) == pytest.approx(0.25, abs=1e-10)
    at_most = linsat.solve(np.array([50.0]), linsat.Constraints(A=[[1.0]], b=[0.3]), tau=0.01)
    assert at_most.x == pytest.approx(0.3, abs=1e-3)
    assert at_most.violation <= 1e-9


def test_rows_that_hold_everywhere_are_dropped():
    scores = np.array([0.3, -0.2, 0.1])
    plain = linsat.project(scores, linsat.Constraints())
    loose = linsat.Constraints(A=[[1, 1, 1], [1, -1, 0]], b=[3, 1], C=[[1, 0, 1], [-1, 0, 0]], d=[0, -1])
    np.testing.assert_allclose(linsat.project(scores, loose), plain, atol=1e-15)


def test_empty_batch_and_odd_batch_shapes():
    cons = linsat.constraints.doubly_stochastic(3)
    for shape in [(0, 9), (2, 0, 9)]:
        assert linsat.project(torch.zeros(shape), cons).shape == shape
    scores = torch.rand(2, 1, 4, 9, dtype=torch.float64)
    nested = linsat.project(scores, cons)
    flat = linsat.project(scores.reshape(8, 9), cons)
    assert torch.allclose(nested.reshape(8, 9), flat, atol=1e-10)
    strided = torch.rand(9, 5, dtype=torch.float64).T
    assert torch.allclose(linsat.project(strided, cons), linsat.project(strided.contiguous(), cons), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept_and_rounded_only_at_the_end(dtype):
    cons = linsat.constraints.doubly_stochastic(4)
    scores = torch.rand(3, 16).to(dtype)
    x = linsat.project(scores, cons)
    assert x.dtype == dtype
    wide = linsat.project(scores.to(torch.float64), cons)
    assert torch.equal(x, wide.to(dtype))


def test_an_instance_does_not_depend_on_its_batch():
    rng = np.random.default_rng(5)
    for kind in KINDS:
        system = random_system(rng, kind, largest=60, rows=20)
        cons = linsat.Constraints(**system.arguments())
        scores = rng.normal(size=(33, len(system.point))) * rng.uniform(0.1, 10, (33, 1))
        together = linsat.project(scores, cons, tau=0.05)
        for i in (0, 7, 32):
            np.testing.assert_allclose(linsat.project(scores[i], cons, tau=0.05), together[i], atol=1e-10)
            np.testing.assert_allclose(linsat.project(scores[i : i + 5], cons, tau=0.05)[0], together[i], atol=1e-10)


def test_large_spread_of_scores():
    cons = linsat.constraints.doubly_stochastic(6)
    scores = np.random.default_rng(6).normal(size=(8, 36)) * 1e4
    solution = linsat.solve(scores, cons, tau=0.1)
    assert solution.converged.all()
    assert solution.violation.max() <= 1e-6


def test_warm_start_from_duals_takes_fewer_steps():
    cons = linsat.constraints.tour(12, 0, 11)
    scores = torch.rand(20, 144, dtype=torch.float64)
    first = linsat.solve(scores, cons, tau=0.02)
    near = scores + 1e-3 * torch.rand_like(scores)
    cold = linsat.solve(near, cons, tau=0.02)
    warm = linsat.solve(near, cons, tau=0.02, start=first.duals)
    assert int(warm.steps.sum()) < int(cold.steps.sum())
    assert torch.allclose(warm.x, cold.x, atol=1e-8)


def test_duals_reproduce_x():
    rng = np.random.default_rng(8)
    system = random_system(rng, "signed", largest=30, rows=8)
    cons = linsat.Constraints(**system.arguments())
    scores = rng.normal(size=len(system.point))
    solution = linsat.solve(scores, cons, tau=0.3)
    dense = cons.matrix.to_dense().numpy()
    np.testing.assert_allclose(solution.x, 1 / (1 + np.exp(-(scores + solution.duals @ dense) / 0.3)), atol=1e-9)


def test_many_rows_and_variables_use_the_sparse_path():
    n = 150  # 22,500 variables and 300 rows: too large for the dense matrix
    cons = linsat.constraints.doubly_stochastic(n)
    x = linsat.project(torch.rand(n * n, dtype=torch.float64), cons, tau=0.1).reshape(n, n)
    assert float((x.sum(0) - 1).abs().max()) <= 1e-6
    assert float((x.sum(1) - 1).abs().max()) <= 1e-6


def test_project_each_equals_one_by_one():
    matchings = [linsat.constraints.matching(3, 4, at_most=2), linsat.constraints.matching(5, 2)]
    sets = [matchings[0], matchings[1], matchings[0]]
    scores = [torch.rand(12), torch.rand(10), torch.rand(12)]
    found = linsat.project_each(scores, sets, tau=0.05)
    for x, y, cons in zip(found, scores, sets, strict=True):
        assert torch.allclose(x, linsat.project(y, cons, tau=0.05), atol=1e-7)
        assert float(cons.violation(x)) <= 1e-5


def test_project_each_joins_sets_that_differ_in_right_sides_only():
    limits = [1, 2, 3, 2]
    sets = [linsat.constraints.matching(4, 4, at_most=phi) for phi in limits]
    scores = [np.random.default_rng(i).normal(size=(2, 16)) for i in range(4)]
    found = linsat.project_each(scores, sets, tau=0.1)
    for x, y, cons in zip(found, scores, sets, strict=True):
        np.testing.assert_allclose(x, linsat.project(y, cons, tau=0.1), atol=1e-8)


@pytest.mark.parametrize("backend", NEWTON_BACKENDS)
@pytest.mark.parametrize(
    ("lower", "upper"), [((5,), (4, 5)), ((4, 5), (5,)), ((4, 5), (4, 5)), ((), (4, 1)), ((4, 1), ())]
)
def test_shared_and_per_instance_bounds_in_every_mix(lower, upper, backend):
    rng = np.random.default_rng(11)
    low, high = -rng.uniform(0, 0.5, lower), rng.uniform(0.6, 1.5, upper)
    cons = linsat.Constraints(E=np.ones((1, 5)), f=1.7, lower=low, upper=high)
    solution = linsat.solve(rng.normal(size=(4, 5)), cons, solver=linsat.Newton(backend=backend))
    assert solution.converged.all()
    np.testing.assert_allclose(solution.x.sum(-1), 1.7, atol=1e-8)
    assert (solution.x >= low - 1e-12).all()
    assert (solution.x <= high + 1e-12).all()


@pytest.mark.parametrize("backend", NEWTON_BACKENDS)
@pytest.mark.parametrize("gap", [1e-2, 1e-3, 1e-4])
def test_nearly_parallel_rows(gap, backend):
    matrix = np.array([[1.0, 1, 1], [1, 1, 1 + gap]])
    cons = linsat.Constraints(E=matrix, f=matrix @ [0.3, 0.3, 0.4])
    solution = linsat.solve(np.array([1.0, 0, -1]), cons, tau=0.01, solver=linsat.Newton(backend=backend))
    assert solution.converged
    assert solution.x[2] == pytest.approx(0.4, abs=1e-4)  # the difference of the rows says so


@pytest.mark.parametrize(("seed", "kind"), [(631, "signed"), (7212, "positive")])
def test_systems_that_once_took_too_many_steps(seed, kind):
    rng = np.random.default_rng(seed)
    system = random_system(rng, kind, largest=15, rows=14)
    scores = rng.standard_normal(len(system.point))
    cons = linsat.Constraints(**system.arguments())
    for backend in NEWTON_BACKENDS:
        solution = linsat.solve(scores, cons, tau=0.001, solver=linsat.Newton(backend=backend))
        assert solution.converged
        assert system.violation(solution.x) <= 1e-6


def test_a_useless_warm_start_is_not_used():
    cons = linsat.constraints.doubly_stochastic(5)
    scores = torch.rand(3, 25, dtype=torch.float64)
    for backend in NEWTON_BACKENDS:
        wild = linsat.solve(scores, cons, start=torch.randn(3, 10) * 1e6, solver=linsat.Newton(backend=backend))
        assert wild.converged.all()
        assert torch.allclose(wild.x, linsat.project(scores, cons), atol=1e-8)


def test_presolve_judges_by_what_can_move():
    far = linsat.Constraints(E=[[1.0, 1.0]], f=[2e6 + 0.5], lower=1e6, upper=1e6 + 1)
    assert linsat.project(np.array([0.0, 0.0]), far).sum() == pytest.approx(2e6 + 0.5, abs=1e-6)
    with pytest.raises(linsat.InfeasibleError):
        linsat.Constraints(E=[[1.0, 1.0]], f=[2e6 - 1e-3], lower=1e6, upper=1e6 + 1).check()
    mixed = linsat.project(np.array([5.0, 5.0]), linsat.Constraints(A=[[1e11, 1.0]], b=[0.5]), tau=0.01)
    assert mixed[1] > 0.1  # the small coefficient has room, whatever the large one is


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    tau=st.floats(1e-3, 1e2),
    spread=st.sampled_from([0.0, 1.0, 100.0]),
)
def test_any_feasible_system_holds(seed, kind, tau, spread):
    rng = np.random.default_rng(seed)
    system = random_system(rng, kind, largest=25, rows=12)
    solution = linsat.solve(
        rng.normal(size=(2, len(system.point))) * spread, linsat.Constraints(**system.arguments()), tau=tau
    )
    assert solution.converged.all()
    for x in solution.x:
        assert np.isfinite(x).all()
        assert system.violation(x) <= 1e-6


@pytest.mark.parametrize("tensors", [False, True])
def test_a_solution_can_be_pickled(tensors):
    """With the multipliers of the bounds: x is y there, so they are what the nearest point lacks."""
    y = np.array([0.3, -0.2, 0.9])
    scores = torch.from_numpy(y) if tensors else y
    solution = linsat.solve(scores, linsat.Constraints(upper=np.full(3, 0.5)), objective=linsat.Euclidean())
    for copied in (pickle.loads(pickle.dumps(solution)), copy.deepcopy(solution)):
        np.testing.assert_allclose(copied.x, np.clip(y, 0, 0.5))
        np.testing.assert_allclose(copied.bound_duals, np.clip(y, 0, 0.5) - y, atol=1e-12)
        assert str(copied.status[()]) == "converged"


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rows_beyond_the_range_of_numbers_warn_in_our_words_only():
    cons = linsat.Constraints(A=np.full((1, 3), 1e-300), b=[1e-300])
    solution = linsat.solve(np.array([0.3, 0.2, 0.9]), cons, objective=linsat.Euclidean(), on_failure="ignore")
    assert not solution.converged or abs(solution.x.sum() - 1) < 1e-6
