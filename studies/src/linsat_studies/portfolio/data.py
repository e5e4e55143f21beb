"""Prices of assets day by day, and the windows cut out of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from linsat_studies.files import read_table
from linsat_studies.portfolio.config import PAPER_PREFERRED, Periods

Array = np.ndarray
ENVIRONMENT = "LINSAT_DATA"
_LONGEST_GAP = 10  # calendar days between two trading days; exchanges have closed for a week at most


class PriceError(ValueError):
    """Prices are missing, malformed or too few; the message says where and what was expected."""


@dataclass(frozen=True, eq=False)
class Prices:
    """A price of every asset on every trading day.

    Args:
        dates: (days,) datetime64[D], ascending.
        tickers: names of the assets.
        values: (days, assets), positive.
        source: where they come from, for messages.

    Raises:
        PriceError: duplicate or unordered dates or tickers, a gap in the calendar, values that are not positive.
    """

    dates: Array
    tickers: tuple[str, ...]
    values: Array
    source: str = "prices"

    def __post_init__(self) -> None:
        self._check_tickers()
        self._check_dates()
        if self.values.shape != (len(self.dates), len(self.tickers)):
            raise PriceError(
                f"{self.source}: prices have shape {self.values.shape}; expected ({len(self.dates)} days, "
                f"{len(self.tickers)} assets)."
            )
        wrong = np.argwhere(~(np.isfinite(self.values) & (self.values > 0)))
        if len(wrong):
            day, asset = wrong[0]
            value = self.values[day, asset]
            what = "no price" if np.isnan(value) else f"the price {value:g}"
            raise PriceError(
                f"{self.source}: {self.tickers[asset]} has {what} on {self.dates[day]} ({len(wrong)} such cells); "
                f"expected a positive price every day. Fix: fill the gap or drop the asset."
            )

    def _check_tickers(self) -> None:
        if not self.tickers:
            raise PriceError(f"{self.source}: no assets; expected a header of the form date,TICKER,TICKER,...")
        for name in self.tickers:
            if self.tickers.count(name) > 1:
                raise PriceError(f"{self.source}: {name} occurs twice in the header. Fix: drop one column.")

    def _check_dates(self) -> None:
        steps = np.diff(self.dates).astype(int)
        for bad, what in ((steps == 0, "occurs twice"), (steps < 0, "comes after a later day")):
            if bad.any():
                day = self.dates[1:][bad][0]
                raise PriceError(f"{self.source}: {day} {what}; expected one line a day, oldest first. Fix: sort it.")
        if (steps > _LONGEST_GAP).any():
            at = int(np.argmax(steps > _LONGEST_GAP))
            raise PriceError(
                f"{self.source}: no prices between {self.dates[at]} and {self.dates[at + 1]}; expected every trading "
                f"day. Fix: fill the gap."
            )

    def indices(self, names: Sequence[str]) -> list[int]:
        """Columns of the named assets.

        Raises:
            PriceError: a name that there is no price of.
        """
        for name in names:
            if name not in self.tickers:
                near = [ticker for ticker in self.tickers if ticker.upper().startswith(name[:1].upper())][:8]
                raise PriceError(
                    f"prefer names {name!r}, of which {self.source} has no price. Fix: correct it; there is "
                    f"{', '.join(near) if near else ', '.join(self.tickers[:8])}, for example."
                )
        return [self.tickers.index(name) for name in names]

    def preferred(self, names: Sequence[str]) -> list[int]:
        """Columns of the preferred assets: those named, or the paper's six as far as they are there."""
        if names:
            return self.indices(names)
        found = [name for name in PAPER_PREFERRED if name in self.tickers]
        if not found:
            raise PriceError(f"{self.source} has none of {', '.join(PAPER_PREFERRED)}. Fix: name others by --prefer.")
        return self.indices(found)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that differs for different prices."""
        content = hashlib.sha256(",".join(self.tickers).encode())
        content.update(np.ascontiguousarray(self.values).tobytes())
        content.update(self.dates.astype("datetime64[D]").astype(np.int64).tobytes())
        return content.hexdigest()[:16]

    @cached_property
    def log_values(self) -> Array:
        """(days, assets)"""
        return np.log(self.values)

    @cached_property
    def returns(self) -> Array:
        """(days - 1, assets): row t is p[t + 1] / p[t] - 1."""
        return self.values[1:] / self.values[:-1] - 1


def read_prices(path: str | Path) -> Prices:
    """Prices from a CSV file: a header ``date,TICKER,TICKER,...``, then one line a day, oldest first.

    Raises:
        PriceError: see `Prices`; also cells that are no numbers, lines that are too short or too long.
    """
    path = Path(path)
    if not path.is_file():
        raise PriceError(f"{path} is not a file; expected a CSV of prices. Fix: correct the path.")
    try:
        lines = read_table(path)
    except ValueError as error:
        raise PriceError(str(error)) from None
    if len(lines) < 3 or len(lines[0]) < 2:
        raise PriceError(f"{path} holds no table; expected a header date,TICKER,... and one line for each day.")
    header, rows = lines[0], lines[1:]
    tickers = tuple(name.strip() for name in header[1:])
    dates, values = [], np.empty((len(rows), len(tickers)))
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise PriceError(
                f"{path}: line {number + 2} has {len(row)} cells; expected {len(header)} as in the header."
            )
        try:
            dates.append(date.fromisoformat(row[0].strip()[:10]))
        except ValueError:
            raise PriceError(
                f"{path}: line {number + 2} starts with {row[0]!r}; expected a date, YYYY-MM-DD."
            ) from None
        values[number] = [_cell(path, row[0], ticker, cell) for ticker, cell in zip(tickers, row[1:])]
    return Prices(np.array(dates, dtype="datetime64[D]"), tickers, values, path.name)


def _cell(path: Path, day: str, ticker: str, cell: str) -> float:
    try:
        return float(cell) if cell.strip() else np.nan
    except ValueError:
        raise PriceError(f"{path}: {ticker} on {day} is {cell!r}; expected a number.") from None


def embedded_prices() -> Prices:
    """Twenty S&P 500 stocks, 1990 to 2022, that the skfolio package carries; needs no network."""
    from skfolio.datasets import load_sp500_dataset

    frame: Any = load_sp500_dataset()
    dates = frame.index.values.astype("datetime64[D]")
    return Prices(dates, tuple(frame.columns), frame.to_numpy(dtype=float), "skfolio's S&P 500 data set")


def find_prices(path: str | Path | None = None, data: str | Path | None = None) -> Prices:
    """The prices to use: the file ``path``; else the one CSV file in the folder ``prices`` of ``data``, or of the
    folder that the environment variable LINSAT_DATA names; else the embedded ones."""
    if path is not None:
        return read_prices(path)
    folder = data if data is not None else os.environ.get(ENVIRONMENT)
    if not folder:
        return embedded_prices()
    found = sorted((Path(folder) / "prices").glob("*.csv"))
    if len(found) != 1:
        raise PriceError(f"{Path(folder) / 'prices'} holds {len(found)} CSV files; expected one. Fix: pass --prices.")
    return read_prices(found[0])


@dataclass(frozen=True, eq=False)
class Windows:
    """Stretches of days: ``past`` that are seen, then ``future`` that weights are held.

    ``starts`` (windows,) are the first days held, as indices into the prices: weights are chosen at the close of the
    day before and earn the returns from that close on, so ``future`` prices make ``future`` daily returns.
    """

    prices: Prices
    starts: Array
    past: int
    future: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, which: slice | Array) -> Windows:
        return Windows(self.prices, np.atleast_1d(self.starts[which]), self.past, self.future)

    def seen(self) -> Array:
        """(windows, past, assets): log price relative to the last seen one."""
        days = self.starts[:, None] + np.arange(-self.past, 0)
        logs = self.prices.log_values
        return logs[days] - logs[self.starts - 1][:, None]

    def growth(self) -> Array:
        """(windows, future, assets): log price relative to the last seen one."""
        days = self.starts[:, None] + np.arange(self.future)
        logs = self.prices.log_values
        return logs[days] - logs[self.starts - 1][:, None]

    def returns(self) -> Array:
        """(windows, future, assets): p[t] / p[t - 1] - 1 of each day held."""
        days = self.starts[:, None] + np.arange(self.future)
        return self.prices.returns[days - 1]

    def past_returns(self) -> Array:
        """(windows, past - 1, assets): daily returns within the days seen."""
        days = self.starts[:, None] + np.arange(1 - self.past, 0)
        return self.prices.returns[days - 1]

    def first_held(self) -> Array:
        """(windows,) dates"""
        return self.prices.dates[self.starts]

    def last_held(self) -> Array:
        """(windows,) dates"""
        return self.prices.dates[self.starts + self.future - 1]


def training_windows(prices: Prices, periods: Periods) -> Windows:
    """All windows whose input and future lie in the training period, oldest first."""
    first, last = _span(prices, periods.train_from, periods.train_to)
    starts = np.arange(first + periods.past, last - periods.future + 2)
    return _at_least_one(prices, periods, starts, "training", last + 1 - first, periods.past + periods.future)


def test_windows(prices: Prices, periods: Periods) -> Windows:
    """All windows whose future lies in the test period, oldest first; their inputs are the days before."""
    first, last = _span(prices, periods.test_from, periods.test_to)
    starts = np.arange(max(first, periods.past), last - periods.future + 2)
    return _at_least_one(prices, periods, starts, "test", last + 1 - first, periods.future)


test_windows.__test__ = False  # type: ignore[attr-defined]  # pytest collects functions of that name


def held_out(windows: Windows, since: str) -> tuple[Windows, Windows]:
    """(windows whose future ends before ``since``, windows whose future begins on that day or later)."""
    day = np.datetime64(since)
    before, after = windows[windows.last_held() < day], windows[windows.first_held() >= day]
    if not len(before) or not len(after):
        raise PriceError(
            f"held_out_from is {since}: it leaves {len(before)} windows to learn, {len(after)} to validate."
        )
    return before, after


def _span(prices: Prices, first: str, last: str) -> tuple[int, int]:
    """Indices of the first and the last trading day in a period."""
    begin = int(np.searchsorted(prices.dates, np.datetime64(first), side="left"))
    return begin, int(np.searchsorted(prices.dates, np.datetime64(last), side="right")) - 1


def _at_least_one(prices: Prices, periods: Periods, starts: Array, name: str, days: int, needed: int) -> Windows:
    if not len(starts):
        raise PriceError(
            f"{prices.source}: too short for a {name} window; its period has {max(days, 0)} trading days, expected at "
            f"least {needed} (prices run from {prices.dates[0]} to {prices.dates[-1]}). Fix: other prices or periods."
        )
    return Windows(prices, starts, periods.past, periods.future)
