"""Charts of measurements: gap against time, and learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from linsat_studies.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"se": "TSP-SE", "pri": "TSP-PRI"}
OURS, RIVAL, OTHER = "#1f5fa8", "#b5651d", "#4b8b3b"


def equal_time_chart(measured: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Figure:
    """Gap against seconds: for each task, (network rows by beam width, random-start rows by number of starts)."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = new_figure(4.9 * len(measured), 3.9)
    for axes, (task, (ours, theirs)) in zip(figure.subplots(1, len(measured), squeeze=False)[0], measured.items()):
        for rows, colour, marker, label in (
            (ours, OURS, "o", "network, beam of 1 to 256, one descent"),
            (theirs, RIVAL, "s", "best of K random starts"),
        ):
            points = [(_seconds(row), max(row["gap_percent"], 1e-3), name) for name, row in rows.items()]
            if not points:
                continue
            axes.plot([p[0] for p in points], [p[1] for p in points], marker=marker, ms=5, color=colour, label=label)
            for x, y, name in points if rows is theirs else (points[0], points[-1]):
                axes.annotate(name, (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8, color=colour)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(NAMES[task], fontsize=11)
        axes.set_xlabel("seconds for all instances")
        axes.set_ylabel("gap to the optimum")
        axes.grid(True, which="major", color="#e4e4e4")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    return figure


def _seconds(row: Mapping[str, Any]) -> float:
    seconds = row["seconds"]
    return float(seconds["total"] if isinstance(seconds, dict) else seconds)


def learning_chart(curves: Mapping[str, list[dict[str, Any]]]) -> Figure:
    """Validation length of each task against minutes of training.

    ``curves`` are the lines that training wrote, by the name of the network's file: ``tour_se`` and ``tour_pri`` are
    shown for the task they serve, ``paper_loss`` is the same network trained by the expected length alone.
    """
    figure = new_figure(9.8, 3.9)
    for axes, task in zip(figure.subplots(1, 2), NAMES):
        shown = {
            f"tour_{task}": ("linsat, beam search", OURS),
            "paper_loss": ("linsat, the paper's loss alone, beam search", OTHER),
            "attention": ("Attention Model, greedy", RIVAL),
        }
        for name, (label, colour) in shown.items():
            points = [(line["seconds"] / 60, line[task]) for line in curves.get(name, []) if task in line]
            if points:
                axes.plot(*zip(*points), color=colour, label=label, lw=1.6, marker="o", ms=3)
        axes.set_title(NAMES[task], fontsize=11)
        axes.set_xlabel("minutes of training")
        axes.set_ylabel("mean validation length")
        axes.grid(True, color="#e4e4e4")
        axes.spines[["top", "right"]].set_visible(False)
        if axes.lines:
            axes.legend(frameon=False, fontsize=9)
    return figure
