"""A million projections in one process: does its memory grow?"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import linsat
from linsat.constraints import doubly_stochastic, portfolio, top_k, tour

_WARM = 0.05  # share of the calls before memory counts: pools, caches and the allocator's arenas fill up
_OFTEN = 20  # readings of the memory


def resident_mb() -> float:
    """Memory of this process that is in RAM, in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def calls() -> Iterator[int]:
    """Project for ever, one instance or a few at a time; yields how many.

    Mostly the paper's layer with gradients on sets that live long; also sets made for one call, temperatures that
    change with every call, right-hand sides per instance, warm starts, torch operations, the other objectives, soft
    rows, the interior-point method, and calls that fail.
    """
    sets = [doubly_stochastic(4), top_k(12, 3), tour(5, 0, 4), portfolio(10, range(3), 0.5)]
    generator = torch.Generator().manual_seed(0)
    slow, interior = linsat.Newton(backend="arrays"), linsat.Newton(backend="interior_point")
    soft = [cons.soften(price=0.5) for cons in sets]
    duals = None
    number = 0
    while True:
        cons = sets[number % 4]
        size = 1 + number % 3
        y = torch.randn(size, cons.num_variables or 1, generator=generator).requires_grad_()
        kind = number % 100
        if kind == 17:
            fresh = linsat.Constraints(A=torch.rand(2, 5, generator=generator), b=[1.0, 2.0])
            linsat.project(torch.randn(size, 5, generator=generator), fresh)
        elif kind == 37:
            limits = 1 + 2 * torch.rand(size, 1, generator=generator)
            linsat.project(torch.randn(size, 12, generator=generator), sets[1].with_rhs(f=limits)).sum()
        elif kind == 57:
            duals = linsat.solve(y.detach()[:1], cons, start=None).duals if number % 400 == 157 else None
            linsat.solve(y.detach()[:1], cons, start=duals)
        elif kind == 77:
            linsat.project(y, cons, solver=slow).sum().backward()
        elif kind in (7, 27):
            objective = linsat.Euclidean() if kind == 7 else linsat.Entropy(0.1, slack="none")
            linsat.project(y, cons, objective=objective).sum().backward()
        elif kind == 47:
            linsat.project(y, soft[number % 4]).sum().backward()
        elif kind == 67:
            linsat.project(y, cons, solver=interior).sum().backward()
        elif kind == 97:
            try:
                linsat.project(y * float("nan"), cons)
            except linsat.ConstraintError:
                size = 0
        else:
            linsat.project(y, cons, tau=0.1 if number % 7 else 0.05 + 1e-9 * number).sum().backward()
        number += 1
        yield size


def soak(count: int) -> dict[str, Any]:
    """Project ``count`` instances after a warm-up; memory at its end, at the end of all, and between."""
    torch.set_num_threads(1)
    steady = calls()
    warm = 0
    while warm < _WARM * count:
        warm += next(steady)
    began = time.process_time()
    readings = [resident_mb()]
    done = made = 0
    while done < count:
        done += next(steady)
        made += 1
        if done >= len(readings) * count / _OFTEN:
            readings.append(resident_mb())
    return {
        "projections": done,
        "calls": made,
        "seconds": round(time.process_time() - began, 1),
        "start_mb": round(readings[0], 2),
        "growth_mb": round(readings[-1] - readings[0], 2),
        "largest_mb": round(max(readings), 2),
        "readings_mb": [round(value, 2) for value in readings],
    }
