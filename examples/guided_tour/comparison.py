"""linsat and the published LinSATNet package on the same scores: rows, time and memory, measured and put into words."""

from __future__ import annotations

import contextlib
import io
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from LinSATNet import init_constraints as published_rows
from LinSATNet import linsat_layer as published_layer

import linsat

TEMPERATURES = (0.1, 0.01)
PUBLISHED_DEFAULT = 100  # iterations
NOTABLE = 0.01  # a row missed by more than this share of its right-hand side counts as missed
SETTLED = (100, 5000)  # iterations of the counter-example: the second shows that more do not help
REPEATS = 3  # timings are the best of so many

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

    violation: float  # worst of all rows and instances, as a share of the row's right-hand side
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


def compare(case: Case, tau: float, iterations: int) -> Comparison:
    compiled = published_rows(case.constraints.num_variables, **published_arguments(case.constraints))

    def ours(y: torch.Tensor) -> torch.Tensor:
        return linsat.project(y, case.constraints, tau=tau)

    def theirs(y: torch.Tensor) -> torch.Tensor:
        return published_layer(y, constr_dict=compiled, tau=tau, max_iter=iterations, no_warning=True)

    return Comparison(case, tau, measure(ours, case), measure(theirs, case))


def published_arguments(constraints: linsat.Constraints) -> dict[str, torch.Tensor]:
    """The rows as the published function takes them: one dense float32 matrix and right-hand side per sense."""
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
        f"worst violation: of any row, as a share of its right-hand side (0.01 is 1 %)\n"
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


def time_ratios(results: list[Comparison]) -> list[float]:
    """How many times as long the published package's training step takes, in ascending order."""
    return sorted(r.theirs.seconds / r.ours.seconds for r in results)


def memory_ratios(results: list[Comparison]) -> list[float]:
    """How many times as much it keeps for the backward pass, in ascending order."""
    return sorted(r.theirs.megabytes / r.ours.megabytes for r in results)


def conclusion(results: list[Comparison], iterations: int) -> str:
    ours = max(r.ours.violation for r in results)
    missed = [r for r in results if r.theirs.violation > NOTABLE]
    worst = max(results, key=lambda r: r.theirs.violation)
    times, memory = time_ratios(results), memory_ratios(results)
    return textwrap.fill(
        f"linsat holds every row of all {len(results)} lines to {short(ours)} of its right-hand side (x is "
        f"float32). The published package, after {iterations} iterations, misses a row by more than "
        f"{NOTABLE:.0%} on {len(missed)} of them; its worst is {short(worst.theirs.violation)} "
        f"({worst.case.name}, tau {worst.tau:g}). Its training step takes {times[0]:.1f} to {times[-1]:.1f} "
        f"times as long as linsat's and keeps {memory[0]:.0f} to {memory[-1]:.0f} times as much memory for "
        f"the backward pass.",
        width=98,
    )


def counter_example_rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores and two rows over the same variables with different coefficients: the only solution is (0.4, 0.4)."""
    return torch.tensor([2.0, -1.0]), torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.tensor([1.2, 1.2])


def counter_example() -> str:
    """What both make of it."""
    y, E, f = counter_example_rows()
    lines = ["x1 + 2 x2 = 1.2 and 2 x1 + x2 = 1.2, scores (2, -1), tau 1. The only solution is (0.4, 0.4)."]
    answers = {"linsat": linsat.project(y, linsat.Constraints(E=E, f=f), tau=1.0)}
    for iterations in SETTLED:
        name = f"published, {iterations} iterations"
        answers[name] = published_layer(y, E=E, f=f, tau=1.0, max_iter=iterations, no_warning=True)
    for name, x in answers.items():
        violation = short(float((E @ x - f).abs().max()))
        lines.append(f"  {name:<28}x = ({x[0]:.3f}, {x[1]:.3f}), worst violation {violation}")
    return "\n".join(lines)


def infeasible_rows() -> linsat.Constraints:
    """The infeasible rows of the paper's appendix on the feasibility assumption."""
    return linsat.Constraints(
        A=[[1, 0, 1, 0], [0, 1, 0, 1]],
        b=1,
        C=[[1, 1, 0, 0], [0, 0, 1, 1]],
        d=2,
        names=["first column", "second column", "first row", "second row"],
    )


def infeasible_answers() -> tuple[str, str]:
    """What linsat says to them, and what the published package returns."""
    constraints = infeasible_rows()
    try:
        constraints.check()
        said = "linsat finds nothing wrong"
    except linsat.InfeasibleError as error:
        said = str(error)
    with contextlib.redirect_stderr(io.StringIO()) as warning:
        answer = published_layer(torch.zeros(4), **published_arguments(constraints), tau=0.1)
    entries = ", ".join(f"{entry:.2f}" for entry in answer.tolist())
    returned = (
        f"x = ({entries}), worst violation {float(constraints.violation(answer)):.2f}, "
        f"{'with a warning on stderr' if warning.getvalue() else 'and says nothing'}"
    )
    return said, returned


def infeasible_example() -> str:
    said, returned = infeasible_answers()
    indent = " " * 4
    wrapped = textwrap.fill(said, 98, initial_indent=indent, subsequent_indent=indent)
    return (
        f"Rows that cannot hold together (the paper's appendix on feasibility):\n"
        f"  linsat raises InfeasibleError:\n{wrapped}\n  published returns {returned}"
    )
