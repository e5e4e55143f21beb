"""The ``linsat-studies`` command: one sub-command per study."""

from __future__ import annotations

import typer


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
    app()


def _about() -> None:
    """Studies of the linsat layer: trained networks, rivals, tables and pictures."""


if __name__ == "__main__":
    main()
