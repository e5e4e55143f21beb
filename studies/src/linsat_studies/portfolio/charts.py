"""Charts of the study: value over time, weights over time, Sharpe ratio by seed, differences with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat_studies.figures import new_figure
from linsat_studies.portfolio.programs import Preference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "layer": "#1f5fa8",
    "softmax": "#8c8c8c",
    "two-stage": "#b5651d",
    "layer, slack-free": "#5b8fcf",
    "layer, Euclidean": "#7a5fb5",
    "softmax + projection": "#3a9a6e",
    "two-stage, past covariance": "#d9a441",
}
NAMES = {"lstm": "LSTM", "stemgnn": "StemGNN"}


def value_chart(
    dates: np.ndarray,
    values: Mapping[str, Mapping[str, np.ndarray]],
    baselines: Mapping[str, np.ndarray],
) -> Figure:
    """Value of one unit over the test period.

    Args:
        dates: (days + 1,) the first is the day before the period.
        values: predictor -> technique -> (seeds, days + 1); the mean is drawn, and the range as a band.
        baselines: name -> (days + 1,), drawn in both panels.
    """
    figure = new_figure(5.4 * max(len(values), 1), 4.2)
    all_axes = figure.subplots(1, max(len(values), 1), squeeze=False, sharey=True)[0]
    for axes, (predictor, techniques) in zip(all_axes, values.items()):
        for dash, (name, value) in zip(("--", ":", "-."), baselines.items()):
            axes.plot(dates, value, color="#444444", lw=1.0, ls=dash, label=name)
        for name, runs in techniques.items():
            axes.plot(dates, runs.mean(0), color=COLOURS[name], lw=2.0 if name == "layer" else 1.4, label=name)
            axes.fill_between(dates, runs.min(0), runs.max(0), color=COLOURS[name], alpha=0.12, lw=0)
        axes.set_title(NAMES[predictor], fontsize=11)
        _months(axes)
        _plain(axes)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    all_axes[0].set_ylabel("value of 1 invested")
    return figure


def weights_chart(
    dates: np.ndarray, weights: Mapping[str, np.ndarray], tickers: Sequence[str], preference: Preference
) -> Figure:
    """Weights over time, stacked: the preferred assets one by one, the largest others, the rest together.

    Args:
        dates: (windows,) when weights were chosen.
        weights: title -> (windows, assets).
        tickers: of all assets.
        preference: its least share is drawn as a line.
    """
    preferred = list(preference.preferred)
    figure = new_figure(5.4 * max(len(weights), 1), 4.2)
    all_axes = figure.subplots(1, max(len(weights), 1), squeeze=False, sharey=True)[0]
    for axes, (title, chosen) in zip(all_axes, weights.items()):
        others = [i for i in np.argsort(-chosen.mean(0)) if i not in set(preferred)][:4]
        shown = [*preferred, *others]
        rest = 1 - chosen[:, shown].sum(1)
        labels = [tickers[i] for i in shown] + [f"{chosen.shape[1] - len(shown)} others"]
        blues = [(0.07 + 0.11 * k, 0.32 + 0.09 * k, 0.62 + 0.05 * k) for k in range(len(preferred))]
        warm = ["#c9772b", "#d9a05b", "#e3bd8a", "#eed9bb"][: len(others)]
        colours = [tuple(min(part, 0.95) for part in blue) for blue in blues] + warm + ["#e6e6e6"]
        axes.stackplot(dates, *chosen[:, shown].T, rest, colors=colours, labels=labels, lw=0)
        axes.axhline(preference.at_least, color="white", lw=1, ls="--")
        axes.set_title(title, fontsize=11)
        axes.set_ylim(0, 1)
        axes.margins(x=0)
        _months(axes)
        handles, names = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], names[::-1], fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    all_axes[0].set_ylabel("share of the portfolio")
    return figure


def seeds_chart(ratios: Mapping[str, Mapping[str, np.ndarray]], stated: Mapping[Any, float]) -> Figure:
    """Mean Sharpe ratio of every run: a dot for each seed, a bar for their mean, a cross for the paper's figure."""
    figure = new_figure(5.4 * max(len(ratios), 1), 3.9)
    all_axes = figure.subplots(1, max(len(ratios), 1), squeeze=False, sharey=True)[0]
    for axes, (predictor, techniques) in zip(all_axes, ratios.items()):
        for place, (name, values) in enumerate(techniques.items()):
            offsets = place + np.linspace(-0.15, 0.15, len(values))
            axes.plot(offsets, values, "o", color=COLOURS[name], ms=5, alpha=0.8)
            axes.plot([place - 0.3, place + 0.3], [np.mean(values)] * 2, color=COLOURS[name], lw=2)
            if (predictor, name) in stated:
                label = "paper" if place == 0 else None
                axes.plot(place, stated[predictor, name], "x", color="#111111", ms=7, label=label)
        axes.set_xticks(
            range(len(techniques)), [name.replace(", ", ",\n").replace(" + ", " +\n") for name in techniques]
        )
        axes.tick_params(axis="x", labelsize=8)
        axes.set_title(NAMES[predictor], fontsize=11)
        _plain(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=9)
    all_axes[0].set_ylabel("mean Sharpe ratio")
    return figure


def differences_chart(records: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Paired differences of Sharpe ratios with their intervals, a panel for each walk-forward.

    Args:
        records: title -> what `walk-forward` recorded.
    """
    figure = new_figure(5.6 * max(len(records), 1), 4.6)
    all_axes = figure.subplots(1, max(len(records), 1), squeeze=False, sharey=True)[0]
    for axes, (title, record) in zip(all_axes, records.items()):
        rows = record["differences"]
        places = {(row["of"], row["less"]): -place for place, row in enumerate(rows)}
        kinds = (
            (rows, 0.15, COLOURS["layer"], "the study's names"),
            (record["placebo"]["differences"], -0.15, COLOURS["two-stage"], "mean of random sets"),
        )
        axes.axvline(0, color="#444444", lw=1)
        for found, shift, colour, label in kinds:
            for i, row in enumerate(found):
                place = places[row["of"], row["less"]] + shift
                axes.plot([row["low"], row["high"]], [place, place], color=colour, lw=2, alpha=0.6)
                axes.plot(row["value"], place, "o", color=colour, ms=5, label=label if i == 0 else None)
        axes.set_yticks(list(places.values()), [f"{of} \u2212 {less}" for of, less in places], fontsize=8)
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("difference of Sharpe ratios, 95 % interval")
        _plain(axes)
    all_axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _plain(axes: Axes) -> None:
    axes.grid(True, color="#e4e4e4")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _months(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
