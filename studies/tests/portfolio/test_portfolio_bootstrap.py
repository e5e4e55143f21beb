"""The stationary bootstrap against its closed form, and intervals against the theory of independent days."""

import numpy as np
import pytest

from linsat_studies.portfolio.bootstrap import (
    mean_paired_interval,
    paired_interval,
    sharpe_draws,
    sharpe_interval,
    stationary_days,
)
from linsat_studies.portfolio.sharpe import annual_sharpe, ladder


def test_blocks_go_on_day_by_day_and_have_the_length_asked_for():
    drawn = stationary_days(200, 400, block=8)
    goes_on = (drawn[:, 1:] - drawn[:, :-1]) % 200 == 1
    assert drawn.min() >= 0
    assert drawn.max() < 200
    # A new block continues the old one by chance in one of 200 cases.
    assert goes_on.mean() == pytest.approx(1 - 1 / 8 + 1 / 8 / 200, abs=0.004)
    assert np.bincount(drawn.ravel(), minlength=200) == pytest.approx(np.full(200, 400), rel=0.35)


@pytest.mark.parametrize("block", [1, 6, 25])
def test_variance_of_the_mean_is_that_of_politis_and_romano(block):
    """Their formula: circular autocovariances, weighted by the chance that two days lie in one block."""
    rng = np.random.default_rng(1)
    n = 80
    x = np.convolve(rng.normal(size=n + 5), np.ones(6), mode="valid")
    centred = x - x.mean()
    circular = np.array([np.mean(centred * np.roll(centred, -k)) for k in range(n)])
    k = np.arange(1, n)
    expected = (circular[0] + 2 * ((1 - k / n) * (1 - 1 / block) ** k * circular[1:]).sum()) / n
    means = x[stationary_days(n, 40_000, block=block, seed=3)].mean(1)
    assert means.var() == pytest.approx(expected, rel=0.04)


def test_interval_of_independent_days_has_the_width_of_theory():
    """The standard error of a daily Sharpe ratio s over T independent normal days is sqrt((1 + s^2 / 2) / T)."""
    rng = np.random.default_rng(0)
    T = 2000
    one, other = rng.normal(0.001, 0.01, size=(2, T))
    drawn = stationary_days(T, 4000, block=1)
    ratios = [series.mean() / series.std(ddof=1) for series in (one, other)]
    error = [np.sqrt(252 * (1 + s * s / 2) / T) for s in ratios]
    found = sharpe_interval(one, drawn)
    assert found.value == pytest.approx(float(annual_sharpe(one)))
    assert found.high - found.low == pytest.approx(2 * 1.96 * error[0], rel=0.06)
    pair = paired_interval(one, other, drawn)
    assert pair.value == pytest.approx(float(annual_sharpe(one) - annual_sharpe(other)))
    assert pair.high - pair.low == pytest.approx(2 * 1.96 * np.hypot(*error), rel=0.06)


def test_what_two_series_share_leaves_their_difference():
    rng = np.random.default_rng(2)
    market = rng.normal(0.0005, 0.01, size=500)
    drawn = stationary_days(500, 500)
    same = paired_interval(market, market, drawn)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    near = paired_interval(market + rng.normal(0, 0.001, size=500), market, drawn)
    alone = sharpe_interval(market, drawn)
    assert near.high - near.low < 0.3 * (alone.high - alone.low)


def test_mean_over_pairs_is_the_mean_draw_by_draw():
    rng = np.random.default_rng(4)
    ours, others = rng.normal(0.001, 0.01, size=(2, 3, 120))
    drawn = stationary_days(120, 300)
    found = mean_paired_interval(ours, others, drawn)
    each = [sharpe_draws(ours[k : k + 1], drawn) - sharpe_draws(others[k : k + 1], drawn) for k in range(3)]
    low, high = np.quantile(np.mean(each, axis=0), [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high))
    by_hand = [
        np.sqrt(252) * ((a.mean() - 0.03 / 252) / a.std(ddof=1) - (b.mean() - 0.03 / 252) / b.std(ddof=1))
        for a, b in zip(ours, others)
    ]
    assert found.value == pytest.approx(np.mean(by_hand))


def test_draws_are_the_ratios_of_the_days_drawn():
    daily = np.random.default_rng(5).normal(0.001, 0.01, size=(4, 90))
    drawn = stationary_days(90, 50, block=7)
    expected = [[float(annual_sharpe(series[days])) for series in daily] for days in drawn]
    np.testing.assert_allclose(sharpe_draws(daily, drawn), expected, rtol=1e-10)


def test_ladder_by_hand():
    daily = np.array([[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]])
    np.testing.assert_allclose(ladder(daily, np.array([7, 9])), [0.1, 0.2, (0.3 + 0.5) / 2, 0.6, 0.7])
