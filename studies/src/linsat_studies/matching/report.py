"""The report: tables 2, 5 and 8 with ours beside the paper's, classes, phi estimated, charts, pictures, on a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat_studies.checkpoints import read_checkpoint
from linsat_studies.files import write_json
from linsat_studies.matching import paper
from linsat_studies.matching.charts import class_chart, learning_chart, phi_chart, rounding_chart, technique_chart
from linsat_studies.matching.evaluate import PARTS
from linsat_studies.matching.examples import example_rows
from linsat_studies.matching.measurements import (
    BASELINES,
    LONGER,
    OURS,
    RIVAL,
    ROWS,
    TAUS,
    Study,
    over_seeds,
    phi_folder,
)
from linsat_studies.matching.phi import SIGNALS
from linsat_studies.matching.pictures import matching_grid
from linsat_studies.page import Page, machine
from linsat_studies.progress import Bar, Note, no_bar
from linsat_studies.seeds import add_leads
from linsat_studies.training import LAST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BACKBONE = "backbone"  # folder of the run that trained the backbone's upper blocks
SAID = {"regression": "estimated by regression", "bound": "estimated as the learned bound"}
Results = dict[str, list[dict[str, Any]]]  # row -> one result for each seed


@dataclass
class Measured:
    """What a page is made of; what is missing leaves its section out."""

    rows: Results
    baselines: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounded: dict[float, list[dict[str, Any]]] = field(default_factory=dict)
    lowered: dict[float, list[dict[str, Any]]] = field(default_factory=dict)
    estimated: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    leads: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)  # of three rows over all others
    times: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def measure_rows(study: Study, *, bar: Bar = no_bar) -> Results:
    """Every row of table 2 with every trained network of the study's folder; from disk where measured before.

    Raises:
        ValueError: there is no trained network.
    """
    runs = study.runs
    if not runs:
        raise ValueError(f"{study.folder / 'runs'} holds no trained network. Fix: linsat-studies matching train first.")
    found: Results = {}
    for run in runs:
        for name in run.rows:
            with bar(f"{name}, seed {run.seed}") as progress:
                found.setdefault(name, []).append(study.row(run, name, progress))
    return {name: found[name] for name in ROWS if name in found}


def summary(rows: Results) -> dict[str, Any]:
    """Table 2 as numbers: for each row the figures of `over_seeds`, and the layer's leads (`add_leads`)."""
    table = {name: over_seeds(found) for name, found in rows.items()}
    add_leads(table, OURS)
    return table


def write_report(
    study: Study, *, record: Path | None = None, bar: Bar = no_bar, note: Note = lambda text: None
) -> Path:
    """Measure what is missing, then write ``index.html`` and ``summary.json`` to the study's folder.

    Args:
        study: with trained networks in its folder.
        record: also gets what is in ``summary.json``, for the tables of ``docs/matching.md``.
        bar: opens a progress bar of that label.
        note: told what is left out and why.
    """
    measured = Measured(measure_rows(study, bar=bar))
    for name in BASELINES if study.features is not None else BASELINES[:1]:
        with bar(name) as progress:
            measured.baselines[name] = study.baseline(name, progress)
    layers = [run for run in study.runs if OURS in run.rows]
    for tau in TAUS:
        for run in layers:
            with bar(f"rounding at tau {tau:g}, seed {run.seed}") as progress:
                measured.rounded.setdefault(tau, []).append(study.rounded(run, tau, progress))
            with bar(f"Hungarian at tau {tau:g}, seed {run.seed}") as progress:
                measured.lowered.setdefault(tau, []).append(study.lowered(run, tau, progress))
    for signal in SIGNALS:
        for run in layers:
            if (phi_folder(study.folder, signal, run.seed) / LAST).exists():
                with bar(f"phi by {signal}, seed {run.seed}") as progress:
                    measured.estimated.setdefault(signal, []).append(study.estimated(run, signal, progress))
    for run in layers[:1]:
        try:
            with bar("times"):
                measured.times = study.times(run)
        except ImportError as error:  # the backbone's package is not there: features can come from another machine
            measured.notes.append(f"times left out: {error}")
    for text in measured.notes:
        note(text)
    for one in (OURS, LONGER, RIVAL):
        if one in measured.rows:
            measured.leads[one] = {name: study.lead(one, name) for name in measured.rows if name != one}
    for file in (study.folder / "summary.json", record):
        if file is not None:
            write_json(file, figures(study, measured))
    path = study.folder / "index.html"
    build_page(study, measured).write(path)
    return path


def figures(study: Study, measured: Measured) -> dict[str, Any]:
    """What was measured as plain numbers: means over seeds, leads with intervals, times, learning curves."""

    def mean(results: list[dict[str, Any]], *names: str) -> dict[str, float]:
        return {name: float(np.mean([one[name] for one in results])) for name in names}

    return {
        "scope": study.scope,
        "source": study.source,
        "table": summary(measured.rows),
        "paired": measured.leads,
        "baselines": {name: mean([one], "f1") for name, one in measured.baselines.items()},
        "rounded": {
            f"{tau:g}": mean(found, "feasible", "feasible_f1", "f1") for tau, found in measured.rounded.items()
        },
        "estimated": {
            signal: {"seeds": len(found), **mean(found, "f1", "precision", "recall", "phi_error", "phi_exact")}
            for signal, found in measured.estimated.items()
        },
        "times": measured.times,
        "curves": learning_curves(study),
    }


def learning_curves(study: Study) -> dict[str, Any]:
    """Validation errors of every run by step, and of the backbone's tuning."""
    curves = {f"{run.network} {run.trained} {run.seed}": read_checkpoint(run.path)["curve"] for run in study.runs}
    tuned = study.folder / BACKBONE / LAST
    if tuned.exists():
        curves["backbone tuning 0"] = read_checkpoint(tuned)["curve"]
    return curves


def build_page(study: Study, measured: Measured) -> Page:
    """The page of what was measured."""
    page = Page("Partial graph matching with outliers on both sides")
    _about(page, study)
    _table_2(page, measured, synthetic=study.synthetic)
    _verdict(page, measured.leads.get(OURS, {}))
    _by_class(page, measured)
    _table_5(page, measured)
    _estimated(page, study, measured)
    _table_8(page, measured)
    _curves(page, study)
    _pictures(page, study)
    page.left_out(measured.notes)
    return page


def _about(page: Page, study: Study) -> None:
    sizes = [(len(pair.left.names), len(pair.right.names), pair.phi) for pair in study.pairs]
    left, right, phi = np.mean(sizes, axis=0)
    features = "geometry alone" if study.features is None else f"features of {study.features.name}"
    page.text(
        f"{len(study.pairs):,} pairs of {study.source}, {len(set(study.classes))} classes, {features}. All visible "
        f"keypoints of both objects take part, {left:.1f} and {right:.1f} on average; {phi:.1f} have a partner "
        "(phi, given); the others are outliers. F1 of a pair is 2 x right matches / (matches + phi); a figure is the "
        "mean over classes of the means over their pairs."
    )
    page.text(f"Measured on {machine()}.", note=True)


def percent(share: float, digits: int = 2) -> str:
    """A share in per cent; empty where there is none."""
    return "" if np.isnan(share) else f"{100 * share:.{digits}f}"


def _table_2(page: Page, measured: Measured, *, synthetic: bool) -> None:
    page.heading("Table 2: mean F1, %")
    rows: list[list[str]] = []
    ours: list[int] = []
    group = ""
    for name, found in measured.rows.items():
        row, line = ROWS[name], over_seeds(found)
        head = row.kind if name in paper.TABLE_2 else "not in the paper"
        if head != group:
            group = head
            rows.append([group])
        if name == OURS:
            ours.append(len(rows))
        stated = paper.TABLE_2.get(name)
        rows.append(
            [
                name,
                "" if stated is None else f"{stated:.1f}",
                percent(line["f1"]),
                percent(line["error"]),
                percent(line["precision"], 1),
                percent(line["recall"], 1),
                f"{line['seeds']}",
                f"{line['violation']:.1e}",
                f"{line['excess']:.1e}" if row.kept == "phi" else "",
            ]
        )
    if measured.baselines:
        rows.append(["no training, exact matching of phi pairs"])
        for name, one in measured.baselines.items():
            figures = (percent(one[key], digits) for key, digits in (("precision", 1), ("recall", 1)))
            rows.append([name, "", percent(one["f1"]), "", *figures, "", "", ""])
    header = ["", "paper (VOC)", "ours", "standard error", "precision", "recall", "seeds", "worst row or column"]
    page.table([*header, "worst sum above phi"], rows, ours=ours)
    names = {name: over_seeds(found)["each"] for name, found in measured.rows.items()}
    names |= {name: [one["f1"]] for name, one in measured.baselines.items()}
    page.picture(drawn_rows(names, {} if synthetic else paper.TABLE_2), "mean F1 of every technique and seed")
    page.text(
        "Standard error: over seeds. Worst row or column: by how much a soft matching exceeds 1 in any row or column, "
        "or leaves [0, 1], in any pair of any seed. Worst sum above phi: of the number of pairs; Sinkhorn does "
        "not know phi before the cut. Used with layer: the scores of that network through the layer.",
        note=True,
    )


def drawn_rows(rows: dict[str, list[float]], stated: dict[str, float]) -> Figure:
    """F1 of each seed by row, beside the figures stated for the same rows in per cent."""
    shown = {name: [100 * value for value in values] for name, values in rows.items()}
    return technique_chart(shown, {name: one for name, one in stated.items() if name in shown}, ours=OURS)


def _verdict(page: Page, leads: dict[str, dict[str, float]]) -> None:
    if not leads:
        return
    rows = [
        [name, f"{100 * one['mean']:+.2f}", f"{100 * one['low']:+.2f} to {100 * one['high']:+.2f}"]
        for name, one in leads.items()
    ]
    page.table(["the layer's mean F1 less that of", "difference", "95 % interval"], rows)
    page.text("Intervals: bootstrap over seeds and over the pairs within each class, both rows on the same pairs.")


def _by_class(page: Page, measured: Measured) -> None:
    table = {name: over_seeds(found)["by_class"] for name, found in measured.rows.items() if name in paper.TABLE_2}
    if OURS not in table or len(table[OURS]) < 2:
        return
    page.heading("F1 by class, %")
    shown = {name: values for name, values in table.items() if name.startswith("NGMv2")}
    scaled = {name: {cls: 100 * value for cls, value in values.items()} for name, values in shown.items()}
    page.picture(class_chart(scaled, ours=OURS), "F1 by class of the NGMv2 rows")
    classes = list(table[OURS])
    rows = [[cls, *(percent(values[cls], 1) for values in table.values())] for cls in classes]
    page.table(["class", *table], rows)


def _table_5(page: Page, measured: Measured) -> None:
    if not measured.rounded:
        return
    page.heading("Table 5: rounding at 0.5, without a solver")
    rows, found = [], {}
    for tau, results in measured.rounded.items():
        feasible = float(np.mean([one["feasible"] for one in results]))
        f1 = float(np.mean([one["feasible_f1"] for one in results]))
        every = float(np.mean([one["f1"] for one in results]))
        best = float(np.mean([one["f1"] for one in measured.lowered[tau]]))
        found[tau] = (100 * feasible, 100 * f1)
        stated = [f"{value:.2f}" for value in paper.TABLE_5.get(tau, ())] or ["", ""]
        rows.append(
            [f"tau = {tau:g}", stated[0], percent(feasible), stated[1], percent(f1), percent(every), percent(best)]
        )
    header = ["", "feasible %, paper", "ours", "F1 of feasible, paper", "ours", "F1 of all, ours", "Hungarian, ours"]
    page.table(header, rows)
    best = over_seeds(measured.rows[OURS])["f1"]
    page.picture(rounding_chart(found, paper.TABLE_5, 100 * best), "feasible share and F1 of rounding against tau")
    page.text(
        f"The paper's Hungarian decoder at tau = {paper.HUNGARIAN[0]}: F1 {paper.HUNGARIAN[1]}. Feasible: no keypoint "
        "matched twice, at most phi pairs. F1 of all counts what rounding gave, feasible or not. Hungarian: the same "
        "soft matching through the assignment solver, phi highest kept. One network, trained at its own tau.",
        note=True,
    )


def _estimated(page: Page, study: Study, measured: Measured) -> None:
    if not measured.estimated:
        return
    page.heading("phi estimated rather than given")
    given = over_seeds(measured.rows[OURS])
    rows = [["given", percent(given["f1"]), percent(given["precision"], 1), percent(given["recall"], 1), "0", "100.0"]]
    for signal, results in measured.estimated.items():
        line = over_seeds(results)
        off, exact = (float(np.mean([one[key] for one in results])) for key in ("phi_error", "phi_exact"))
        shown = [percent(line["f1"]), percent(line["precision"], 1), percent(line["recall"], 1)]
        rows.append([SAID[signal], *shown, f"{off:.2f}", percent(exact, 1)])
    page.table(["phi", "F1, %", "precision", "recall", "mean error of phi", "exact after rounding, %"], rows)
    page.text(
        "The layer's networks, not trained again; a small head reads how certain their scores are, the numbers of "
        "keypoints and both images. Regression learns phi itself. The learned bound is never shown phi: its answer is "
        "the right-hand side of the layer's row, and the permutation loss trains it through the layer."
    )
    signal = next(iter(measured.estimated))
    seed = next(run.seed for run in study.runs if OURS in run.rows)
    counts = study.counts(f"phi by {signal} {seed}")
    page.picture(phi_chart(counts["phi"], counts["estimated"]), "estimated against true number of pairs")


def _table_8(page: Page, measured: Measured) -> None:
    if measured.times is None:
        return
    page.heading("Table 8: where the time of inference goes")
    stated = [f"{paper.TABLE_8[name]:.1f} %" for name in PARTS]
    rows = [["paper", "", *stated, ""]]
    backbone = measured.times.get("backbone")
    for label, key in (("ours, batches of 64", "batch"), ("ours, one pair at a time", "alone")):
        parts = measured.times[key]
        for name, first in (("", None), (", with the backbone", backbone)):
            if name and first is None:
                continue
            total = sum(parts.values()) + (first or 0.0)
            shares = [f"{100 * parts[part] / total:.1f} %" for part in PARTS]
            rows.append(
                [label + name, "" if first is None else f"{100 * first / total:.1f} %", *shares, f"{1000 * total:.2f}"]
            )
    page.table(["", "backbone", "network", "layer", "Hungarian", "ms a pair"], rows)
    page.text("Processor time of one thread; other work on the machine does not count.", note=True)


def _curves(page: Page, study: Study) -> None:
    curves = learning_curves(study)
    if not any(curves.values()):
        return
    page.heading("Learning curves")
    page.text("1 - F1 of each run's own decoder on validation pairs, which come from training images no network saw.")
    page.picture(learning_chart(curves, ours="ngm layer"), "validation error against steps of training")


def _pictures(page: Page, study: Study) -> None:
    rows = example_rows(study)
    if rows:
        page.heading("Matchings")
        page.text(
            "Test pairs of several classes, first seed: the one in the middle of its class by the F1 of the layer. "
            "Titles: right matches of those made, and phi."
        )
        page.picture(matching_grid(rows), "matched keypoints of several pairs by method")
