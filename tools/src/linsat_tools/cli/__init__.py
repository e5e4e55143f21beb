"""The ``linsat`` command."""

from linsat_tools.cli.app import main

__all__ = ["main"]
