"""The tables of ``docs/matching.md``, and the charts of its rows and learning curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linsat_studies.document import table
from linsat_studies.matching import paper
from linsat_studies.matching.charts import learning_chart
from linsat_studies.matching.evaluate import PARTS
from linsat_studies.matching.measurements import LONGER, OURS, RIVAL
from linsat_studies.matching.report import SAID, drawn_rows, percent


def tables(records: dict[str, Any]) -> dict[str, str]:
    """The tables of a report, of earlier runs and of the trials of BBGM."""
    found, earlier = records["report"], records["earlier"]
    made = {
        "rows": rows_table(found),
        "seeds": seeds_table(earlier),
        "frozen": frozen_table(records["frozen"]),
        "trials": trials_table(records["bbgm_trials"]),
        "rounding": rounding_table(found),
        "times": times_table(found),
    }
    if LONGER in found["paired"]:
        made["longer"] = longer_table(found)
    made["phi"] = phi_table(
        {"given": found["table"][OURS]} | found["estimated"] if found["estimated"] else earlier["phi"]
    )
    return made


def draw(records: dict[str, Any], folder: Path) -> None:
    """Draw ``techniques.png`` and ``learning.png``."""
    found = records["report"]
    rows = {name: row["each"] for name, row in found["table"].items()}
    rows |= {name: [one["f1"]] for name, one in found["baselines"].items()}
    drawn_rows(rows, paper.TABLE_2).savefig(folder / "techniques.png", dpi=150)
    learning_chart(found["curves"], ours="ngm layer").savefig(folder / "learning.png", dpi=150)


def rows_table(found: dict[str, Any]) -> str:
    """Table 2, ours beside the paper's, with the leads of the layer and of BBGM over each row."""
    rows = []
    for name, row in found["table"].items():
        leads = [found["paired"][one].get(name) for one in (OURS, RIVAL)]
        rows.append(
            [
                f"**{name}**" if name == OURS else name,
                f"{paper.TABLE_2[name]:.1f}" if name in paper.TABLE_2 else "",
                percent(row["f1"], 1),
                _error(row),
                str(row["seeds"]),
                *("" if lead is None else _span(lead) for lead in leads),
                f"{row['violation']:.0e}",
            ]
        )
    for name, row in found["baselines"].items():
        rows.append([f"{name}, no training", "", percent(row["f1"], 1), *5 * [""]])
    header = ("", "paper", "ours", "std. error", "seeds", "layer less this row", "BBGM, partial, less this row")
    return table((*header, "worst row or column"), rows)


def longer_table(found: dict[str, Any]) -> str:
    """The layer after Sinkhorn, as many steps as BBGM, less each row of interest."""
    leads = found["paired"][LONGER]
    rows = [[name, percent(found["table"][name]["f1"], 1), _span(leads[name])] for name in leads]
    header = ("", "F1", f"{LONGER} ({percent(found['table'][LONGER]['f1'], 1)}) less this row, 95 % interval")
    return table(header, rows)


def seeds_table(found: dict[str, Any]) -> str:
    """An earlier run on features that were tuned before: three seeds of the rows that matter."""
    rows = []
    for name, row in found["table"].items():
        lead = found["layer_less"].get(name)
        cells = [percent(row["f1"], 1), _error(row), str(row["seeds"]), "" if lead is None else _span(lead)]
        rows.append([name, *cells, f"{row['violation']:.0e}"])
    header = ("", "F1", "std. error", "seeds", "layer less this row, 95 % interval", "worst row or column")
    return table(header, rows)


def frozen_table(found: dict[str, Any]) -> str:
    """An earlier run on the backbone as ImageNet left it: F1, and what BBGM and the longer layer lead by."""
    rows = []
    for name, row in found["table"].items():
        leads = [_span(found[of][name]) if name in found[of] else "" for of in ("bbgm_less", "layer_less")]
        rows.append([name, percent(row["f1"], 1), *leads])
    return table(("", "F1", "BBGM, partial, less this row", "the longer layer less this row"), rows)


def trials_table(found: dict[str, Any]) -> str:
    """What was tried for BBGM, on validation pairs."""
    rows = []
    for one in found["trials"]:
        black_box = one["technique"] != "sinkhorn"
        start = "from scratch" if one["initial"] is None else f"from {one['initial'].capitalize()}"
        rows.append(
            [
                f"{start}{'' if black_box else ', Sinkhorn alone'}",
                f"{'+ ' if one['initial'] else ''}{one['steps']}",
                f"{one['rate']:g}",
                f"{one['strength']:g}{'' if one['scaled'] else ', scores not scaled'}" if black_box else "",
                f"{one['margin']:g}" if black_box else "",
                f"{one['soft'] if black_box else 1:g}",
                f"{one['edges']:g}{', as differences' if one['differences'] else ''}" if black_box else "",
                f"{one['f1']:.1f}",
                f"{one['f1_without_edges']:.1f}",
            ]
        )
    header = ("start", "steps", "rate", "strength", "margin", "Sinkhorn's share of the loss", "edges begin with")
    return table((*header, "F1", "without edges"), rows)


def rounding_table(found: dict[str, Any]) -> str:
    """Table 5: rounding without a solver."""
    taus = list(found["rounded"])
    shown = {
        "feasible, paper": [f"{paper.TABLE_5[float(tau)][0]:.1f} %" for tau in taus],
        "feasible, ours": [f"{percent(found['rounded'][tau]['feasible'], 1)} %" for tau in taus],
        "F1 of these, paper": [f"{paper.TABLE_5[float(tau)][1]:.1f}" for tau in taus],
        "F1 of these, ours": [percent(found["rounded"][tau]["feasible_f1"], 1) for tau in taus],
    }
    header = ("rounding at 0.5, no solver", *(f"tau {tau}" for tau in taus))
    return table(header, [[name, *cells] for name, cells in shown.items()])


def phi_table(found: dict[str, Any]) -> str:
    """The layer with phi given and estimated."""
    rows = []
    for name, one in found.items():
        cells = [percent(one[key], 1) for key in ("f1", "precision", "recall")]
        rows.append([SAID.get(name, name), *cells, f"{one.get('phi_error', 0):.2f}"])
    return table(("phi", "F1", "precision", "recall", "mean error of phi"), rows)


def times_table(found: dict[str, Any]) -> str:
    """Table 8: where the time of inference goes, with the backbone."""
    times = found["times"]
    rows = [["paper (GPU)", "", *(f"{paper.TABLE_8[part]:.1f} %" for part in PARTS), "", ""]]
    for label, key in (("ours, batches of 64", "batch"), ("ours, one pair at a time", "alone")):
        parts, rest = times[key], sum(times[key].values())
        total = rest + times["backbone"]
        shares = [f"{100 * part / total:.1f} %" for part in (times["backbone"], *(parts[name] for name in PARTS))]
        rows.append([label, *shares, f"{1000 * total:.0f} ms", f"{1000 * rest:.2g} ms"])
    header = ("share of inference time", "backbone", *(name.replace("decoder", "Hungarian") for name in PARTS))
    return table((*header, "a pair", "without the backbone"), rows)


def _error(row: dict[str, Any]) -> str:
    return percent(row["error"], 1) if row["seeds"] > 1 else ""


def _span(lead: dict[str, float]) -> str:
    """A difference and its 95 % interval."""
    return f"{100 * lead['mean']:.1f} ({100 * lead['low']:.1f} to {100 * lead['high']:.1f})"
