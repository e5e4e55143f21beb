"""The pictures of the layer: temperatures, rows held, cost of a step, and where the published iterations end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure, SubFigure

import linsat
from guided_tour.comparison import NOTABLE, TEMPERATURES, Comparison, counter_example_rows, published_layer, short
from linsat_studies.figures import new_figure

OURS, THEIRS = "#0b6e99", "#d9730d"


def draw(results: list[Comparison], iterations: int, path: Path) -> None:
    """Temperatures and rows in one picture file."""
    figure = Figure(figsize=(12, 7.6), dpi=130)
    above, below = figure.subfigures(2, 1, height_ratios=[1.0, 1.4])
    heading(above, 0.93, "One score matrix, made doubly stochastic: smaller tau, closer to a permutation")
    draw_temperatures(above, top=0.76)
    heading(below, 0.945, "How far the rows are from holding, worst of the batch")
    draw_violations(below.add_axes((0.19, 0.13, 0.775, 0.7)), results, iterations)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def temperatures_figure() -> Figure:
    """For the page: without its heading."""
    figure = Figure(figsize=(12, 3.0))
    draw_temperatures(figure, top=0.88)
    return figure


def violations_figure(results: list[Comparison], iterations: int) -> Figure:
    """For the page."""
    figure = Figure(figsize=(11, 4.6))
    draw_violations(figure.add_axes((0.215, 0.13, 0.765, 0.76)), results, iterations)
    return figure


def draw_temperatures(figure: Figure | SubFigure, *, top: float) -> None:
    """The scores of one instance, and its x at four temperatures."""
    size, temperatures = 8, (1.0, 0.3, 0.1, 0.01)
    constraints = linsat.constraints.doubly_stochastic(size)
    y = torch.randn(size * size, generator=torch.Generator().manual_seed(0))
    panels = figure.subplots(1, len(temperatures) + 1)
    figure.subplots_adjust(left=0.03, right=0.925, top=top, bottom=0.1, wspace=0.16)
    panels[0].imshow(y.reshape(size, size).tolist(), cmap="PuOr", vmin=-2.5, vmax=2.5)
    panels[0].set_title("scores y", fontsize=11)
    panels[0].set_xlabel("purple high, orange low", fontsize=9)
    for panel, tau in zip(panels[1:], temperatures, strict=True):
        x = linsat.project(y, constraints, tau=tau)
        shown = panel.imshow(x.reshape(size, size).tolist(), cmap="Blues", vmin=0, vmax=1)
        panel.set_title(f"x, tau = {tau:g}", fontsize=11)
        panel.set_xlabel(f"sums are 1 up to {short(float(constraints.violation(x)))}", fontsize=9)
    for panel in panels:
        panel.set_xticks([])
        panel.set_yticks([])
    add_colour_bar(figure, shown)


def heading(figure: Figure | SubFigure, height: float, text: str) -> None:
    figure.text(0.03, height, text, fontsize=13, fontweight="bold", va="center")


def add_colour_bar(figure: Figure | SubFigure, shown: ScalarMappable) -> None:
    bar = figure.colorbar(shown, cax=figure.add_axes((0.94, 0.14, 0.012, 0.58)), ticks=[0, 0.5, 1])
    bar.ax.tick_params(labelsize=9)
    bar.outline.set_visible(False)


def draw_violations(axes: Axes, results: list[Comparison], iterations: int) -> None:
    """One line per case and temperature, on a logarithmic axis; an exact 0 sits at the left end."""
    axes.set_xscale("log")
    axes.set_xlim(1e-10, max(20.0, 8 * max(r.theirs.violation for r in results)))
    axes.set_ylim(len(results) - 0.4, -0.6)
    for line, r in enumerate(results):
        if line % (2 * len(TEMPERATURES)) < len(TEMPERATURES):
            axes.axhspan(line - 0.5, line + 0.5, color="0.96", zorder=0)
        left = draw_point(axes, line, r.ours.violation, OURS, -1)
        right = draw_point(axes, line, r.theirs.violation, THEIRS, 1)
        axes.plot([left, right], [line, line], color="0.8", linewidth=2.5, zorder=1)
    axes.axvline(NOTABLE, color="0.45", linestyle=":", linewidth=1.2, zorder=1)
    axes.text(NOTABLE * 0.85, len(results) - 0.55, f"{NOTABLE:.0%}", fontsize=9, color="0.35", ha="right")
    axes.set_yticks(range(len(results)), [f"{r.case.name}, tau = {r.tau:g}" for r in results])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("worst violation of any row, as a share of its right-hand side (logarithmic axis)")
    for label, colour in (("linsat", OURS), (f"published package, {iterations} iterations", THEIRS)):
        axes.scatter([], [], color=colour, s=60, label=label)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=2, frameon=False, handletextpad=0.1)
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_point(axes: Axes, line: int, violation: float, colour: str, side: int) -> float:
    """A dot with its value beside it, to the left (side -1) or to the right (1); returns where it sits."""
    at = max(violation, 4e-10)
    axes.scatter(at, line, color=colour, s=60, zorder=2)
    axes.annotate(
        short(violation),
        (at, line),
        xytext=(9 * side, 0),
        textcoords="offset points",
        ha="right" if side < 0 else "left",
        va="center_baseline",
        fontsize=9,
        color=colour,
    )
    return at


def budget_figure() -> Figure:
    """Six projects of different cost and worth under one budget, at three temperatures."""
    names = ("bridge", "road", "school", "park", "clinic", "stadium")
    costs = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0], dtype=torch.float64)
    worth = torch.tensor([0.9, 0.4, 0.6, 0.25, 1.2, 1.0], dtype=torch.float64)
    rows = linsat.constraints.budget(costs, at_most=10.0)
    figure = new_figure(11, 3.4)
    panels = figure.subplots(1, 3, sharey=True)
    for panel, tau in zip(panels, (1.0, 0.1, 0.01), strict=True):
        x = linsat.project(worth, rows, tau=tau)
        panel.bar(names, x.tolist(), color=OURS, width=0.7)
        for place, share in enumerate(x.tolist()):
            panel.text(place, share + 0.02, f"{share:.2f}", ha="center", fontsize=10, color="0.25")
        panel.set_title(f"tau = {tau:g}: costs {float(costs @ x):.2f} of 10", fontsize=12)
        panel.set_ylim(0, 1.12)
        panel.set_xticks(range(len(names)), [f"{n}\ncost {c:g}" for n, c in zip(names, costs.tolist())], fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("share x of each project", fontsize=11)
    return figure


def counter_example_figure() -> Figure:
    """Two rows as lines, the published package's answer after more and more iterations, and linsat's."""
    y, E, f = counter_example_rows()
    figure = new_figure(7.6, 5.0)
    axes = figure.subplots()
    across = np.array([0.0, 1.2])
    axes.plot(across, (1.2 - across) / 2, color="0.45", lw=2)
    axes.plot(across, 1.2 - 2 * across, color="0.45", lw=2)
    axes.text(0.62, 0.31, "x1 + 2 x2 = 1.2", fontsize=12, color="0.3")
    axes.text(0.325, 0.57, "2 x1 + x2 = 1.2", fontsize=12, color="0.3")
    counts = (1, 2, 3, 5, 10, 30, 100, 300, 1000)
    points = np.array([published_layer(y, E=E, f=f, tau=1.0, max_iter=n, no_warning=True).tolist() for n in counts])
    axes.plot(*points.T, "o-", color=THEIRS, lw=1.5, ms=8)
    axes.annotate(
        f"published package,\n1 to {counts[-1]} iterations:\n({points[-1, 0]:.3f}, {points[-1, 1]:.3f})",
        points[0],
        xytext=(16, -14),
        textcoords="offset points",
        fontsize=12,
        color=THEIRS,
    )
    x = linsat.project(y.double(), linsat.Constraints(E=E, f=f), tau=1.0).tolist()
    axes.plot(*x, "o", color=OURS, ms=14, zorder=4)
    words = f"linsat: ({x[0]:.3f}, {x[1]:.3f}),\non both lines"
    axes.annotate(words, x, xytext=(16, 10), textcoords="offset points", fontsize=12, color=OURS)
    axes.set(xlim=(0.2, 1.0), ylim=(0, 0.62), xlabel="x1", ylabel="x2", aspect="equal")
    axes.grid(color="0.93")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def cost_figure(results: list[Comparison]) -> Figure:
    """Milliseconds and megabytes of a training step, both on logarithmic axes."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(results))
    kinds = (
        (left, "ms per training step", lambda m: 1e3 * m.seconds),
        (right, "MB kept for the backward pass", lambda m: m.megabytes),
    )
    for axes, title, of in kinds:
        for shift, colour, label, pick in (
            (-0.2, OURS, "linsat", lambda r: r.ours),
            (0.2, THEIRS, "published package", lambda r: r.theirs),
        ):
            values = [of(pick(r)) for r in results]
            axes.barh(places + shift, values, height=0.38, color=colour, label=label)
            for place, value in zip(places, values, strict=True):
                axes.text(
                    value * 1.12, place + shift, three_digits(value), va="center_baseline", fontsize=9, color=colour
                )
        axes.set_xscale("log")
        axes.set_xlim(right=axes.get_xlim()[1] * 2.5)
        axes.set_title(title, fontsize=12)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_yticks(places, [f"{r.case.name}, tau = {r.tau:g}" for r in results], fontsize=10)
    left.invert_yaxis()
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=11)
    return figure


def three_digits(value: float) -> str:
    """0.19, 21.4, 3257."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
