"""The Tsallis objective: entmax in closed form and by bisection, budgets, masks, and the loss of entmax."""

import numpy as np
import pytest
import torch

import linsat
from linsat.constraints import simplex, top_k

F64 = torch.float64
BACKENDS = ("auto", "arrays", "interior_point")


def sparsemax(scores):
    falling = np.sort(scores)[::-1]
    threshold = (np.cumsum(falling) - 1) / np.arange(1, len(scores) + 1)
    return np.maximum(scores - threshold[falling > threshold][-1], 0)


def entmax15(scores):
    """Peters, Niculae and Martins (2019), section 3: sorting, with a quadratic for the threshold."""
    half = np.sort(scores / 2)[::-1]
    rho = np.arange(1, len(half) + 1)
    mean, square = np.cumsum(half) / rho, np.cumsum(half**2) / rho
    threshold = mean - np.sqrt(np.maximum((1 - rho * (square - mean**2)) / rho, 0))
    support = (threshold <= half).sum()
    return np.maximum(scores / 2 - threshold[support - 1], 0) ** 2


def entmax(scores, alpha, total=1.0, most=np.inf):
    """[(alpha - 1) y - threshold]_+^(1 / (alpha - 1)), cut at ``most``, with this sum: by bisection."""
    z = (alpha - 1) * scores
    low, high = z.min() - max(total, 1.0) - 1.0, z.max()

    def point(threshold):
        return np.minimum(np.maximum(z - threshold, 0) ** (1 / (alpha - 1)), most)

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if point(middle).sum() > total else (low, middle)
    return point(high)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("backend", BACKENDS)
def test_sparsemax_and_entmax_on_the_simplex(backend):
    y = np.random.default_rng(0).normal(0, 2, (9, 7))
    solver = linsat.Newton(backend=backend)
    for alpha, closed in ((2.0, sparsemax), (1.5, entmax15)):
        x = linsat.project(y, simplex(7), objective=linsat.Tsallis(alpha), solver=solver)
        np.testing.assert_allclose(x, [closed(one) for one in y], atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("alpha", [1.01, 1.2, 1.75, 2.5, 4.0])
@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_entmax_by_bisection(alpha, tau, backend):
    y = np.random.default_rng(1).normal(0, 1, (9, 7))
    x = linsat.project(y, simplex(7), objective=linsat.Tsallis(alpha, tau), solver=linsat.Newton(backend=backend))
    np.testing.assert_allclose(x, [entmax(one / tau, alpha) for one in y], atol=1e-8)


def test_two_is_the_nearest_point_and_nearly_one_the_softmax():
    y = np.random.default_rng(2).normal(0, 2, (5, 6))
    nearest = linsat.project(y, simplex(6), objective=linsat.Euclidean())
    np.testing.assert_allclose(linsat.project(y, simplex(6), objective=linsat.Tsallis(2.0)), nearest, atol=1e-9)
    soft = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    np.testing.assert_allclose(linsat.project(y, simplex(6), objective=linsat.Tsallis(1.0001)), soft, atol=1e-3)


@pytest.mark.parametrize("k", [2, 3])
def test_budgets(k):
    """k in all, at most one each: entmax of a budget."""
    y = np.random.default_rng(3).normal(0, 2, (5, 6))
    for alpha in (1.5, 2.0):
        x = linsat.project(y, top_k(6, k), objective=linsat.Tsallis(alpha))
        np.testing.assert_allclose(x, [entmax(one, alpha, float(k), 1.0) for one in y], atol=1e-8)


def test_masks_and_exact_zeros():
    y = np.random.default_rng(4).normal(0, 2, (6, 5))
    y[:, 1] = -np.inf
    x = linsat.project(y, simplex(5), objective=linsat.Tsallis())
    others = [0, 2, 3, 4]
    expected = np.zeros((6, 5))
    expected[:, others] = [entmax15(one[others]) for one in y]
    np.testing.assert_allclose(x, expected, atol=1e-9)
    assert ((x == 0) == (expected == 0)).all()
    assert (x[:, others] == 0).any()


# ---------------------------------------------------------------- the loss


def test_the_loss_is_that_of_entmax():
    """Its gradient is entmax less the target; its value that of the definition, by bisection."""
    y = torch.randn(4, 5, dtype=F64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    target, alpha = torch.eye(5, dtype=F64)[:4], torch.tensor(1.6, dtype=F64, requires_grad=True)
    loss = linsat.fenchel_young_loss(y, target, simplex(5), objective=linsat.Tsallis(alpha), reduction="none")
    x = np.stack([entmax(one, 1.6) for one in y.detach().numpy()])
    omega = ((x**1.6 - x) / (1.6 * 0.6)).sum(1)  # that of a corner is 0
    expected = (y.detach().numpy() * (x - target.numpy())).sum(1) - omega
    np.testing.assert_allclose(loss.detach(), expected, atol=1e-9)
    (found,) = torch.autograd.grad(loss.sum(), y, retain_graph=True)
    np.testing.assert_allclose(found, x - target.numpy(), atol=1e-8)
    assert torch.autograd.gradcheck(
        lambda y, a: linsat.fenchel_young_loss(y, target, simplex(5), objective=linsat.Tsallis(a)), (y, alpha)
    )
