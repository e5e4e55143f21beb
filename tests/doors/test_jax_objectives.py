"""The objectives with numbers of their own, through `linsat.jax`: values, and gradients to each of the numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import linsat
from tests.core.test_objectives_tsallis import entmax15
from tests.helpers.oracles import kl_optimum, random_system

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.test_util import check_grads

import linsat.jax as door

SIMPLEX = linsat.constraints.simplex(3)
SCORES = np.array([[1.0, 0.5, -2.0], [0.0, 2.0, 0.0]])


def kl():
    """A set of signed rows, scores, temperature and prior, and what Clarabel says."""
    system = random_system(np.random.default_rng(12), "signed", largest=9, rows=5)
    l = len(system.point)
    y, prior = np.random.default_rng(13).normal(size=(3, l)), np.linspace(0.5, 1.5, l)
    expected = np.stack([kl_optimum(system, one, 0.7, prior=prior) for one in y])
    return linsat.Constraints(**system.arguments()), linsat.KL, (y, 0.7, prior), expected, 1e-5


def tsallis():
    """The simplex, scores, exponent and temperature, and the closed form."""
    y = np.random.default_rng(5).normal(size=(3, 6))
    expected = np.stack([entmax15(one / 0.8) for one in y])
    return linsat.constraints.simplex(6), linsat.Tsallis, (y, 1.5, 0.8), expected, 1e-9


@pytest.mark.parametrize("case", [kl, tsallis])
def test_eager_traced_mapped_and_differentiated(case):
    cons, objective, numbers, expected, atol = case()
    g = np.arange(expected.shape[1]) - 2.0

    def answer(y, *numbers):
        return door.project(y, cons, objective=objective(*numbers))

    with jax.enable_x64(True):
        given = [jnp.asarray(number) for number in numbers]
        for run in (answer, jax.jit(answer), jax.vmap(answer, (0, None, None))):
            np.testing.assert_allclose(run(*given), expected, atol=atol)
        found = jax.jit(jax.grad(lambda *own: (answer(*own) * g).sum(), (0, 1, 2)))(*given)
    leaves = [torch.tensor(np.array(number), dtype=torch.float64, requires_grad=True) for number in numbers]
    (linsat.project(leaves[0], cons, objective=objective(*leaves[1:])) * torch.tensor(g)).sum().backward()
    for one, leaf in zip(found, leaves, strict=True):
        np.testing.assert_allclose(one, leaf.grad, atol=1e-8)


def test_a_full_matrix():
    with jax.enable_x64(True):
        rng = np.random.default_rng(7)
        L = rng.normal(size=(3, 3))
        P, y = jnp.asarray(L @ L.T + np.eye(3)), jnp.asarray(SCORES)

        def layer(y, P):
            return door.project(y, SIMPLEX, objective=linsat.Quadratic(P))

        expected = linsat.solve(SCORES, SIMPLEX, objective=linsat.Quadratic(np.asarray(P)))
        for found in (layer(y, P), jax.jit(layer)(y, P), jax.vmap(layer, (0, None))(y, P)):
            np.testing.assert_allclose(found, expected.x, atol=1e-12)
        duals = jax.jit(lambda y: door.solve(y, SIMPLEX, objective=linsat.Quadratic(P)))(y)
        np.testing.assert_allclose(duals.bound_duals, expected.bound_duals, atol=1e-12)
        check_grads(jax.jit(layer), (y, P), 2, atol=1e-5, rtol=1e-5)  # compiled once, not operation by operation
