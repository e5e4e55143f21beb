"""The shipped networks: what they earn is recomputed from the embedded prices by hand."""

import time

import numpy as np
import pytest

pytest.importorskip("skfolio")
from linsat_studies.checkpoints import CheckpointError
from linsat_studies.portfolio.shipped import CHECKPOINTS, load_shipped, shipped_curves


@pytest.fixture(scope="module")
def curves():
    return shipped_curves()


def test_files_are_small():
    assert sum(path.stat().st_size for path in CHECKPOINTS.iterdir()) < 300_000


def test_curves_are_what_the_weights_earn(curves):
    prices = curves.windows.prices
    first = int(np.searchsorted(prices.dates, np.datetime64("2021-03-01")))
    assert len(curves.windows) == 94
    values, dates = curves.values(), curves.dates
    assert dates[0] == prices.dates[first - 1]
    assert dates[-1] <= np.datetime64("2021-12-30")
    assert list(values) == ["layer", "softmax", "softmax + projection", "equal weight", "equal weight, preference"]
    for name, outcome in curves.outcomes.items():
        assert len(values[name]) == len(dates)
        ratios, by_day = [], [[] for _ in dates[1:]]
        for k, weights in enumerate(outcome.weights):
            held = prices.values[first + k - 1 : first + k + 120]
            daily = (held[1:] / held[:-1] - 1) @ weights
            ratios.append((252 * daily.mean() - 0.03) / (np.sqrt(252) * daily.std(ddof=1)))
            for day, earned in enumerate(daily, start=k):
                by_day[day].append(earned)
        assert outcome.summary()["mean_sharpe"] == pytest.approx(np.mean(ratios), abs=1e-9)
        expected = np.cumprod([1.0] + [1 + np.mean(earned) for earned in by_day])
        np.testing.assert_allclose(values[name], expected, atol=1e-6)


def test_rows_hold_where_the_preference_is_asked_for(curves):
    chosen = [curves.windows.prices.tickers.index(name) for name in ("AAPL", "MSFT")]
    for name, outcome in curves.outcomes.items():
        np.testing.assert_allclose(outcome.weights.sum(1), 1, atol=1e-9)
        assert outcome.weights.min() >= 0
        if name not in ("softmax", "equal weight"):
            assert outcome.weights[:, chosen].sum(1).min() >= 0.5 - 1e-9


def test_it_takes_a_moment(curves):
    start = time.process_time()
    shipped_curves()
    assert time.process_time() - start < 2


def test_figures_and_other_techniques(curves):
    assert len(curves.value_figure().axes[0].lines) == 5
    assert curves.weights_figure().axes
    with pytest.raises(CheckpointError, match="'two-stage'"):
        load_shipped("two-stage")
