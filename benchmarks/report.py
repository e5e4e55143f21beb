"""Tables and plots from the results file: ``python benchmarks/report.py``.

Writes report.md and the plots beside the results and prints the headline table. Only one run is reported, by
default the last: times of different runs are never compared.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import bars
import methods
import problems
import results
from bars import Line, seconds_text
from results import Record, Run

_QUIET = 0.3  # cores that other programs may use before a time is doubted


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=results.DEFAULT)
    parser.add_argument("--run", help="name of the run (default: the last)")
    parser.add_argument("--no-plots", action="store_true")
    given = parser.parse_args(argv)
    wanted = {"run": given.run} if given.run else {}
    name, run = results.last_run(results.load(given.results), **wanted)
    if name is None:
        print(f"No results{' of run ' + given.run if given.run else ''} in {given.results}.", file=sys.stderr)
        return 1
    folder = given.results.parent
    pictures = [] if given.no_plots else _plots(run, folder)
    text = render(name, run, pictures)
    (folder / "report.md").write_text(text, encoding="utf-8")
    print(plain_table(bars.headline(run)))
    if _disturbances(run):
        print("\n" + _disturbances(run).replace("**", ""))
    print(f"\nReport: {folder / 'report.md'}")
    return 0


def _plots(run: Run, folder: Path) -> list[str]:
    """File names of the plots; none, and a word about it, where matplotlib is missing."""
    try:
        import plots
    except ModuleNotFoundError as error:
        print(f"No plots: {error}.", file=sys.stderr)
        return []
    return plots.draw(run, folder)


def render(name: str, run: Run, pictures: Sequence[str]) -> str:
    """The report as Markdown."""
    sections = [
        f"# Benchmark, run {name}",
        _circumstances(next(iter(run.values()))),
        _disturbances(run),
        "## Bars\n\nForward and backward together, medians; ours counts at a violation of at most "
        f"{bars.OURS_HOLDS:g}, peers at their own defaults.\n\n" + markdown_table(bars.headline(run)),
        "## Headline cases\n\n" + "\n\n".join(_case_table(run, case) for case in _headline_cases(run)),
        "## Growth\n\n" + _growth_table(run),
        "## Failures\n\n" + _failures(run),
    ]
    if pictures:
        shown = "\n\n".join(f"![{Path(file).stem}]({file})" for file in pictures if file.endswith(".png"))
        sections.insert(-1, "## Plots\n\n" + shown)
    return "\n\n".join(section for section in sections if section) + "\n"


def _circumstances(record: Record) -> str:
    where, versions = record["machine"], record["versions"]
    packages = ", ".join(f"{k} {v}" for k, v in versions.items() if v)
    absent = ", ".join(k for k, v in versions.items() if not v)
    return (
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gb']} GB, {where['platform']}; "
        f"{record['threads']} threads, seed {record['seed']}, commit {record['commit']}.\n\n"
        f"{packages}." + (f" Not installed: {absent}." if absent else "")
    )


def _disturbances(run: Run) -> str:
    """A warning where other programs had a core for a good part of the time."""
    tried = [r for r in run.values() if "total_s" in r and r.get("others_cores") is not None]
    disturbed = [r for r in tried if r["others_cores"] > _QUIET]
    if not disturbed:
        return ""
    worst = max(r["others_cores"] for r in disturbed)
    return (
        f"**Not a quiet machine:** during {len(disturbed)} of {len(tried)} measurements other programs kept more "
        f"than {_QUIET:g} cores busy (up to {worst:g}), so these times are too long and the ratios uncertain."
    )


# ------------------------------------------------------------------ tables


def _cells(lines: Sequence[Line]) -> list[list[str]]:
    header = ["case", "ours", "peer", "ratio", "bar", "verdict"]
    return [header, *([x.case, x.ours, x.peer, x.ratio, x.bar, x.verdict] for x in lines)]


def markdown_table(lines: Sequence[Line]) -> str:
    return _markdown(_cells(lines))


def _markdown(cells: Sequence[Sequence[str]]) -> str:
    header, *body = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([header, "|" + "---|" * len(cells[0]), *body])


def plain_table(lines: Sequence[Line]) -> str:
    """The headline for a terminal."""
    cells = _cells(lines)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def _headline_cases(run: Run) -> list[str]:
    """The headline cases of the run, then cases outside all groups that were asked for by name."""
    present = {case for case, _ in run}
    groups = (problems.HEADLINE, problems.EXTRA)
    known = problems.all_problems().values()
    return [c.name for group in groups for c in known if group in c.groups and c.name in present]


def _case_table(run: Run, case: str) -> str:
    header = "method, forward, backward, both, runs, memory, violation, x differs, gradient differs, result"
    cells = [header.split(", ")]
    for (name, method), record in run.items():
        if name != case or record["status"] == "not applicable":
            continue
        result = record["status"] if record["status"] == "ok" else f"{record['status']}: {record['message'][:90]}"
        cells.append([method, *_numbers(record), result])
    title = problems.all_problems()[case].title
    return f"### {title}\n\n{_markdown(cells)}"


def _numbers(record: Record) -> list[str]:
    if "total_s" not in record:
        return [""] * 8
    times = [seconds_text(record[key]) for key in ("forward_s", "backward_s", "total_s")]
    differences = [f"{record[key]:.1e}" if key in record else "" for key in ("x_difference", "gradient_difference")]
    memory = f"{record['memory_mb']:,.1f} MB"
    return [*times, str(record["runs"]), memory, f"{record['violation']:.1e}", *differences]


def _growth_table(run: Run) -> str:
    """Exponents of the time per instance, and how flat it is in the batch, for every method of the sweeps."""
    cells = [["method", "exponent in l", "largest l", "spread over batches", "largest batch"]]
    for name in dict.fromkeys(method for _, method in run):
        _, sizes = bars.per_instance(run, problems.SIZE_SWEEP, name)
        _, batches = bars.per_instance(run, problems.BATCH_SWEEP, name)
        if len(sizes) < 2 and len(batches) < 2:
            continue
        slope = bars.exponent(sizes)
        wide = f"{max(batches.values()) / min(batches.values()) - 1:.0%}" if len(batches) > 1 else ""
        cells.append(
            [
                name,
                "" if slope is None else f"{slope:.2f}",
                str(max(sizes, default="")),
                wide,
                str(max(batches, default="")),
            ]
        )
    return _markdown(cells) if len(cells) > 1 else "The sweeps were not measured in this run."


def _failures(run: Run) -> str:
    """How often each method failed, and how."""
    names = dict.fromkeys(method for _, method in run)
    cells = [["method", "tried", "failures", *results.FAILURES]]
    for name in names:
        records = [record for (_, method), record in run.items() if method == name]
        counts = Counter(record["status"] for record in records)
        tried = counts["ok"] + sum(counts[status] for status in results.FAILURES)
        if tried:
            each = [counts[status] for status in results.FAILURES]
            cells.append([name, str(tried), str(sum(each)), *(str(c) if c else "" for c in each)])
    notes = [
        f"- {name}: {record['message']}"
        for name in names
        for (_, method), record in run.items()
        if method == name and record["status"] == "not installed"
    ]
    listed = "\n".join(dict.fromkeys(notes))
    kernel = methods.KERNEL.applies_to(problems.FIRST)
    if not kernel.ok:
        listed += f"\n- {methods.KERNEL.name}: {kernel.reason}"
    table = _markdown(cells) if len(cells) > 1 else "Nothing was tried."
    return table + (f"\n\nNot measured:\n\n{listed.strip()}" if listed.strip() else "")


if __name__ == "__main__":
    sys.exit(main())
