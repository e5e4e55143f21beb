"""Starts: duals by the names of rows, what is left out found row by row, nothing that is worse than no start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit

import linsat

TOKENS, EXPERTS = 512, 16


def router_of(seed: int):
    """A set, and scores of fresh tokens whenever they are asked for; some experts are more popular than others."""
    rng = np.random.default_rng(seed)
    popularity = rng.normal(size=EXPERTS)
    cons = linsat.constraints.capacity_assignment(TOKENS, EXPERTS, 1.25 * TOKENS / EXPERTS)
    return cons, lambda: (rng.normal(size=(TOKENS, EXPERTS)) + popularity).reshape(-1)


@pytest.fixture
def router():
    return router_of(0)


@pytest.mark.parametrize(("tau", "share"), [(0.1, 1 / 2), (0.03, 2 / 3)])
@pytest.mark.parametrize("named", [True, False])
def test_fresh_tokens_take_fewer_steps(tau, share, named):
    """On the mean over popularities; at low temperatures a quarter of the starts are left after a step."""
    cold, warm = 0, 0
    for seed in range(6):
        cons, tokens = router_of(seed)
        duals = linsat.solve(tokens(), cons, tau=tau).duals
        for _ in range(3):
            y = tokens()
            start = {"capacity": duals[:EXPERTS]} if named else duals
            first, second = linsat.solve(y, cons, tau=tau), linsat.solve(y, cons, tau=tau, start=start)
            assert second.converged
            np.testing.assert_allclose(second.x, first.x, atol=1e-7)
            cold, warm, duals = cold + int(first.steps), warm + int(second.steps), first.duals
    assert warm <= share * cold


@pytest.mark.parametrize("tau", [0.1, 0.03, 0.01])
@pytest.mark.parametrize("kind", ["zeros", "reversed", "random", "huge"])
def test_a_start_that_is_worse_costs_one_step_at_most(router, tau, kind):
    cons, tokens = router
    rng, y = np.random.default_rng(1), tokens()
    known = linsat.solve(tokens(), cons, tau=tau).duals[:EXPERTS]
    starts = {"zeros": 0 * known, "reversed": known[::-1], "random": rng.normal(size=EXPERTS), "huge": 1e6 + 0 * known}
    cold = linsat.solve(y, cons, tau=tau)
    warm = linsat.solve(y, cons, tau=tau, start={"capacity": starts[kind]})
    np.testing.assert_allclose(warm.x, cold.x, atol=1e-7)
    assert warm.converged
    assert warm.steps <= cold.steps + 1


def test_rows_that_are_left_out_are_solved_exactly():
    """At the duals of the experts of a solution the equations of the tokens alone give it: by Brent's method, each."""
    rng, tau = np.random.default_rng(2), 0.1
    cons = linsat.constraints.capacity_assignment(60, 5, 15.0)
    y = rng.normal(size=(60, 5))
    solution = linsat.solve(y.reshape(-1), cons, tau=tau)
    experts = solution.duals[:5]
    for row in range(60):
        u = y[row] + experts
        dual = brentq(lambda mu, u=u: expit((u + mu) / tau).sum() - 1, -30, 30, xtol=1e-13)
        assert solution.duals[5 + row] == pytest.approx(dual, abs=1e-6)
    again = linsat.solve(y.reshape(-1), cons, tau=tau, start={"capacity": experts})
    assert again.steps == 0
    np.testing.assert_allclose(again.x, solution.x, atol=1e-9)


@pytest.mark.parametrize(
    "objective",
    [
        linsat.Entropy(0.1),
        linsat.Entropy(0.1, slack="none"),
        linsat.KL(0.1),
        linsat.Euclidean(),
        linsat.Tsallis(1.5, 0.1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("backend", ["auto", "arrays"])
def test_every_objective_and_back_end_takes_them(objective, backend):
    rng, solver = np.random.default_rng(3), linsat.Newton(backend=backend)
    cons = linsat.constraints.capacity_assignment(30, 4, 9.0)
    y = torch.tensor(rng.normal(size=(3, 120)))
    cold = linsat.solve(y, cons, objective=objective, solver=solver)
    for names in (("capacity",), ("item in one bin",), ("capacity", "item in one bin"), ()):
        places = {"capacity": slice(0, 4), "item in one bin": slice(4, None)}
        start = {name: cold.duals[:, places[name]] for name in names}
        warm = linsat.solve(y, cons, objective=objective, solver=solver, start=start)
        assert warm.converged.all()
        torch.testing.assert_close(warm.x, cold.x, rtol=0, atol=1e-7)
        assert (warm.steps <= cold.steps + 1).all()


def test_bits_do_not_depend_on_the_batch(router):
    cons, tokens = router
    duals = linsat.solve(tokens(), cons, tau=0.03).duals[:EXPERTS]
    y = np.stack([tokens() for _ in range(3)])
    own = np.stack([duals, duals[::-1], 0 * duals])
    together = linsat.solve(y, cons, tau=0.03, start={"capacity": own})
    for i in range(3):
        alone = linsat.solve(y[i], cons, tau=0.03, start={"capacity": own[i]})
        assert (alone.x == together.x[i]).all()
        assert alone.steps == together.steps[i]


def test_the_doors_agree():
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(4)
    cons = linsat.constraints.capacity_assignment(20, 3, 8.0)
    y = rng.normal(size=(2, 60))
    duals = rng.normal(size=3)
    expected = linsat.project(y, cons, start={"capacity": duals})
    by_torch = linsat.project(torch.tensor(y), cons, start={"capacity": torch.tensor(duals)})
    by_layer = linsat.LinSAT(cons)(torch.tensor(y), start={"capacity": duals})
    assert (by_torch.numpy() == expected).all()
    assert (by_layer.numpy() == expected).all()
    for project in (linsat.jax.project, jax.jit(lambda y, start: linsat.jax.project(y, cons, start=start))):
        arguments = (y, cons) if project is linsat.jax.project else (y,)
        found = project(*map(np.asarray, arguments[:1]), *arguments[1:], start={"capacity": jax.numpy.asarray(duals)})
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_layer_that_keeps_its_duals_profits_from_fresh_tokens(router):
    cons, tokens = router
    y = [torch.tensor(tokens()) for _ in range(4)]
    layer = linsat.LinSAT(cons, tau=0.03, warm_start=True)
    layer(y[0])
    for scores in y[1:]:
        kept = layer._last[1]
        cold, warm = linsat.solve(scores, cons, tau=0.03), linsat.solve(scores, cons, tau=0.03, start=kept)
        torch.testing.assert_close(layer(scores), cold.x, rtol=0, atol=1e-7)
        assert warm.steps < 0.7 * cold.steps


def test_sets_with_formulas_take_names():
    x = linsat.Variable(4, lower=-2.0, upper=2.0)
    cons = linsat.subject_to((abs(x).sum() <= 1.5).named("size"), (x.sum() == 0.5).named("total"))
    y = np.random.default_rng(5).normal(size=(3, 4))
    first = linsat.solve(y, cons, objective=linsat.Euclidean())
    again = linsat.solve(y, cons, objective=linsat.Euclidean(), start={"total": first.duals[:, 1:]})
    np.testing.assert_allclose(again.x, first.x, atol=1e-9)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"capaciti": 0.0}, "capaciti"),
        ({"capacity": np.zeros(5)}, r"start\['capacity'\] has shape \(5,\).*Fix"),
        ({"capacity": np.full(3, np.nan)}, r"start\['capacity'\]\[0\] is nan.*Fix"),
        ({"capacity": np.zeros((4, 3))}, r"batch dimensions \(4,\); expected those of the call, \(2,\)"),
        ({"capacity": 0.0, "capacity[1]": 0.0}, "twice"),
        ({"capacity": "much"}, "start is str"),
    ],
)
def test_bad_starts_are_rejected(start, words):
    cons = linsat.constraints.capacity_assignment(20, 3, 8.0)
    with pytest.raises(linsat.ConstraintError, match=words):
        linsat.project(np.zeros((2, 60)), cons, start=start)
