"""From scores or prices to weights: figures by hand, projections and programs against cvxpy, rows held exactly."""

import math
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch

import linsat
from linsat_studies.portfolio.baselines import BASELINES, equal_weight, inverse_volatility
from linsat_studies.portfolio.config import Rules
from linsat_studies.portfolio.constraints import (
    YESTERDAY,
    Universe,
    correlation_clusters,
    factor_loadings,
    turnover,
    weight_rules,
)
from linsat_studies.portfolio.evaluate import ruled_weights, violations
from linsat_studies.portfolio.programs import Covariance, Preference, maximum_sharpe, minimum_variance, two_stage
from linsat_studies.portfolio.sharpe import annual_sharpe, daily_returns, held_returns, ladder_value, sharpe_ratio
from linsat_studies.portfolio.techniques import LayerWeights, project_preference, project_simplex, softmax_weights

PREFERENCE = Preference([0, 3], 0.5)


def draw(shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(0, scale, size=shape)


def random_weights(count, assets, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(assets), size=count)


# ------------------------------------------------------------------ what weights earn


def test_sharpe_ratio_is_the_textbooks():
    returns, weights = draw((2, 30, 5), scale=0.01), random_weights(2, 5)
    expected = []
    for r, w in zip(returns, weights):
        mu, sigma = r.mean(0) * 252, np.cov(r, rowvar=False) * 252
        expected.append((w @ mu - 0.03) / math.sqrt(w @ sigma @ w))
    np.testing.assert_allclose(annual_sharpe(daily_returns(weights, returns)), expected, rtol=1e-10)
    found = sharpe_ratio(torch.from_numpy(weights), torch.from_numpy(returns))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_a_portfolio_left_alone_drifts():
    # 1/2 each; the first doubles on both days, the second stays: value 1, 1.5, 2.5.
    returns = np.array([[[1.0, 0.0], [1.0, 0.0]]])
    np.testing.assert_allclose(held_returns(np.array([[0.5, 0.5]]), returns), [[0.5, 2.5 / 1.5 - 1]])
    np.testing.assert_allclose(daily_returns(np.array([[0.5, 0.5]]), returns), [[0.5, 0.5]])


def test_the_ladder_averages_the_portfolios_held_each_day():
    daily = np.array([[0.1, 0.2], [0.4, 0.0]])
    np.testing.assert_allclose(ladder_value(daily), [1, 1.1, 1.1 * 1.3, 1.1 * 1.3])


# ------------------------------------------------------------------ projections


@pytest.mark.parametrize("seed", range(5))
def test_projection_is_the_nearest_point(seed):
    w = random_weights(1, 7, seed)[0] ** 3
    w /= w.sum()
    x = cp.Variable(7, nonneg=True)
    rows = [cp.sum(x) == 1, x[0] + x[3] >= 0.5]
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13)
    cp.Problem(cp.Minimize(cp.sum_squares(x - w)), rows).solve(solver="CLARABEL", **tight)
    found = project_preference(torch.from_numpy(w), [0, 3], 0.5)
    np.testing.assert_allclose(found.numpy(), x.value, atol=1e-6)
    assert violations(found.numpy()[None], PREFERENCE) == pytest.approx((0, 0), abs=1e-15)


def test_projection_onto_a_simplex_by_hand():
    found = project_simplex(torch.tensor([[0.8, 0.6, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64), 1.0)
    expected = torch.tensor([[0.6, 0.4, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_the_layer_holds_its_rows_and_equals_softmax_where_the_preference_is_slack():
    scores = 2 * torch.from_numpy(draw((16, 50)))
    layer = LayerWeights(linsat.constraints.portfolio(50, [0, 3], 0.5), tau=0.01)
    weights = layer(scores).numpy()
    assert max(violations(weights, PREFERENCE)) < 1e-9
    # The box's upper side has an entropy of its own, whose pull vanishes with small weights.
    free = LayerWeights(linsat.constraints.portfolio(50, [0, 3], 0.0), tau=0.01)
    small = 0.1 * scores
    np.testing.assert_allclose(free(small).numpy(), softmax_weights(small).numpy(), atol=2e-3)


@pytest.mark.parametrize("at_least", [0.1, 0.5])
def test_the_euclidean_layer_is_the_nearest_point(at_least):
    """One simplex where the preference is slack, one for each group where it binds; by sorting."""
    scores = torch.from_numpy(draw((6, 20)))
    weights = LayerWeights(linsat.constraints.portfolio(20, [0, 3], at_least), 0.01, "euclidean")(scores)
    expected = project_preference(project_simplex(scores * 2 / 20, 1.0), [0, 3], at_least)
    grouped = project_preference(scores * 2 / 20 - 10, [0, 3], at_least)  # far below the preference: it binds
    slack = expected[:, [0, 3]].sum(1) > at_least + 1e-9
    torch.testing.assert_close(weights, torch.where(slack[:, None], expected, grouped), atol=1e-9, rtol=0)
    assert bool(slack.any()) == (at_least == 0.1)


@pytest.mark.parametrize("at_least", [0.05, 0.6])
def test_the_slack_free_layer_solves_its_program(at_least):
    scores, tau = draw(9, seed=5), 0.5
    weights = LayerWeights(linsat.constraints.portfolio(9, [0, 3], at_least), tau, "slack-free")(
        torch.from_numpy(scores)
    )
    x = cp.Variable(9)
    rows = [cp.sum(x) == 1, x[0] + x[3] >= at_least]
    cp.Problem(cp.Maximize(scores @ x + cp.sum(cp.entr(x) + cp.entr(1 - x))), rows).solve(solver="CLARABEL")
    np.testing.assert_allclose(weights.numpy(), x.value, atol=2e-5)


def test_the_layer_shares_a_binding_preference_like_two_softmaxes():
    """Where the row binds each group is an entropic projection of its own, here found by bisection."""
    scores = draw(8, seed=3)
    weights = LayerWeights(linsat.constraints.portfolio(8, [0, 3], 0.9), tau=0.5)(torch.from_numpy(scores)).numpy()
    for members, total in (([0, 3], weights[[0, 3]].sum()), ([1, 2, 4, 5, 6, 7], 1 - weights[[0, 3]].sum())):
        low, high = -50.0, 50.0
        for _ in range(200):
            middle = (low + high) / 2
            mass = (1 / (1 + np.exp(-(scores[members] + middle)))).sum()
            low, high = (middle, high) if mass < total else (low, middle)
        expected = 1 / (1 + np.exp(-(scores[members] + low)))
        np.testing.assert_allclose(weights[members], expected, atol=1e-7)
    assert weights[[0, 3]].sum() >= 0.9 - 1e-12


# ------------------------------------------------------------------ programs


def direct_sharpe(mean, sigma, preference):
    """The highest ratio by another way: the efficient frontier walked with cvxpy over target returns."""
    w = cp.Variable(len(mean), nonneg=True)
    target = cp.Parameter()
    rows = [cp.sum(w) == 1, mean @ w >= target]
    if preference is not None:
        rows.append(cp.sum(w[list(preference.preferred)]) >= preference.at_least)
    problem = cp.Problem(cp.Minimize(cp.quad_form(w, cp.psd_wrap(sigma))), rows)
    best = -np.inf
    for value in np.linspace(0.031, mean.max(), 60):
        target.value = value
        problem.solve(solver="CLARABEL")
        if problem.status == "optimal":
            best = max(best, (mean @ w.value - 0.03) / math.sqrt(w.value @ sigma @ w.value))
    return best


@pytest.mark.parametrize("preference", [None, PREFERENCE])
def test_maximum_sharpe_lies_on_top_of_the_frontier(preference):
    returns = draw((60, 6), scale=0.01)
    mean = np.array([0.05, 0.2, 0.1, -0.1, 0.3, 0.02])
    covariance = Covariance.of(returns, shrinkage=0.1)
    sample = np.cov(returns, rowvar=False) * 252
    sigma = 0.9 * sample + 0.1 * np.trace(sample) / 6 * np.eye(6)
    np.testing.assert_allclose(covariance.root.T @ covariance.root + covariance.ridge * np.eye(6), sigma, atol=1e-12)
    weights, found = maximum_sharpe(mean, covariance, preference)
    assert found
    ratio = (mean @ weights - 0.03) / math.sqrt(weights @ sigma @ weights)
    best = direct_sharpe(mean, sigma, preference)
    assert best - 1e-6 <= ratio <= best * 1.01
    if preference is not None:
        assert max(violations(weights[None], preference)) < 1e-6


def test_without_a_positive_excess_return_minimum_variance_takes_over():
    covariance = Covariance.of(draw((60, 6), scale=0.01))
    # Asset 1 beats the risk-free rate, but with half the weight on assets 0 and 3 nothing does.
    mean = np.array([-0.5, 0.1, 0.0, -0.5, 0.0, 0.0])
    weights, found = maximum_sharpe(mean, covariance, PREFERENCE)
    assert not found
    np.testing.assert_allclose(weights, minimum_variance(covariance, PREFERENCE), atol=1e-9)
    assert maximum_sharpe(mean, covariance)[1]


def test_minimum_variance_of_independent_assets_is_inverse_to_their_variance():
    root = np.diag([1.0, 2.0, 4.0])
    np.testing.assert_allclose(minimum_variance(Covariance(root, 0.0)), np.array([16, 4, 1]) / 21, atol=1e-5)


def test_two_stage_reads_means_off_the_predicted_prices():
    # Asset 1 is predicted to rise alone; tiny noise makes variances. It must get all that the preference leaves.
    growth = np.cumsum(np.array([0.0, 0.01, 0.0, 0.0]) + draw((40, 4), scale=1e-4), axis=0)
    weights, found = two_stage(growth, Preference([0], 0.25))
    assert found
    assert weights[1] == pytest.approx(0.75, abs=1e-3)
    assert weights[0] == pytest.approx(0.25, abs=1e-3)
    falling, found = two_stage(-np.abs(growth), Preference([0], 0.25), draw((30, 4), scale=0.01))
    assert not found
    assert max(violations(falling[None], Preference([0], 0.25))) < 1e-6


# ------------------------------------------------------------------ baselines


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("preference", [None, PREFERENCE])
def test_baselines_keep_their_rows(name, preference):
    if "skfolio" in name:
        pytest.importorskip("skfolio")
    weights = BASELINES[name](draw((40, 8), scale=0.01) + 0.001, preference)
    simplex, short = violations(weights[None], PREFERENCE)
    assert simplex < 1e-6
    if preference is not None:
        assert short < 1e-6


def test_simple_baselines_by_hand():
    returns = np.array([[0.01, 0.02], [-0.01, -0.02]])
    np.testing.assert_allclose(equal_weight(returns), [0.5, 0.5])
    np.testing.assert_allclose(inverse_volatility(returns), [2 / 3, 1 / 3])
    np.testing.assert_allclose(inverse_volatility(returns, Preference([1], 0.5)), [0.5, 0.5])
    np.testing.assert_allclose(equal_weight(np.ones((2, 4)), Preference([0], 0.7)), [0.7, 0.1, 0.1, 0.1])
    with pytest.raises(ValueError, match="did not move"):
        inverse_volatility(np.zeros((3, 2)))


def test_the_layer_of_equal_scores_treats_assets_of_a_kind_alike():
    weights = BASELINES["layer of equal scores"](np.zeros((3, 6)), PREFERENCE)
    assert weights[0] == pytest.approx(weights[3], abs=1e-12)
    np.testing.assert_allclose(weights[[1, 2, 4, 5]], weights[1], atol=1e-12)
    assert weights[0] + weights[3] >= 0.5
    np.testing.assert_allclose(BASELINES["layer of equal scores"](np.zeros((3, 6)), None), np.full(6, 1 / 6))


def test_mean_variance_agrees_with_the_frontier():
    pytest.importorskip("skfolio")
    from sklearn.covariance import LedoitWolf

    returns = draw((80, 5), seed=2, scale=0.01) + 0.001
    sigma = LedoitWolf().fit(returns).covariance_ * 252
    mean = returns.mean(0) * 252
    weights = BASELINES["mean-variance (skfolio)"](returns, None)
    ratio = (mean @ weights - 0.03) / math.sqrt(weights @ sigma @ weights)
    assert ratio == pytest.approx(direct_sharpe(mean, sigma, None), rel=0.01)


# ------------------------------------------------------------------ further rules


@pytest.fixture
def about():
    returns = draw((200, 12), scale=0.01) * np.linspace(0.5, 2, 12) + draw((200, 1), seed=5, scale=0.01)
    names, loadings = factor_loadings(returns)
    return Universe(12, [0, 3], ["a", "b", "c"] * 4, loadings, names)


RULES = {
    "cap": Rules(cap=0.3),
    "sectors": Rules(sector_limit=0.6),
    "exposure": Rules(exposure=0.1),
    "turnover": Rules(turnover=0.05),
    "all": Rules(cap=0.35, sector_limit=0.7, exposure=0.3, turnover=0.05),
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_holds_to_1e_6_in_every_window(name, about):
    rules = RULES[name]
    weights, worst = ruled_weights(3 * torch.from_numpy(draw((10, 12), seed=7)), rules, about, tau=0.01)
    assert worst < 1e-6
    assert max(violations(weights, PREFERENCE)) < 1e-6
    assert weights.max() <= (rules.cap or 1) + 1e-6
    sectors = np.array(about.sectors)
    for sector in "abc":
        assert weights[:, sectors == sector].sum(1).max() <= (rules.sector_limit or 1) + 1e-6
    assert np.abs(weights @ about.loadings.T).max() <= (rules.exposure or np.inf) + 1e-6
    assert turnover(weights).max() <= (rules.turnover or 1) + 1e-6


@pytest.mark.parametrize("name", ["cap", "sectors", "exposure"])
def test_rules_bind_and_leave_the_best_vertex(name, about):
    """At a low temperature the weights tend to the best vertex, which HiGHS finds."""
    from scipy.optimize import linprog

    rules, scores = RULES[name], draw(12, seed=9)
    A = [-np.isin(np.arange(12), [0, 3]).astype(float)]
    b = [-0.5]
    if rules.sector_limit:
        A += [(np.array(about.sectors) == s).astype(float) for s in "abc"]
        b += [rules.sector_limit] * 3
    if rules.exposure:
        A += [sign * loading for loading in about.loadings for sign in (1, -1)]
        b += [rules.exposure] * 4
    best = linprog(-scores, A, b, np.ones((1, 12)), [1.0], bounds=(0, rules.cap or 1))
    weights = linsat.project(torch.from_numpy(scores), weight_rules(rules, about), tau=1e-4).numpy()
    assert scores @ weights == pytest.approx(-best.fun, abs=5e-3)


def test_impossible_rules_are_refused(about):
    with pytest.raises(linsat.InfeasibleError):
        weight_rules(Rules(cap=0.2), about).check()  # two preferred assets at 20 % make no 50 %


def test_turnover_rows_measure_the_change(about):
    yesterday = np.full(12, 1 / 12)
    rows = weight_rules(Rules(turnover=0.05, at_least=0.0), about).with_rhs({YESTERDAY: yesterday})
    w = yesterday.copy()
    w[0] += 0.05
    w[1] -= 0.05
    assert rows.violation(w).max() == pytest.approx(0, abs=1e-12)
    w[0] += 0.02
    w[1] -= 0.02
    assert rows.violation(w).max() == pytest.approx(0.04, abs=1e-12)  # bought and sold


@pytest.mark.parametrize("name", ["turnover", "all"])
def test_a_turnover_limit_leaves_the_best_trade(name, about):
    """At a low temperature the weights tend to the best ones within reach of yesterday's, which HiGHS finds."""
    from scipy.optimize import linprog

    rules, scores = RULES[name], draw(12, seed=9)
    free = weight_rules(replace(rules, turnover=None), about)
    yesterday = linsat.project(torch.zeros(12, dtype=torch.float64), free).numpy()
    today = weight_rules(rules, about)
    found = linsat.project(torch.from_numpy(scores), today, tau=1e-4, rhs={YESTERDAY: yesterday}).numpy()
    # Bought p and sold s of each asset: w = yesterday + p - s.
    split = np.concatenate([np.eye(12), -np.eye(12)], axis=1)
    A = [np.r_[np.ones(24)], -np.isin(np.arange(12), [0, 3]).astype(float) @ split]
    b = [2 * rules.turnover, yesterday[[0, 3]].sum() - 0.5]
    if rules.sector_limit:
        for mask in (np.array(about.sectors) == s for s in "abc"):
            A.append(mask.astype(float) @ split)
            b.append(rules.sector_limit - mask @ yesterday)
    if rules.exposure:
        for row in (sign * loading for loading in about.loadings for sign in (1, -1)):
            A.append(row @ split)
            b.append(rules.exposure - row @ yesterday)
    reach = np.concatenate([(rules.cap or 1) - yesterday, yesterday])
    best = linprog(-scores @ split, A, b, [np.r_[np.ones(12), -np.ones(12)]], [0.0], bounds=list(zip(0 * reach, reach)))
    gained = scores @ (found - yesterday)
    assert -best.fun > 0.01  # there is something to gain, and not all of it is within reach
    assert gained == pytest.approx(-best.fun, rel=0.02)
    assert np.abs(found - yesterday).sum() / 2 == pytest.approx(rules.turnover, abs=1e-3)


@pytest.mark.parametrize("turned", [None, 0.05])
def test_risk_and_turnover_against_a_quadratic_program(turned, about):
    """Oracle: Clarabel through cvxpy, window by window."""
    rules = Rules(cap=0.35, sector_limit=0.7, turnover=turned, risk=3.0)
    scores, past = draw((4, 12), seed=9), draw((4, 60, 12), seed=11, scale=0.02)
    weights, worst = ruled_weights(torch.from_numpy(scores), rules, about, tau=0.01, past=past)
    assert worst < 1e-9
    before = None
    for said, days, found in zip(scores, past, weights, strict=True):
        w = cp.Variable(12)
        P = np.eye(12) + 3.0 * 252 * np.cov(days, rowvar=False)
        rows = [w >= 0, w <= 0.35, cp.sum(w) == 1, w[0] + w[3] >= 0.5]
        rows += [cp.sum(w[[i for i, label in enumerate(about.sectors) if label == s]]) <= 0.7 for s in "abc"]
        if turned is not None and before is not None:
            rows.append(cp.norm1(w - before) <= 2 * turned)
        cp.Problem(cp.Minimize(cp.quad_form(w, cp.psd_wrap(P)) / 2 - (2 / 12 * said) @ w), rows).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
        )
        np.testing.assert_allclose(found, w.value, atol=1e-6)
        before = found


def test_loadings_and_clusters_of_a_made_market():
    market = draw((400, 1), scale=0.01)
    returns = np.concatenate([0.5 * market, 1.0 * market, 1.5 * market], axis=1)
    names, loadings = factor_loadings(returns)
    assert names == ("market", "volatility")
    np.testing.assert_allclose(loadings[0], [-0.5, 0, 0.5], atol=1e-12)
    spread = np.log([0.5, 1.0, 1.5])
    np.testing.assert_allclose(loadings[1], (spread - spread.mean()) / spread.std(), atol=1e-9)
    groups = np.repeat(draw((400, 3), seed=1, scale=0.01), 4, axis=1) + draw((400, 12), seed=2, scale=0.001)
    labels = correlation_clusters(groups, 3)
    assert [len({*labels[k : k + 4]}) for k in (0, 4, 8)] == [1, 1, 1]
    assert len(set(labels)) == 3
