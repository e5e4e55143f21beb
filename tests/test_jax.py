"""`linsat.jax`: values and gradients against torch, cvxpy and finite differences; jit, vmap, jacrev."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles import System, entropic_optimum

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import linsat
import linsat.jax

A, C, E = [[3.0, 1, 4, 1, 5, 9]], [[1.0, 1, 0, 0, 0, 0]], [[1.0] * 6]
CONS = linsat.Constraints(A=A, b=10, C=C, d=1, E=E, f=3)
Y = np.random.default_rng(0).normal(size=(4, 6))
F64 = torch.float64


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def test_values_are_the_entropic_optimum():
    system = System(np.array(A + C + E), ["<=", ">=", "=="], np.array([10.0, 1.0, 3.0]), np.zeros(6))
    x = linsat.jax.project(jnp.asarray(Y), CONS, tau=0.3)
    assert (x.shape, x.dtype) == ((4, 6), jnp.float64)
    pairs = [(found, entropic_optimum(system, scores, 0.3)) for scores, found in zip(Y, np.asarray(x), strict=True)]
    vouched = [(found, expected) for found, expected in pairs if expected is not None]
    assert len(vouched) >= 2
    for found, expected in vouched:
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_values_and_gradients_are_those_of_torch():
    weights = np.random.default_rng(1).normal(size=(4, 6))

    def loss(y, tau, b, f):
        return (linsat.jax.project(y, CONS, tau=tau, b=b, f=f) * weights).sum()

    arguments = (Y, np.array(0.2), np.array([9.0]), np.array([[3.0], [2.5], [2.0], [3.2]]))
    value, found = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(*map(jnp.asarray, arguments))
    y, tau, b, f = (torch.tensor(a, dtype=F64, requires_grad=True) for a in arguments)
    expected = (linsat.project(y, CONS.with_rhs(b=b, f=f), tau=tau) * torch.tensor(weights)).sum()
    expected.backward()
    assert float(value) == pytest.approx(expected.item(), abs=1e-12)
    for gradient, leaf in zip(found, (y, tau, b, f), strict=True):
        np.testing.assert_allclose(np.asarray(gradient), leaf.grad.numpy(), atol=1e-10)


def test_gradients_against_finite_differences():
    weights = np.random.default_rng(2).normal(size=6)

    def loss(y, tau):
        return (linsat.jax.project(y, CONS, tau=tau) * weights).sum()

    y, tau, step = jnp.asarray(Y[0]), jnp.asarray(0.4), 1e-5
    by_y, by_tau = jax.grad(loss, argnums=(0, 1))(y, tau)
    for i in range(6):
        ahead, behind = (float(loss(y.at[i].add(sign * step), tau)) for sign in (1, -1))
        assert float(by_y[i]) == pytest.approx((ahead - behind) / (2 * step), abs=1e-6)
    difference = float(loss(y, tau + step) - loss(y, tau - step)) / (2 * step)
    assert float(by_tau) == pytest.approx(difference, abs=1e-6)


def test_single_precision_stays_single():
    with jax.enable_x64(False):
        y = jnp.asarray(Y, dtype=jnp.float32)
        x, gradient = jax.value_and_grad(lambda y: linsat.jax.project(y, CONS).max())(y)
        assert (x.dtype, gradient.dtype) == (jnp.float32, jnp.float32)
        x = np.asarray(linsat.jax.project(y, CONS))
    assert np.abs(x.sum(1) - 3).max() < 1e-5
    assert (x @ np.array(A[0])).max() < 10 + 1e-4


def test_jit_vmap_and_jacrev():
    y = jnp.asarray(Y)
    plain = linsat.jax.project(y, CONS, tau=0.2)
    project = jax.jit(lambda y: linsat.jax.project(y, CONS, tau=0.2))
    assert np.array_equal(project(y), plain)
    one = jax.vmap(lambda y: linsat.jax.project(y, CONS, tau=0.2))
    np.testing.assert_allclose(one(y), plain, atol=1e-12)
    jacobian = jax.jacrev(lambda y: linsat.jax.project(y, CONS, tau=0.2))(y[0])
    expected = torch.autograd.functional.jacobian(lambda y: linsat.project(y, CONS, tau=0.2), torch.tensor(Y[0]))
    np.testing.assert_allclose(jacobian, expected.numpy(), atol=1e-10)
    each = jax.jit(
        jax.vmap(jax.grad(lambda y, b: linsat.jax.project(y, CONS, b=b).max(), argnums=1), in_axes=(0, None))
    )
    assert each(y, jnp.asarray([10.0])).shape == (4, 1)


def test_vmap_over_right_sides_lines_up_with_batches():
    limits = jnp.asarray([[8.0], [9.0], [10.0]])
    y = jnp.full((4, 6), 50.0)  # wants everything: every budget is used up
    x = jax.vmap(lambda b: linsat.jax.project(y, linsat.Constraints(A=A, b=10), tau=0.01, b=b))(limits)
    assert x.shape == (3, 4, 6)
    np.testing.assert_allclose(x @ np.array(A[0]), np.repeat(limits, 4, axis=1), atol=0.05)


def test_doubles_stay_doubles_on_threads_without_the_setting():
    """JAX may run the callback on a thread where a scoped ``enable_x64`` does not hold."""
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(4, 6)))
    loss = jax.value_and_grad(lambda y, tau: (linsat.jax.project(y, CONS, tau=tau) * weights).sum(), argnums=(0, 1))
    y, tau = jnp.asarray(Y), jnp.asarray(0.2)
    compiled = jax.jit(loss).lower(y, tau).compile()
    with jax.enable_x64(False):
        value, found = jax.block_until_ready(compiled(y, tau))
    leaves = [torch.tensor(a, dtype=F64, requires_grad=True) for a in (Y, 0.2)]
    expected = (linsat.project(leaves[0], CONS, tau=leaves[1]) * torch.tensor(np.asarray(weights))).sum()
    expected.backward()
    assert float(value) == pytest.approx(expected.item(), abs=1e-12)
    for gradient, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(np.asarray(gradient), leaf.grad.numpy(), atol=1e-10)


def test_whole_numbers_of_any_kind_are_taken_as_numbers():
    for kind in (jnp.uint32, jnp.int32, jnp.int64):
        x = linsat.jax.project(jnp.asarray(Y), CONS, tau=jnp.ones(4, kind), f=2 * jnp.ones((4, 1), kind))
        expected = linsat.jax.project(jnp.asarray(Y), CONS, tau=1.0, f=2.0 * jnp.ones((4, 1)))
        np.testing.assert_allclose(x, expected, atol=1e-12)
        np.testing.assert_allclose(x.sum(-1), 2.0, atol=1e-8)


def test_large_batches_do_not_hang():
    cons = linsat.constraints.simplex(200)
    loss = jax.jit(jax.value_and_grad(lambda y: (linsat.jax.project(y * 2.0, cons) ** 2).sum()))
    value, gradient = loss(jnp.asarray(np.random.default_rng(0).normal(size=(3000, 200))))
    assert np.isfinite(float(value))
    assert gradient.shape == (3000, 200)


def test_a_network_learns_through_it():
    """Gradient descent on scores reaches the permutation that it is asked for."""
    cons = linsat.constraints.permutation(3)
    target = jnp.asarray([0.0, 1, 0, 0, 0, 1, 1, 0, 0])
    step = jax.jit(jax.grad(lambda y: ((linsat.jax.project(y, cons, tau=0.5) - target) ** 2).sum()))
    y = jnp.asarray(Y.ravel()[:9])
    for _ in range(60):
        y = y - 2.0 * step(y)
    assert float(jnp.abs(linsat.jax.project(y, cons, tau=0.5) - target).max()) < 0.1


def test_refusals():
    y = jnp.asarray(Y)
    with pytest.raises(linsat.InfeasibleError, match="cannot hold together"):
        jax.jit(lambda y: linsat.jax.project(y, linsat.Constraints(A=E, b=1, C=E, d=2)))(y)
    for arguments, message in (
        ({"y": y[:, :5]}, r"y has shape \(4, 5\)"),
        ({"y": jnp.ones((4, 6), dtype=int)}, "expected floating scores"),
        ({"y": y.at[1, 2].set(jnp.nan)}, "y holds NaN"),
        ({"y": y, "tau": 0.0}, "tau is 0.0"),
        ({"y": y, "b": jnp.ones(2)}, r"b has shape \(2,\); expected \(..., 1\)"),
        ({"y": y, "b": jnp.ones((3, 1))}, "do not broadcast"),
        ({"y": y, "constraints": [1]}, "expected linsat.Constraints"),
        ({"y": y, "constraints": CONS.with_rhs(b=torch.ones(1, requires_grad=True))}, "require gradients"),
    ):
        with pytest.raises(linsat.ConstraintError, match=message):
            linsat.jax.project(**({"constraints": CONS} | arguments))
