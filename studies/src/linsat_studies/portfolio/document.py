"""The tables of ``docs/portfolio.md``, and the chart of the walk-forwards' differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linsat_studies.document import table
from linsat_studies.portfolio import paper
from linsat_studies.portfolio.charts import NAMES, differences_chart


def tables(records: dict[str, Any]) -> dict[str, str]:
    """The tables of walk-forwards and of the test year under the names of their records, and those of a report."""
    made = {}
    for name, record in records.items():
        if "placebo" in record:
            made[name] = walk_forward_tables(record)
        elif "daily" in record:
            made[name] = year_tables(record)
        else:
            made["rules"] = table(RULES_HEADER, rule_rows(record["rules"]))
            made["times"] = table(TIMES_HEADER, time_rows(record["times"]))
    return made


def draw(records: dict[str, Any], folder: Path) -> None:
    """Draw the differences of StemGNN's walk-forwards to ``differences.png``."""
    walks = {_title(record): record for record in records.values() if "placebo" in record and _is_stemgnn(record)}
    if walks:
        differences_chart(walks).savefig(folder / "differences.png", dpi=150)


def _is_stemgnn(record: dict[str, Any]) -> bool:
    return record["scope"]["protocol"].get("predictor", "stemgnn") == "stemgnn"


def _title(record: dict[str, Any]) -> str:
    """Assets and years of a walk-forward."""
    scope = record["scope"]
    first, last = (day[:4] for day in scope["days"])
    return f"{scope['assets']} assets, {first} to {last}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count > 1)}"


def walk_forward_tables(record: dict[str, Any]) -> str:
    """Sharpe ratios, differences and placebo of a walk-forward."""
    scope, boot, placebo = record["scope"], record["bootstrap"], record["placebo"]
    protocol = scope["protocol"]
    lines = [
        f"{scope['assets']} assets, preferred: {', '.join(scope['preferred'])}. {protocol['cuts']} cuts "
        f"({', '.join(scope['cuts'])}), {_seeds(protocol['seeds'])}; {scope['windows']} choices of weights, "
        f"{boot['days']:,} days held from {scope['days'][0]} to {scope['days'][1]}.",
        "",
    ]
    header = ("", "Sharpe ratio", "95 % interval", "preferred share", "effective assets", "worst violation")
    rows = [
        (
            name,
            f"{row['sharpe']['value']:.2f}",
            _span(row["sharpe"]),
            f"{row['preferred_share']:.1%}",
            f"{row['assets']:.1f}",
            f"{row['violation']:.0e}" if "violation" in row else "",
        )
        for name, row in record["rows"].items()
    ]
    lines += [table(header, rows), "", _differences(record["differences"], placebo), ""]
    two_stage = record["rows"]["two-stage"]
    lines += [
        f"On {placebo['luck']:.0%} of the {placebo['sets']} random sets the layer of equal scores earned less than "
        f"on the study's. Two-stage networks predicted no excess return in {two_stage['fallbacks']} of "
        f"{two_stage['programs']} windows, and fell back to minimum variance.",
    ]
    return "\n".join(lines)


def _differences(rows: Sequence[dict[str, Any]], placebo: dict[str, Any]) -> str:
    """The paired differences, with those of the placebo beside them."""
    random = {(row["of"], row["less"]): row for row in placebo["differences"]}
    header = ("difference of Sharpe ratios", "", "95 % interval", "random sets, mean", "95 % interval", "sets ahead")
    made = []
    for row in rows:
        cells = [f"{row['of']} - {row['less']}", _mark(row), _span(row)]
        other = random.get((row["of"], row["less"]))
        cells += ["", "", ""] if other is None else [_mark(other), _span(other), f"{other['ahead']:.0%}"]
        made.append(cells)
    return table(header, made)


def year_tables(record: dict[str, Any]) -> str:
    """Table 3 with ours beside the paper's, then the differences of the daily series."""
    header = (
        "predictor",
        "technique",
        "paper",
        "mean over windows",
        "std. error, seeds",
        "daily series",
        "95 % interval",
        "preferred share",
        "worst violation",
    )
    rows = []
    for predictor, techniques in record["table"].items():
        daily = record["daily"][predictor]["rows"]
        for name, row in techniques.items():
            stated = paper.TABLE_3.get((predictor, name))
            violation = row["simplex_violation" if name == "softmax" else "violation"]
            rows.append(
                (
                    f"{NAMES[predictor]}, {_seeds(row['seeds'])}",
                    name,
                    "" if stated is None else f"{stated:.2f}",
                    f"{row['mean']:.2f}",
                    f"{row['error']:.2f}",
                    f"{daily[name]['value']:.2f}",
                    _span(daily[name]),
                    f"{row['preferred_share']:.1%}",
                    f"{violation:.0e}",
                )
            )
    lines = [table(header, rows)]
    for predictor, found in record["daily"].items():
        first = (f"{NAMES[predictor]}: difference of Sharpe ratios", f"{found['days']} days", "95 % interval")
        made = [(f"{row['of']} - {row['less']}", _mark(row), _span(row)) for row in found["differences"]]
        lines += ["", table(first, made)]
    return "\n".join(lines)


RULES_HEADER = (
    "rules",
    "Sharpe ratio",
    "volatility",
    "worst violation",
    "largest weight",
    "largest sector",
    "largest tilt",
    "largest turnover",
)


def rule_rows(ruled: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A line for each rule set, as `RULES_HEADER` names its cells."""
    return [
        [
            name,
            f"{row['mean_sharpe']:.3f}",
            f"{row['volatility']:.1%}",
            f"{row['row_violation']:.0e}",
            f"{row['largest_weight']:.1%}",
            f"{row['largest_sector']:.1%}",
            f"{row['largest_exposure']:.3f}",
            f"{row['largest_turnover']:.2%}",
        ]
        for name, row in ruled.items()
    ]


TIMES_HEADER = ("", "network", "layer", "network's share", "layer's share")


def time_rows(times: dict[str, dict[str, float]]) -> list[list[str]]:
    """A line for each predictor and number of windows, below the paper's, as `TIMES_HEADER` names its cells."""
    rows = [["paper", "", "", *(f"{paper.TABLE_9[part]:.1f} %" for part in ("network", "layer"))]]
    for predictor, spent in times.items():
        for label, end in (("all test windows", ""), ("one window", "_one")):
            parts = spent["network" + end], spent["layer" + end]
            shown = [f"{1000 * part:.3g} ms" for part in parts]
            shares = [f"{100 * part / sum(parts):.1f} %" for part in parts]
            rows.append([f"{NAMES[predictor]}, {label}", *shown, *shares])
    return rows


def _mark(row: dict[str, Any]) -> str:
    """A difference; bold where its interval does not hold zero."""
    text = f"{row['value']:+.2f}"
    return f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text


def _span(row: dict[str, Any]) -> str:
    signs = "+" if row["low"] < 0 else ""
    return f"{row['low']:{signs}.2f} to {row['high']:{signs}.2f}"
