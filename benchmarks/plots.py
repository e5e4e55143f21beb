"""Plots of one run, each as PNG and SVG: time against batch, l and tau, and violation against time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import methods
import problems
from results import Record, Run, timed

# The two oranges are ours; the rest, after Okabe and Ito and Paul Tol, stay apart for every kind of colour vision.
_COLOURS = ("#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#882255", "#000000", "#999999")
_COLOURS += ("#44AA99", "#999933", "#332288", "#117733", "#AA4499", "#661100", "#6699CC")
_MARKERS = "osD^vP*Xhdp"  # fewer than colours, so that together they tell all methods apart
_OURS = (methods.OURS.name, methods.TORCH.name)
_FLOOR = 1e-9  # smaller violations are drawn here, since the axis is logarithmic
_STYLE = {"svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}


def draw(run: Run, folder: Path, suffixes: Sequence[str] = ("png", "svg")) -> list[str]:
    """Write every plot the run has numbers for, in each format; the file names."""
    pictures = {
        "time-against-batch": _sweep(run, problems.BATCH_SWEEP, "batch", lambda r: r["batch"]),
        "time-against-l": _sweep(run, problems.SIZE_SWEEP, "variables l", lambda r: r["size"] ** 2),
        "time-against-tau": _sweep(run, problems.TAU_SWEEP, "temperature tau", lambda r: r["tau"]),
        "violation-against-time": _trade_off(run),
    }
    written = []
    with mpl.rc_context(_STYLE):
        for name, paint in pictures.items():
            figure = paint()
            if figure is None:
                continue
            for suffix in suffixes:
                figure.savefig(folder / f"{name}.{suffix}", dpi=150)
                written.append(f"{name}.{suffix}")
    return written


def _looks(run: Run) -> dict[str, dict[str, object]]:
    """One colour and marker per method, the same in every plot; our two stand out."""
    names = [name for name in methods.all_methods() if any(method == name for _, method in run)]
    names += [method for _, method in run if method not in names]
    looks = {}
    for i, name in enumerate(dict.fromkeys(names)):
        ours = name in _OURS
        looks[name] = {
            "color": _COLOURS[i % len(_COLOURS)],
            "marker": _MARKERS[i % len(_MARKERS)],
            "linewidth": 2.2 if ours else 1.2,
            "markersize": 7 if ours else 6,
            "zorder": 3 if ours else 2,
        }
    return looks


def _sweep(run: Run, group: str, label: str, position: Callable[[Record], float]) -> Callable[[], Figure | None]:
    """Time per instance of every method over one sweep, both axes logarithmic."""

    def paint() -> Figure | None:
        cases = [c for c in problems.all_problems().values() if group in c.groups and c.objective == problems.ENTROPY]
        figure, axes = _figure(f"{label} ({_fixed(group)})", "seconds per instance, forward + backward")
        for name, look in _looks(run).items():
            records = [r for case in cases if (r := timed(run, case.name, name))]
            points = sorted((position(r), r["total_s"] / r["batch"]) for r in records)
            if len(points) > 1:
                axes.plot(*zip(*points, strict=True), label=name, **look)
        if not axes.lines:
            return None
        if group == problems.TAU_SWEEP:
            axes.invert_xaxis()
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
        return figure

    return paint


def _trade_off(run: Run) -> Callable[[], Figure | None]:
    """Violation against time over the headline cases: down and left is better."""

    def paint() -> Figure | None:
        cases = {c.name: c for c in problems.all_problems().values() if problems.HEADLINE in c.groups}
        shown = [case for case in cases if any(timed(run, case, m) for _, m in run if m not in _OURS)]
        if not shown:
            return None
        columns = min(3, len(shown))
        lines = -(-len(shown) // columns)
        figure = Figure(figsize=(4.2 * columns + 2.2, 3.3 * lines), layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
        for axes, case in zip(grid, shown, strict=False):
            _scatter(axes, run, case, cases[case].title)
        for axes in grid[len(shown) :]:
            axes.set_visible(False)
        figure.supxlabel("seconds, forward + backward")
        figure.supylabel("worst violation of a row (at the bottom: 1e-9 or less)")
        _shared_legend(figure, grid[: len(shown)], _looks(run))
        return figure

    return paint


def _scatter(axes: Axes, run: Run, case: str, title: str) -> None:
    for name, look in _looks(run).items():
        record = timed(run, case, name)
        if record is None:
            continue
        x, y = record["total_s"], max(record["violation"], _FLOOR)
        axes.plot([x], [y], linestyle="", label=name, **look)
    axes.set(xscale="log", yscale="log", title=title.replace(", batch", "\nbatch"))
    axes.title.set_fontsize(9)
    axes.axhline(1e-3, color="#999999", linewidth=0.8, linestyle="--")
    axes.set_ylim(_FLOOR / 3, 1.5)
    axes.xaxis.set_minor_formatter(NullFormatter())
    left, right = (math.log10(end) for end in axes.get_xlim())
    axes.set_xlim(10 ** min(left, math.floor(left + 0.2)), 10 ** max(right, math.ceil(right - 0.2)))  # a label at least
    axes.grid(alpha=0.25)


def _shared_legend(figure: Figure, grid: Sequence[Axes], order: Iterable[str]) -> None:
    entries = {}
    for axes in grid:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    names = [name for name in order if name in entries]
    figure.legend([entries[name] for name in names], names, loc="outside right upper", frameon=False)


def _figure(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.25, which="both")
    return figure, axes


def _fixed(group: str) -> str:
    """What does not change over a sweep."""
    return {
        problems.BATCH_SWEEP: "doubly stochastic 20x20, tau 0.1",
        problems.SIZE_SWEEP: "doubly stochastic, batch 16, tau 0.1",
        problems.TAU_SWEEP: "doubly stochastic 20x20, batch 64",
    }[group]
