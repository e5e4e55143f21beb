"""A guided tour: what the layer does, beside the published LinSATNet package, and what the studies' networks do.

    python examples/demo.py                    or: make demo
    python examples/demo.py --iterations 1000  give the published package ten times its default
    python examples/demo.py --layer-only       without the studies' part
    python examples/demo.py --out DIR          where page and picture go, default out/demo

Prints how far the rows are from holding, what a training step costs and what it keeps in memory; then two
small examples that show where the published iterations end. Writes a page that needs no other file, index.html, and
a picture, demo.png. Every number printed or drawn is measured in this run.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import torch

try:
    for package in ("LinSATNet", "matplotlib", "rich"):
        importlib.import_module(package)
except ImportError as error:
    missing = (error.name or "a package").partition(".")[0]
    raise ImportError(
        f'The demo needs {missing}, which is not installed. Fix: pip install "linsat[demo]" '
        f'(from a clone: pip install -e ".[demo]").'
    ) from error

from guided_tour import comparison, layer, studies
from guided_tour.page import TourPage
from guided_tour.pictures import draw
from guided_tour.progress import Steps
from guided_tour.sections import Section, or_missing

STUDIES = (
    ("tours", "Tours with rules, found by a network", studies.tours),
    ("matching", "Keypoints matched, outliers left alone", studies.matching),
    ("portfolios", "Portfolios that keep a preference", studies.portfolios),
)
TITLE = "Neural networks that keep the rules"
LEAD = (
    "linsat puts hard linear constraints on the output of a network. Scores go in; out comes the point that fits them "
    "best and satisfies every row, with exact gradients."
)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="linsat beside the published package, and what the studies show.")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="directory of page and picture")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--iterations", type=int, default=comparison.PUBLISHED_DEFAULT, help="of the published package")
    parser.add_argument("--layer-only", action="store_true", help="leave the studies out")
    options = parser.parse_args(arguments)
    for name in ("threads", "iterations"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; expected a whole number of at least 1.")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    torch.set_num_threads(options.threads)
    jobs = [(case, tau) for case in comparison.cases() for tau in comparison.TEMPERATURES]
    chosen = () if options.layer_only else STUDIES
    results, shown = [], []
    with Steps(len(jobs) + len(chosen) + 1) as steps:
        for case, tau in jobs:
            steps.begin(f"{case.name}, tau {tau:g}")
            results.append(comparison.compare(case, tau, options.iterations))
        for anchor, title, make in chosen:
            steps.begin(f"study: {anchor}")
            shown.append(or_missing(make, anchor, title))
        steps.begin("page and picture")
        picture, page = options.out / "demo.png", options.out / "index.html"
        draw(results, options.iterations, picture)
        write_page(results, options.iterations, shown, page)
    print(f"\n{comparison.key(options.threads, options.iterations)}\n")
    print(comparison.table(results))
    print(f"\n{comparison.conclusion(results, options.iterations)}\n")
    print(f"{comparison.counter_example()}\n\n{comparison.infeasible_example()}")
    for section in shown:
        print(f"\n{in_words(section)}")
    print(f"\nPicture: {picture}\nPage:    {page.resolve()}")


def write_page(results: list[comparison.Comparison], iterations: int, shown: list[Section], path: Path) -> None:
    page = TourPage(TITLE, LEAD)
    page.add(layer.what_it_does())
    page.add(layer.rows_held(results, iterations))
    page.add(layer.cost(results))
    page.add(layer.when_rows_cannot_hold())
    for section in shown:
        page.add(section)
    page.add(layer.what_next())
    page.write(path)


def in_words(section: Section) -> str:
    """A section's facts, or what it misses, for the terminal."""
    if section.missing:
        return f"{section.title}: not shown.\n  {section.missing}"
    return "\n".join([f"{section.title}:", *(f"  {value:>10}  {what}" for value, what in section.facts)])


if __name__ == "__main__":
    main()
