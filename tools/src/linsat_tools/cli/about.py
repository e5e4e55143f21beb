"""``linsat`` without a sub-command: its help and version."""

from __future__ import annotations

from typing import Annotated

import typer

import linsat
from linsat_tools.cli.console import say


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"linsat {linsat.__version__}")
        raise typer.Exit


def about(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="print the version and exit")
    ] = False,
) -> None:
    """Hard linear constraints for neural networks."""
