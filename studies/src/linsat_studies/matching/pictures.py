"""Pictures of matchings: the keypoints of two objects side by side, over their images where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat_studies.figures import new_figure
from linsat_studies.matching.data import Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIGHT, WRONG, REJECTED = "#2ca25f", "#d7301f", "#8a8f96"
SIDE, GAP = 256.0, 28.0  # of a crop, and between two of them


@dataclass(frozen=True, eq=False)
class Drawn:
    """What one panel shows.

    Args:
        pair: the two objects.
        matches: (m, 2) predicted pairs of keypoint indices, left and right.
        images: crops (256, 256, 3) of both objects; None draws points on white.
        title: above the panel.
    """

    pair: Pair
    matches: np.ndarray
    images: tuple[np.ndarray, np.ndarray] | None = None
    title: str = ""


def draw_matching(axes: Axes, drawn: Drawn, *, names: bool = False) -> None:
    """Draw one pair: right matches green, wrong ones red, keypoints without a match grey.

    A grey keypoint that has a partner in the other object, a missed one, is hollow; a rejected outlier is full.

    Args:
        axes: where.
        drawn: what.
        names: write the name of each keypoint beside it.
    """
    pair = drawn.pair
    sides = [(pair.left, np.zeros(2)), (pair.right, np.array([SIDE + GAP, 0.0]))]
    for number, (_, shift) in enumerate(sides):
        if drawn.images is not None:
            edges = (shift[0], shift[0] + SIDE, SIDE, 0.0)
            axes.imshow(drawn.images[number], extent=edges, alpha=0.75, zorder=0, interpolation="bilinear")
        else:
            corners = shift + np.array([[0, 0], [SIDE, 0], [SIDE, SIDE], [0, SIDE], [0, 0]])
            axes.plot(*corners.T, color="#d5d8dc", lw=1, zorder=0)
    truth = {(int(i), int(j)) for i, j in pair.truth}
    colours: list[dict[int, str]] = [{}, {}]
    for i, j in drawn.matches:
        colour = RIGHT if (int(i), int(j)) in truth else WRONG
        colours[0][int(i)], colours[1][int(j)] = colour, colour
        ends = np.stack([pair.left.points[i], pair.right.points[j] + sides[1][1]])
        axes.plot(*ends.T, color=colour, lw=1.5, alpha=0.9, zorder=2 if colour == RIGHT else 3)
    for number, (side, shift) in enumerate(sides):
        inliers = {int(one[number]) for one in pair.truth}
        for k, point in enumerate(side.points + shift):
            colour = colours[number].get(k, REJECTED)
            hollow = k not in colours[number] and k in inliers
            face = "white" if hollow else colour
            edge = REJECTED if hollow else "white"
            axes.scatter(
                point[0], point[1], s=34, color=face, edgecolors=edge, linewidths=1.5 if hollow else 0.9, zorder=4
            )
            if names:
                _write_name(axes, point, side.names[k])
    axes.set_xlim(-16, 2 * SIDE + GAP + 16)
    axes.set_ylim(SIDE + 10, -10)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(drawn.title, fontsize=9)


def _write_name(axes: Axes, point: np.ndarray, name: str) -> None:
    from matplotlib.patheffects import withStroke

    axes.annotate(
        name.replace("_", " "),
        (float(point[0]), float(point[1])),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=6,
        color="#222222",
        zorder=5,
        path_effects=[withStroke(linewidth=2, foreground="white")],
    )


def picture_kind(path: Path) -> str:
    """png, svg or pdf, by the ending of a file's name.

    Raises:
        ValueError: another ending.
    """
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise ValueError(f"{path} ends in {path.suffix!r}; expected .png, .svg or .pdf.")
    return kind


def one_matching(drawn: Drawn) -> Figure:
    """A picture of one pair, with names."""
    figure = new_figure(9.2, 5.1)
    draw_matching(figure.subplots(), drawn, names=True)
    figure.legend(handles=_marks(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def matching_grid(rows: Sequence[Mapping[str, Drawn]]) -> Figure:
    """A row for each pair, a column for each method.

    Args:
        rows: for each pair, method -> what it found; every row has the same methods in the same order.
    """
    columns = len(rows[0])
    figure = new_figure(3.9 * columns, 2.15 * len(rows) + 0.7)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for number, row in enumerate(rows):
        for axes, (name, drawn) in zip(grid[number], row.items()):
            draw_matching(axes, drawn)
            axes.set_title(f"{name}\n{drawn.title}" if number == 0 else drawn.title, fontsize=9)
    figure.legend(handles=_marks(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _marks() -> list[Any]:
    from matplotlib.lines import Line2D

    def dot(colour: str, edge: str, label: str) -> Line2D:
        return Line2D([], [], marker="o", ls="", color=colour, markeredgecolor=edge, label=label, markersize=7)

    return [
        Line2D([], [], color=RIGHT, marker="o", lw=1.8, label="right match"),
        Line2D([], [], color=WRONG, marker="o", lw=1.8, label="wrong match"),
        dot(REJECTED, "white", "rejected, has no partner"),
        dot("white", REJECTED, "rejected, has a partner"),
    ]
