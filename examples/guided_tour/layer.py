"""The sections about the layer itself: what it does, whether rows hold, what it costs, what it says if they cannot."""

from __future__ import annotations

from guided_tour.comparison import (
    NOTABLE,
    Comparison,
    infeasible_answers,
    infeasible_rows,
    memory_ratios,
    short,
    time_ratios,
)
from guided_tour.pictures import (
    budget_figure,
    cost_figure,
    counter_example_figure,
    temperatures_figure,
    violations_figure,
)
from guided_tour.sections import Picture, Section


def what_it_does() -> Section:
    """Scores in, constrained output out, at several temperatures."""
    return Section(
        "layer",
        "What the layer does",
        words=[
            "A network gives scores, one per variable, any numbers at all. The layer returns the point that fits them "
            "best among those that satisfy your rows, and gradients flow back. A temperature tau says how decided it "
            "is: large tau spreads, small tau picks. The rows hold at every tau.",
        ],
        pictures=[
            Picture(
                temperatures_figure(),
                "A score matrix and four doubly stochastic matrices at falling temperature",
                "One matrix of random scores; the rows say that every row and column sums to 1. As tau falls, the same "
                "scores become a permutation.",
            ),
            Picture(
                budget_figure(),
                "Shares of six projects under one budget at three temperatures",
                "Six projects with a worth (the scores) and a cost; one row says that the cost is at most 10. Unequal "
                "coefficients, the same layer: the budget is kept whether the choice is soft or nearly 0 or 1.",
            ),
        ],
        code=(
            "import torch, linsat\n\n"
            "rows = linsat.constraints.doubly_stochastic(8)\n"
            "x = linsat.project(torch.randn(32, 64), rows, tau=0.1)     # (32, 64), every sum is 1, differentiable"
        ),
    )


def rows_held(results: list[Comparison], iterations: int) -> Section:
    """Violations beside the published package's."""
    missed = sum(r.theirs.violation > NOTABLE for r in results)
    worst = max(r.theirs.violation for r in results)
    return Section(
        "rows",
        "Every row holds",
        words=[
            "The layer was introduced by LinSATNet (ICML 2023), which solves it by Sinkhorn iterations. Here both get "
            "the same scores and rows, at two temperatures, and the worst row of the whole batch counts.",
        ],
        facts=[
            (short(max(r.ours.violation for r in results)), "worst miss of any row by linsat (float32 output)"),
            (short(worst), f"worst miss by the published package, {iterations} iterations"),
            (f"{missed} of {len(results)}", f"cases where it misses a row by more than {NOTABLE:.0%}"),
        ],
        pictures=[
            Picture(
                violations_figure(results, iterations),
                "Worst violation of every case, linsat and published package, on a logarithmic axis",
                "Each line is one case; the further left, the better. Misses are shares of a row's right-hand side.",
            ),
            Picture(
                counter_example_figure(),
                "Two lines that cross at (0.4, 0.4); the published iterations settle away from both",
                "Why more iterations do not always help: two rows with unequal coefficients have one common point, and "
                "the published iterations settle elsewhere. linsat returns the point.",
                wide=False,
            ),
        ],
        header=["case", "rows", "batch", "tau", "linsat misses", "published misses"],
        rows=[
            [
                r.case.name,
                str(len(r.case.constraints)),
                str(r.case.batch),
                f"{r.tau:g}",
                short(r.ours.violation),
                short(r.theirs.violation),
            ]
            for r in results
        ],
    )


def cost(results: list[Comparison]) -> Section:
    """Time and memory of a training step, from the same run."""
    times, memory = time_ratios(results), memory_ratios(results)
    middle = times[len(times) // 2]
    return Section(
        "speed",
        "And it is fast",
        words=[
            "Newton's method on one dual variable per row takes a handful of steps where Sinkhorn takes hundreds, and "
            "gradients come from the implicit function theorem, so that no iterate is kept. Times are those of a "
            "forward and backward pass of the same batches as above, measured one after the other in this run.",
        ],
        facts=[
            (f"{middle:.0f} times", "as fast as the published package, in the middle of the cases"),
            (f"{times[0]:.0f} to {times[-1]:.0f} times", "from the closest case to the farthest"),
            (f"{memory[0]:.0f} to {memory[-1]:.0f} times", "less memory kept for the backward pass"),
        ],
        pictures=[
            Picture(
                cost_figure(results),
                "Milliseconds and megabytes of a training step, linsat and published package, on logarithmic axes",
                "Shorter is better; both axes are logarithmic.",
            )
        ],
    )


def when_rows_cannot_hold() -> Section:
    """What is said to contradictory rows."""
    said, returned = infeasible_answers()
    rows = infeasible_rows()
    return Section(
        "infeasible",
        "When rows cannot hold, it says so",
        words=[
            "These four rows contradict each other: the columns allow 2 in all, the rows ask for 4.",
        ],
        header=["row", "written out"],
        rows=[[name, rows.row_text(i)] for i, name in enumerate(rows.names)],
        code=f"linsat raises InfeasibleError:\n{said}\n\nThe published package returns {returned}.",
    )


def what_next() -> Section:
    """Where to go from here."""
    return Section(
        "next",
        "Try your own rows",
        words=[
            "`linsat explore` opens a page where rows are typed, scores are dragged, and x follows at once, with the "
            "feasible polygon for two variables. docs/quickstart.md goes from formulas to training and decisions, "
            "docs/constraints.md has the ready-made constraint sets.",
        ],
        code="pip install linsat-tools\nlinsat explore",
    )
