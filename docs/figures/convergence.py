"""Draw docs/assets/convergence.svg: measured error of multi-set Sinkhorn per sweep, beside the paper's bound.

    python docs/figures/convergence.py [--output FILE]

Also prints the numbers quoted in docs/convergence.md.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

from linsat import LinSATWarning
from linsat.marginals import iteration_bound, multi_set_sinkhorn

warnings.simplefilter("ignore", LinSATWarning)  # what does not converge is what the figure shows

ROWS, COLUMNS, SEEDS, SWEEPS = 4, 24, 12, 3000
SET_COUNTS = (1, 2, 4, 6)
COLOURS = dict(zip(SET_COUNTS, ("#9ecae1", "#4292c6", "#2171b5", "#08306b"), strict=True))
BOUND, BROKEN, INK = "#d95f0e", "#b2182b", "#333333"


@dataclass(frozen=True)
class Curve:
    """One problem, its worst row error in each sweep and the bound on it, both over the largest total h."""

    sets: int
    error: np.ndarray  # (sweeps,)
    total: float
    scores: torch.Tensor
    U: torch.Tensor
    V: torch.Tensor

    def bound_after(self, sweeps: np.ndarray) -> np.ndarray:
        """The bound T(eps) solved for eps: T - k is proportional to 1 / eps^2."""
        at_total = float(iteration_bound(self.scores, self.U, self.V, l1_error=self.total)) - self.sets
        return np.sqrt(at_total / (self.sets * np.maximum(sweeps - 1, 1e-9)))

    def iterations_to(self, share: float) -> int:
        result = multi_set_sinkhorn(self.scores, self.U, self.V, tol=share * self.total, max_iter=SWEEPS * self.sets)
        return int(result.iterations) if bool(result.converged) else -1


def random_problem(seed: int, sets: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """0/1 weights, feasible because the solution Z is drawn first; every column is in at least one set."""
    rng = np.random.default_rng([seed, sets])
    Z = rng.random((ROWS, COLUMNS)) + 0.05
    Z /= Z.sum(0)
    U = (rng.random((sets, COLUMNS)) < 0.5).astype(float)
    U[rng.integers(sets, size=COLUMNS), np.arange(COLUMNS)] = 1.0
    scores = np.exp(rng.standard_normal((ROWS, COLUMNS)))
    return torch.from_numpy(scores), torch.from_numpy(U), torch.from_numpy(U @ Z.T)


def counter_example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x1 + 2 x2 = 1.2, 2 x1 + x2 = 1.2 with scores (2, -1) and tau = 1, as marginals."""
    scores = torch.tensor([[2.0, -1.0], [0.0, 0.0]], dtype=torch.float64).exp()
    U = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    return scores, U, torch.tensor([[1.2, 1.8], [1.2, 1.8]], dtype=torch.float64)


def measure(scores: torch.Tensor, U: torch.Tensor, V: torch.Tensor, sweeps: int) -> Curve:
    sets, total = len(U), float(V.sum(-1).max())
    result = multi_set_sinkhorn(scores, U, V, max_iter=sets * sweeps, tol=1e-9 * total)
    rows = result.l1[:, 0].reshape(-1, sets)
    return Curve(sets, rows.amax(-1).numpy() / total, total, scores, U, V)


def draw_feasible(axes: Axes, curves: list[Curve]) -> None:
    labelled = set()
    for curve in curves:
        label = None if curve.sets in labelled else f"k = {curve.sets} set" + "s" * (curve.sets > 1)
        labelled.add(curve.sets)
        axes.plot(np.arange(1, len(curve.error) + 1), curve.error, COLOURS[curve.sets], lw=0.9, label=label)
    sweeps = np.geomspace(1.01, SWEEPS, 200)
    bounds = np.stack([curve.bound_after(sweeps) for curve in curves])
    axes.fill_between(sweeps, bounds.min(0), bounds.max(0), color=BOUND, alpha=0.45, lw=0, label="the paper's bound")
    axes.set_title("0/1 weights: the theorem holds", fontsize=10, color=INK)
    axes.set_ylabel("$L_1$ error of the worst set, divided by $h$")


def draw_counter_example(axes: Axes, curve: Curve) -> None:
    axes.plot(np.arange(1, len(curve.error) + 1), curve.error, BROKEN, lw=1.6, label="measured")
    sweeps = np.geomspace(1.01, SWEEPS, 200)
    axes.plot(sweeps, curve.bound_after(sweeps), BOUND, lw=1.6, ls="--", label="the paper's bound")
    axes.set_title("$x_1 + 2x_2 = 1.2,\\ 2x_1 + x_2 = 1.2$: it does not", fontsize=10, color=INK)


def draw(curves: list[Curve], broken: Curve, path: Path) -> None:
    # Fixed ids and no date: drawing the same figure twice gives the same file.
    plt.rcParams["svg.hashsalt"] = "convergence"
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    draw_feasible(left, curves)
    draw_counter_example(right, broken)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlim=(1, SWEEPS), ylim=(1e-9, 10), xlabel="sweep (k iterations)")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def print_table(curves: list[Curve]) -> None:
    print("k  error/h  iterations: median  most   bound: smallest")
    for sets in SET_COUNTS:
        chosen = [curve for curve in curves if curve.sets == sets]
        for share in (1e-1, 1e-2, 1e-4):
            steps = [curve.iterations_to(share) for curve in chosen]
            bounds = [float(iteration_bound(c.scores, c.U, c.V, l1_error=share * c.total)) for c in chosen]
            print(f"{sets}  {share:7g}  {np.median(steps):18.0f} {max(steps):5d}   {min(bounds):15.0f}")


def main() -> None:
    default = Path(__file__).resolve().parents[1] / "assets" / "convergence.svg"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=default)
    path = parser.parse_args().output
    torch.set_num_threads(1)
    curves = [measure(*random_problem(seed, sets), SWEEPS) for sets in SET_COUNTS for seed in range(SEEDS)]
    broken = measure(*counter_example(), SWEEPS)
    draw(curves, broken, path)
    print_table(curves)
    last_bound = float(broken.bound_after(np.array([SWEEPS]))[0])
    print(f"counter-example after {SWEEPS} sweeps: error/h {broken.error[-1]:.4f}, bound {last_bound:.4f}")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
