"""The projections of JAXopt and optax onto linear sets, stated in linsat: values, Jacobians, products with vectors.

What their own tests claim, in single precision as there, against closed forms, Clarabel and finite differences. At a
kink the derivative is the one of the piece on which a variable at a bound, or a row that is tight without pressing,
stays so.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import linsat
from tests.helpers.oracles import System, nearest_point

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import linsat.jax

NEAREST = linsat.Euclidean()
SIMPLEX = {n: linsat.constraints.simplex(n) for n in (3, 5, 50)}


def project(y, cons, **given):
    return linsat.jax.project(y, cons, objective=NEAREST, **given)


def sorted_simplex(y: np.ndarray, total: float = 1.0) -> np.ndarray:
    """Closed form: shift and cut, with the shift that the sorted scores give."""
    y = np.asarray(y, float)
    down = np.sort(y)[::-1]
    shifts = (np.cumsum(down) - total) / np.arange(1, len(y) + 1)
    return np.maximum(y - shifts[np.flatnonzero(down > shifts)[-1]], 0.0)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_orthant_box_and_cube():
    y = jnp.array([-1.0, 2.0, 3.0])
    orthant = linsat.Constraints(lower=[0.0] * 3, upper=np.inf)
    np.testing.assert_array_equal(project(y, orthant), [0, 2, 3])
    np.testing.assert_array_equal(project(jnp.stack([y, -y]), orthant), [[0, 2, 3], [1, 0, 0]])
    np.testing.assert_array_equal(project(y, orthant, upper=2.0), [0, 2, 2])
    # By name, as pytrees are there.
    first, rest = linsat.Variable(2, name="first", upper=2.0), linsat.Variable(name="rest", upper=2.0)
    box = linsat.subject_to(first.sum() + rest <= 9.0)
    found = project({"first": y[:2], "rest": y[2]}, box)
    np.testing.assert_array_equal(found["first"], [0, 2])
    np.testing.assert_array_equal(found["rest"], 2)
    jitted = jax.jit(lambda y, low, high: project(y, orthant, lower=low, upper=high))
    np.testing.assert_array_equal(jitted(y, jnp.zeros(3), jnp.full(3, 2.0)), [0, 2, 2])
    np.testing.assert_allclose(jitted(jnp.array([-1.0, 2.0, 0.5]), jnp.zeros(3), jnp.full(3, 0.8)), [0, 0.8, 0.5])
    # Strictly inside, strictly outside; at a bound itself the variable counts as fixed.
    slopes = jax.jacrev(lambda y: project(y, orthant, upper=2.0))(y)
    np.testing.assert_array_equal(slopes, np.zeros((3, 3)))
    np.testing.assert_array_equal(jax.jacfwd(lambda y: project(y, orthant, upper=2.5))(y), np.diag([0.0, 1, 0]))


def test_ball_of_the_largest_entry():
    y = normal(50)
    largest = float(abs(y).max())
    box = linsat.Constraints(lower=[-1.0] * 50, upper=1.0)
    inside = jax.jit(lambda y, r: project(y, box, lower=-r, upper=r))
    np.testing.assert_array_equal(inside(y, largest), y)
    np.testing.assert_array_equal(inside(y, largest / 2), np.clip(y, -np.float32(largest / 2), np.float32(largest / 2)))


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_simplex(scale: float):
    y = scale * normal(10, 50)
    x = jax.jit(lambda y: project(y, SIMPLEX[50]))(y)
    np.testing.assert_allclose(x, [sorted_simplex(one) for one in y], atol=1e-6)
    np.testing.assert_allclose(x.sum(-1), 1.0, atol=1e-6)
    less = jax.jit(lambda y, total: project(y, SIMPLEX[50], f=total))(y, jnp.array([0.8]))
    np.testing.assert_allclose(less, [sorted_simplex(one, np.float32(0.8)) for one in y], atol=1e-6)
    mapped = jax.vmap(lambda y, total: project(y, SIMPLEX[50], f=total[None]))(y, jnp.full(10, 0.8))
    np.testing.assert_array_equal(mapped, less)


def test_simplex_with_a_score_of_minus_infinity():
    y = jnp.array([0.0, 0.0, -jnp.inf])
    np.testing.assert_allclose(project(y, SIMPLEX[3]), [0.5, 0.5, 0], rtol=1e-15, atol=0)
    slopes = jax.jit(jax.jacrev(lambda y: project(y, SIMPLEX[3])))(y)
    np.testing.assert_allclose(slopes, [[0.5, -0.5, 0], [-0.5, 0.5, 0], [0, 0, 0]], atol=1e-7)


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_derivatives_on_the_simplex(scale: float):
    rng = np.random.default_rng(0)
    y, v = (scale * rng.random(5)).astype(np.float32), (scale * rng.normal(size=5)).astype(np.float32)
    on_simplex = jax.jit(lambda y: project(y, SIMPLEX[5]))
    support = (sorted_simplex(y) > 0).astype(float)
    expected = np.diag(support) - np.outer(support, support) / support.sum()
    np.testing.assert_allclose(jax.jacrev(on_simplex)(y), expected, atol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(on_simplex)(y), expected, atol=1e-6)
    np.testing.assert_allclose(jax.vjp(on_simplex, y)[1](v)[0], v @ expected, rtol=1e-5, atol=1e-6 * scale)
    np.testing.assert_allclose(jax.jvp(on_simplex, (y,), (v,))[1], expected @ v, rtol=1e-5, atol=1e-6 * scale)


def test_the_slope_of_a_loss_over_mapped_simplices():
    y, way = normal(4, 5), normal(4, 5, seed=1)
    way /= np.linalg.norm(way)
    loss = jax.jit(lambda y: (jax.vmap(lambda y: project(y, SIMPLEX[5]))(y) ** 2).sum())
    ends = [sum((sorted_simplex(one) ** 2).sum() for one in y + sign * 1e-4 * way) for sign in (1.0, -1.0)]
    assert float((jax.grad(loss)(y) * way).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-3)


def test_ball_of_the_sum_of_magnitudes():
    """By the signs of the scores: inside, at the boundary, outside; derivatives to the scores and to the radius."""
    y = normal(50)
    norm = float(abs(y).sum())
    corner = linsat.Constraints(A=np.ones((1, 50)), b=1.0, lower=0.0, upper=np.inf)

    @jax.jit
    def ball(y, radius):
        return jnp.sign(y) * project(abs(y), corner, b=radius[None])

    slopes = jax.jit(jax.jacrev(ball, argnums=(0, 1)))
    for radius in (2 * norm, norm * (1 + 1e-6)):
        np.testing.assert_allclose(ball(y, jnp.float32(radius)), y, atol=1e-6)
        by_y, by_radius = slopes(y, jnp.float32(radius))
        np.testing.assert_allclose(by_y, np.eye(50), atol=1e-6)
        np.testing.assert_allclose(by_radius, 0.0, atol=1e-6)
    magnitude = sorted_simplex(abs(y), norm / 2)
    np.testing.assert_allclose(ball(y, jnp.float32(norm / 2)), np.sign(y) * magnitude, atol=1e-5)
    by_y, by_radius = slopes(y, jnp.float32(norm / 2))
    signs = np.sign(y) * (magnitude > 0)
    np.testing.assert_allclose(by_y, np.diag(abs(signs)) - np.outer(signs, signs) / abs(signs).sum(), atol=1e-6)
    np.testing.assert_allclose(by_radius, signs / abs(signs).sum(), atol=1e-6)


def test_hyperplane_and_halfspace():
    y, a = normal(50), normal(50, seed=1)
    plane = linsat.Constraints(E=np.ones((1, 50)), f=1.0, lower=-np.inf, upper=np.inf)
    half = linsat.Constraints(A=np.ones((1, 50)), b=1.0, lower=-np.inf, upper=np.inf)
    on_plane = jax.jit(lambda y, a, b: project(y, plane, E=a[None], f=b[None]))
    below = jax.jit(lambda y, a, b: project(y, half, A=a[None], b=b[None]))

    def nearest(b: float) -> np.ndarray:
        wide = a.astype(float)
        return y + (b - y @ wide) / (wide @ wide) * wide

    np.testing.assert_allclose(on_plane(y, a, jnp.float32(1.0)), nearest(1.0), atol=1e-6)
    np.testing.assert_array_equal(below(y, a, jnp.float32(1e4)), y)
    for far in (below, on_plane):
        np.testing.assert_allclose(far(y, a, jnp.float32(-1e4)), nearest(-1e4), rtol=1e-5, atol=1e-3)
    five = linsat.Constraints(E=[[1.0, 1, 1, 0, 1]], f=1.0, lower=-np.inf, upper=np.inf)
    np.testing.assert_allclose(project(jnp.array([1.0, 2, 2, 1, 2]), five), [-0.5, 0.5, 0.5, 1, 0.5], atol=1e-6)


def polyhedron(seed: int = 0):
    A, b, G, h = (
        normal(3, 5, seed=seed),
        normal(3, seed=seed + 1),
        normal(2, 5, seed=seed + 2),
        normal(2, seed=seed + 3),
    )
    return A, b, G, h


def test_affine_set():
    A, b, *_ = polyhedron()
    y = normal(5, seed=9)
    cons = linsat.Constraints(E=np.ones((3, 5)) + np.eye(3, 5), f=0.0, lower=-np.inf, upper=np.inf)

    def nearest(y, A, b):
        return y + np.linalg.pinv(A) @ (b - A @ y)

    found = jax.jit(lambda *given: project(given[0], cons, E=given[1], f=given[2]))
    np.testing.assert_allclose(found(y, A, b), nearest(*(part.astype(float) for part in (y, A, b))), atol=1e-5)
    slopes = jax.jit(jax.jacrev(found, argnums=(0, 1, 2)))(y, A, b)
    for n, slope in enumerate(slopes):
        given = [part.astype(float) for part in (y, A, b)]
        expected = np.zeros((5, given[n].size))
        for place in range(given[n].size):
            moved = [given[n].copy(), given[n].copy()]
            moved[0].flat[place] += 1e-6
            moved[1].flat[place] -= 1e-6
            ends = [nearest(*(new if m == n else old for m, old in enumerate(given))) for new in moved]
            expected[:, place] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(slope.reshape(5, -1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", [0, 10, 20])
def test_polyhedron(seed: int):
    """Clarabel's point; Jacobians to scores, rows and sides by its finite differences along one direction each."""
    A, b, G, h = polyhedron(seed)
    y = normal(5, seed=seed + 9)
    cons = linsat.Constraints(
        E=np.ones((3, 5)) + np.eye(3, 5), f=0.0, A=np.ones((2, 5)), b=0.0, lower=-np.inf, upper=np.inf
    )
    names = ("y", "E", "f", "A", "b")

    def found(given):
        own = dict(given)
        return project(own.pop("y"), cons, **own)

    def nearest(given):
        system = System(
            np.concatenate([given["A"], given["E"]]),
            ["<="] * 2 + ["=="] * 3,
            np.concatenate([given["b"], given["f"]]),
            np.zeros(5),
            np.full(5, -np.inf),
            np.full(5, np.inf),
        )
        return nearest_point(system, given["y"])

    given = dict(zip(names, (y, A, b, G, h), strict=True))
    wide = {name: part.astype(float) for name, part in given.items()}
    expected = nearest(wide)
    with jax.enable_x64(True):
        x, slopes = jax.jit(lambda given: (found(given), jax.jacrev(found)(given)))(wide)
    np.testing.assert_allclose(x, expected, atol=1e-6)
    np.testing.assert_allclose(jax.jit(found)(given), expected, rtol=1e-4, atol=1e-4)
    rng = np.random.default_rng(seed)
    for name in names:
        way = rng.normal(size=wide[name].shape)
        ends = [nearest({**wide, name: wide[name] + sign * 1e-4 * way}) for sign in (1, -1)]
        moved = np.tensordot(np.asarray(slopes[name]), way, way.ndim)
        np.testing.assert_allclose(moved, (ends[0] - ends[1]) / 2e-4, rtol=1e-3, atol=1e-3, err_msg=name)


def test_contradictions_raise():
    crossed = linsat.Constraints(
        E=[[1.0, 1], [0, 1], [-1, 1]], f=[1.0, 1, -1], A=[[-1.0, 0], [0, -1]], b=0.0, lower=-np.inf, upper=np.inf
    )
    with pytest.raises(linsat.InfeasibleError, match="cannot hold together"):
        project(jnp.zeros(2), crossed)
    with pytest.raises(linsat.InfeasibleError, match="cannot hold together"):
        jax.jit(lambda y: project(y, crossed))(jnp.zeros(2))
    section = linsat.Constraints(E=[[1.0, 2, 3]], f=1.0)
    y = jnp.array([1.2, 3.0, 0.7])
    with pytest.raises(linsat.ConstraintError, match=r"lower\[0\] = 1.5 is above upper\[0\] = 1.0"):
        project(y, section, lower=jnp.full(3, 1.5), upper=jnp.ones(3))
    found = jax.jit(lambda low: linsat.jax.solve(y, section, objective=NEAREST, lower=low))(jnp.full(3, 1.5))
    assert linsat.status.Status.of(int(found.status)) is linsat.status.Status.INFEASIBLE


def test_section_of_a_box():
    y, w = jnp.array([1.2, 3.0, 0.7]), np.array([1.0, 2.0, 3.0])
    section = linsat.Constraints(E=w[None], f=1.0, upper=0.8)
    system = System(w[None], ["=="], np.ones(1), np.zeros(3), np.zeros(3), np.full(3, 0.8))
    np.testing.assert_allclose(project(y, section), nearest_point(system, np.asarray(y, float)), atol=1e-6)
    scores = np.random.default_rng(0).random(5).astype(np.float32)
    whole = linsat.Constraints(E=np.ones((1, 5)), f=1.0)
    np.testing.assert_allclose(project(scores, whole), sorted_simplex(scores), atol=1e-6)
    ours, theirs = (jax.jacrev(functools.partial(project, cons=cons))(scores) for cons in (whole, SIMPLEX[5]))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def sinkhorn(scores: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Scaled until nothing changes: the plan with the least divergence from exp(scores)."""
    K, u = np.exp(scores.astype(float)), np.ones(len(rows))
    for _ in range(2000):
        v = columns / (K.T @ u)
        u = rows / (K @ v)
    return u[:, None] * K * v


def transport(count: int, others: int) -> linsat.Constraints:
    X = linsat.Variable(count, others, name="X", upper=np.inf)
    return linsat.subject_to(X.sum(1) == 1.0 / count, X.sum(0) == 1.0 / others)


def test_transport_and_birkhoff():
    rng = np.random.default_rng(0)
    scores = rng.random((5, 6)).astype(np.float32)
    rows, columns = (part / part.sum() for part in (rng.random(5), rng.random(6)))
    rows, columns = rows.astype(np.float32), columns.astype(np.float32)
    f = jnp.concatenate([jnp.asarray(rows), jnp.asarray(columns)])
    cons = transport(5, 6)
    plan = jax.jit(lambda y, f: (project(y, cons, f=f), linsat.jax.project(y, cons, objective=linsat.KL(1.0), f=f)))
    nearest, gibbs = plan(scores, f)
    for found in (nearest, gibbs):
        np.testing.assert_allclose(found.sum(1), rows, atol=1e-6)
        np.testing.assert_allclose(found.sum(0), columns, atol=1e-6)
    np.testing.assert_allclose(gibbs, sinkhorn(scores, rows.astype(float), columns.astype(float)), atol=1e-6)
    places = np.arange(30).reshape(5, 6)
    matrix = np.zeros((11, 30))
    for n, members in enumerate([*places, *places.T]):
        matrix[n, members] = 1.0
    sides = np.concatenate([rows, columns * (rows.sum(dtype=float) / columns.sum(dtype=float))]).astype(float)
    sides[5:] *= sides[:5].sum() / sides[5:].sum()
    system = System(matrix, ["=="] * 11, sides, np.zeros(30), np.zeros(30), np.full(30, np.inf))
    expected = nearest_point(system, scores.ravel().astype(float))
    np.testing.assert_allclose(nearest.ravel(), expected, atol=1e-5)

    square = rng.random((5, 5)).astype(np.float32)
    square = (square + square.T) / 2
    birkhoff = linsat.constraints.doubly_stochastic(5)
    gibbs = jax.jit(lambda y: linsat.jax.project(y, birkhoff, objective=linsat.KL(1.0)))(square)
    np.testing.assert_allclose(gibbs, sinkhorn(square, np.ones(5), np.ones(5)), atol=1e-6)
    nearest = project(square, birkhoff)
    np.testing.assert_allclose(nearest, nearest.T, atol=1e-6)
    np.testing.assert_allclose(nearest.sum(0), 1.0, atol=1e-6)
    stays = jnp.array([[0.6, 0.4], [0.4, 0.6]])
    np.testing.assert_allclose(project(stays, linsat.constraints.doubly_stochastic(2)), stays, atol=1e-7)
