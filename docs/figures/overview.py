"""Draw docs/assets/overview.svg: what the layer does, for two variables and for a roster.

python docs/figures/overview.py [--output FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

import linsat

INK, BLUE, GREEN, ORANGE = "#333333", "#2171b5", "#31a354", "#d95f0e"
NURSES, DAYS = ["Ann", "Bob", "Cleo"], ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


def draw_polygon(axes: Axes) -> None:
    """Two variables, two rows: scores, the nearest point, and the path of the entropic answer as tau falls."""
    cons = linsat.Constraints(A=[[2.0, 1.0]], b=1.8, C=[[1.0, 3.0]], d=0.9)
    corners = np.array([[0.0, 0.3], [0.9, 0.0], [0.4, 1.0], [0.0, 1.0]])
    scores = np.array([1.15, 0.62])
    taus = np.geomspace(20, 0.01, 120)
    path = linsat.project(np.tile(scores, (len(taus), 1)), cons, objective=linsat.Entropy(taus, slack="none"))
    nearest = linsat.project(scores, cons, objective=linsat.Euclidean())
    axes.fill(*corners.T, color="#c6dbef", alpha=0.7, zorder=0)
    axes.plot(*path.T, color=ORANGE, linewidth=2)
    axes.plot(*path[-1], "o", color=ORANGE)
    axes.annotate("", nearest, scores, arrowprops={"arrowstyle": "->", "color": GREEN, "linewidth": 1.6})
    axes.plot(*nearest, "o", color=GREEN)
    axes.plot(*scores, "s", color=INK)
    axes.annotate("scores y", scores, (0, 9), textcoords="offset points", ha="center", color=INK)
    axes.annotate("nearest point", nearest, (8, -8), textcoords="offset points", va="top", color=GREEN)
    axes.annotate("entropy, small tau", path[-1], (8, 4), textcoords="offset points", color=ORANGE)
    axes.annotate("large tau", path[0], (-6, 0), textcoords="offset points", ha="right", va="center", color=ORANGE)
    axes.text(0.03, 0.92, "feasible set", color=BLUE, va="top")
    axes.set(xlim=(0, 1.32), ylim=(0, 1.12), xlabel="x0", ylabel="x1", aspect="equal", xticks=[0, 1], yticks=[0, 1])
    axes.set_title("2 x0 + x1 ≤ 1.8,   x0 + 3 x1 ≥ 0.9", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)


def draw_table(axes: Axes, values: np.ndarray, title: str) -> None:
    """A table of numbers in [0, 1] with the sums of its rows and columns; what breaks a rule is orange."""
    axes.imshow(values, cmap="Blues", vmin=0, vmax=1.2, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if value > 0.7 else INK)
    for i, total in enumerate(values.sum(1)):
        broken = total > 3 + 1e-6
        axes.text(7.0, i, f"{total:.2f}", ha="center", va="center", fontsize=8.5, color=ORANGE if broken else GREEN)
    for j, total in enumerate(values.sum(0)):
        broken = abs(total - 1) > 1e-6
        axes.text(j, 3.0, f"{total:.2f}", ha="center", va="center", fontsize=8.5, color=ORANGE if broken else GREEN)
    axes.text(7.0, 3.0, "sums", ha="center", va="center", fontsize=8, color=INK)
    axes.set_xticks(range(7), DAYS, fontsize=8)
    axes.set_yticks(range(3), NURSES, fontsize=8)
    axes.set(xlim=(-0.5, 7.6), ylim=(3.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=10, color=INK)


def draw(output: Path) -> None:
    """The three panels."""
    scores = np.random.default_rng(4).normal(size=(3, 7)) + np.array([[0.9], [0.0], [-0.6]])
    works = linsat.Variable(NURSES, DAYS, name="works")
    roster = linsat.subject_to(works.sum(axis=0) == 1, works.sum(axis=1) <= 3)
    softmax = np.exp(scores / 0.3) / np.exp(scores / 0.3).sum(0)
    figure = plt.figure(figsize=(10, 3.5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(2, 3))
    draw_polygon(left.subplots())
    above, below = right.subplots(2, 1)
    draw_table(above, softmax, "Softmax for each day: one nurse a day")
    draw_table(below, linsat.project(scores, roster, tau=0.3), "linsat: one nurse a day, and at most three days each")
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "assets" / "overview.svg")
    plt.rcParams["svg.hashsalt"] = "linsat"
    draw(parser.parse_args().output)
