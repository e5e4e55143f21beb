"""The classical methods by name, and how one is measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from linsat_studies.tsp.baselines import insertion, nearest_neighbour
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.local_search import random_restarts
from linsat_studies.tsp.solvers import Solved, lkh_tours, mip_tours, quadratic_tours
from linsat_studies.tsp.tours import check_tours, lengths

Solve = Callable[[Instances], np.ndarray]
STARTS = (1, 2, 5, 10, 20, 50)


def heuristics(threads: int | None = None) -> dict[str, Solve]:
    """The paper's construction heuristics, for both tasks."""
    return {
        "nearest neighbour": lambda instances: nearest_neighbour(instances, threads=threads),
        "nearest insertion": lambda instances: insertion(instances, "nearest", threads=threads),
        "farthest insertion": lambda instances: insertion(instances, "farthest", threads=threads),
        "random insertion": lambda instances: insertion(instances, "random", seed=0, threads=threads),
    }


def restarts(threads: int | None = None) -> dict[str, Solve]:
    """Local search from K random starts, by K."""

    def solver(starts: int) -> Solve:
        return lambda instances: random_restarts(instances, starts=starts, seed=0, threads=threads)

    return {str(starts): solver(starts) for starts in STARTS}


def random_starts(count: str) -> str:
    """The number of starts in words."""
    return f"{count} random start" + ("" if count == "1" else "s")


def slow_solvers(task: str) -> dict[str, Callable[..., Solved]]:
    """Solvers of other makers, each called as ``solve(instances, progress=...)``; most stop at a time limit."""
    found: dict[str, Callable[..., Solved]] = {"LKH": lkh_tours} if task == "se" else {}
    found["MIP over arcs, HiGHS, 10 s"] = partial(mip_tours, seconds=10.0)
    for limit in (2.0, 10.0):
        found[f"quadratic form, HiGHS, {limit:g} s"] = partial(quadratic_tours, solver="highs", seconds=limit)
        found[f"quadratic form, SCIP, {limit:g} s"] = partial(quadratic_tours, solver="scip", seconds=limit)
        found[f"quadratic form, Gurobi, {limit:g} s"] = partial(quadratic_tours, solver="gurobi", seconds=limit)
    return found


def judge_solved(instances: Instances, solved: Solved, optimal: np.ndarray | None) -> dict[str, Any]:
    """Like `judge`, over the instances for which the solver found a tour; ``found`` says how many those are."""
    which = solved.found
    best = None if optimal is None else optimal[which]
    if not which.any():
        none = {"mean_length": None, "gap_percent": None, "seconds": float(solved.seconds.sum())}
        return none | {"count": len(instances), "found": 0, "proved": 0}
    row = judge(instances[which], solved.tours[which], float(solved.seconds.sum()), best)
    proved = sum(word == "optimal" for word in solved.status)
    return row | {"count": len(instances), "found": int(which.sum()), "proved": proved}


def measure(solve: Solve, instances: Instances, optimal: np.ndarray | None) -> dict[str, Any]:
    """Run a method once on all instances: mean length, gap in per cent to the ``optimal`` tours (N, n), seconds.

    The first two instances are solved before the clock starts, so that compiling code does not count.
    """
    solve(instances[:2])
    begin = perf_counter()
    tours = check_tours(instances, solve(instances))
    return judge(instances, tours, perf_counter() - begin, optimal)


def judge(instances: Instances, tours: np.ndarray, seconds: float, optimal: np.ndarray | None) -> dict[str, Any]:
    """Mean length, gap in per cent where optimal tours are known, seconds and number of instances."""
    own = lengths(instances.coords, tours)
    gap = None if optimal is None else 100 * float(own.sum() / lengths(instances.coords, optimal).sum() - 1)
    return {"mean_length": float(own.mean()), "gap_percent": gap, "seconds": seconds, "count": len(instances)}
