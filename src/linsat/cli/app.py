"""The ``linsat`` command: its sub-commands, loaded when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or leaves by `SystemExit`.

    Exit codes: 0 fine; 1 infeasible, or not every instance converged; 2 a command line or a file that is not
    understood, with one line on stderr; 130 interrupted.
    """
    try:
        import rich  # noqa: F401
        import typer
    except ImportError:
        print('error: the linsat command needs typer and rich. Fix: pip install "linsat[cli]"', file=sys.stderr)
        raise SystemExit(2) from None
    from linsat.cli.about import about
    from linsat.cli.check import check
    from linsat.cli.explore import explore
    from linsat.cli.info import info
    from linsat.cli.project import project
    from linsat.cli.warmup import warmup

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
