"""Single precision in JAX, by the core and by `lax` operations; one step for torch and JAX, iterate by iterate.

Violations are measured in double precision; expected points come from double precision, closed forms or Clarabel.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import linsat
from linsat.arrays.iteration import ArrayBackend
from linsat.arrays.result import Stop
from linsat.arrays.step import Setting, first_state, step
from linsat.plan import Numbers, plan_of
from linsat.status import Status
from tests.helpers.arithmetic import HAS_KERNEL
from tests.helpers.jax_systems import OBJECTIVES, SHAPES, Batch, batch, objective_of
from tests.helpers.oracles import System, nearest_point, random_system
from tests.helpers.statements import problem_of

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import linsat.jax

BACKENDS = ("kernel", "arrays") if HAS_KERNEL else ("arrays",)
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
ROUNDED = 1e-6  # relative to max(1, sum |a x|): eight roundings of float32


def torch_problem(cons: linsat.Constraints, y: np.ndarray, objective: linsat.Objective):
    return problem_of(cons, objective, torch.tensor(y))


@pytest.mark.parametrize("name", ["paper", pytest.param("euclidean", marks=pytest.mark.slow)])
def test_iterates_are_those_of_torch(name: str):
    # Independent rows: of dependent ones the duals are not unique, and rounding chooses among them.
    system = random_system(np.random.default_rng(7), "signed", largest=16, rows=6)
    cons, l = linsat.Constraints(**system.arguments()), system.matrix.shape[1]
    assert np.linalg.matrix_rank(system.matrix) == len(system.matrix)
    y, objective = np.random.default_rng(0).normal(size=(3, l)), OBJECTIVES[name]
    setting = Setting.of(torch_problem(cons, y, objective))
    state, expected = first_state(setting), []
    for _ in range(4):
        state = step(setting, state)
        expected.append(state.mu.numpy())

    plan = plan_of(cons, objective, linsat.Newton(), l)

    def in_jax():
        numbers = Numbers(*map(jnp.asarray, plan.numbers))
        return Setting.of(
            plan.problem(numbers, jnp.asarray(y), objective.spread((3,), l).changed(jnp.asarray), plan.decided())
        )

    with jax.enable_x64(True):
        advance = jit(lambda state: step(in_jax(), state))
        ours = jit(lambda: first_state(in_jax()))()
        for theirs in expected:
            ours = advance(ours)
            np.testing.assert_allclose(ours.mu, theirs, atol=1e-10)


def single_precision(systems: Batch, name: str, backend: str) -> tuple[float, float, np.ndarray]:
    """Worst violation in double precision of x in single, distance to the answer in double, and the codes."""
    objective, solver = objective_of(name, systems.scores.shape[1]), linsat.Newton(backend=backend)
    # Rounded first, so that both precisions solve the same systems.
    rounded = {key: value.astype(np.float32) for key, value in {"y": systems.scores, **systems.numbers}.items()}

    @jit
    def solve(given):
        own = {k: given[k] for k in systems.numbers}
        return linsat.jax.solve(given["y"], systems.cons, objective=objective, solver=solver, **own)

    with jax.enable_x64(False):
        found = solve({key: jnp.asarray(value) for key, value in rounded.items()})
    assert found.x.dtype == jnp.float32
    codes = np.asarray(found.status)
    own = {key: value.astype(np.float64) for key, value in rounded.items()}
    exact = Batch(systems.cons, own, own["y"], systems.known).in_torch()
    x = np.asarray(found.x, dtype=np.float64)
    expected = linsat.project(own["y"], exact, objective=objective, on_failure="nan")
    solved = (codes == Status.CONVERGED.code) & ~np.isnan(expected).any(-1)
    return float(exact.violation(x)[solved].max()), float(abs(x - expected)[solved].max()), codes


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "kernel") for name in OBJECTIVES if HAS_KERNEL), ("euclidean", "arrays")],
)
def test_single_precision_holds_rows_to_rounding(name: str, backend: str):
    violation, distance, codes = single_precision(batch(SHAPES[0], 20, seed=5), name, backend)
    assert violation <= ROUNDED
    assert distance <= (1e-6 if backend == "kernel" else 1e-3)
    assert not codes.any()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_single_precision_over_three_hundred_systems(shape: tuple[int, int, int, int], name: str, backend: str):
    violation, distance, codes = single_precision(batch(shape, 50, seed=sum(shape)), name, backend)
    print(f" violation {violation:.1e}, distance {distance:.1e}, {np.count_nonzero(codes)} of 50 not solved", end=" ")
    assert violation <= ROUNDED
    assert np.count_nonzero(codes) <= 1


def compare_with_double(cons, y: np.ndarray, objective: linsat.Objective, given: dict, backend: str) -> None:
    """All converged in single precision, as in torch, at the x of double precision, rounded."""
    assert all(array.dtype == np.float32 for array in (y, *given.values()))
    solver = linsat.Newton(backend=backend)
    with jax.enable_x64(False):
        solve = jit(lambda y, given: linsat.jax.solve(y, cons, objective=objective, solver=solver, **given))
        found = solve(jnp.asarray(y), {name: jnp.asarray(array) for name, array in given.items()})
    own = cons._with_numbers(**given) if given else cons
    theirs = linsat.solve(torch.tensor(y), own, objective=objective, on_failure="ignore")
    exact = linsat.solve(torch.tensor(y).double(), own, objective=objective, on_failure="ignore")
    np.testing.assert_array_equal(found.status, theirs.codes)
    assert not np.asarray(found.status).any()
    np.testing.assert_allclose(np.asarray(found.x, float), exact.x, rtol=0, atol=2e-7 * max(1.0, float(exact.x.max())))
    assert float(own.violation(np.asarray(found.x, float)).max()) <= ROUNDED


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [1e3, 1e9])
def test_simplices_with_large_scores(scale: float, backend: str):
    y = (scale * np.random.default_rng(0).normal(size=(200, 10))).astype(np.float32)
    cons = linsat.constraints.simplex(10)
    compare_with_double(cons, y, linsat.Euclidean(), {}, backend)
    if backend == "kernel":
        compare_with_double(cons, y, linsat.Entropy(0.125), {}, backend)


@pytest.mark.skipif(not HAS_KERNEL, reason="the native core is not built")
def test_a_thousand_random_transports():
    """Sums of rows and columns from two draws, rounded each: their totals differ by rounding."""
    rng = np.random.default_rng(0)
    X = linsat.Variable(5, 6, name="X", upper=np.inf)
    cons = linsat.subject_to(X.sum(1) == 1.0, X.sum(0) == 5 / 6)
    y = rng.normal(size=(1000, 30)).astype(np.float32)
    sums = np.concatenate([rng.dirichlet(np.ones(5), 1000), rng.dirichlet(np.ones(6), 1000)], -1).astype(np.float32)
    assert (sums[:, :5].sum(-1, dtype=float) != sums[:, 5:].sum(-1, dtype=float)).any()
    compare_with_double(cons, y, linsat.Euclidean(), {"f": sums}, "kernel")
    compare_with_double(cons, y, linsat.Euclidean(), {}, "kernel")


@pytest.mark.skipif(not HAS_KERNEL, reason="the native core is not built")
@pytest.mark.parametrize("tau", [1 / 64, 1.0, 8.0])
def test_boxes_a_hundred_wide_under_the_papers_slack(tau: float):
    rng = np.random.default_rng(0)
    rows, point = rng.uniform(0.5, 2.0, (3, 6)), rng.uniform(0.0, 1.0, 6)
    d = (rows[:2] @ point - 0.1 * rng.random((300, 2))).astype(np.float32)
    cons = linsat.Constraints(C=rows[:2], d=d[0], A=rows[2:], b=rows[2:] @ point + 0.1, lower=0.0, upper=100.0)
    y = rng.normal(size=(300, 6)).astype(np.float32)
    compare_with_double(cons, y, linsat.Entropy(tau), {"d": d}, "kernel")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_torch_may_take_single_steps_first(name: str):
    """The scheme for devices where float64 is slow, on the CPU: same answer, same violation, fewer steps in double."""
    y = np.random.default_rng(0).normal(size=(20, 36))
    objective = objective_of(name, 36)
    cons = linsat.constraints.doubly_stochastic(6)
    problem = torch_problem(cons, y, objective)
    plain, mixed = (ArrayBackend(single_first=first).solve(problem, linsat.Newton()) for first in (False, True))
    assert (plain.stops == Stop.ARRIVED).all()
    assert (mixed.stops == Stop.ARRIVED).all()
    assert float(cons.violation(mixed.x).max()) <= 1e-9
    np.testing.assert_allclose(mixed.x, plain.x, atol=1e-9)
    rough = ArrayBackend(single_first=False).solve(problem, linsat.Newton(), plain.mu.float().double())
    assert float(rough.steps.double().mean()) < float(plain.steps.double().mean())


@pytest.mark.parametrize("backend", BACKENDS)
def test_sides_that_the_papers_slack_rounds_are_those_as_given(backend: str):
    """In d + S, of ``c x >= d`` in a box 1e3 wide, float32 keeps three digits of d."""
    rng = np.random.default_rng(7)
    rows, point = rng.uniform(0.5, 2.0, (3, 6)), rng.uniform(0.0, 1.0, 6)
    d, b = (rows[:2] @ point - 0.1 * rng.random((40, 2))).astype(np.float32), rows[2:] @ point + 0.1
    cons = linsat.Constraints(C=rows[:2], d=d[0], A=rows[2:], b=b, lower=0.0, upper=1e3)
    scores, tau = rng.normal(size=(40, 6)).astype(np.float32), (10 ** rng.uniform(-2, 1, 40)).astype(np.float32)
    found = linsat.jax.solve(scores, cons, tau=tau, d=d, solver=linsat.Newton(backend=backend), on_failure="ignore")
    x, held = np.asarray(found.x, dtype=float), np.asarray(found.status) == 0
    gap = np.concatenate([d - x @ rows[:2].T, x @ rows[2:].T - b], axis=1) / np.maximum(1.0, np.abs(x) @ rows.T)
    worst = np.maximum(gap.max(1), 0.0)
    assert held.any()
    assert worst[held].max() <= 2e-6
    np.testing.assert_allclose(np.asarray(found.violation), worst, atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_absent_rows_masked_scores_and_a_bad_instance_in_single_precision(backend: str):
    """One instance without its first row, one with x[0] held at 0, beside one with a score of NaN."""
    A, E = np.array([[3.0, 1, 4, 1]]), np.ones((1, 4))
    cons = linsat.Constraints(A=A, b=4.0, E=E, f=2.0)
    y = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    y[0, 0], y[2, 0] = np.nan, -np.inf
    b = np.array([[4.0], [np.inf], [3.0]], np.float32)
    solver = linsat.Newton(backend=backend)
    found = jit(lambda y, b: linsat.jax.solve(y, cons, objective=linsat.Euclidean(), b=b, solver=solver))(y, b)
    assert found.x.dtype == jnp.float32
    assert np.asarray(found.status).tolist() == [Status.NOT_FINITE.code, 0, 0]
    whole = System(E, ["=="], np.array([2.0]), np.zeros(4))
    part = System(np.concatenate([A, E])[:, 1:], ["<=", "=="], np.array([3.0, 2.0]), np.zeros(3))
    np.testing.assert_allclose(found.x[1], nearest_point(whole, y[1].astype(float)), atol=1e-5)
    np.testing.assert_allclose(found.x[2, 1:], nearest_point(part, y[2, 1:].astype(float)), atol=1e-5)
    assert float(found.x[2, 0]) == 0
    assert float(found.violation[1:].max()) <= ROUNDED


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("objective", [linsat.Entropy(0.3), pytest.param(linsat.Euclidean(), marks=pytest.mark.slow)])
def test_one_set_in_both_precisions(objective: linsat.Objective, backend: str):
    """Equal scores share the sums evenly, by symmetry; single, double and single again in one process."""
    cons, solver = linsat.constraints.doubly_stochastic(3), linsat.Newton(backend=backend)
    for double in (False, True, False):
        with jax.enable_x64(double):
            x = jit(lambda y: linsat.jax.project(y, cons, objective=objective, solver=solver))(jnp.zeros((2, 9)))
        np.testing.assert_allclose(x, 1 / 3, atol=1e-9 if double else 1e-6)
