"""What a million projections cost: processor time, memory and bytes, by size of the problem."""

from __future__ import annotations

import time
from typing import Any

import torch

import linsat
from linsat.constraints import capacity_assignment, doubly_stochastic, matching, portfolio, simplex, top_k, tour

CASES = {
    "simplex, 10 variables": simplex(10),
    "top 10 of 100": top_k(100, 10),
    "portfolio, 494 assets": portfolio(494, range(6), 0.5),
    "matching 10 x 10": matching(10, 10, at_most=8),
    "assignment of 30 to 5 bins": capacity_assignment(30, 5, 7),
    "doubly stochastic 10 x 10": doubly_stochastic(10),
    "doubly stochastic 20 x 20": doubly_stochastic(20),
    "tour of 20 cities": tour(20, 0, 19),
}
BATCH = 256
_REPEATS = 3


def cost(tau: float, seconds: float = 1.0) -> list[dict[str, Any]]:
    """One line per case: processor seconds of a million projections on one thread, without and with gradients.

    The best of three measurements of about ``seconds`` each: other programs on the machine can only add time.
    """
    torch.set_num_threads(1)
    lines = []
    for name, cons in CASES.items():
        y = torch.randn(BATCH, cons.num_variables or 1, generator=torch.Generator().manual_seed(0))
        variables = y.shape[1]
        lines.append(
            {
                "case": name,
                "variables": variables,
                "rows": len(cons),
                "forward": _measured(lambda y=y, cons=cons: linsat.project(y, cons, tau=tau), seconds),
                "with_gradient": _measured(lambda y=y, cons=cons: _gradient(y, cons, tau), seconds),
                "file_gb": 2 * 4 * variables * 1e6 / 2**30,  # scores and x, float32
                "batch_mb": 8 * 4096 * (2 * variables + len(cons)) / 2**20,
            }
        )
    return lines


def _gradient(y: torch.Tensor, cons: linsat.Constraints, tau: float) -> None:
    linsat.project(y.requires_grad_(), cons, tau=tau).square().sum().backward()


def _measured(call: Any, seconds: float) -> float:
    """Processor seconds of a million instances."""
    call()
    found = []
    for _ in range(_REPEATS):
        began, calls = time.process_time(), 0
        while time.process_time() - began < seconds:
            call()
            calls += 1
        found.append((time.process_time() - began) / (calls * BATCH) * 1e6)
    return min(found)
