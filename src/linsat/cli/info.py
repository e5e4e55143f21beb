"""``linsat info``: versions, kernel and threads."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

import torch

from linsat.backends.cpu_kernel.native import Library, load
from linsat.cli.console import one_line_errors, say

_PACKAGES = ("numpy", "scipy", "highspy", "pyarrow", "cvxpy", "jax")


def describe() -> list[tuple[str, str]]:
    """Versions, kernel and threads, as pairs of a name and a value."""
    found = [("linsat", _version("linsat")), ("python", sys.version.split()[0]), ("torch", torch.__version__)]
    found += [(name, _version(name)) for name in _PACKAGES]
    kernel = load()
    ready = f"ready ({kernel.instructions})" if isinstance(kernel, Library) else f"not used: {kernel}"
    found.append(("kernel", ready if isinstance(kernel, Library) else f"{ready}; the torch back end serves"))
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
