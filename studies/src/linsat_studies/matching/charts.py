"""Charts of the study: F1 by technique, F1 by class, rounding against tau, estimated against true phi."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from linsat_studies.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, OTHER, BASE, PAPER = "#1f5fa8", "#b5651d", "#8c8c8c", "#111111"


def technique_chart(rows: Mapping[str, Sequence[float]], stated: Mapping[str, float], *, ours: str) -> Figure:
    """Mean F1 of every row of table 2: a dot for each seed, a bar for their mean, a cross for the paper's figure.

    Args:
        rows: label -> mean F1 of each seed, in per cent.
        stated: label -> the paper's figure.
        ours: the label that stands out.
    """
    figure = new_figure(8.4, 0.5 * len(rows) + 1.3)
    axes = figure.subplots()
    for place, (name, values) in enumerate(rows.items()):
        colour = OURS if name == ours else BASE if name not in stated else OTHER
        offsets = place + np.linspace(-0.14, 0.14, len(values)) if len(values) > 1 else [place]
        axes.plot(values, offsets, "o", color=colour, ms=5, alpha=0.8)
        axes.plot([np.mean(values)] * 2, [place - 0.32, place + 0.32], color=colour, lw=2)
    for number, (name, value) in enumerate(stated.items()):
        place = list(rows).index(name)
        axes.plot(value, place, "x", color=PAPER, ms=7, label="paper (fine-tuned VGG16)" if number == 0 else None)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel("mean F1 over classes, %")
    _plain(axes)
    if stated:
        axes.legend(frameon=False, fontsize=9, loc="lower left")
    return figure


def class_chart(rows: Mapping[str, Mapping[str, float]], *, ours: str) -> Figure:
    """F1 by class: a mark for each technique, classes in order of ours.

    Args:
        rows: technique -> class -> mean F1, in per cent.
        ours: the technique that orders the classes and stands out.
    """
    classes = sorted(rows[ours], key=lambda name: rows[ours][name])
    figure = new_figure(8.4, 0.26 * len(classes) + 1.3)
    axes = figure.subplots()
    shades = iter((OTHER, BASE, "#3a9a6e", "#d9a441", "#a06fb0", "#c05a6a", "#6c8f2f"))
    for name, values in rows.items():
        colour = OURS if name == ours else next(shades)
        marks = [values[one] for one in classes]
        first = name == ours
        axes.plot(marks, range(len(classes)), "o", color=colour, ms=7 if first else 4.5, label=name, zorder=3 + first)
    axes.set_yticks(range(len(classes)), classes, fontsize=9)
    axes.set_xlabel("mean F1 over pairs, %")
    _plain(axes)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def rounding_chart(
    ours: Mapping[float, tuple[float, float]], stated: Mapping[float, tuple[float, float]], best: float
) -> Figure:
    """Feasible share and F1 of plain rounding against tau.

    Args:
        ours: tau -> (share of feasible pairs, their mean F1), both in per cent.
        stated: the same of the paper.
        best: mean F1 of the Hungarian decoder, drawn as a line.
    """
    figure = new_figure(8.8, 3.5)
    panels = figure.subplots(1, 2)
    for axes, which, label in zip(panels, (0, 1), ("feasible after rounding, % of pairs", "mean F1 of these, %")):
        for found, colour, name in ((ours, OURS, "ours"), (stated, PAPER, "paper")):
            taus = sorted(found)
            axes.plot(taus, [found[tau][which] for tau in taus], "o-", color=colour, lw=1.6, ms=5, label=name)
        axes.set_xscale("log")
        ticks = sorted(set(ours) | set(stated))
        axes.set_xticks(ticks, [f"{tau:g}" for tau in ticks], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel("tau")
        axes.set_ylabel(label)
        _plain(axes)
    panels[1].axhline(best, color=OURS, lw=1, ls="--", label="ours, Hungarian with phi highest")
    for axes in panels:
        axes.legend(frameon=False, fontsize=8)
    return figure


def phi_chart(phi: np.ndarray, estimated: np.ndarray) -> Figure:
    """How often each number of pairs was estimated for each true number.

    Args:
        phi: (pairs,) true numbers.
        estimated: (pairs,) estimates, rounded where drawn.
    """
    from matplotlib.ticker import MaxNLocator

    guess = np.clip(np.rint(estimated), 0, None).astype(int)
    size = int(max(phi.max(), guess.max())) + 1
    counts = np.zeros((size, size))
    np.add.at(counts, (phi.astype(int), guess), 1)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = new_figure(4.9, 4.4)
    axes = figure.subplots()
    image = axes.imshow(shares.T, origin="lower", cmap="Blues", vmin=0)
    axes.plot([0, size - 1], [0, size - 1], color=PAPER, lw=0.8, ls="--")
    axes.set_xlabel("true number of pairs")
    axes.set_ylabel("estimated, rounded")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes, label="share of the pairs with that true number", shrink=0.85)
    return figure


def learning_chart(curves: Mapping[str, Sequence[Mapping[str, float]]], *, ours: str) -> Figure:
    """Validation error against steps, a line for each run.

    Args:
        curves: name -> points with ``step`` and ``validation``; names alike up to the last space share a colour.
        ours: the start of the names that stand out.
    """
    figure = new_figure(8.4, 3.9)
    axes = figure.subplots()
    shades = iter((OTHER, BASE, "#3a9a6e", "#d9a441", "#a06fb0", "#c05a6a", "#6c8f2f", "#3fa7b8", "#7a5c3e"))
    colours: dict[str, str] = {}
    for name, points in curves.items():
        kind = name.rpartition(" ")[0] or name
        label = kind if kind not in colours else None
        if kind not in colours:
            colours[kind] = OURS if kind == ours else next(shades, BASE)
        steps, values = [one["step"] for one in points], [one["validation"] for one in points]
        axes.plot(steps, values, color=colours[kind], lw=1.3, alpha=0.9, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("1 - F1 on validation pairs")
    _plain(axes)
    axes.legend(frameon=False, fontsize=8)
    return figure


def _plain(axes: Axes) -> None:
    axes.grid(True, color="#e4e4e4")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
