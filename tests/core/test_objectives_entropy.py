"""The entropic objective without slack entropy: against Clarabel, and rows that do nothing until they bind."""

import numpy as np
import pytest
import torch

import linsat
from tests.helpers.oracles import System, random_system, slack_free_optimum

KINDS = ("signed", "positive", "boundary")
TAUS = (1.0, 0.1, 0.01, 0.001)
FEW = pytest.param(range(7), id="few")
MANY = pytest.param(range(7, 25), id="many", marks=pytest.mark.slow)


def solve(scores, system, tau, slack="none"):
    cons = linsat.Constraints(**system.arguments())
    return linsat.solve(scores, cons, objective=linsat.Entropy(tau, slack=slack), on_failure="raise")


def drawn(kind, tau, seed):
    rng = np.random.default_rng([seed, KINDS.index(kind), TAUS.index(tau)])
    system = random_system(rng, kind, largest=30, rows=10)
    system.lower = rng.uniform(-1.0, 0.0, len(system.point))
    system.upper = rng.uniform(1.0, 2.0, len(system.point))
    return system, rng.normal(size=len(system.point))


def in_order(system):
    """The rows as `linsat.Constraints` orders them: <=, then >=, then ==."""
    order = np.argsort([{"<=": 0, ">=": 1, "==": 2}[s] for s in system.senses], kind="stable")
    return system.matrix[order], np.array(system.senses)[order], system.rhs[order]


@pytest.mark.parametrize("seeds", [FEW, MANY])
@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_clarabel(kind, tau, seeds):
    """Clarabel's error in x is the root of its gap: where it cannot promise 1e-11, the test below judges alone."""
    judged = 0
    for seed in seeds:
        system, scores = drawn(kind, tau, seed)
        expected = slack_free_optimum(system, scores, tau)
        if expected is not None:
            judged += 1
            np.testing.assert_allclose(solve(scores, system, tau).x, expected, atol=1e-5, err_msg=f"seed {seed}")
    assert judged >= len(seeds) // 2


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("kind", KINDS)
def test_optimality_conditions(kind, tau):
    """Rows hold, duals have their signs and vanish off their rows, and x is the sigmoid of y + A' mu: a proof."""
    for seed in range(7):
        system, scores = drawn(kind, tau, seed)
        matrix, senses, rhs = in_order(system)
        solution = solve(scores, system, tau)
        width, mu = system.upper - system.lower, solution.duals
        sigmoid = np.exp(-np.logaddexp(0, -width * (scores + mu @ matrix) / tau))
        np.testing.assert_allclose(solution.x, system.lower + width * sigmoid, atol=1e-9)
        assert system.violation(solution.x) <= 1e-9
        assert (mu[senses == "<="] <= 0).all()
        assert (mu[senses == ">="] >= 0).all()
        assert np.abs(mu * (matrix @ solution.x - rhs)).max() <= 1e-8


@pytest.mark.parametrize("width", [1e2, 1e4, 1e6])
def test_a_box_far_wider_than_the_rows_allow_forces_nothing(width):
    """Against Sinkhorn's iterations for sum P log P, which the objective tends to as the box widens."""
    draw = np.random.default_rng(0)
    a, b, cost = draw.dirichlet(np.ones(6)), draw.dirichlet(np.ones(8)), draw.random((6, 8))
    kernel, u = np.exp(-cost / 0.1), np.ones(6)
    for _ in range(5000):
        v = b / (kernel.T @ u)
        u = a / (kernel @ v)
    P = linsat.Variable(6, 8, name="P", upper=width)
    plans = linsat.subject_to(P.sum(1) == a, P.sum(0) == b)
    x = linsat.project(-cost, plans, tau=0.1 * width)
    np.testing.assert_allclose(x, u[:, None] * kernel * v, rtol=0, atol=1e-2 / width + 1e-8)


def test_forced_variables_equal_clarabel():
    """Rows that leave a variable one value only: no dual of finite size holds it there."""
    matrix = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 2.0, 1.0, 1.0]])
    system = System(matrix, [">=", "<="], np.array([2.0, 4.0]), np.array([1.0, 1.0, 0.5, 0.4]))
    scores = np.array([-1.0, -2.0, 0.3, 0.1])
    found = solve(scores, system, 0.2).x
    np.testing.assert_allclose(found[:2], 1.0, atol=1e-12)
    expected = slack_free_optimum(System(matrix[1:, 2:], ["<="], np.array([1.0]), np.zeros(2)), scores[2:], 0.2)
    np.testing.assert_allclose(found[2:], expected, atol=1e-6)


def test_without_rows_it_is_the_sigmoid():
    y = np.linspace(-3, 3, 7)
    cons = linsat.Constraints(lower=-1.0, upper=2.0)
    found = linsat.project(y, cons, objective=linsat.Entropy(0.5, slack="none"))
    np.testing.assert_allclose(found, -1 + 3 / (1 + np.exp(-3 * y / 0.5)), atol=1e-12)


def test_equalities_know_no_slack():
    cons = linsat.constraints.doubly_stochastic(4)
    y = torch.randn(3, 16, dtype=torch.float64)
    paper = linsat.project(y, cons, tau=0.2)
    assert torch.allclose(linsat.project(y, cons, objective=linsat.Entropy(0.2, slack="none")), paper, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_does_not_bind_can_be_dropped(kind):
    dropped = 0
    for seed in range(16):
        rng = np.random.default_rng([seed, 11])
        system = random_system(rng, kind, largest=20, rows=10)
        scores, tau = rng.normal(size=len(system.point)), float(rng.choice([1.0, 0.1, 0.01]))
        whole = solve(scores, system, tau).x
        gap = np.abs(system.matrix @ whole - system.rhs)
        idle = [i for i, sense in enumerate(system.senses) if sense != "==" and gap[i] > 1e-3]
        keep = [i for i in range(len(system.rhs)) if i not in idle]
        if not idle or not keep:
            continue
        dropped += len(idle)
        fewer = System(system.matrix[keep], [system.senses[i] for i in keep], system.rhs[keep], system.point)
        np.testing.assert_allclose(solve(scores, fewer, tau).x, whole, atol=1e-9)
    assert dropped >= 20


def _across_the_edge(slack):
    """x on both sides of the right-hand side beyond which x1 + x2 + x3 <= b cannot bind."""
    scores, objective = np.array([1.0, 0.4, -0.2]), linsat.Entropy(0.3, slack=slack)
    sides = np.array([[3.0 - 1e-6], [3.0], [3.0 + 1e-6]])
    cons = linsat.Constraints(A=np.ones((1, 3)), b=np.array([3.0])).with_rhs(b=sides)
    return linsat.project(np.tile(scores, (3, 1)), cons, objective=objective)


def test_continuous_where_a_row_can_no_longer_bind():
    free = 1 / (1 + np.exp(-np.array([1.0, 0.4, -0.2]) / 0.3))
    np.testing.assert_allclose(_across_the_edge("none"), np.tile(free, (3, 1)), atol=1e-9)


def test_the_papers_slack_jumps_there():
    before, _, after = _across_the_edge("entropic")
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, 1 / (1 + np.exp(-np.array([1.0, 0.4, -0.2]) / 0.3)), atol=1e-9)


@pytest.mark.parametrize("sense", ["b", "d"])
def test_continuous_in_a_right_hand_side_throughout(sense):
    """A side moves in small steps from where its row decides all to where it decides nothing."""
    sides = np.linspace(0.4, 3.2, 281)[:, None] if sense == "b" else np.linspace(2.6, -0.2, 281)[:, None]
    rows = {"A": np.array([[1.0, 2.0, 0.5]]), "b": sides} if sense == "b" else {"C": np.ones((1, 3)), "d": sides}
    y = np.tile([0.6, 0.1, -0.4], (281, 1))
    x = linsat.project(y, linsat.Constraints(**rows), objective=linsat.Entropy(0.2, slack="none"))
    assert np.abs(np.diff(x, axis=0)).max() <= 0.05  # a step of the side is 0.01


def test_preferred_assets_hold_what_the_rule_asks():
    """At least half in two of five assets whose scores say less: half it is, and the paper's slack gives more."""
    cons = linsat.constraints.portfolio(5, [0, 2], 0.5)
    scores = np.array([0.0, 0.3, -0.1, 0.4, 0.2])
    held = {
        slack: linsat.project(scores, cons, objective=linsat.Entropy(0.1, slack=slack))[[0, 2]].sum()
        for slack in ("none", "entropic")
    }
    assert held["none"] == pytest.approx(0.5, abs=1e-8)
    assert held["entropic"] > 0.52


def test_duals_vanish_on_idle_rows():
    for seed in range(10):
        rng = np.random.default_rng([seed, 5])
        system = random_system(rng, "signed", largest=20, rows=8)
        matrix, senses, rhs = in_order(system)
        solution = solve(rng.normal(size=len(system.point)), system, 0.1)
        idle = (senses != "==") & (np.abs(matrix @ solution.x - rhs) > 1e-6)
        assert (solution.duals[idle] == 0).all()


def test_tau_differs_per_instance():
    rng = np.random.default_rng(4)
    system = random_system(rng, "signed", largest=15, rows=6)
    scores, taus = rng.normal(size=len(system.point)), np.array([1.0, 0.1, 0.01])
    cons = linsat.Constraints(**system.arguments())
    found = linsat.project(np.tile(scores, (3, 1)), cons, objective=linsat.Entropy(torch.tensor(taus), slack="none"))
    for x, tau in zip(found, taus):
        np.testing.assert_allclose(x, slack_free_optimum(system, scores, tau), atol=1e-5)


def test_other_words_for_the_slack_are_rejected():
    with pytest.raises(linsat.ConstraintError, match="'entropic'.*'none'"):
        linsat.Entropy(0.1, slack="some")
