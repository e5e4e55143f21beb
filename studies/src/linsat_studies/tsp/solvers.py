"""General solvers on the same problems: LKH, mixed-integer programs, and the paper's quadratic form.

They are slow beside the methods made for the task and are meant for samples. What a solver did not find is not filled
in: an instance without a tour has status ``"no tour"``, length NaN and a tour of -1.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from linsat_studies.progress import Progress
from linsat_studies.tsp import _arcs, _positions
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.tours import TourError, check_tours, lengths

Status = Literal["optimal", "heuristic", "time limit", "no tour"]
# One canonical instance: distances (longest 1), latest position of city 1 or None, seconds -> (tour or None, proved).
_Solve = Callable[[np.ndarray, "int | None", float], "tuple[np.ndarray | None, bool]"]

# LKH works with integers: this many steps to the longest distance, well inside 32 bits after its own factor of 100.
_LKH_STEPS = 1_000_000


@dataclass(frozen=True, eq=False)
class Solved:
    """What a solver found.

    Attributes:
        tours: (N, n); rows of -1 where no tour was found.
        lengths: (N,); NaN where no tour was found.
        seconds: (N,), wall-clock time of each instance, model building included.
        status: N words. ``"optimal"``: proved; ``"heuristic"``: finished, without a proof; ``"time limit"``: the best
            tour when time ran out; ``"no tour"``: time ran out before any tour was found.
    """

    tours: np.ndarray
    lengths: np.ndarray
    seconds: np.ndarray
    status: tuple[Status, ...]

    @property
    def found(self) -> np.ndarray:
        """(N,) booleans: which instances have a tour."""
        return ~np.isnan(self.lengths)


def lkh_tours(instances: Instances, *, runs: int = 1, progress: Progress | None = None) -> Solved:
    """The Lin-Kernighan-Helsgaun heuristic (``elkai``) on TSP-SE.

    A path from start to end becomes a round trip by a dummy city at distance 0 from both and far from all others.

    Args:
        instances: TSP-SE only: a standard solver has no place for the priority rule.
        runs: LKH's runs per instance.
        progress: called as ``progress(done, N)``.

    Raises:
        TourError: the instances have a priority city.
    """
    if instances.task != "se":
        raise TourError("LKH solves the standard TSP, which has no priority city. Fix: mip_tours or optimal_tours.")
    if runs < 1:
        raise TourError(f"runs is {runs}; expected at least 1.")
    import elkai

    def solve(D: np.ndarray, latest: int | None, seconds: float) -> tuple[np.ndarray | None, bool]:
        n = len(D)
        steps = np.rint(D * _LKH_STEPS).astype(np.int64)
        costs = np.full((n + 1, n + 1), 4 * _LKH_STEPS, dtype=np.int64)
        costs[:n, :n] = steps
        costs[n, [0, n - 1, n]] = 0
        costs[[0, n - 1], n] = 0
        cycle = np.array(elkai.DistanceMatrix(costs.tolist()).solve_tsp(runs=runs)[:-1])
        path = np.roll(cycle, -int(np.flatnonzero(cycle == n)[0]))[1:]
        return (path if path[0] == 0 else path[::-1]), False

    return _solve_each(instances, solve, np.inf, progress)


def mip_tours(instances: Instances, *, seconds: float = 10.0, progress: Progress | None = None) -> Solved:
    """Shortest tours of both tasks by a mixed-integer program over arcs (HiGHS).

    Arc variables, positions u with Miller, Tucker and Zemlin's rows as lifted by Desrochers and Laporte, and the
    subtour rows of Dantzig, Fulkerson and Johnson that the linear relaxation breaks, found by minimum cuts before the
    integer search. TSP-PRI is the bound u[priority] <= within.

    Args:
        instances: N problems.
        seconds: limit per instance, cuts included.
        progress: called as ``progress(done, N)``.
    """
    return _solve_each(instances, _arcs.solve, seconds, progress)


def quadratic_tours(
    instances: Instances,
    *,
    seconds: float = 10.0,
    solver: Literal["highs", "scip", "gurobi"] = "highs",
    progress: Progress | None = None,
) -> Solved:
    """The paper's form: binary X[city, position], length sum D[i, j] X[i, k] X[j, k + 1].

    Args:
        instances: N problems.
        seconds: limit per instance; the paper uses 2 and 10.
        solver: ``"highs"`` takes no products of variables: each is replaced by a variable whose sums over i and over
            j are those of X, which is exact for binary X and a far better relaxation than the plain products.
            ``"scip"`` and ``"gurobi"`` take the products as they are; SCIP often has no tour of 20 cities in 2 s.
        progress: called as ``progress(done, N)``.

    Raises:
        ImportError: ``gurobipy`` is missing.
        RuntimeError: Gurobi has no licence, or one too small for the model (naming what it said).
    """
    solves: dict[str, _Solve] = {
        "scip": _positions.solve_scip,
        "highs": _positions.solve_highs,
        "gurobi": _positions.solve_gurobi,
    }
    if solver not in solves:
        raise TourError(f"solver is {solver!r}; expected one of {', '.join(map(repr, solves))}.")
    return _solve_each(instances, solves[solver], seconds, progress)


def _solve_each(instances: Instances, solve: _Solve, seconds: float, progress: Progress | None) -> Solved:
    if not seconds > 0:
        raise TourError(f"seconds is {seconds}; expected a positive limit per instance.")
    if instances.cities < 4:
        raise TourError(f"instances have {instances.cities} cities; expected at least 4: fewer leave nothing to order.")
    canonical, order = instances.canonical()
    tours = np.full((len(instances), instances.cities), -1, dtype=np.int64)
    times = np.zeros(len(instances))
    status: list[Status] = []
    for i in range(len(instances)):
        begin = time.perf_counter()
        D = np.linalg.norm(canonical.coords[i, :, None] - canonical.coords[i, None], axis=-1)
        # The solvers' tolerances are absolute: they see the longest distance as 1.
        tour, proved = solve(D / max(D.max(), np.finfo(float).tiny), canonical.within, seconds)
        times[i] = time.perf_counter() - begin
        if tour is None:
            status.append("no tour")
        else:
            tours[i] = order[i, tour]
            status.append("optimal" if proved else "heuristic" if np.isinf(seconds) else "time limit")
        if progress is not None:
            progress(i + 1, len(instances))
    found = np.array([word != "no tour" for word in status], dtype=bool)
    measured = np.full(len(instances), np.nan)
    checked = check_tours(instances[found], tours[found])
    measured[found] = lengths(instances.coords[found], checked)
    return Solved(tours, measured, times, tuple(status))
