"""``linsat explore``: starts the explorer."""

from __future__ import annotations

from typing import Annotated

import typer

from linsat_tools.cli.console import one_line_errors


@one_line_errors
def explore(
    port: Annotated[int, typer.Option(help="port on this computer; 0 takes a free one")] = 8765,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="open the page in a browser")] = True,
) -> None:
    """Change rows, scores and tau by hand on a local page and see x follow."""
    from linsat_tools.explorer import serve

    serve(port, open_browser)
