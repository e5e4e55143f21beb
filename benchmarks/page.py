"""The performance page of the documentation, from the results file: ``python benchmarks/page.py``.

Writes docs/performance.md with its plots, and keeps the records it was made from beside them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import plots
import report
import results

_DOCS = Path(__file__).parent.parent / "docs"
_LEAD = """# Performance

What `linsat.project` costs beside its peers. Measured by `make bench`, one run on one machine: every method on the
same scores, each in a separate process, one after another. `benchmarks/README.md` says what exactly is measured, and
`make bench` repeats it on yours. The records behind this page:
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=results.DEFAULT)
    parser.add_argument("--docs", type=Path, default=_DOCS)
    given = parser.parse_args(argv)
    name, run = results.last_run(results.load(given.results))
    if name is None:
        print(f"No results in {given.results}. Run make bench first.", file=sys.stderr)
        return 1
    folder = given.docs / "assets" / "performance"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw(run, folder)
    for unused in (file for file in pictures if file.endswith(".svg")):
        (folder / unused).unlink()
    shown = [f"assets/performance/{file}" for file in pictures if file.endswith(".png")]
    _, _, body = report.render(name, run, shown).partition("\n")
    page = given.docs / "performance.md"
    page.write_text(_LEAD + body, encoding="utf-8")
    (folder / "records.jsonl").write_text(_compact(run), encoding="utf-8")
    print(f"Written: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
