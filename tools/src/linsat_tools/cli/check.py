"""``linsat check``: what a constraint file means, before anything is projected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Optional

import torch
import typer
from rich.progress import Progress

from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError
from linsat.files import Model, read_model
from linsat.machine import check_machine
from linsat.projection import solve
from linsat.status import Status
from linsat.verdict import Deadline, judge
from linsat.verdict.diagnosis import Diagnosis, diagnose, explained, linear_system
from linsat.verdict.system import OutOfTime, time_limit
from linsat_tools.cli.analysis import Forced, Temperatures, forced_variables, redundant_rows, temperatures
from linsat_tools.cli.console import NOT_ALL_HOLD, UNKNOWN, err, one_line_errors, say, say_json

_SHOWN = 12  # entries of a list that are printed; --json has all
_TERMS = 8
_PRESOLVE_COSTS = 20  # times the verdict


@dataclass
class Findings:
    """Everything that `check` says about a file; None: not looked into, or not established in time."""

    verdict: str = "feasible"  # or "infeasible", "unknown"
    conflict: list[int] = field(default_factory=list)
    explanation: list[str] = field(default_factory=list)  # the conflict in lines
    bounds: list[str] = field(default_factory=list)  # that the conflict needs and that come from rows or the box
    absorbed: list[str] = field(default_factory=list)  # rows of the file that became such bounds
    minimal: bool = False
    why: str = ""  # the verdict is unknown
    infeasible_instances: list[int] | None = None
    unknown_instances: list[int] | None = None
    unbounded: int = 0  # variables with an infinite bound, which rule out tau
    forced: list[Forced] | None = None
    redundant: list[int] | None = None
    tau: Temperatures | None = None


@one_line_errors
def check(
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(help="constraint file: .json, .npz, .lp or .mps; without one, this machine is checked"),
    ] = None,
    box: Annotated[
        Optional[tuple[float, float]],  # noqa: UP045 - typer reads it at run time, also in Python 3.10
        typer.Option(help="LOWER UPPER: bounds for variables of an LP or MPS file that have none"),
    ] = None,
    seconds: Annotated[float, typer.Option(help="time for everything after reading the file")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """Examine a constraint file: whether it can hold, forced variables, idle rows, tau; without one, test linsat here.

    Without a file, up to a minute, as python -m linsat check: solve small systems with every back end that runs here,
    compare and time them, and print what a report of a fault needs.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input, 3 unknown (neither was established in time), 130 interrupted.
    """
    if file is None:
        if not check_machine():
            raise typer.Exit(NOT_ALL_HOLD)
        return
    if not seconds >= 0:
        raise ConstraintError(f"--seconds is {seconds}; expected at least 0.")
    model = read_model(file, box=box)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("redundant rows", total=len(model.constraints) or 1)
        findings = examine(model, seconds, lambda done, total: bar.update(task, completed=done, total=total))
    if as_json:
        say_json(as_content(file, model, findings))
    else:
        _print(file, model, findings)
    if findings.verdict != "feasible":
        raise typer.Exit(NOT_ALL_HOLD if findings.verdict == "infeasible" else UNKNOWN)


def examine(model: Model, seconds: float, progress: Any = lambda done, total: None) -> Findings:
    """Look into a constraint set within ``seconds``: the verdict first, then what it forces, redundant rows and tau."""
    import scipy.optimize  # noqa: F401 - loaded before the clock runs: what the verdict took is to be its own time

    constraints = model.constraints
    deadline = Deadline(seconds)
    if constraints.batch_shape:
        return _examine_instances(model, deadline)
    found = diagnose(constraints, seconds=seconds, others=0)
    took = seconds - deadline.remaining
    lower, upper = constraints.lower.detach().cpu(), constraints.upper.detach().cpu()
    unbounded = int((torch.isinf(lower) | torch.isinf(upper)).expand(model.num_variables).sum())
    if found.verdict.kind != "feasible":
        return _with_conflict(Findings(unbounded=unbounded), constraints, found)
    findings = Findings(unbounded=unbounded)
    # Presolve solves a program of about three times the size of that of the verdict: not begun where it cannot end.
    if not unbounded and deadline.remaining > _PRESOLVE_COSTS * took:
        findings.forced = forced_variables(constraints, deadline)
    findings.redundant = redundant_rows(constraints, deadline.remaining, progress)
    if not unbounded:
        findings.tau = temperatures(constraints, model.scores, deadline.remaining)
    return findings


def _with_conflict(findings: Findings, constraints: Constraints, found: Diagnosis, instance: int = 0) -> Findings:
    findings.verdict, findings.why, findings.minimal = found.verdict.kind, found.verdict.reason, found.minimal
    findings.conflict = list(found.rows)
    findings.bounds = [bound.text(value) for bound, value in found.bounds]
    findings.absorbed = found.absorbed_rows
    findings.explanation = explained(constraints, found, instance) if found.rows or found.bounds else []
    return findings


def _examine_instances(model: Model, deadline: Deadline) -> Findings:
    """Per-instance right-hand sides or bounds: which instances cannot hold, and why the first of them cannot."""
    constraints = model.constraints
    unsure = list(range(math.prod(constraints.batch_shape)))
    wrong: list[int] = []
    lower, upper = constraints.lower.detach(), constraints.upper.detach()
    unbounded = bool(torch.isinf(lower).any() or torch.isinf(upper).any())
    if not unbounded and not deadline.passed:
        scores = torch.zeros((*constraints.batch_shape, constraints.num_variables or 1), dtype=torch.float64)
        with suppress(OutOfTime), time_limit(deadline):
            codes = solve(scores, constraints, on_failure="ignore").codes.reshape(-1)
            unsure = (codes != Status.CONVERGED.code).nonzero().squeeze(-1).tolist()
    unknown: list[int] = []
    first: Diagnosis | None = None
    for instance in unsure:
        # One instance gets its conflict; of the others only the verdict counts.
        if first is None:
            found = diagnose(constraints, instance, seconds=deadline.remaining, others=0)
            verdict = found.verdict
            first = found if verdict.kind == "infeasible" else None
        else:
            verdict = judge(linear_system(constraints, instance), deadline=deadline)
        if verdict.kind != "feasible":
            (wrong if verdict.kind == "infeasible" else unknown).append(instance)
    findings = Findings(
        verdict="infeasible" if wrong else "unknown" if unknown else "feasible",
        infeasible_instances=wrong,
        unknown_instances=unknown,
        why=f"{len(unknown):,} instances were not decided",
    )
    return findings if first is None else _with_conflict(findings, constraints, first, wrong[0])


def as_content(file: Path, model: Model, findings: Findings) -> dict[str, Any]:
    """Everything found, for --json; rows and variables by name, null where it was not established."""
    names = model.constraints.names
    wrong = findings.infeasible_instances
    tau = findings.tau
    return {
        "file": str(file),
        "variables": model.num_variables,
        "rows": len(model.constraints),
        "notes": list(model.notes),
        "feasible": {"feasible": True, "infeasible": False}.get(findings.verdict),
        "conflict": [
            {
                "row": names[i],
                "text": model.constraints.row_text(i, instance=wrong[0] if wrong else None, terms=_TERMS),
            }
            for i in findings.conflict
        ],
        "conflict_bounds": findings.bounds,
        "conflict_rows_read_as_bounds": findings.absorbed,
        "conflict_is_minimal": findings.minimal,
        "infeasible_instances": findings.infeasible_instances,
        "unknown_instances": findings.unknown_instances,
        "forced": None
        if findings.forced is None
        else [
            {"variable": model.constraints._variable_name(f.variable), "value": f.value, "by_bounds": f.by_bounds}
            for f in findings.forced
        ],
        "redundant": None if findings.redundant is None else [names[i] for i in findings.redundant],
        "tau": None
        if tau is None
        else {
            "lowest": tau.lowest,
            "highest": tau.highest,
            "for_scores_of_spread": tau.spread,
            "scores": "objective" if tau.from_objective else "normal",
            "fails_below": tau.fails_below,
        },
    }


def _print(file: Path, model: Model, findings: Findings) -> None:
    constraints = model.constraints
    senses = constraints.senses
    counts = ", ".join(f"{senses.count(sense)} {sense}" for sense in ("<=", ">=", "==") if sense in senses) or "none"
    say(f"{file}: {model.num_variables:,} variables, {len(constraints):,} rows ({counts})")
    for note in model.notes:
        say(f"  note: {note}")
    if findings.verdict == "infeasible":
        _print_conflict(model, findings)
        return
    if findings.verdict == "unknown":
        say(f"unknown: {findings.why} (--seconds)", style="yellow")
        return
    say(
        f"feasible: some point {'within the bounds' if findings.unbounded else 'of the box'} satisfies every row",
        style="green",
    )
    if findings.infeasible_instances is not None:
        say("  every instance was tried with its own numbers; forced variables and redundant rows were not looked for")
        return
    if findings.unbounded:
        say("forced variables: not looked for, because of infinite bounds (--box)")
    else:
        forced = [_forced_words(model, f) for f in findings.forced or []]
        _print_list("forced variables", forced, findings.forced is None)
    rows = [f"{constraints.names[i]}: {model.constraints.row_text(i, terms=_TERMS)}" for i in findings.redundant or []]
    _print_list("redundant rows (all can go at once)", rows, findings.redundant is None)
    if findings.unbounded:
        say(
            f"tau: not tried; {findings.unbounded:,} variables have an infinite bound; the entropic objective works "
            f"in a finite box. Fix: bounds for each of them, or --box LOWER UPPER for all; "
            f"objective=linsat.Euclidean() needs none"
        )
        return
    _print_tau(findings.tau)


def _print_conflict(model: Model, findings: Findings) -> None:
    wrong = findings.infeasible_instances
    if wrong is not None:
        more = ", ..." if len(wrong) > _SHOWN else ""
        shown = ", ".join(map(str, wrong[:_SHOWN])) + more
        say(
            f"infeasible: {len(wrong):,} of {math.prod(model.constraints.batch_shape):,} instances: {shown}",
            style="red",
        )
        if findings.unknown_instances:
            say(f"unknown: {len(findings.unknown_instances):,} instances (--seconds)", style="yellow")
    one = len(findings.conflict) + len(findings.bounds) == 1
    where = "" if wrong is None else f" for instance {wrong[0]}"
    text = "this row cannot hold within the bounds" if one else "these rows cannot hold together within the bounds"
    say(f"infeasible: {text}{where}", style="red")
    for line in findings.explanation:
        say(line)
    if not findings.minimal:
        say("  it was not established that the conflict needs each of them (--seconds)")
    else:
        say("  fix: change it or widen the bounds" if one else "  fix: loosen any one of them, and the rest can hold")


def _forced_words(model: Model, forced: Forced) -> str:
    return f"{model.constraints._variable_name(forced.variable)} = {forced.value:g}" + (
        " (by its bounds)" if forced.by_bounds else ""
    )


def _print_list(title: str, entries: Sequence[str], unknown: bool) -> None:
    if unknown:
        say(f"{title}: not established, the set is too large, or time ran out (--seconds)")
        return
    say(f"{title}: {len(entries) or 'none'}")
    for entry in entries[:_SHOWN]:
        say(f"  {entry}")
    if len(entries) > _SHOWN:
        say(f"  and {len(entries) - _SHOWN} more (--json lists all)")


def _print_tau(tau: Temperatures | None) -> None:
    if tau is None:
        say("tau: no range; nothing is left to decide, or time ran out (--seconds)")
        return
    source = "the scores of its objective" if tau.from_objective else "normal scores"
    if tau.lowest is None or tau.highest is None:
        say(f"tau: no temperature tried is in between for {source} of spread {tau.spread:.3g}")
    else:
        say(f"tau: {tau.lowest:.3g} to {tau.highest:.3g} to train with, for {source} of spread {tau.spread:.3g}")
    if tau.fails_below is not None:
        say(f"  at tau {tau.fails_below:.3g} and below some trials did not converge")
