"""What `KL` and `Tsallis` promise alike: Clarabel's answers, soft rows, differences, transforms, saved layers."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import linsat
from linsat.constraints import simplex
from tests.helpers.oracles import kl_optimum, random_system, soft_system, tsallis_optimum

F64 = torch.float64


@dataclass(frozen=True)
class Kind:
    """An objective by its numbers: how they are drawn, and what Clarabel says with them."""

    objective: Callable[..., Any]
    draw: Callable[..., tuple]  # of a generator, its seed and the number of variables
    optimum: Callable[..., Any]  # of a system, scores, prices or None, and the numbers
    largest: int  # systems, by variables and rows
    rows: int
    soft: tuple  # the numbers with soft rows
    smooth: dict[str, Any]  # numbers of two instances of five variables, for differences


KINDS = {
    "kl": Kind(
        linsat.KL,
        lambda rng, seed, l: (float(rng.choice([0.1, 1.0])), None if seed % 3 else rng.uniform(0.1, 3.0, l)),
        lambda system, y, price, tau, prior=None: kl_optimum(system, y, tau, price, 1.0 if prior is None else prior),
        largest=20,
        rows=8,
        soft=(0.5,),
        smooth={"tau": np.array([0.5, 0.9]), "prior": np.random.default_rng(1).uniform(0.5, 2, (2, 5))},
    ),
    "tsallis": Kind(
        linsat.Tsallis,
        lambda rng, seed, l: (float(rng.choice([1.3, 1.5, 2.5])), float(rng.choice([0.3, 1.0]))),
        lambda system, y, price, alpha, tau: tsallis_optimum(system, y, tau, price, alpha=alpha),
        largest=15,
        rows=6,
        soft=(1.5, 0.5),
        smooth={"alpha": np.array([1.3, 1.6]), "tau": np.array([0.9, 0.7])},
    ),
}


@pytest.mark.parametrize("backend", ["auto", "arrays", "interior_point"])
@pytest.mark.parametrize("system_kind", ["positive", "signed", "boundary"])
@pytest.mark.parametrize("name", KINDS)
def test_equals_clarabel(name, system_kind, backend):
    kind, judged = KINDS[name], 0
    for seed in range(10):
        rng = np.random.default_rng([seed, len(system_kind)])
        system = random_system(rng, system_kind, largest=kind.largest, rows=kind.rows)
        l = len(system.point)
        if seed % 2:  # other boxes: lower bounds that are not 0, upper ones that are far away or infinite
            shift = rng.normal(size=l)
            system.rhs, system.lower = system.rhs + system.matrix @ shift, shift
            system.upper = shift + rng.choice([1.0, 5.0, np.inf], l)
        y, numbers = rng.normal(size=l), kind.draw(rng, seed, l)
        cons, solver = linsat.Constraints(**system.arguments()), linsat.Newton(backend=backend)
        x = linsat.project(y, cons, objective=kind.objective(*numbers), solver=solver, on_failure="raise")
        assert system.violation(x) <= 1e-8
        expected = kind.optimum(system, y, None, *numbers)
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)
    assert judged >= 8


@pytest.mark.parametrize("contradictory", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_soft_rows_equal_clarabel(name, contradictory):
    kind, judged = KINDS[name], 0
    for seed in range(10):
        rng = np.random.default_rng([seed, 11])
        system, price = soft_system(rng, contradictory=contradictory, largest=12, rows=8)
        order = np.argsort([("<=", ">=", "==").index(s) for s in system.senses], kind="stable")
        soft = np.flatnonzero(np.isfinite(price[order]))
        cons = linsat.Constraints(**system.arguments()).soften(soft.tolist(), price=price[order][soft])
        y = rng.normal(size=len(system.lower))
        x = linsat.project(y, cons, objective=kind.objective(*kind.soft))
        expected = kind.optimum(system, y, price, *kind.soft)
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(x, expected, atol=1e-5)
    assert judged >= 8


@pytest.mark.parametrize("backend", ["auto", "arrays"])
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_differences(name, backend):
    """To scores, the numbers of the objective, coefficients, right-hand sides, bounds and prices."""
    kind, rng = KINDS[name], np.random.default_rng(14)
    l, count = 5, 2
    A, point = rng.normal(size=(count, 3, l)), rng.uniform(0.3, 0.7, (count, l))
    given = {
        **kind.smooth,
        "y": rng.normal(size=(count, l)),
        "A": A,
        "b": np.einsum("nij,nj->ni", A, point) - 0.05,
        "lower": np.full((count, l), -0.1),
        "upper": np.full((count, l), 1.3),
        "price": rng.uniform(0.5, 1.5, 1),
    }
    leaves = [torch.tensor(value, requires_grad=True) for value in given.values()]

    def answer(*numbers):
        *own, y, A, b, lower, upper, price = numbers
        cons = linsat.Constraints(A=A, b=b, lower=lower, upper=upper).soften([0], price=price)
        solver = linsat.Newton(backend=backend, tol=1e-12)
        return linsat.project(y, cons, objective=kind.objective(*own), solver=solver)

    assert torch.autograd.gradcheck(answer, leaves, eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_values_in_numpy_torch_and_under_vmap(name):
    kind, rng = KINDS[name], np.random.default_rng(12)
    system = random_system(rng, "signed", largest=9, rows=5)
    y = np.random.default_rng(13).normal(size=(3, len(system.point)))
    cons, numbers = linsat.Constraints(**system.arguments()), kind.draw(rng, 0, len(system.point))
    expected = np.stack([kind.optimum(system, one, None, *numbers) for one in y])
    objective = kind.objective(*[torch.tensor(number) for number in numbers])
    scores = torch.tensor(y)
    np.testing.assert_allclose(linsat.project(y, cons, objective=kind.objective(*numbers)), expected, atol=1e-5)
    np.testing.assert_allclose(linsat.project(scores, cons, objective=objective), expected, atol=1e-5)
    mapped = torch.func.vmap(lambda s: linsat.project(s, cons, objective=objective))(scores)
    np.testing.assert_allclose(mapped, expected, atol=1e-5)
    rows = torch.func.jacrev(lambda s: linsat.project(s, cons, objective=objective))(scores[0])
    assert rows.shape == (y.shape[1], y.shape[1])


@pytest.mark.parametrize(
    ("objective", "numbers"),
    [(linsat.KL, (torch.tensor(0.7), torch.ones(6))), (linsat.Tsallis, (torch.tensor(1.5), torch.tensor(1.0)))],
)
def test_the_layer_learns_its_numbers_and_is_saved(objective, numbers):
    cons = linsat.Constraints(A=np.random.default_rng(0).normal(size=(2, 6)), b=0.2, E=np.ones((1, 6)), f=1.0)
    learned = [torch.nn.Parameter(number.double()) for number in numbers]
    layer = linsat.LinSAT(cons, objective=objective(*learned))
    y = torch.randn(4, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
    layer(y).square().sum().backward()
    assert all(number.grad is not None and bool((number.grad != 0).all()) for number in learned)
    kept = io.BytesIO()
    torch.save(layer, kept)
    kept.seek(0)
    assert torch.equal(torch.load(kept, weights_only=False)(y), layer(y))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: linsat.KL(0.0), "tau.*positive"),
        (lambda: linsat.KL(np.nan), "tau.*positive"),
        (lambda: linsat.KL(1.0, -1.0), "prior.*positive"),
        (lambda: linsat.KL(1.0, np.ones(4)), r"prior has shape \(4,\); expected \(3,\)"),
        (lambda: linsat.KL("hot"), "tau"),
        (lambda: linsat.Tsallis(1.0), "alpha.*above 1.*alpha=1 is linsat.KL"),
        (lambda: linsat.Tsallis(np.nan), "alpha"),
        (lambda: linsat.Tsallis(1.5, 0.0), "tau.*positive"),
        (lambda: linsat.Tsallis(np.full(4, 1.5)), "alpha has shape"),
    ],
)
def test_bad_numbers(make, words):
    with pytest.raises(linsat.ConstraintError, match=words):
        linsat.project(np.zeros(3), simplex(3), objective=make())
