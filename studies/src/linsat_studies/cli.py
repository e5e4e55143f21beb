"""The ``linsat-studies`` command: one sub-command per study, and one for the tables of their pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from linsat_studies.console import one_line_errors, out


def main() -> None:
    """Run the command line; bad input ends with one line that names the fix and exit code 2."""
    from linsat_studies.matching.commands import app as matching
    from linsat_studies.portfolio.commands import app as portfolio
    from linsat_studies.tsp.commands import app as tsp

    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_about)
    app.add_typer(tsp, name="tsp")
    app.add_typer(matching, name="matching")
    app.add_typer(portfolio, name="portfolio")
    app.command()(document)
    app()


def _about() -> None:
    """Studies of the linsat layer: trained networks, rivals, tables and pictures."""


@one_line_errors
def document(
    docs: Annotated[Path, typer.Argument(help="Folder of the pages; their records are in assets/.")] = Path("docs"),
) -> None:
    """Fill the tables of the studies' pages from their records."""
    from linsat_studies.document import write_documents

    for page, names in write_documents(docs).items():
        out.print(f"filled in {docs / page}.md: {', '.join(names)}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
