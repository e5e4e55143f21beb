"""Project random scores onto four kinds of rows, with linsat and with the published LinSATNet package.

    python examples/demo.py                    or: make demo
    python examples/demo.py --iterations 1000  give the published package ten times its default
    python examples/demo.py --out DIR          where the picture goes, default out/demo

Prints how far the rows are from holding, what a training step costs and what it keeps in memory; then two
small examples that show where the published iterations end. Every number printed is measured in this run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import linsat

try:
    from LinSATNet import init_constraints as published_rows
    from LinSATNet import linsat_layer as published_layer
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure, SubFigure
except ImportError as error:
    missing = (error.name or "a package").partition(".")[0]
    raise ImportError(
        f'The demo needs {missing}, which is not installed. Fix: pip install "linsat[demo]" '
        f'(from a clone: pip install -e ".[demo]").'
    ) from error

TEMPERATURES = (0.1, 0.01)
PUBLISHED_DEFAULT = 100  # iterations
NOTABLE = 0.01  # a row missed by more than this share of its right side counts as missed
REPEATS = 3  # timings are the best of so many
OURS, THEIRS = "#0b6e99", "#d9730d"

Projection = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One constraint set and a batch of standard normal scores for it."""

    name: str
    constraints: linsat.Constraints
    batch: int

    def scores(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self.batch, self.constraints.matrix.shape[1], generator=generator)


@dataclass(frozen=True)
class Measured:
    """What one solver did with one case."""

    violation: float  # worst of all rows and instances, as a share of the row's right side
    seconds: float  # forward and backward pass of the whole batch
    megabytes: float  # tensors kept for the backward pass


@dataclass(frozen=True)
class Comparison:
    case: Case
    tau: float
    ours: Measured
    theirs: Measured


def cases() -> list[Case]:
    rows = linsat.constraints
    return [
        Case("doubly stochastic", rows.doubly_stochastic(8), batch=64),
        Case("top-k", rows.top_k(100, 10), batch=64),
        Case("matching", rows.matching(10, 12, at_most=6), batch=32),
        Case("portfolio", rows.portfolio(494, preferred=range(6), at_least=0.5), batch=32),
    ]


# ---------------------------------------------------------------------- measuring


def compare(case: Case, tau: float, iterations: int) -> Comparison:
    compiled = published_rows(case.constraints.num_variables, **published_arguments(case.constraints))

    def ours(y: torch.Tensor) -> torch.Tensor:
        return linsat.project(y, case.constraints, tau=tau)

    def theirs(y: torch.Tensor) -> torch.Tensor:
        return published_layer(y, constr_dict=compiled, tau=tau, max_iter=iterations, no_warning=True)

    return Comparison(case, tau, measure(ours, case), measure(theirs, case))


def published_arguments(constraints: linsat.Constraints) -> dict[str, torch.Tensor]:
    """The rows as the published function takes them: one dense float32 matrix and right side per sense."""
    matrix, sides = constraints.matrix.to_dense().float(), constraints.rhs.float()
    arguments = {}
    for sense, matrix_name, side_name in (("<=", "A", "b"), (">=", "C", "d"), ("==", "E", "f")):
        here = [i for i, other in enumerate(constraints.senses) if other == sense]
        if here:
            arguments[matrix_name], arguments[side_name] = matrix[here], sides[here]
    return arguments


def measure(project: Projection, case: Case) -> Measured:
    scores = case.scores()
    training_step(project, scores[:2])  # warm up
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        x = project(scores.clone().requires_grad_())
    megabytes = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / 1e6
    kept.clear()
    violation = case.constraints.row_violation(x.detach()) / case.constraints.rhs
    seconds = min(training_step(project, scores) for _ in range(REPEATS))
    return Measured(float(violation.max()), seconds, megabytes)


def training_step(project: Projection, scores: torch.Tensor) -> float:
    """Seconds of one forward and backward pass."""
    y = scores.clone().requires_grad_()
    start = time.perf_counter()
    (project(y) * scores).sum().backward()
    return time.perf_counter() - start


# ---------------------------------------------------------------------- words


def short(violation: float) -> str:
    """4e-08, 0.02, 3; nothing more than two digits."""
    return f"{violation:.0e}" if 0 < violation < 1e-3 else f"{violation:.2g}"


def key(threads: int, iterations: int) -> str:
    return (
        f"Scores: standard normal, float32, CPU; torch threads: {threads}. "
        f"Published: dense rows, {iterations} iterations.\n"
        f"worst violation: of any row, as a share of its right side (0.01 is 1 %)\n"
        f"ms per step:     forward and backward pass of the batch, best of {REPEATS}, after warming up\n"
        f"MB kept:         tensors stored for the backward pass"
    )


def table(results: list[Comparison]) -> str:
    pair = f"{'linsat':>10}{'published':>11}"
    lines = [
        f"{'':<35}{'worst violation':>21}{'ms per step':>21}{'MB kept':>21}",
        f"{'case':<18}{'rows':>5}{'batch':>6}{'tau':>6}{pair}{pair}{pair}",
    ]
    lines.append("-" * len(lines[1]))
    for r in results:
        lines.append(
            f"{r.case.name:<18}{len(r.case.constraints):>5}{r.case.batch:>6}{r.tau:>6g}"
            f"{short(r.ours.violation):>10}{short(r.theirs.violation):>11}"
            f"{1e3 * r.ours.seconds:>10.1f}{1e3 * r.theirs.seconds:>11.0f}"
            f"{r.ours.megabytes:>10.2f}{r.theirs.megabytes:>11.1f}"
        )
    return "\n".join(lines)


def conclusion(results: list[Comparison], iterations: int) -> str:
    ours = max(r.ours.violation for r in results)
    missed = [r for r in results if r.theirs.violation > NOTABLE]
    worst = max(results, key=lambda r: r.theirs.violation)
    times = sorted(r.theirs.seconds / r.ours.seconds for r in results)
    memory = sorted(r.theirs.megabytes / r.ours.megabytes for r in results)
    return textwrap.fill(
        f"linsat holds every row of all {len(results)} lines to {short(ours)} of its right side (x is "
        f"float32). The published package, after {iterations} iterations, misses a row by more than "
        f"{NOTABLE:.0%} on {len(missed)} of them; its worst is {short(worst.theirs.violation)} "
        f"({worst.case.name}, tau {worst.tau:g}). Its training step takes {times[0]:.1f} to {times[-1]:.1f} "
        f"times as long as linsat's and keeps {memory[0]:.0f} to {memory[-1]:.0f} times as much memory for "
        f"the backward pass.",
        width=98,
    )


def counter_example() -> str:
    """Two rows over the same variables with different coefficients: the only solution is (0.4, 0.4)."""
    y = torch.tensor([2.0, -1.0])
    E, f = torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.tensor([1.2, 1.2])
    lines = ["x1 + 2 x2 = 1.2 and 2 x1 + x2 = 1.2, scores (2, -1), tau 1. The only solution is (0.4, 0.4)."]
    answers = {"linsat": linsat.project(y, linsat.Constraints(E=E, f=f), tau=1.0)}
    for iterations in (100, 5000):
        name = f"published, {iterations} iterations"
        answers[name] = published_layer(y, E=E, f=f, tau=1.0, max_iter=iterations, no_warning=True)
    for name, x in answers.items():
        violation = short(float((E @ x - f).abs().max()))
        lines.append(f"  {name:<28}x = ({x[0]:.3f}, {x[1]:.3f}), worst violation {violation}")
    return "\n".join(lines)


def infeasible_example() -> str:
    """The infeasible rows of the paper's appendix on the feasibility assumption."""
    constraints = linsat.Constraints(
        A=[[1, 0, 1, 0], [0, 1, 0, 1]],
        b=1,
        C=[[1, 1, 0, 0], [0, 0, 1, 1]],
        d=2,
        names=["first column", "second column", "first row", "second row"],
    )
    try:
        constraints.check()
        said = "linsat finds nothing wrong"
    except linsat.InfeasibleError as error:
        indent = " " * 4
        said = "linsat raises InfeasibleError:\n" + textwrap.fill(
            str(error), 98, initial_indent=indent, subsequent_indent=indent
        )
    with contextlib.redirect_stderr(io.StringIO()) as warning:
        answer = published_layer(torch.zeros(4), **published_arguments(constraints), tau=0.1)
    entries = ", ".join(f"{entry:.2f}" for entry in answer.tolist())
    return (
        f"Rows that cannot hold together (the paper's appendix on feasibility):\n  {said}\n"
        f"  published returns x = ({entries}), worst violation {float(constraints.violation(answer)):.2f}, "
        f"{'with a warning on stderr' if warning.getvalue() else 'and says nothing'}"
    )


# ---------------------------------------------------------------------- the picture


def draw(results: list[Comparison], iterations: int, path: Path) -> None:
    figure = Figure(figsize=(12, 7.6), dpi=130)
    above, below = figure.subfigures(2, 1, height_ratios=[1.0, 1.4])
    draw_temperatures(above)
    draw_violations(below.add_axes((0.19, 0.13, 0.775, 0.7)), results, iterations)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_temperatures(figure: SubFigure) -> None:
    """The scores of one instance, and its x at four temperatures."""
    size, temperatures = 8, (1.0, 0.3, 0.1, 0.01)
    constraints = linsat.constraints.doubly_stochastic(size)
    y = torch.randn(size * size, generator=torch.Generator().manual_seed(0))
    panels = figure.subplots(1, len(temperatures) + 1)
    figure.subplots_adjust(left=0.03, right=0.925, top=0.76, bottom=0.1, wspace=0.16)
    heading(figure, 0.93, "One score matrix, made doubly stochastic: smaller tau, closer to a permutation")
    panels[0].imshow(y.reshape(size, size), cmap="PuOr", vmin=-2.5, vmax=2.5)
    panels[0].set_title("scores y", fontsize=11)
    panels[0].set_xlabel("purple high, orange low", fontsize=9)
    for panel, tau in zip(panels[1:], temperatures, strict=True):
        x = linsat.project(y, constraints, tau=tau)
        shown = panel.imshow(x.reshape(size, size), cmap="Blues", vmin=0, vmax=1)
        panel.set_title(f"x, tau = {tau:g}", fontsize=11)
        panel.set_xlabel(f"sums are 1 up to {short(float(constraints.violation(x)))}", fontsize=9)
    for panel in panels:
        panel.set_xticks([])
        panel.set_yticks([])
    add_colour_bar(figure, shown)


def heading(figure: Figure | SubFigure, height: float, text: str) -> None:
    figure.text(0.03, height, text, fontsize=13, fontweight="bold", va="center")


def add_colour_bar(figure: SubFigure, shown: ScalarMappable) -> None:
    bar = figure.colorbar(shown, cax=figure.add_axes((0.94, 0.14, 0.012, 0.58)), ticks=[0, 0.5, 1])
    bar.ax.tick_params(labelsize=9)
    bar.outline.set_visible(False)


def draw_violations(axes: Axes, results: list[Comparison], iterations: int) -> None:
    """One line per case and temperature, on a logarithmic axis; an exact 0 sits at the left end."""
    axes.set_xscale("log")
    axes.set_xlim(1e-10, 20)
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
    axes.set_xlabel("worst violation of any row, as a share of its right side (logarithmic axis)")
    heading(axes.figure, 0.945, "How far the rows are from holding, worst of the batch")
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


# ---------------------------------------------------------------------- the run


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="linsat beside the published package on four kinds of rows.")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="directory of the picture")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--iterations", type=int, default=PUBLISHED_DEFAULT, help="of the published package")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    jobs = [(case, tau) for case in cases() for tau in TEMPERATURES]
    results = []
    for number, (case, tau) in enumerate(jobs, start=1):
        print(f"[{number}/{len(jobs) + 1}] {case.name}, tau {tau:g}", flush=True)
        results.append(compare(case, tau, options.iterations))
    print(f"[{len(jobs) + 1}/{len(jobs) + 1}] picture", flush=True)
    path = options.out / "demo.png"
    draw(results, options.iterations, path)
    print(f"\n{key(options.threads, options.iterations)}\n")
    print(table(results))
    print(f"\n{conclusion(results, options.iterations)}\n\n{counter_example()}\n\n{infeasible_example()}")
    print(f"\nPicture: {path}")


if __name__ == "__main__":
    main()
