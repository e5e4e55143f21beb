"""The Tsallis objective: against entmax in closed form and by bisection, Clarabel's power cone, finite differences."""

import io

import numpy as np
import pytest
import torch

import linsat
from linsat.constraints import simplex, top_k
from tests.helpers.oracles import random_system, soft_system, tsallis_optimum

F64 = torch.float64
BACKENDS = ("auto", "arrays")


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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["positive", "signed", "boundary"])
def test_equals_clarabel(kind, backend):
    judged = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, len(kind)])
        system = random_system(rng, kind, largest=15, rows=6)
        if seed % 2:
            shift = rng.normal(size=len(system.point))
            system.rhs, system.lower = system.rhs + system.matrix @ shift, shift
            system.upper = shift + rng.choice([1.0, 5.0, np.inf], len(shift))
        y, tau, alpha = (
            rng.normal(size=len(system.point)),
            float(rng.choice([0.3, 1.0])),
            float(rng.choice([1.3, 1.5, 2.5])),
        )
        cons, solver = linsat.Constraints(**system.arguments()), linsat.Newton(backend=backend)
        x = linsat.project(y, cons, objective=linsat.Tsallis(alpha, tau), solver=solver, on_failure="raise")
        assert system.violation(x) <= 1e-8
        expected = tsallis_optimum(system, y, tau, alpha=alpha)
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)
    assert judged >= 8


def test_soft_rows_equal_clarabel():
    judged = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, 17])
        system, price = soft_system(rng, contradictory=seed % 2 == 1, largest=10, rows=6)
        order = np.argsort([("<=", ">=", "==").index(s) for s in system.senses], kind="stable")
        soft = np.flatnonzero(np.isfinite(price[order]))
        cons = linsat.Constraints(**system.arguments()).soften(soft.tolist(), price=price[order][soft])
        y = rng.normal(size=len(system.lower))
        x, expected = (
            linsat.project(y, cons, objective=linsat.Tsallis(1.5, 0.5)),
            tsallis_optimum(system, y, 0.5, price),
        )
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(x, expected, atol=1e-5)
    assert judged >= 8


# ---------------------------------------------------------------- doors and gradients


def test_doors_of_torch():
    y = torch.randn(3, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
    expected = np.stack([entmax15(one) for one in y.numpy()])
    cons, objective = simplex(6), linsat.Tsallis(1.5)
    np.testing.assert_allclose(linsat.project(y, cons, objective=objective), expected, atol=1e-9)
    mapped = torch.func.vmap(lambda s: linsat.project(s, cons, objective=objective))(y)
    np.testing.assert_allclose(mapped, expected, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_differences(backend):
    """To scores, alpha, temperature, coefficients, right-hand sides, bounds and prices."""
    rng = np.random.default_rng(6)
    l, count = 5, 2
    A, point = rng.normal(size=(count, 3, l)), rng.uniform(0.3, 0.7, (count, l))
    given = {
        "y": rng.normal(size=(count, l)),
        "alpha": np.array([1.3, 1.6]),
        "tau": np.array([0.9, 0.7]),
        "A": A,
        "b": np.einsum("nij,nj->ni", A, point) - 0.05,
        "lower": np.full((count, l), -0.1),
        "upper": np.full((count, l), 1.3),
        "price": rng.uniform(0.5, 1.5, 1),
    }
    leaves = [torch.tensor(value, requires_grad=True) for value in given.values()]

    def answer(y, alpha, tau, A, b, lower, upper, price):
        cons = linsat.Constraints(A=A, b=b, lower=lower, upper=upper).soften([0], price=price)
        solver = linsat.Newton(backend=backend, tol=1e-12)
        return linsat.project(y, cons, objective=linsat.Tsallis(alpha, tau), solver=solver)

    assert torch.autograd.gradcheck(answer, leaves, eps=1e-6, atol=1e-5, rtol=1e-4)


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


def test_a_layer_that_learns_alpha_is_saved():
    alpha = torch.nn.Parameter(torch.tensor(1.5, dtype=F64))
    layer, y = linsat.LinSAT(simplex(6), objective=linsat.Tsallis(alpha)), torch.randn(4, 6, dtype=F64)
    layer(y).square().sum().backward()
    assert alpha.grad is not None
    assert bool(alpha.grad != 0)
    kept = io.BytesIO()
    torch.save(layer, kept)
    kept.seek(0)
    assert torch.equal(torch.load(kept, weights_only=False)(y), layer(y))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: linsat.Tsallis(1.0), "alpha.*above 1.*alpha=1 is linsat.KL"),
        (lambda: linsat.Tsallis(np.nan), "alpha"),
        (lambda: linsat.Tsallis(1.5, 0.0), "tau.*positive"),
        (lambda: linsat.Tsallis(np.full(4, 1.5)), "alpha has shape"),
    ],
)
def test_bad_numbers(make, words):
    with pytest.raises(linsat.ConstraintError, match=words):
        linsat.project(np.zeros(3), simplex(3), objective=make())


def test_the_interior_point_method_takes_it():
    y, solver = np.array([0.3, 0.1, -0.9]), linsat.Newton(backend="interior_point")
    x = linsat.project(y, simplex(3), objective=linsat.Tsallis(2.0, 1.0), solver=solver)
    np.testing.assert_allclose(x, [0.6, 0.4, 0.0], atol=1e-9)  # alpha 2: the nearest point of the simplex
