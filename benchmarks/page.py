"""The performance page of the documentation, from the results file: ``python benchmarks/page.py``.

Writes docs/performance.md with its plots, keeps the records it was made from beside them, and writes the table of
speed in README.md and docs/index.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import bars
import methods
import plots
import problems
import report
import results

_ROOT = Path(__file__).parent.parent
_BEGIN, _END = "<!-- speed: written by `make bench-page` -->\n", "<!-- end of speed -->"
_README_CASES = (
    problems.FIRST,
    problems.FIRST_EUCLIDEAN,
    problems.TOUR,
    problems.MATCHING,
    problems.PORTFOLIO,
    problems.PORTFOLIO.euclidean(),
    problems.DENSE,
    problems.SIMPLEX,
    problems.EXPERTS,
    problems.MANY_EXPERTS,
    problems.ASSIGNMENTS[1000],
)
_LEAD = """# Performance

What `linsat.project` costs beside its peers. Measured by `make bench`, one run on one machine: every method on the same
scores, each in a separate process, one after another. Times are medians after everything is compiled; a violation is
the worst of any row or bound by any instance, computed in float64 from the answer. `benchmarks/README.md` says what
exactly is measured, and `make bench` repeats it on yours. The records behind this page:
[records.jsonl](assets/performance/records.jsonl).
"""


_COMMON = ("run", "threads", "seed", "quick", "commit", "machine", "versions")


def _compact(run: results.Run) -> str:
    """One line about the run, then one per pair without what they share, numbers to four digits."""
    first = next(iter(run.values()))
    lines: list[results.Record] = [{key: first[key] for key in _COMMON}]
    for record in run.values():
        own = {key: value for key, value in record.items() if key not in _COMMON}
        lines.append({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in own.items()})
    return "".join(json.dumps(line) + "\n" for line in lines)


def _around_table(document: Path) -> tuple[str, str]:
    """What stands before and after the table of speed in a document, with the marks."""
    before, begin, rest = document.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{document} lacks the line {_BEGIN.strip()!r} or {_END!r}, between which the table goes.")
    return before + begin, end + after


def _speed_table(run: results.Run) -> str:
    cells = [["case", "linsat", "violation", "peers take, as a multiple"]]
    for case in _README_CASES:
        ours = results.timed(run, case.name, methods.OURS.name)
        peers = _multiples(run, case, ours["total_s"]) if ours else []
        if ours and peers:
            time, held = bars.seconds_text(ours["total_s"]), f"{ours['violation']:.0e}"
            cells.append([case.title, time, held, ", ".join(peers)])
    return report.markdown(cells)


def _multiples(run: results.Run, case: problems.Problem, ours: float) -> list[str]:
    """Every peer with a time, the fastest first."""
    own = (methods.OURS.name, methods.TORCH.name)
    peers = [r for (name, method), r in run.items() if name == case.name and method not in own and "total_s" in r]
    texts = []
    for record in sorted(peers, key=lambda r: r["total_s"]):
        text = f"{record['method']} {bars.times_text(record['total_s'] / ours)}"
        texts.append(text if record["status"] == "ok" else f"({text})")
    return texts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=results.DEFAULT)
    parser.add_argument("--docs", type=Path, default=_ROOT / "docs")
    parser.add_argument("--readme", type=Path, default=_ROOT / "README.md")
    given = parser.parse_args(argv)
    name, run = results.last_run(results.load(given.results))
    if name is None:
        print(f"No results in {given.results}. Run make bench first.", file=sys.stderr)
        return 1
    around = {document: _around_table(document) for document in (given.readme, given.docs / "index.md")}
    folder = given.docs / "assets" / "performance"
    folder.mkdir(parents=True, exist_ok=True)
    shown = [f"assets/performance/{file}" for file in plots.draw(run, folder, ["png"])]
    _, _, body = report.render(name, run, shown).partition("\n")
    page = given.docs / "performance.md"
    page.write_text(_LEAD + body, encoding="utf-8")
    (folder / "records.jsonl").write_text(_compact(run), encoding="utf-8")
    for document, (before, after) in around.items():
        document.write_text(f"{before}{_speed_table(run)}\n{after}", encoding="utf-8")
    print("Written:", page, *around)
    return 0


if __name__ == "__main__":
    sys.exit(main())
