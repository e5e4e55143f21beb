"""The ``linsat`` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import torch

from linsat._kernels import load
from linsat.constraints import simplex
from linsat.projection import project


def describe() -> list[tuple[str, str]]:
    """Versions, kernel and threads, as pairs of a name and a value."""
    found = [("linsat", _version("linsat")), ("torch", torch.__version__)]
    found += [(name, _version(name)) for name in ("numpy", "scipy", "numba")]
    # numba compiles at the first call: only trying shows whether it can.
    project(torch.zeros(1, 2), simplex(2))
    state = load()
    found.append(("kernel", "ready" if state.available else f"not used: {state.reason}; the torch path serves"))
    found.append(("threads", str(torch.get_num_threads())))
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0; 2 for a command line that is not understood)."""
    parser = argparse.ArgumentParser(prog="linsat", description="Hard linear constraints for neural networks.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, kernel and threads")
    parser.parse_args(arguments)
    for name, value in describe():
        print(f"{name:8} {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
