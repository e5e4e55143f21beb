"""Pictures of tours and of measurements, as matplotlib figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat_studies.figures import new_figure
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.tours import lengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Marks as in the paper's figures 3 and 4: start black, end orange, priority red.
START, END, PRIORITY = "#111111", "#f28e2b", "#d62728"
ROAD, CITY, MORE = "#4e79a7", "#7f8c99", "#c0392b"


def draw_tour(
    axes: Axes,
    instances: Instances,
    tour: np.ndarray,
    *,
    names: Sequence[str] | None = None,
    compare: np.ndarray | None = None,
) -> None:
    """Draw one tour of a batch of one: cities, path with its direction, marked cities.

    Args:
        axes: where.
        instances: exactly one instance.
        tour: its cities in order of visit, (n,).
        names: written beside the cities.
        compare: another tour; legs it does not have are drawn in red, so that a picture shows what differs.
    """
    coords = instances.coords[0]
    theirs = None if compare is None else _legs(compare)
    for first, second in itertools.pairwise(tour):
        extra = theirs is not None and frozenset((int(first), int(second))) not in theirs
        a, b = coords[first], coords[second]
        axes.plot(*zip(a, b), color=MORE if extra else ROAD, lw=1.8, zorder=1, solid_capstyle="round")
        axes.annotate(
            "",
            xy=a + 0.62 * (b - a),
            xytext=a + 0.5 * (b - a),
            arrowprops={"arrowstyle": "-|>", "color": MORE if extra else ROAD, "lw": 0, "mutation_scale": 12},
            zorder=2,
        )
    axes.scatter(coords[:, 0], coords[:, 1], s=18, color=CITY, zorder=3, edgecolors="white", linewidths=0.6)
    for which, colour in ((instances.start, START), (instances.end, END), (instances.priority, PRIORITY)):
        if which is not None:
            x, y = coords[which[0]]
            axes.scatter(x, y, s=62, color=colour, zorder=4, edgecolors="white", linewidths=0.8)
    if names is not None:
        _write_names(axes, coords, tour, names)
    low, high = coords.min(axis=0), coords.max(axis=0)
    middle, half = (low + high) / 2, 0.57 * max(float((high - low).max()), 1e-9)
    axes.set_xlim(middle[0] - half, middle[0] + half)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


def _write_names(axes: Axes, coords: np.ndarray, tour: np.ndarray, names: Sequence[str]) -> None:
    """Step and name of each city, on the side away from the legs that meet there."""
    from matplotlib.patheffects import withStroke

    scale = float(np.ptp(coords, axis=0).max()) or 1.0
    for step, city in enumerate(tour):
        here = coords[city]
        others = [coords[tour[k]] for k in (step - 1, step + 1) if 0 <= k < len(tour)]
        away = sum(((here - other) / (np.linalg.norm(here - other) + 1e-9 * scale) for other in others), np.zeros(2))
        if np.linalg.norm(away) < 0.3:  # the path runs straight through: beside it, then
            way = others[-1] - here
            away = np.array([-way[1], way[0]])
        x, y = away / (np.linalg.norm(away) + 1e-12)
        axes.annotate(
            f"{step} {names[city]}",
            here,
            xytext=(8 * x, 8 * y),
            textcoords="offset points",
            ha="left" if x > 0.35 else "right" if x < -0.35 else "center",
            va="bottom" if y > 0.35 else "top" if y < -0.35 else "center",
            fontsize=8,
            color="#222222",
            zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )


def _legs(tour: np.ndarray) -> set[frozenset[int]]:
    return {frozenset((int(a), int(b))) for a, b in itertools.pairwise(tour)}


def tour_grid(instances: Instances, methods: Mapping[str, np.ndarray], *, reference: str | None = None) -> Figure:
    """Figure 3 or 4 of the paper: one row per instance, one column per method, lengths in the titles.

    Args:
        instances: a few.
        methods: name to tours (N, n).
        reference: the method whose legs are the measure; legs that others add are drawn in red.
    """
    rows, columns = len(instances), len(methods)
    figure = new_figure(2.6 * columns, 2.75 * rows + 0.35)
    grid = figure.subplots(rows, columns, squeeze=False)
    for column, (name, tours) in enumerate(methods.items()):
        length = lengths(instances.coords, tours)
        for row in range(rows):
            axes = grid[row, column]
            compare = methods[reference][row] if reference and name != reference else None
            draw_tour(axes, instances[row : row + 1], tours[row], compare=compare)
            axes.set_title(f"{name}\n{length[row]:.3f}" if row == 0 else f"{length[row]:.3f}", fontsize=10)
    figure.legend(handles=_marks(instances), loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    return figure


def _marks(instances: Instances) -> list[Any]:
    from matplotlib.lines import Line2D

    def dot(colour: str, label: str) -> Line2D:
        return Line2D([], [], marker="o", ls="", color=colour, label=label, markersize=7)

    marks = [dot(START, "start"), dot(END, "end")]
    if instances.priority is not None:
        marks.append(dot(PRIORITY, f"priority, within {instances.within} steps"))
    marks.append(Line2D([], [], color=MORE, lw=1.8, label="leg not in the shortest tour"))
    return marks


def own_tour(instances: Instances, tour: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """A user's tour, with names."""
    from matplotlib.lines import Line2D

    figure = new_figure(6.4, 6.8)
    axes = figure.subplots()
    draw_tour(axes, instances, tour, names=names)
    figure.suptitle(title, fontsize=11)
    handles = [handle for handle in _marks(instances) if isinstance(handle, Line2D)][:-1]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure
