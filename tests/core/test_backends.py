"""The socket of the back ends on arrays: which one takes a problem and why others do not; a new one is a class and an
entry. They serve what the native core does not take."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import linsat
from linsat import backends as run
from linsat import plan
from linsat.arrays.result import Claim, Stop
from tests.helpers.arithmetic import NEWTON_BACKENDS

F64 = torch.float64


class SimplexBackend:
    """Sparsemax in closed form: one row of ones, Euclidean objective, no upper bound that could bind."""

    name = "sparsemax"

    def __init__(self) -> None:
        self.solved = 0

    def supports(self, problem) -> str | None:
        if not isinstance(problem.objective, linsat.Euclidean) or problem.objective.weights is not None:
            return "it projects in the plain Euclidean norm only"
        if not bool(torch.isinf(problem.dual_lower).all() & torch.isinf(problem.dual_upper).all()):
            return "it knows equalities only"
        one_row = problem.rows.shape[0] == 1 and bool((problem.rows.values == 1).all())
        return None if one_row and problem.rows.values.numel() == problem.rows.shape[1] else "it knows the simplex only"

    def solve(self, problem, options, start=None) -> Claim:
        self.solved += problem.size
        claim = Claim.empty(problem.in_double(), "newton")
        ordered = problem.scores.to(F64).sort(-1, descending=True).values
        excess = (ordered.cumsum(-1) - problem.rhs) / torch.arange(1, ordered.shape[-1] + 1)
        last = (ordered > excess).sum(-1, keepdim=True) - 1
        threshold = excess.gather(-1, last)
        claim.x = (problem.scores.to(F64) - threshold).clamp_min(0.0)
        claim.mu = -threshold * problem.scale  # u = y + A' mu / scale
        claim.stops.fill_(Stop.ARRIVED)
        return claim


@pytest.fixture
def toy(monkeypatch):
    backend = SimplexBackend()
    monkeypatch.setattr(run, "BACKENDS", [backend, *run.BACKENDS])
    monkeypatch.setattr(plan, "load", lambda: "not in this test")
    return backend


def nearest(y: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex, by a general solver."""
    rows = {"type": "eq", "fun": lambda x: x.sum() - 1}
    start = np.full(len(y), 1 / len(y))
    options = {"ftol": 1e-14, "maxiter": 500}
    return minimize(
        lambda x: ((x - y) ** 2).sum(), start, bounds=[(0, 1)] * len(y), constraints=rows, options=options
    ).x


def test_a_new_back_end_serves_what_it_supports(toy):
    cons = linsat.constraints.simplex(5)
    y = np.random.default_rng(0).normal(size=(4, 5))
    x = linsat.project(y, cons, objective=linsat.Euclidean())
    assert toy.solved == 4
    np.testing.assert_allclose(x, [nearest(row) for row in y], atol=1e-6)


def test_gradients_follow_from_its_duals(toy):
    cons = linsat.constraints.simplex(4)
    y = torch.tensor([[0.9, 0.4, -0.3, 0.2]], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: linsat.project(y, cons, objective=linsat.Euclidean()), (y,), atol=1e-6)
    assert toy.solved > 0


def test_others_serve_what_it_declines(toy):
    linsat.project(torch.zeros(2, 4), linsat.constraints.simplex(4))
    linsat.project(torch.zeros(2, 4), linsat.constraints.doubly_stochastic(2), objective=linsat.Euclidean())
    linsat.project(torch.zeros(2, 4), linsat.constraints.top_k(4, 2, exactly=False), objective=linsat.Euclidean())
    assert toy.solved == 0


@pytest.mark.parametrize("name", [*NEWTON_BACKENDS, "interior_point"])
def test_each_back_end_gives_the_same_point(name):
    cons = linsat.constraints.matching(4, 3)
    y = torch.randn(3, 12, dtype=F64, generator=torch.Generator().manual_seed(0))
    for objective in (linsat.Entropy(0.2), linsat.Entropy(0.2, slack="none"), linsat.Euclidean()):
        expected = linsat.project(y, cons, objective=objective)
        found = linsat.project(y, cons, objective=objective, solver=linsat.Newton(backend=name))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
