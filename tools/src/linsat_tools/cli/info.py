"""``linsat info``: versions, and which back ends can be used here."""

from __future__ import annotations

from linsat.machine import print_info
from linsat_tools.cli.console import one_line_errors


@one_line_errors
def info() -> None:
    """Versions, and which back ends can be used here."""
    print_info()
