"""The report: the paper's tables 1, 4, 6 and 7 with ours beside them, gaps, learning curves and tours, on one page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from linsat_studies.page import Page, machine
from linsat_studies.progress import Bar, Note, no_bar
from linsat_studies.tsp import paper
from linsat_studies.tsp.charts import equal_time_chart, learning_chart
from linsat_studies.tsp.classical import random_starts
from linsat_studies.tsp.measurements import LINSAT, PARTS, Measured, Scope
from linsat_studies.tsp.pictures import tour_grid
from linsat_studies.tsp.shipped import SHIPPED

TASKS = ("se", "pri")
NAMES = {"se": "TSP-SE", "pri": "TSP-PRI"}
Parts = dict[str, dict[str, dict[str, Any]]]  # part -> task -> what was measured; missing where it was left out


def write_report(
    folder: Path,
    scope: Callable[[str], Scope],
    *,
    bar: Bar = no_bar,
    note: Note = lambda text: None,
) -> Path:
    """Measure what is missing, then write ``folder/index.html``.

    Args:
        folder: also gets ``results/*.json``, one file per part, so that an interrupted run continues.
        scope: what to measure on, for each task.
        bar: opens a progress bar of that label.
        note: told what is left out and why.
    """
    notes: list[str] = []

    def remember(text: str) -> None:
        notes.append(text)
        note(text)

    parts: Parts = {name: {} for name in PARTS}
    for task in TASKS:
        measured = Measured(scope(task), folder / "results", remember)
        with bar(f"{NAMES[task]} shortest tours") as progress:
            measured.optimal_tours(progress)
        for name in PARTS:
            with bar(f"{NAMES[task]} {name.replace('_', ' ')}") as progress:
                found = measured.part(name, progress)
            if found is not None:
                parts[name][task] = found
    path = folder / "index.html"
    build_page(parts, {task: scope(task) for task in TASKS}, notes).write(path)
    return path


def build_page(parts: Parts, scopes: dict[str, Scope], notes: list[str]) -> Page:
    """The page of what was measured; a part that is missing leaves its section out."""
    page = Page("Routing with a start, an end and a priority city")
    first = next(iter(scopes.values()))
    where = "the literature's test instances (seed 1234)" if first.seed is None else f"instances of seed {first.seed}"
    page.text(
        f"{first.count:,} paths through 20 cities, {where}. TSP-SE: start and end are given. TSP-PRI: also, a priority "
        "city is visited within 5 steps. Every tour behind a number here was checked: a permutation, right start and "
        "end, priority city in time. Gaps are to the exact optimum (dynamic programming) of the same instances."
    )
    page.text(f"Measured on {machine()}. Times are totals over the instances.", note=True)
    _table_1(page, parts)
    _equal_time(page, parts)
    _table_4(page, parts)
    _table_6(page, parts)
    _table_7(page, parts)
    curves = shipped_curves()
    if curves:
        page.heading("Learning curves")
        page.text(
            "Mean length on instances held out, against minutes of training on 2 processors shared with other work."
        )
        page.picture(learning_chart(curves), "mean validation length against minutes of training")
    _pictures(page, parts, scopes)
    page.left_out(notes)
    return page


def shipped_curves(folder: Path = SHIPPED) -> dict[str, list[dict[str, Any]]]:
    """Learning curves shipped beside the networks, by file name: one JSON object a line, as training writes them."""
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines() if line]
        for path in sorted(folder.glob("*.jsonl"))
    }


def _rows(parts: Parts, part: str, task: str) -> dict[str, Any]:
    return parts.get(part, {}).get(task, {}).get("rows", {})


def _cells(row: dict[str, Any] | None) -> list[str]:
    """Length, gap and time of one method on one task."""
    if row is None or row["mean_length"] is None:
        return ["", "", ""]
    seconds = row["seconds"]["total"] if isinstance(row["seconds"], dict) else row["seconds"]
    return [f"{row['mean_length']:.4f}", f"{row['gap_percent']:.2f} %", duration(seconds)]


def duration(seconds: float) -> str:
    """As one says it: 0.3 s, 45 s, 2 min 44 s, 1 h 2 min."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# What of ours stands in the place of a row of the paper: part and row.
_PLACES = {
    "Nearest neighbour": ("heuristics", "nearest neighbour"),
    "Nearest insertion": ("heuristics", "nearest insertion"),
    "Farthest insertion": ("heuristics", "farthest insertion"),
    "Random insertion": ("heuristics", "random insertion"),
    "Gurobi, quadratic form, 2 s": ("solvers", "quadratic form, HiGHS, 2 s"),
    "Gurobi, quadratic form, 10 s": ("solvers", "quadratic form, HiGHS, 10 s"),
    "Gurobi (MTZ)": ("solvers", "MIP over arcs, HiGHS, 10 s"),
    "LKH3": ("solvers", "LKH"),
    "Attention Model": ("attention", "best of 128 samples"),
    "LinSAT, beam 2,048": ("linsat", "beam"),
}


def _table_1(page: Page, parts: Parts) -> None:
    page.heading("Table 1: mean tour length")
    rows: list[list[str]] = []
    ours: list[int] = []
    group = ""
    for line in paper.TABLE_1:
        if line.group != group:
            group = line.group
            rows.append([group])
        part, name = _PLACES.get(line.method, ("", ""))
        own = {task: _rows(parts, part, task).get(name) for task in TASKS}
        stated = {"se": (line.se, line.se_time), "pri": (line.pri, line.pri_time)}
        cells = [line.method if not name or name.lower() == line.method.lower() else f"{line.method} / ours: {name}"]
        for task in TASKS:
            length, time = stated[task]
            cells += ["" if length is None else f"{length:.3f}", time, *_cells(own[task])]
        if part == "linsat":
            ours.append(len(rows))
        rows.append(cells)
    rows.append(["Not in the paper"])
    for cells, is_ours in _more_rows(parts):
        if is_ours:
            ours.append(len(rows))
        rows.append(cells)
    header = ["method"]
    for task in TASKS:
        header += [f"{NAMES[task]} paper", "its time", "ours", "gap", "our time"]
    page.table(header, rows, ours=ours)
    page.text(
        "Times of the paper: its own machine, with a GPU for nearest neighbour and the neural methods. " + _few(parts),
        note=True,
    )


def _few(parts: Parts) -> str:
    """On how many instances each solver of another maker ran: lengths, gaps and times are those of these alone."""
    said = [
        f"{NAMES[task]} {name}: {row['count']:,} ({row['found']} with a tour, {row['proved']} proved shortest)"
        for task in TASKS
        for name, row in _rows(parts, "solvers", task).items()
    ]
    return f"On fewer instances, to which length, gap and time refer: {'; '.join(said)}." if said else ""


def _more_rows(parts: Parts) -> Iterator[tuple[list[str], bool]]:
    """Rows of table 1 that the paper does not have, and whether each is the layer's."""
    named = [(f"linsat, {name}", "linsat", name) for name in LINSAT if name != "beam"]
    named.append(("Attention Model, greedy", "attention", "greedy"))
    named += [(f"local search, {random_starts(k)}", "restarts", k) for k in ("1", "5", "20")]
    solvers = {name for task in TASKS for name in _rows(parts, "solvers", task)} - {
        place[1] for place in _PLACES.values()
    }
    named += [(name, "solvers", name) for name in sorted(solvers)]
    for label, part, row in named:
        own = [_rows(parts, part, task).get(row) for task in TASKS]
        if any(own):
            yield [label, *(cell for one in own for cell in ("", "", *_cells(one)))], part == "linsat"
    exact = [parts["optimum"][task] for task in TASKS if task in parts.get("optimum", {})]
    if len(exact) == len(TASKS):
        cells = [
            ("", "", f"{one['mean_length']:.4f}", "0.00 %", duration(one["seconds_each"] * one["scope"]["count"]))
            for one in exact
        ]
        yield (
            [
                f"exact dynamic programming (time from {exact[0]['timed']} instances)",
                *(cell for one in cells for cell in one),
            ],
            False,
        )


def _equal_time(page: Page, parts: Parts) -> None:
    measured = {task: (_rows(parts, "equal_time", task), _rows(parts, "restarts", task)) for task in TASKS}
    if not any(ours and theirs for ours, theirs in measured.values()):
        return
    page.heading("At equal time: network and one descent, or descents from random starts?")
    page.text(
        "One descent of local search from the tour that a beam of 1 to 256 finds in the network's matrix, beside the "
        "best of K descents from random tours. Time includes network, layer and search; both use every processor."
    )
    page.picture(equal_time_chart(measured), "gap to the optimum against time, network and random starts")
    rows = []
    for task, (ours, theirs) in measured.items():
        rows.append([NAMES[task]])
        rows += [[f"network, beam {width}, one descent", *_cells(row)] for width, row in ours.items()]
        rows += [[random_starts(starts), *_cells(row)] for starts, row in theirs.items()]
    page.table(["method", "mean length", "gap", "time"], rows)


def _table_4(page: Page, parts: Parts) -> None:
    if not parts.get("rounding"):
        return
    page.heading("Table 4: rounding at 0.5, without search")
    header, rows = ["configuration"], []
    for task in TASKS:
        header += [f"{NAMES[task]} feasible, paper", "ours", "length, paper", "ours"]
    for tau in (0.1, 0.05, 0.01, 0.005):
        cells = [f"tau = {tau}, rounding"]
        for task in TASKS:
            share, length = paper.TABLE_4[task][tau]
            own = _rows(parts, "rounding", task).get(str(tau))
            cells += [f"{share:.2%}", f"{own['feasible_share']:.2%}" if own else "", f"{length:.3f}", _cells(own)[0]]
        rows.append(cells)
    cells = ["tau = 0.1, beam search"]
    for task in TASKS:
        cells += ["100.00%", "100.00%", f"{paper.BEAM[task]:.3f}", _cells(_rows(parts, "linsat", task).get("beam"))[0]]
    page.table(header, [*rows, cells])
    page.text("Lengths are means over the feasible tours.", note=True)


def _table_6(page: Page, parts: Parts) -> None:
    if not parts.get("ablation"):
        return
    page.heading("Table 6: the layer without a network")
    header, rows = ["scores"], []
    for task in TASKS:
        header += [f"{NAMES[task]} paper", "its time", "ours, plain beam", "ours, merged beam", "our time", "instances"]
    labels = {"random": "random matrix", "trained": "matrix trained per instance", "network": "network"}
    for key, label in labels.items():
        cells = [label]
        for task in TASKS:
            length, time = paper.TABLE_6[key][task]
            cells += [f"{length:.3f}", time]
            own = _rows(parts, "ablation", task).get(key)
            if own is None:
                cells += [""] * 4
            else:
                cells += [f"{own['plain']:.3f}", f"{own['merged']:.3f}", duration(own["seconds"]), f"{own['count']:,}"]
        rows.append(cells)
    page.table(header, rows)
    page.text(
        "The plain beam is the paper's; the merged one keeps, of partial tours with the same cities and the same last "
        "city, only the shortest. Time is that of training the matrix, layer and plain beam.",
        note=True,
    )


def _table_7(page: Page, parts: Parts) -> None:
    if not parts.get("linsat"):
        return
    page.heading("Table 7: where the time goes")
    rows = []
    for task in TASKS:
        rows.append([f"{NAMES[task]}, paper (beam)", *(f"{share:.1f} %" for share in paper.TABLE_7[task]), ""])
        for decoder, row in _rows(parts, "linsat", task).items():
            spent = row["seconds"]
            shares = [f"{100 * spent[name] / spent['total']:.1f} %" for name in ("network", "layer", "search")]
            rows.append([f"{NAMES[task]}, ours ({decoder})", *shares, duration(spent["total"])])
    page.table(["", "network", "layer", "search", "total"], rows)


def _pictures(page: Page, parts: Parts, scopes: dict[str, Scope]) -> None:
    for number, task in zip((3, 4), TASKS):
        found = parts.get("examples", {}).get(task)
        if not found:
            continue
        page.heading(f"Figure {number}: tours, {NAMES[task]}")
        tours = {name: np.array(rows) for name, rows in found["tours"].items()}
        few = scopes[task].instances()[: len(next(iter(tours.values())))]
        page.text("The first instances of the set. Legs that the shortest tour does not have are red.")
        page.picture(tour_grid(few, tours, reference="shortest"), f"tours of {len(few)} instances by method")
