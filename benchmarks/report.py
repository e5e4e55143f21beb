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
    print(plain_table(bars.table(run)))
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
        "## Bars\n\nMedians of one run, forward and backward together where nothing else is said. Ours counts at a "
        f"violation of at most {bars.HOLDS:g} in single precision and {bars.HOLDS_EXACTLY:g} in double; peers at "
        "their own defaults.\n\n" + markdown_table(bars.table(run)),
        *(
            f"## {title}\n\n" + "\n\n".join(_case_table(run, case) for case in cases)
            for title, cases in _cases_by_objective(run).items()
            if cases
        ),
        "## Cold start\n\n" + _cold_starts(run),
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
    tried = [r for r in run.values() if r.get("total_s") and r.get("others_cores") is not None]
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
    return [["case", "measured", "bar", "result"], *([x.case, x.measured, x.bar, x.verdict] for x in lines)]


def markdown_table(lines: Sequence[Line]) -> str:
    return markdown(_cells(lines))


def markdown(cells: Sequence[Sequence[str]]) -> str:
    header, *body = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([header, "|" + "---|" * len(cells[0]), *body])


def plain_table(lines: Sequence[Line]) -> str:
    """The bars for a terminal."""
    cells = _cells(lines)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells).replace(
        "**", ""
    )


def _cases_by_objective(run: Run) -> dict[str, list[str]]:
    """The headline cases of the run, then cases outside all groups that were asked for by name."""
    present, titles = (
        {case for case, _ in run},
        {problems.ENTROPY: "Entropic cases", problems.EUCLIDEAN: "Euclidean cases"},
    )
    known = problems.all_problems().values()
    shown = [c for group in (problems.HEADLINE, problems.EXTRA) for c in known if group in c.groups]
    return {
        title: [c.name for c in shown if c.objective == objective and c.name in present]
        for objective, title in titles.items()
    }


def _case_table(run: Run, case: str) -> str:
    header = (
        "method, forward, both, quartiles, runs, memory to x, memory, violation, x differs, gradient differs, result"
    )
    cells = [header.split(", ")]
    for (name, method), record in run.items():
        if name != case or record["status"] == "not applicable":
            continue
        result = record["status"] if record["status"] == "ok" else f"{record['status']}: {record['message'][:90]}"
        cells.append([method, *_numbers(record), result])
    title = problems.all_problems()[case].title
    return f"### {title}\n\n{markdown(cells)}"


def _numbers(record: Record) -> list[str]:
    if "total_s" not in record:
        return [""] * 9
    times = [seconds_text(record[key]) for key in ("forward_s", "total_s")]
    spread = " to ".join(seconds_text(record[key]) for key in ("total_q1_s", "total_q3_s"))
    memory = [f"{record[key]:,.1f} MB" for key in ("forward_memory_mb", "memory_mb")]
    differences = [f"{record[key]:.1e}" if key in record else "" for key in ("x_difference", "gradient_difference")]
    return [*times, spread, str(record["runs"]), *memory, f"{record['violation']:.1e}", *differences]


def _cold_starts(run: Run) -> str:
    """First calls of fresh processes, in units of the time that ``import torch`` takes in them."""
    cells = [["case", "method", "`import torch`", "import and first call", "in a second process", "result"]]
    for (name, method), record in run.items():
        if name in {case.name for case in problems.COLD_STARTS} and record["status"] != "not applicable":
            times = [""] * 3
            if "cold_s" in record:
                unit = record["import_torch_s"]
                later = [f"{seconds_text(record[key])}, {record[key] / unit:.2f}x" for key in ("cold_s", "second_s")]
                times = [seconds_text(unit), *later]
            title = problems.all_problems()[name].title
            cells.append([title, method, *times, f"{record['status']} {record['message'][:90]}".strip()])
    return markdown(cells) if len(cells) > 1 else "Not measured in this run."


def _growth_table(run: Run) -> str:
    """Exponents of the time per instance, and how flat it is in the batch, for every method of the sweeps."""
    cells = [["method", "exponent in l", "largest l", "spread over batches", "largest batch"]]
    for name in dict.fromkeys(method for _, method in run):
        sizes, batches = (bars.per_instance(run, sweep, name) for sweep in (problems.SIZE_SWEEP, problems.BATCH_SWEEP))
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
    return markdown(cells) if len(cells) > 1 else "The sweeps were not measured in this run."


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
    table = markdown(cells) if len(cells) > 1 else "Nothing was tried."
    return table + (f"\n\nNot measured:\n\n{listed.strip()}" if listed.strip() else "")


if __name__ == "__main__":
    sys.exit(main())
