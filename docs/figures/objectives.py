"""Draw docs/assets/objectives.svg: the same scores under every objective.

    python docs/figures/objectives.py [--output FILE]

Also prints the numbers quoted in docs/objectives.md.
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

RISK = np.eye(6)
RISK[1, 3] = RISK[3, 1] = 0.8  # two assets that rise and fall together
OBJECTIVES = {
    "Entropy(0.1), the paper's layer": linsat.Entropy(0.1),
    'Entropy(0.1, slack="none")': linsat.Entropy(0.1, slack="none"),
    "KL(0.1)": linsat.KL(0.1),
    "Tsallis(1.5, 0.3)": linsat.Tsallis(1.5, 0.3),
    "Euclidean()": linsat.Euclidean(),
    "Quadratic(risk)": linsat.Quadratic(RISK),
}
COLOURS = dict(zip(OBJECTIVES, ("#d95f0e", "#2171b5", "#41b6c4", "#ae017e", "#31a354", "#756bb1"), strict=True))
INK = "#333333"
SCORES = np.array([0.05, 0.33, -0.05, 0.40, 0.20, -0.15])
PREFERRED = [0, 2]


def holdings(least: np.ndarray) -> dict[str, np.ndarray]:
    """x of every objective for each least share of the preferred assets, (sides, assets)."""
    sides = np.asarray(least)[:, None]
    preferred = np.isin(np.arange(len(SCORES)), PREFERRED).astype(float)
    budget = linsat.Constraints(E=np.ones((1, len(SCORES))), f=[1.0], C=preferred[None], d=[0.5])
    scores = np.tile(SCORES, (len(sides), 1))
    return {name: linsat.project(scores, budget.with_rhs(d=sides), objective=o) for name, o in OBJECTIVES.items()}


def draw_weights(axes: Axes) -> None:
    """Weights at a least share of one half."""
    width = 0.14
    for i, (name, x) in enumerate(holdings(np.array([0.5])).items()):
        share = x[0, PREFERRED].sum()
        places = np.arange(len(SCORES)) + (i - 2.5) * width
        axes.bar(places, x[0], width * 0.92, color=COLOURS[name], label=f"{name}: {share:.0%} preferred")
    labels = [f"{score:.2f}" + ("\npreferred" if i in PREFERRED else "") for i, score in enumerate(SCORES)]
    axes.set_xticks(range(len(SCORES)), labels)
    axes.set(xlabel="score of the asset", ylabel="weight", ylim=(0, 0.6))
    axes.set_title("At least 50 % in the two preferred assets", fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")


def draw_shares(axes: Axes) -> None:
    """Held against asked for."""
    least = np.linspace(0, 0.9, 181)
    for name, x in holdings(least).items():
        # All but the first lie on each other once the row binds: wider ones show on both sides.
        place = list(OBJECTIVES).index(name)
        wide = 10.8 - 1.8 * place if place else 1.8
        axes.plot(least, x[:, PREFERRED].sum(-1), color=COLOURS[name], lw=wide, label=name)
    axes.plot(least, least, color=INK, lw=0.8, ls="--")
    arrow = {"arrowstyle": "-", "color": "#777777"}
    axes.annotate("the rule: at least this", (0.45, 0.45), (0.52, 0.3), color=INK, fontsize=8.5, arrowprops=arrow)
    axes.set(xlabel="least share asked for", ylabel="share held", xlim=(0, 0.9), ylim=(0, 0.95))
    axes.set_title("A row that pushes early, and rows that wait until they bind", fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")


def draw(path: Path) -> None:
    # Fixed ids and no date: drawing the same figure twice gives the same file.
    plt.rcParams["svg.hashsalt"] = "objectives"
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.3), layout="constrained")
    draw_weights(left)
    draw_shares(right)
    for axes in (left, right):
        axes.grid(alpha=0.25, axis="y")
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def print_table() -> None:
    print("objective                          weights                                      preferred  zeros")
    for name, x in holdings(np.array([0.5])).items():
        weights = " ".join(f"{w:.3f}" for w in x[0])
        print(f"{name:34} {weights:44} {x[0, PREFERRED].sum():9.1%} {int((x[0] == 0).sum()):6d}")


def main() -> None:
    default = Path(__file__).resolve().parents[1] / "assets" / "objectives.svg"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=default)
    path = parser.parse_args().output
    draw(path)
    print_table()
    print(f"written: {path}")


if __name__ == "__main__":
    main()
