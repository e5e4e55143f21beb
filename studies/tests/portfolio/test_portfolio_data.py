"""Prices and windows: what is refused, what a window holds, and that nothing of the future is seen."""

import numpy as np
import pytest

from linsat_studies.portfolio.config import Periods
from linsat_studies.portfolio.data import (
    PriceError,
    Prices,
    Windows,
    embedded_prices,
    find_prices,
    held_out,
    read_prices,
    training_windows,
)
from linsat_studies.portfolio.data import test_windows as windows_of_test

SHORT = Periods("2020-01-01", "2020-03-31", "2020-04-10", "2020-05-31", past=10, future=5)


def business_days(first, last):
    days = np.arange(np.datetime64(first), np.datetime64(last) + 1)
    return days[np.is_busday(days)]


def random_prices(first="2020-01-01", last="2020-06-30", assets=4, seed=0):
    dates = business_days(first, last)
    steps = np.random.default_rng(seed).normal(0, 0.02, size=(len(dates), assets))
    return Prices(dates, tuple("ABCDEFGH"[:assets]), 100 * np.exp(np.cumsum(steps, axis=0)))


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_is_read_as_it_stands(tmp_path):
    prices = read_prices(write(tmp_path / "p.csv", ["Date,X,Y", "2020-01-02,1.5,20", "2020-01-03 00:00:00,1.25,21"]))
    assert prices.tickers == ("X", "Y")
    assert [str(day) for day in prices.dates] == ["2020-01-02", "2020-01-03"]
    np.testing.assert_array_equal(prices.values, [[1.5, 20], [1.25, 21]])


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["date,X", "2020-01-02,1", "2020-01-03,"], "X has no price on 2020-01-03"),
        (["date,X", "2020-01-02,1", "2020-01-03,nan"], "X has no price on 2020-01-03"),
        (["date,X", "2020-01-02,1", "2020-01-03,0"], "the price 0 on 2020-01-03"),
        (["date,X", "2020-01-02,-3", "2020-01-03,1"], "the price -3 on 2020-01-02"),
        (["date,X", "2020-01-02,1", "2020-01-02,1"], "2020-01-02 occurs twice"),
        (["date,X", "2020-01-03,1", "2020-01-02,1"], "comes after a later day"),
        (["date,X", "2020-01-03,1", "2020-03-02,1"], "no prices between 2020-01-03 and 2020-03-02"),
        (["date,X,X", "2020-01-02,1,2", "2020-01-03,1,2"], "X occurs twice in the header"),
        (["date,X", "2020-01-02,1", "2020-01-03,abc"], "'abc'; expected a number"),
        (["date,X", "02/01/2020,1", "2020-01-03,1"], "expected a date"),
        (["date,X", "2020-01-02,1,4", "2020-01-03,1"], "line 2 has 3 cells"),
        (["date,X"], "holds no table"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, lines, named):
    with pytest.raises(PriceError) as caught:
        read_prices(write(tmp_path / "p.csv", lines))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_short_histories_and_unknown_names_are_refused(tmp_path):
    with pytest.raises(PriceError, match="is not a file"):
        read_prices(tmp_path / "none.csv")
    prices = random_prices(last="2020-01-20")
    with pytest.raises(PriceError, match="too short for a training window; its period has 14 trading days.*least 15"):
        training_windows(prices, SHORT)
    with pytest.raises(PriceError, match="too short for a test window"):
        windows_of_test(prices, SHORT)
    with pytest.raises(PriceError, match="prefer names 'ZZZ'"):
        prices.preferred(["A", "ZZZ"])
    with pytest.raises(PriceError, match="--prefer"):
        prices.preferred([])
    assert prices.preferred(["C", "A"]) == [2, 0]


def test_windows_lie_in_their_periods():
    prices = random_prices()
    train, test = training_windows(prices, SHORT), windows_of_test(prices, SHORT)
    inside = [i for i, day in enumerate(prices.dates) if day <= np.datetime64("2020-03-31")]
    expected = [s for s in range(len(prices.dates)) if s - 10 >= inside[0] and s + 4 <= inside[-1]]
    assert train.starts.tolist() == expected
    held = [
        i for i, day in enumerate(prices.dates) if np.datetime64("2020-04-10") <= day <= np.datetime64("2020-05-31")
    ]
    assert test.starts.tolist() == [s for s in held if s + 4 <= held[-1]]
    assert train.last_held().max() <= np.datetime64("2020-03-31")
    assert test.first_held().min() >= np.datetime64("2020-04-10")
    assert test.last_held().max() <= np.datetime64("2020-05-31")


def test_a_window_holds_what_its_days_say():
    prices = random_prices()
    window = Windows(prices, np.array([30]), 10, 5)
    p = prices.values
    np.testing.assert_allclose(window.seen()[0], np.log(p[20:30] / p[29]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(window.growth()[0], np.log(p[30:35] / p[29]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(window.returns()[0], p[30:35] / p[29:34] - 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(window.past_returns()[0], p[21:30] / p[20:29] - 1, rtol=0, atol=1e-12)


def test_no_look_ahead():
    """Prices of the days held, and all later ones, change nothing that is seen before; the days seen do."""
    prices = random_prices()
    for start in windows_of_test(prices, SHORT).starts:
        changed = prices.values.copy()
        changed[start:] *= np.random.default_rng(1).uniform(0.5, 2, size=changed[start:].shape)
        before = Windows(prices, np.array([start]), 10, 5)
        after = Windows(Prices(prices.dates, prices.tickers, changed), np.array([start]), 10, 5)
        np.testing.assert_array_equal(before.seen(), after.seen())
        np.testing.assert_array_equal(before.past_returns(), after.past_returns())
        assert not np.allclose(before.returns(), after.returns())


def test_training_never_touches_the_days_after_its_period():
    prices = random_prices()
    changed = prices.values.copy()
    changed[prices.dates > np.datetime64("2020-03-31")] *= 3
    one, other = (
        training_windows(Prices(prices.dates, prices.tickers, values), SHORT) for values in (prices.values, changed)
    )
    np.testing.assert_array_equal(one.seen(), other.seen())
    np.testing.assert_array_equal(one.growth(), other.growth())
    np.testing.assert_array_equal(one.returns(), other.returns())


def test_windows_held_out_share_no_future_with_those_learned():
    learned, validated = held_out(training_windows(random_prices(), SHORT), "2020-03-02")
    assert learned.last_held().max() < np.datetime64("2020-03-02") <= validated.first_held().min()
    with pytest.raises(PriceError, match="leaves 0 windows to learn"):
        held_out(training_windows(random_prices(), SHORT), "2020-01-02")


def test_the_papers_periods_give_94_test_windows():
    # New York's calendar is not to hand: business days less nothing, so a few windows more than the exchange's 94.
    prices = random_prices("2018-01-01", "2021-12-31", assets=2)
    test = windows_of_test(prices, Periods())
    days = int(np.is_busday(np.arange(np.datetime64("2021-03-01"), np.datetime64("2021-12-31"))).sum())
    assert len(test) == days - 119
    assert test.starts[0] - 120 == np.searchsorted(prices.dates, test.first_held()[0]) - 120


def test_embedded_prices_need_no_file(monkeypatch):
    pytest.importorskip("skfolio")
    monkeypatch.delenv("LINSAT_DATA", raising=False)
    prices = find_prices()
    assert len(prices.tickers) == 20
    assert prices.fingerprint == embedded_prices().fingerprint
    assert [prices.tickers[i] for i in prices.preferred([])] == ["AAPL", "MSFT"]
    assert len(training_windows(prices, Periods())) > 500
    assert len(windows_of_test(prices, Periods())) == 94


def test_the_environment_names_a_folder_of_data(tmp_path, monkeypatch):
    (tmp_path / "prices").mkdir()
    write(tmp_path / "prices" / "a.csv", ["date,X", "2020-01-02,1", "2020-01-03,2"])
    monkeypatch.setenv("LINSAT_DATA", str(tmp_path))
    assert find_prices().tickers == ("X",)
    write(tmp_path / "prices" / "b.csv", ["date,X", "2020-01-02,1", "2020-01-03,2"])
    with pytest.raises(PriceError, match="holds 2 CSV files"):
        find_prices()
