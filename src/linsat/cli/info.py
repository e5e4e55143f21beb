"""``linsat info``: versions, kernel and threads."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

import torch

from linsat._kernels import load
from linsat.cli.console import one_line_errors, say
from linsat.constraints import simplex
from linsat.projection import project

_PACKAGES = ("numpy", "scipy", "numba", "highspy", "pyarrow", "cvxpy", "jax")


def describe() -> list[tuple[str, str]]:
    """Versions, kernel and threads, as pairs of a name and a value."""
    found = [("linsat", _version("linsat")), ("python", sys.version.split()[0]), ("torch", torch.__version__)]
    found += [(name, _version(name)) for name in _PACKAGES]
    # numba compiles at the first call: only trying shows whether it can.
    project(torch.zeros(1, 2), simplex(2))
    state = load()
    found.append(
        ("kernel", (state.reason or "ready") if state.available else f"not used: {state.reason}; the torch path serves")
    )
    found.append(("threads", str(torch.get_num_threads())))
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@one_line_errors
def info() -> None:
    """Versions, kernel and threads."""
    for name, value in describe():
        say(f"{name:8} {value}")
