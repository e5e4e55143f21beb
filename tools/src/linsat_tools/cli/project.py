"""``linsat project``: scores in a file to constrained x in a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from linsat.objectives import NAMED
from linsat.status import Status
from linsat_tools.cli.console import NOT_ALL_HOLD, err, one_line_errors, say, say_json
from linsat_tools.cli.record import Job, Record
from linsat_tools.cli.streaming import run


@one_line_errors
def project(
    constraints: Annotated[Path, typer.Option(help="constraint file: .json, .npz, .lp or .mps")],
    scores: Annotated[Path, typer.Option(help="scores: .npy, .npz, .csv or .parquet, one row per instance")],
    out: Annotated[Path, typer.Option(help="where x goes: .npy, .csv or .parquet")],
    objective: Annotated[str, typer.Option(help=f"one of {', '.join(NAMED)}")] = "entropy",
    tau: Annotated[
        Optional[float],  # noqa: UP045 - typer reads it at run time, also in Python 3.10
        typer.Option(help="temperature, in the units of the scores (default: 0.1; kl, tsallis: 1)"),
    ] = None,
    box: Annotated[
        Optional[tuple[float, float]],  # noqa: UP045
        typer.Option(help="LOWER UPPER: bounds for variables of an LP or MPS file that have none"),
    ] = None,
    bound: Annotated[
        list[str], typer.Option(metavar="NAME=LOWER:UPPER", help="bounds of one variable; either end may be left out")
    ] = [],  # noqa: B006 - typer copies it
    soften: Annotated[
        list[str], typer.Option(metavar="NAME=PRICE", help="rows of that name may be broken at this price per unit")
    ] = [],  # noqa: B006
    id_columns: Annotated[
        list[str], typer.Option("--id", metavar="COLUMN", help="a column of the scores that is passed through")
    ] = [],  # noqa: B006
    chunk: Annotated[Optional[int], typer.Option(help="instances per chunk (default: by their size)")] = None,  # noqa: UP045
    resume: Annotated[bool, typer.Option("--resume", help="continue a run that was stopped")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="start again, whatever is there")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Project every row of a score file onto a constraint set.

    Exit codes: 0 every instance converged, 1 infeasible or not all converged, 2 bad input, 130 interrupted.
    """
    job = Job(
        constraints,
        scores,
        out,
        tau=tau,
        objective=objective,
        box=box,
        bounds=tuple(bound),
        soften=tuple(soften),
        ids=tuple(id_columns),
        chunk=chunk,
        resume=resume,
        overwrite=overwrite,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    start = time.perf_counter()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("projecting", total=None)
        record = run(job, lambda done, total: bar.update(task, completed=done, total=total))
    seconds = time.perf_counter() - start
    if as_json:
        say_json(_summary(record, out, seconds))
    else:
        _print_summary(record, out, seconds)
    if not record.all_converged:
        raise typer.Exit(NOT_ALL_HOLD)


def _summary(record: Record, out: Path, seconds: float) -> dict[str, object]:
    return {
        "out": str(out),
        "instances": record.instances,
        "status": record.status,
        "worst_violation": record.worst_violation,
        "worst_instance": record.worst_instance,
        "seconds": round(seconds, 3),
    }


def _print_summary(record: Record, out: Path, seconds: float) -> None:
    say(f"{record.instances:,} instances in {seconds:.1f} s: {out}")
    for status in Status:
        count = record.status.get(status.value, 0)
        if count:
            say(f"  {count:,} {status}" + ("" if status is Status.CONVERGED else f". {status.advice}"))
    say(f"  worst violation of any row or bound: {record.worst_violation:.2g} (instance {record.worst_instance})")
