"""The ``tsp`` sub-command: what a user types, and how results and errors look."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from linsat_studies.console import err, one_line_errors, out, progress_bar

if TYPE_CHECKING:
    from linsat_studies.tsp.data import Instances

app = typer.Typer(no_args_is_help=True, help="Routing with a given start, end and priority city (TSP-SE, TSP-PRI).")

Task = Literal["se", "pri"]
TaskOption = Annotated[Task, typer.Option(help="se: start and end given; pri: also a priority city within 5 steps.")]
CountOption = Annotated[int, typer.Option(min=1, help="How many instances.")]
SeedOption = Annotated[
    int | None, typer.Option(help="Draw other instances; without it, the first ones of the literature's test set.")
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Threads; by default every processor.")]


def choose_instances(task: Task, count: int, seed: int | None) -> Instances:
    """The test set's first instances, or others by seed."""
    from linsat_studies.tsp.data import random_instances, test_instances

    return test_instances(task, count) if seed is None else random_instances(task, count, seed=seed)


@app.command()
@one_line_errors
def evaluate(
    task: TaskOption,
    decoder: Annotated[
        Literal["beam", "search", "round"], typer.Option(help="How the matrix becomes a tour.")
    ] = "beam",
    count: CountOption = 10_000,
    tours: Annotated[Path | None, typer.Option(help="Write coords and tours to this .npz file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
    exact: Annotated[
        bool, typer.Option(help="Compute the shortest tours too (kept on disk), to state the gap.")
    ] = False,
    seed: SeedOption = None,
    width: Annotated[int | None, typer.Option(min=1, help="Beam width; 2048 for beam, small for search.")] = None,
    views: Annotated[int | None, typer.Option(min=1, max=8, help="Mirror images of an instance that vote.")] = None,
    tau: Annotated[float | None, typer.Option(help="Temperature of the layer.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A trained network; by default the one shipped.")] = None,
    threads: ThreadsOption = None,
) -> None:
    """Solve instances with network, layer and decoder; print length, gap, feasibility and times."""
    from linsat_studies.files import prepare, write_json
    from linsat_studies.tsp.evaluate import Settings, evaluate_network
    from linsat_studies.tsp.optimum import known_optima, optima
    from linsat_studies.tsp.shipped import load_network

    prepare(tours, json_file)
    settings = Settings.default(decoder).replace(width=width, tau=tau, views=views, threads=threads)
    instances = choose_instances(task, count, seed)
    network = load_network(task, checkpoint)
    with progress_bar(f"{task} {decoder}") as update:
        result = evaluate_network(network, instances, settings, progress=update)
    best = known_optima(instances)
    if best is None and exact:
        with progress_bar("shortest tours") as update:
            best = optima(instances, progress=update)
    summary = {"seed": "test set" if seed is None else seed} | result.summary(best)
    if tours is not None:
        result.write_tours(tours)
    if json_file is not None:
        write_json(json_file, summary)
    print_summary(summary)


def print_summary(summary: dict[str, Any]) -> None:
    """The result as two columns."""
    table = Table(show_header=False, box=None)
    for name, value in summary.items():
        if value is None:
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {part:.3g}" for key, part in value.items())
        elif isinstance(value, float):
            value = f"{value:.5g}"
        table.add_row(name.replace("_", " "), str(value))
    out.print(table)


@app.command()
@one_line_errors
def solve(
    cities: Annotated[Path, typer.Argument(help="CSV file, one city a line: name,x,y or x,y.", show_default=False)],
    start: Annotated[str, typer.Option(help="First city: its name, or its number counted from 0.")],
    end: Annotated[str, typer.Option(help="Last city.")],
    priority: Annotated[str | None, typer.Option(help="A city to visit early.")] = None,
    within: Annotated[int | None, typer.Option(help="Its latest position, the start being 0; 5 by default.")] = None,
    picture: Annotated[Path | None, typer.Option("--out", help="Draw the tour to this .png, .svg or .pdf.")] = None,
    method: Annotated[
        Literal["auto", "network", "exact", "search"], typer.Option(help="auto: the network for 20 cities.")
    ] = "auto",
    threads: ThreadsOption = None,
) -> None:
    """Find a short path through your own cities and draw it."""
    from linsat_studies.files import prepare
    from linsat_studies.tsp.own_cities import draw_found, picture_kind, read_file, read_problem, solve_cities

    if picture is not None:
        picture_kind(picture)
        prepare(picture)
    read = read_file(cities)
    problem = read_problem(read, start, end, priority, within)
    found = solve_cities(read, problem, method=method, threads=threads)
    out.print(" -> ".join(found.names), markup=False, highlight=False, soft_wrap=True)
    out.print(f"length {found.length:.6g}, by {found.how}", markup=False, highlight=False, soft_wrap=True)
    if found.optimum is not None:
        over = 100 * (found.length / found.optimum - 1) if found.optimum > 0 else 0.0
        best = (
            "no tour is shorter" if over < 1e-7 else f"{over:.2f} % above the shortest; --method exact finds that one"
        )
        out.print(best, highlight=False)
    if picture is not None:
        draw_found(found, picture)
        out.print(f"drawn to {picture}", highlight=False, soft_wrap=True)


@app.command()
@one_line_errors
def train(
    folder: Annotated[Path, typer.Option(help="Of the run; a run there is continued.")] = Path("out/tsp/training"),
    model: Annotated[Literal["linsat", "attention"], typer.Option(help="Which network.")] = "linsat",
    task: Annotated[Literal["se", "pri", "both"], typer.Option(help="What it learns to solve.")] = "both",
    minutes: Annotated[float | None, typer.Option(help="Budget, in minutes of training.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget, in steps, in place of minutes.")] = None,
    config: Annotated[Path | None, typer.Option(help="JSON file with other settings (linsat).")] = None,
    initial: Annotated[Path | None, typer.Option(help="Start from the weights of this checkpoint (linsat).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and instances.")] = None,
    threads: ThreadsOption = None,
) -> None:
    """Train a network. Stop it with Ctrl-C and call it again to continue."""
    import dataclasses

    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    changes: dict[str, Any] = {} if seed is None else {"seed": seed}
    if minutes is not None or steps is not None:
        changes |= {"minutes": minutes, "steps": steps}
    if model == "attention":
        from linsat_studies.tsp.attention import AttentionRun, train_attention

        if task != "both" or config is not None or initial is not None:
            raise ValueError(
                "the Attention Model learns both tasks at once, from the start and with separate settings. "
                "Fix: leave --task, --config and --initial out."
            )
        run = AttentionRun()
        path = train_attention(dataclasses.replace(run, plan=dataclasses.replace(run.plan, **changes)), folder)
    else:
        from linsat_studies.tsp.config import TourConfig, read_config
        from linsat_studies.tsp.train import train as train_network

        settings = TourConfig() if config is None else read_config(config)
        tasks = settings.tasks if task == "both" else (task,)
        plan = dataclasses.replace(settings.plan, **changes)
        path = train_network(dataclasses.replace(settings, plan=plan, tasks=tasks), folder, initial=initial)
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several processes; one speaks
        out.print(f"trained: {path}", highlight=False, soft_wrap=True)


@app.command()
@one_line_errors
def report(
    folder: Annotated[Path, typer.Option("--out", help="Where index.html and results/ go.")] = Path("out/tsp"),
    count: CountOption = 10_000,
    trained: Annotated[int, typer.Option(min=1, help="Instances of table 6's trained matrix.")] = 1_000,
    slow: Annotated[int, typer.Option(min=0, help="Instances of each integer programming solver.")] = 5,
    seed: SeedOption = None,
) -> None:
    """Measure what is missing and write the paper's tables with ours beside them, charts and tours, to a page."""
    from linsat_studies.tsp.measurements import Scope
    from linsat_studies.tsp.report import write_report

    def scope(task: str) -> Scope:
        return Scope(task, count, min(trained, count), min(slow, count), seed)  # type: ignore[arg-type]

    path = write_report(folder, scope, bar=progress_bar, note=lambda text: err.print(text, style="yellow"))
    out.print(f"written: {path}", highlight=False, soft_wrap=True)


@app.command()
@one_line_errors
def baselines(
    task: TaskOption,
    count: CountOption = 1_000,
    exact: Annotated[bool, typer.Option(help="Compute the shortest tours (kept on disk), to state gaps.")] = True,
    slow: Annotated[int, typer.Option(min=0, help="Also other makers' solvers, on so many of the instances.")] = 0,
    seed: SeedOption = None,
    threads: ThreadsOption = None,
) -> None:
    """Classical methods on the same instances: lengths, gaps to the optimum, times."""
    from linsat_studies.tsp.classical import (
        heuristics,
        judge_solved,
        measure,
        random_starts,
        restarts,
        slow_solvers,
    )
    from linsat_studies.tsp.optimum import known_optima, optima

    instances = choose_instances(task, count, seed)
    best = known_optima(instances)
    if best is None and exact:
        with progress_bar("shortest tours") as update:
            best = optima(instances, progress=update)
    table = Table("method", "mean length", "gap", "seconds", "instances")

    def add(name: str, row: dict[str, Any]) -> None:
        mean = "no tour" if row["mean_length"] is None else f"{row['mean_length']:.4f}"
        gap = "" if row["gap_percent"] is None else f"{row['gap_percent']:.2f} %"
        table.add_row(name, mean, gap, f"{row['seconds']:.3g}", str(row.get("found", row["count"])))

    searches = {f"local search, {random_starts(starts)}": solve for starts, solve in restarts(threads).items()}
    for name, method in (heuristics(threads) | searches).items():
        with err.status(name):
            add(name, measure(method, instances, best))
    few = instances[: min(slow, count)]
    for name, solver in slow_solvers(task).items() if slow else ():
        try:
            with progress_bar(name) as update:
                add(name, judge_solved(few, solver(few, progress=update), None if best is None else best[: len(few)]))
        except (ImportError, RuntimeError) as error:  # RuntimeError: no licence
            err.print(f"{name} left out: {error}", style="yellow", markup=False)
    out.print(table)
