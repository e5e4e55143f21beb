"""Forked processes: torch's OpenMP threads do not survive a fork, and its first parallel operation waits for them.

So in a child of a process that may have used several threads, linsat's own code runs with one; what the rest of the
program set, torch's thread count, stays as it is.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_forked: list[bool] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forked.append(True))


def one_thread_after_a_fork(function: Callable[P, R]) -> Callable[P, R]:
    """Have the function run with one torch thread in a forked process, and as ever everywhere else."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        torch = sys.modules.get("torch") if _forked else None
        if torch is None or torch.get_num_threads() == 1:
            return function(*args, **kwargs)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return call
