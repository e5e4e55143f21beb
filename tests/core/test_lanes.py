"""Tiny sets, several instances at once: values, gradients, and that no instance sees its neighbours."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import linsat
from linsat.native import binding
from linsat.objectives import KL, Entropy, Euclidean
from tests.helpers.oracles import (
    entropic_optimum,
    nearest_point,
    open_system,
    random_system,
    slack_free_optimum,
    soft_system,
)

F64 = torch.float64
TOGETHER = linsat.Newton(backend="kernel")
ALONE = linsat.Newton(backend="kernel", max_steps=29)  # too few steps for lanes: one instance after another

pytestmark = pytest.mark.skipif(binding.unavailable() is not None, reason=f"no kernel: {binding.unavailable()}")

OBJECTIVES = {
    "paper": Entropy(0.5),
    "slack-free": Entropy(0.5, slack="none"),
    "euclidean": Euclidean(),
    "weighted": Euclidean(weights=torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=F64)),
}


def _own_rows(count, *, box=False, soft=False, seed=0):
    """``count`` instances of 4 variables and 11 rows of their own, and scores."""
    rng = np.random.default_rng(seed)
    A, point = rng.normal(size=(count, 11, 4)), rng.uniform(-0.5, 0.5, (count, 4))
    b = np.einsum("nij,nj->ni", A, point) + rng.uniform(0.0, 1.0, (count, 11))
    bounds = (-1.0, 1.0) if box else (-np.inf, np.inf)
    cons = linsat.Constraints(A=torch.tensor(A), b=torch.tensor(b), lower=bounds[0], upper=bounds[1])
    if soft:
        cons = cons.soften(list(range(5)), price=0.7)
    return cons, torch.tensor(rng.normal(size=(count, 4)))


def _square(count, n=4):
    return linsat.constraints.doubly_stochastic(n), torch.randn(count, n * n, dtype=F64)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("kind", ["positive", "signed", "boundary"])
def test_nearest_points_are_those_of_clarabel(kind):
    rng = np.random.default_rng(1)
    for number in range(12):
        make = random_system if number % 2 else open_system
        system = make(rng, kind, largest=8, rows=8)
        scores = rng.normal(size=(3, len(system.point)))
        x = linsat.project(scores, linsat.Constraints(**system.arguments()), objective=Euclidean(), solver=TOGETHER)
        for one, y in zip(np.asarray(x), scores, strict=True):
            np.testing.assert_allclose(one, nearest_point(system, y), atol=1e-6)


@pytest.mark.parametrize("oracle", [entropic_optimum, slack_free_optimum])
def test_entropic_points_are_those_of_clarabel(oracle):
    rng = np.random.default_rng(2)
    objective = Entropy(0.5) if oracle is entropic_optimum else Entropy(0.5, slack="none")
    for _ in range(6):
        system = random_system(rng, "signed", largest=8, rows=6)
        y = rng.normal(size=len(system.point))
        x = linsat.project(y, linsat.Constraints(**system.arguments()), objective=objective, solver=TOGETHER)
        np.testing.assert_allclose(x, oracle(system, y, 0.5), atol=2e-6)


def test_soft_rows_are_those_of_clarabel():
    rng = np.random.default_rng(3)
    for number in range(8):
        system, price = soft_system(rng, contradictory=number % 2 == 1, largest=8, rows=6)
        order = np.argsort([("<=", ">=", "==").index(s) for s in system.senses], kind="stable")
        soft = np.flatnonzero(np.isfinite(price[order]))
        cons = linsat.Constraints(**system.arguments()).soften(soft.tolist(), price=price[order][soft])
        y = rng.normal(size=len(system.lower))
        x = linsat.project(y, cons, objective=Euclidean(), solver=TOGETHER)
        np.testing.assert_allclose(x, nearest_point(system, y, price=price), atol=1e-6)


def test_half_spaces_in_closed_form():
    a, b, y = torch.randn(37, 1, 3, dtype=F64), torch.randn(37, 1, dtype=F64), torch.randn(37, 3, dtype=F64)
    cons = linsat.Constraints(A=a, b=b, lower=-np.inf, upper=np.inf)
    over = ((a[:, 0] * y).sum(1, keepdim=True) - b).clamp(min=0)
    expected = y - a[:, 0] * over / (a[:, 0] ** 2).sum(1, keepdim=True)
    torch.testing.assert_close(linsat.project(y, cons, objective=Euclidean()), expected, rtol=1e-12, atol=1e-12)


def _cases():
    yield "square", *_square(13), Entropy(1.0)
    yield "square, cold", *_square(13), Entropy(0.02)
    yield "square of three", *_square(13, 3), Euclidean()
    yield "simplex", linsat.constraints.simplex(7), torch.randn(13, 7, dtype=F64), Entropy(0.1)
    upper = np.ones((3, 3))
    upper[0, 1] = 0.0
    square = np.vstack([np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))])
    forbidden = linsat.Constraints(E=square, f=1.0, upper=upper.ravel())
    yield "one forbidden", forbidden, torch.randn(5, 9, dtype=F64), Entropy(0.3)
    for name, objective in OBJECTIVES.items():
        for soft in (False, True):
            yield f"own rows, {name}{', soft' * soft}", *_own_rows(13, box=True, soft=soft), objective
        if name in ("euclidean", "weighted"):
            yield f"own rows without a box, {name}", *_own_rows(13), objective
            yield f"own soft rows without a box, {name}", *_own_rows(13, soft=True), objective


def _case_parameters():
    torch.manual_seed(0)
    for name, cons, scores, objective in _cases():
        yield pytest.param(cons, scores, objective, id=name)


CASES = list(_case_parameters())


def _both_ways(scores, cons, objective, solver, seed=0):
    y = scores.clone().requires_grad_(True)
    x = linsat.project(y, cons, objective=objective, solver=solver)
    weights = torch.randn(scores.shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(scores.dtype)
    x.backward(weights)
    return x.detach(), y.grad


@pytest.mark.parametrize(("cons", "scores", "objective"), CASES)
def test_together_as_alone(cons, scores, objective):
    solved, alone = (linsat.solve(scores, cons, objective=objective, solver=solver) for solver in (TOGETHER, ALONE))
    assert solved.converged.all()
    assert alone.converged.all()
    torch.testing.assert_close(solved.x, alone.x, rtol=1e-9, atol=1e-9)
    (x, gradient), (_, other) = (_both_ways(scores, cons, objective, solver) for solver in (TOGETHER, ALONE))
    torch.testing.assert_close(gradient, other, rtol=1e-7, atol=1e-8)
    warm = linsat.solve(scores, cons, objective=objective, solver=TOGETHER, start=solved.duals)
    torch.testing.assert_close(warm.x, x, rtol=1e-9, atol=1e-9)
    single, gradient_in_single = _both_ways(scores.float(), cons, objective, TOGETHER)
    torch.testing.assert_close(single.double(), x, rtol=1e-4, atol=1e-4)
    assert gradient_in_single.dtype is torch.float32


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("soft", [False, True])
def test_gradients_are_finite_differences(objective, soft):
    cons, scores = _own_rows(3, box=True, soft=soft, seed=4)
    solver = linsat.Newton(tol=1e-12, backend="kernel")
    given = OBJECTIVES[objective]
    if isinstance(given, Entropy):
        parameter, make = torch.tensor([0.4, 0.5, 0.7], dtype=F64), lambda value: Entropy(value, slack=given.slack)
    else:
        parameter, make = torch.rand(3, 4, dtype=F64) + 0.5, Euclidean
    inputs = (scores.requires_grad_(True), parameter.requires_grad_(True))
    assert torch.autograd.gradcheck(
        lambda y, value: linsat.project(y, cons, objective=make(value), solver=solver), inputs, atol=1e-6
    )


# ---------------------------------------------------------------- neighbours


def _same(first, second):
    return all(
        torch.equal(one.view(torch.uint8), other.view(torch.uint8)) for one, other in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_bits_do_not_depend_on_batch_order_and_threads(objective, dtype):
    count, objective = 64, OBJECTIVES[objective]
    rng = np.random.default_rng(6)
    A, b = torch.tensor(rng.normal(size=(count, 7, 4))), torch.tensor(rng.uniform(0.1, 1.0, (count, 7)))
    scores = torch.tensor(rng.normal(size=(count, 4))).to(dtype)
    weights = torch.tensor(rng.normal(size=(count, 4))).to(dtype)
    box = 1.0 if objective.finite_box else np.inf

    def run(index, shared):
        cons = linsat.Constraints(A=A[0] if shared else A[index], b=b[0] if shared else b[index], lower=-box, upper=box)
        y = scores[index].clone().requires_grad_(True)
        solved = linsat.solve(y.detach(), cons, objective=objective, solver=TOGETHER)
        x = linsat.project(y, cons, objective=objective, solver=TOGETHER)
        x.backward(weights[index])
        return x.detach(), y.grad, solved.duals

    before = torch.get_num_threads()
    try:
        for shared in (False, True):
            whole = run(torch.arange(count), shared)
            for threads in (1, 4):
                torch.set_num_threads(threads)
                for size in (1, 3, 4, 5, count):
                    index = torch.randperm(count)[:size]
                    assert _same(run(index, shared), [part[index] for part in whole]), (shared, threads, size)
    finally:
        torch.set_num_threads(before)


def test_a_neighbour_that_fails_changes_nothing():
    rng = np.random.default_rng(8)
    A, b = torch.tensor(rng.normal(size=(8, 11, 4))), torch.tensor(rng.uniform(0.1, 1.0, (8, 11)))
    scores = torch.tensor(rng.normal(size=(8, 4)))
    cons = linsat.Constraints(A=A.clone(), b=b.clone(), lower=-np.inf, upper=np.inf)
    apart = linsat.solve(scores, cons, objective=Euclidean(), solver=TOGETHER)
    A[1, 1], b[1, 1] = -A[1, 0], -b[1, 0] - 1.0  # contradicts row 0
    scores = scores.clone()
    scores[2] = np.nan
    b[3] = np.inf
    changed = linsat.Constraints(A=A, b=b, lower=-np.inf, upper=np.inf)
    solved = linsat.solve(scores, changed, objective=Euclidean(), solver=TOGETHER, on_failure="ignore")
    assert solved.status[1] == "infeasible"
    assert not solved.converged[2]
    torch.testing.assert_close(solved.x[3], scores[3], rtol=0, atol=0)
    others = torch.tensor([0, 4, 5, 6, 7])
    assert _same([solved.x[others], solved.duals[others]], [apart.x[others], apart.duals[others]])


def test_without_wide_vectors():
    """No lanes, four or eight: the same answers to rounding, and as independent of the batch."""
    program = (
        "import numpy as np, linsat; y = np.random.default_rng(0).normal(size=(9, 16));"
        "cons = linsat.constraints.doubly_stochastic(4); x = linsat.project(y, cons, tau=0.3);"
        "parts = [slice(i, i + n) for i in range(4) for n in (1, 2, 5)];"
        "assert all(np.array_equal(linsat.project(y[part], cons, tau=0.3), x[part]) for part in parts);"
        "print(x.flatten().tolist())"
    )
    shown = []
    for instructions in ("plain", "avx2", "on"):
        given = {**os.environ, "LINSAT_KERNEL": instructions, "PYTHONPATH": str(Path(linsat.__file__).parents[1])}
        shown.append(
            subprocess.run(
                [sys.executable, "-c", program], env=given, check=True, capture_output=True, text=True
            ).stdout
        )
    first, *others = (np.array(eval(text)) for text in shown)
    for other in others:
        np.testing.assert_allclose(other, first, atol=1e-12)


@pytest.mark.parametrize("objective", [Euclidean(), Entropy(0.1), KL(0.1)], ids=str)
def test_answers_do_not_depend_on_who_shares_the_lanes(objective):
    """A lane that has ended takes the next instance while its neighbours go on: in any order, the same bits."""
    rng = np.random.default_rng(4)
    A, point = rng.normal(size=(5, 8)), rng.uniform(0.2, 0.8, 8)
    rows = linsat.Constraints(A=A, b=A @ point + 0.1 * rng.random(5))
    for seed, cons in enumerate([linsat.constraints.doubly_stochastic(4)] * 3 + [rows]):
        torch.manual_seed(seed)
        y = 100.0 * torch.randn(301, cons.num_variables, dtype=F64)
        y[::17] *= 5.0
        order = torch.randperm(len(y))
        together = linsat.project(y, cons, objective=objective, solver=TOGETHER)
        assert torch.equal(linsat.project(y[order], cons, objective=objective, solver=TOGETHER), together[order])
