"""The ``linsat`` command."""

from linsat.cli.app import main

__all__ = ["main"]
