"""``linsat warmup``: load what a first call loads, for images and continuous integration."""

from __future__ import annotations

import time

import torch

from linsat.arrays import Newton
from linsat.constraints import doubly_stochastic
from linsat.objectives import NAMED, Objective
from linsat.plan import plan_of
from linsat.projection import project
from linsat_tools.cli.console import one_line_errors, say


@one_line_errors
def warmup() -> None:
    """Project once with every objective, forward and backward; says which back end ran and how long it took.

    Nothing is compiled or cached by linsat itself: this fills the caches of Python (bytecode) and of the disk, and
    fails where a first call would.
    """
    for name, objective in NAMED.items():
        start = time.perf_counter()
        backend = _project_once(objective)
        say(f"{name:22} {backend:7} {time.perf_counter() - start:6.2f} s")


def _project_once(objective: Objective) -> str:
    """One small projection both ways; returns the name of the back end that took it."""
    constraints, scores = doubly_stochastic(3), torch.linspace(-1, 1, 18, dtype=torch.float64).sin().reshape(2, 9)
    leaf = scores.requires_grad_()
    x = project(leaf, constraints, objective=objective, on_failure="raise")
    (x * x).sum().backward()
    return "kernel" if plan_of(constraints, objective, Newton(), 9).native() else "arrays"
