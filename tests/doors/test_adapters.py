"""Adapters against the packages they serve: qpsolvers, hierarchicalforecast, optax and jaxopt."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import linsat
from linsat.status import Status

# ------------------------------------------------------------------ qpsolvers


@pytest.fixture
def qpsolvers() -> Any:
    package = pytest.importorskip("qpsolvers")
    from linsat.interop import qpsolvers as adapter

    adapter.register()
    return package


def _program(seed: int, n: int = 6, *, box: bool = True, equalities: int = 2, inequalities: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    M, inside = rng.normal(size=(n, n)), rng.uniform(-0.5, 0.5, n)
    A, G = rng.normal(size=(equalities, n)), rng.normal(size=(inequalities, n))
    program: dict[str, Any] = {"P": M @ M.T + np.eye(n), "q": 3 * rng.normal(size=n)}
    if inequalities:
        program |= {"G": G, "h": G @ inside + rng.uniform(0, 0.3, inequalities)}
    if equalities:
        program |= {"A": A, "b": A @ inside}
    return program | ({"lb": np.full(n, -1.0), "ub": np.full(n, 1.0)} if box else {})


@pytest.mark.parametrize(
    "shape", [(True, 2, 5), (False, 2, 5), (True, 0, 5), (True, 2, 0), (False, 0, 4), (True, 0, 0)]
)
def test_qpsolvers_gets_the_solution_of_quadprog_with_multipliers(qpsolvers: Any, shape: tuple[bool, int, int]) -> None:
    pytest.importorskip("quadprog")
    box, equalities, inequalities = shape
    for seed in range(4):
        program = _program(seed, box=box, equalities=equalities, inequalities=inequalities)
        problem = qpsolvers.Problem(**program)
        ours, theirs = (qpsolvers.solve_problem(problem, solver=name) for name in ("linsat", "quadprog"))
        assert ours.found
        assert np.abs(ours.x - theirs.x).max() < 1e-8
        assert ours.obj == pytest.approx(theirs.obj, abs=1e-8)
        assert ours.is_optimal(1e-8)  # primal and dual residual and gap, as qpsolvers computes them


def test_qpsolvers_diagonal_sparse_and_infeasible(qpsolvers: Any) -> None:
    pytest.importorskip("quadprog")
    program = _program(7)
    program["P"] = np.diag(np.arange(1.0, 7.0))
    theirs = qpsolvers.solve_qp(**program, solver="quadprog")
    assert np.abs(qpsolvers.solve_qp(**program, solver="linsat") - theirs).max() < 1e-8
    sparse = program | {name: sp.csc_matrix(program[name]) for name in ("P", "A", "G")}
    assert np.abs(qpsolvers.solve_qp(**sparse, solver="linsat") - theirs).max() < 1e-8
    impossible = qpsolvers.Problem(np.eye(2), np.zeros(2), np.array([[1.0, 1.0], [-1.0, -1.0]]), np.array([-1.0, -1.0]))
    answer = qpsolvers.solve_problem(impossible, solver="linsat")
    assert not answer.found
    assert answer.extras["status"] is Status.INFEASIBLE


# ------------------------------------------------------------------ hierarchicalforecast


def _hierarchy(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    bottom = np.eye(8)
    S = np.vstack([np.ones(8), np.repeat(np.eye(2), 4, axis=1), np.tile(np.eye(4), 2), bottom])  # grouped, not a tree
    level = S @ rng.gamma(0.5, 2.0, (8, 1))
    past = S @ rng.gamma(0.5, 2.0, (8, 60))
    noisy = level + rng.normal(size=(len(S), 12)) * 1.5
    return {"S": S, "y_hat": noisy, "y_insample": past, "y_hat_insample": past + rng.normal(size=past.shape)}


@pytest.mark.parametrize("method", ["ols", "wls_struct", "wls_var", "mint_shrink", "mint_cov"])
def test_min_trace_is_a_drop_in(method: str) -> None:
    theirs = pytest.importorskip("hierarchicalforecast.methods")
    from linsat.interop.hierarchicalforecast import MinTrace

    data = _hierarchy(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both say that forecasts below zero are replaced; qpsolvers converts matrices
        ours = MinTrace(method, nonnegative=True)
        x = ours.fit_predict(**data)["mean"]
        published = theirs.MinTrace(method, nonnegative=True).fit_predict(**data)["mean"]
        plain = MinTrace(method).fit_predict(**data)["mean"]
        assert np.array_equal(plain, theirs.MinTrace(method).fit_predict(**data)["mean"])
    assert np.abs(x - published).max() < 1e-3 * np.abs(published).max()  # theirs is rounded to float32, and Clarabel's
    S, m = data["S"], 8
    b = x[-m:]
    assert (b >= 0).all()
    assert np.abs(x - S @ b).max() < 1e-12 * np.abs(x).max()
    _, W = theirs.MinTrace(method)._get_PW_matrices(**data)
    slope = S.T @ np.linalg.solve(W, S @ b - np.maximum(data["y_hat"], 0))  # optimal: zero, or upwards at zero
    assert np.abs(np.minimum(b, slope)).max() < 1e-8 * np.abs(slope).max()


def test_paths_have_gradients_to_the_base_forecasts() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("hierarchicalforecast.methods")
    from linsat.interop.hierarchicalforecast import coherent, metric

    data = _hierarchy(5)
    S = data["S"]
    cons, objective = coherent(S), metric(S.sum(1))
    base = torch.tensor(data["y_hat"].T[:3], requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: linsat.project(y, cons, objective=objective), base)
    with pytest.raises(linsat.ConstraintError, match="does not end in an identity"):
        coherent(S[::-1])


# ------------------------------------------------------------------ optax and jaxopt


def test_projection_polyhedron_is_optax_where_optax_has_a_projection() -> None:
    jax = pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    from linsat.interop.optax import projection_polyhedron

    jnp = jax.numpy
    tree = {"w": jnp.array([[0.3, -1.2], [2.0, 0.4]]), "v": jnp.array([0.1, 0.9])}
    ones = np.ones((1, 6))
    low, high = (jax.tree.map(lambda leaf, v=v: jnp.full_like(leaf, v), tree) for v in (-0.5, 0.5))
    tried = [
        (projection_polyhedron(tree, ones, [1.0], lower=0.0), optax.projections.projection_simplex(tree)),
        (projection_polyhedron(tree, lower=-0.5, upper=0.5), optax.projections.projection_box(tree, low, high)),
    ]
    x, a = jnp.array([1.0, 2.0, -3.0]), jnp.array([1.0, -1.0, 0.5])
    tried.append((projection_polyhedron(x, a, jnp.ones(1)), optax.projections.projection_hyperplane(x, a, 1.0)))
    tried.append((projection_polyhedron(x, G=-a, h=-jnp.ones(1)), optax.projections.projection_halfspace(x, -a, -1.0)))
    for ours, theirs in tried:
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
            assert one.dtype == other.dtype
            assert np.abs(np.asarray(one - other)).max() < 2e-6


def test_projection_polyhedron_traced_with_gradients_to_leaves_and_sides() -> None:
    jax = pytest.importorskip("jax")
    from linsat.interop.optax import projection_polyhedron

    with jax.enable_x64(True):
        jnp = jax.numpy
        rng = np.random.default_rng(0)
        A, G = rng.normal(size=(1, 5)), rng.normal(size=(3, 5))
        y, b, h = jnp.asarray(rng.normal(size=5)), jnp.zeros(1), jnp.asarray([-0.3, 0.2, -0.1])

        @jax.jit
        def value(y: Any, b: Any, h: Any) -> Any:
            return jnp.sum(jnp.sin(projection_polyhedron(y, A, b, G, h)))

        got = jax.grad(value, (0, 1, 2))(y, b, h)
        step = 1e-6
        for place, part in enumerate((y, b, h)):
            for i in range(part.size):
                ends = [
                    value(*(p.at[i].add(s * step) if k == place else p for k, p in enumerate((y, b, h))))
                    for s in (1, -1)
                ]
                assert float(got[place][i]) == pytest.approx(float(ends[0] - ends[1]) / (2 * step), abs=1e-6)


def test_projection_polyhedron_rejects_rows_without_sides() -> None:
    pytest.importorskip("jax")
    from linsat.interop.optax import projection_polyhedron

    with pytest.raises(linsat.ConstraintError, match="A comes without b; expected both or neither. Fix: pass b"):
        projection_polyhedron(np.zeros(3, dtype=np.float32), np.ones((1, 3)))
    with pytest.raises(linsat.ConstraintError, match=r"G has shape \(1, 2\); expected \(rows, 3\)"):
        projection_polyhedron(np.zeros(3, dtype=np.float32), G=np.ones((1, 2)), h=np.ones(1))
