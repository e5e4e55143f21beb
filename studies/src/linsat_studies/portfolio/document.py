"""The tables of ``docs/portfolio.md``, made from the records of walk-forwards, of the test year and of further rules.

A table stands between ``<!-- name -->`` and ``<!-- end of name -->`` and comes from ``name.json``; the text around it
is written by hand. The differences of all walk-forwards are drawn in ``differences.png`` beside the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from linsat_studies.files import read_json, read_text, write_text
from linsat_studies.portfolio import paper
from linsat_studies.portfolio.charts import NAMES, differences_chart


def write_document(page: Path, records: Path) -> list[str]:
    """Fill the tables of a page from a folder of records, and draw their differences; returns the names filled.

    Raises:
        ValueError: a record whose place the page does not have, or no record at all.
    """
    found = {path.stem: read_json(path) for path in sorted(records.glob("*.json"))}
    if not found:
        raise ValueError(f"{records} holds no record. Fix: linsat-studies portfolio walk-forward --record first.")
    write_text(page, filled(read_text(page), found))
    walks = {_title(record): record for record in found.values() if "placebo" in record}
    if walks:
        differences_chart(walks).savefig(records / "differences.png", dpi=150)
    return list(found)


def _title(record: dict[str, Any]) -> str:
    """Assets and years of a walk-forward, and its network where that is not StemGNN."""
    scope = record["scope"]
    first, last = (day[:4] for day in scope["days"])
    network = scope["protocol"].get("predictor", "stemgnn")
    return f"{scope['assets']} assets, {first} to {last}" + ("" if network == "stemgnn" else f", {NAMES[network]}")


def filled(text: str, records: dict[str, Any]) -> str:
    """A page's text with the tables of its records."""
    for name, record in records.items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"the page has no place for {name}. Fix: add <!-- {name} --> and <!-- end of {name} -->.")
        kinds = {"daily": year_tables, "rules": rules_table, "placebo": walk_forward_tables}
        made = next(write(record) for kind, write in kinds.items() if kind in record)
        text = place.sub(lambda match, made=made: match[1] + made + match[2], text)  # type: ignore[misc]
    return text


def walk_forward_tables(record: dict[str, Any]) -> str:
    """Sharpe ratios, differences and placebo of a walk-forward."""
    scope, boot, placebo = record["scope"], record["bootstrap"], record["placebo"]
    protocol = scope["protocol"]
    lines = [
        f"{scope['assets']} assets, preferred: {', '.join(scope['preferred'])}. {protocol['cuts']} cuts "
        f"({', '.join(scope['cuts'])}), {protocol['seeds']} seeds; {scope['windows']} choices of weights, "
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
    lines += [*_table(header, rows), "", *_differences(record["differences"], placebo), ""]
    two_stage = record["rows"]["two-stage"]
    lines += [
        f"On {placebo['luck']:.0%} of the {placebo['sets']} random sets the layer of equal scores earned less than "
        f"on the study's. Two-stage networks predicted no excess return in {two_stage['fallbacks']} of "
        f"{two_stage['programs']} windows, and fell back to minimum variance.",
    ]
    return "\n".join(lines) + "\n"


def _differences(rows: Sequence[dict[str, Any]], placebo: dict[str, Any]) -> list[str]:
    """The paired differences, with those of the placebo beside them."""
    random = {(row["of"], row["less"]): row for row in placebo["differences"]}
    header = ("difference of Sharpe ratios", "", "95 % interval", "random sets, mean", "95 % interval", "sets ahead")
    made = []
    for row in rows:
        cells = [f"{row['of']} - {row['less']}", _mark(row), _span(row)]
        other = random.get((row["of"], row["less"]))
        cells += ["", "", ""] if other is None else [_mark(other), _span(other), f"{other['ahead']:.0%}"]
        made.append(cells)
    return _table(header, made)


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
                    f"{NAMES[predictor]}, {row['seeds']} seeds",
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
    lines = _table(header, rows)
    for predictor, found in record["daily"].items():
        first = (f"{NAMES[predictor]}: difference of Sharpe ratios", f"{found['days']} days", "95 % interval")
        made = [(f"{row['of']} - {row['less']}", _mark(row), _span(row)) for row in found["differences"]]
        lines += ["", *_table(first, made)]
    return "\n".join(lines) + "\n"


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


def rules_table(record: dict[str, Any]) -> str:
    """What the scores of one network earn under further rules."""
    return "\n".join(_table(RULES_HEADER, rule_rows(record["rules"]))) + "\n"


def _mark(row: dict[str, Any]) -> str:
    """A difference; bold where its interval does not hold zero."""
    text = f"{row['value']:+.2f}"
    return f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text


def _span(row: dict[str, Any]) -> str:
    signs = "+" if row["low"] < 0 else ""
    return f"{row['low']:{signs}.2f} to {row['high']:{signs}.2f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
