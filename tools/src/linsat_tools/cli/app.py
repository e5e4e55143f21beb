"""The ``linsat`` command: its sub-commands."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from linsat_tools.cli.about import about
from linsat_tools.cli.check import check
from linsat_tools.cli.explore import explore
from linsat_tools.cli.info import info
from linsat_tools.cli.project import project
from linsat_tools.cli.warmup import warmup


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or leaves by `SystemExit`.

    Exit codes: 0 fine; 1 infeasible, or not every instance converged; 2 a command line or a file that is not
    understood, with one line on stderr; 130 interrupted.
    """
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(about)
    for command in (check, project, explore, info, warmup):
        app.command()(command)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="linsat")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    return 0
