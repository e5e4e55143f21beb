"""Shortest tours, exactly: Held and Karp's dynamic program over subsets of the inner cities.

With f(S, j) the shortest way from the start through all cities of the set S and on to city j outside S,

    f({}, j) = D[start, j],        f(S, j) = min over k in S of f(S without k, k) + D[k, j],

and the answer is f(all inner cities, end). The cities of S hold positions 1 .. |S|, so a set of at least ``within``
cities without the priority city has missed it: the priority rule costs nothing, it saves work.

A tour from local search bounds the answer from above. Every city still to be visited will have two edges, so half the
sum of its two shortest ones bounds what is left from below; ways that cannot beat the tour any more are dropped, which
leaves a few per cent of them. The answer stays exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from linsat_studies.compiled import compiled
from linsat_studies.threads import run_blocks
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.distances import fill_distances
from linsat_studies.tsp.local_search import random_restarts
from linsat_studies.tsp.tours import TourError, check_tours, lengths

MAX_CITIES = 22
_STARTS = 20  # of the local search that bounds the answer from above


def optimal_tours(
    instances: Instances, progress: Callable[[int, int], None] | None = None, *, threads: int | None = None
) -> np.ndarray:
    """A shortest tour of every instance, under all its rules.

    Args:
        instances: N problems of at most 22 cities.
        progress: called as ``progress(done, N)`` as instances are finished.
        threads: None for every processor.

    Returns:
        Tours (N, n), checked. Time and memory grow as n^2 2^(n-2) at worst: for 20 cities some 0.03 s an instance and
        40 MB a thread, for 22 cities 180 MB.

    Raises:
        TourError: more than 22 cities.
    """
    n = instances.cities
    if n > MAX_CITIES:
        raise TourError(
            f"instances have {n} cities; expected at most {MAX_CITIES}, since memory doubles with every city. "
            "Fix: solvers.mip_tours, or local_search.random_restarts for a tour that is nearly always optimal."
        )
    canonical, order = instances.canonical()
    tours = np.empty((len(instances), n), dtype=np.int64)
    within = n if canonical.within is None else canonical.within
    has_priority = canonical.priority is not None

    good = lengths(canonical.coords, random_restarts(canonical, starts=_STARTS, seed=0, threads=threads))

    def task(first: int, last: int) -> None:
        _optimal_each(canonical.coords[first:last], good[first:last], has_priority, within, tours[first:last])

    run_blocks(task, len(instances), threads=threads, block=8, progress=progress)
    return check_tours(instances, np.take_along_axis(order, tours, axis=1))


@compiled(nogil=True)
def _optimal_each(coords: np.ndarray, good: np.ndarray, has_priority: bool, within: int, tours: np.ndarray) -> None:
    """Canonical instances: start 0, inner city c is bit c - 1 of a set (the priority city bit 0), end n - 1."""
    n = coords.shape[1]
    inner = n - 2
    D = np.empty((n, n))
    # Column j - 1 of row S is f(S, j) for the inner cities and the end; rows of sets that are not alive are not filled.
    f = np.empty((1 << inner, n - 1))
    alive = np.empty(1 << inner, dtype=np.bool_)
    left = np.empty(1 << inner)  # a lower bound of what the cities outside a set still cost
    nearest, second = np.empty(n), np.empty(n)
    row = np.empty(n - 1)
    for i in range(coords.shape[0]):
        fill_distances(coords[i], D)
        _two_nearest(D, nearest, second)
        left[0] = 0.5 * nearest[n - 1]
        for c in range(1, n - 1):
            left[0] += 0.5 * (nearest[c] + second[c])
        # Distances without the start's row and column: numbered as the columns of f.
        E = D[1:, 1:].copy()
        f[0] = D[0, 1:]
        alive[0] = True
        limit = good[i] * (1 + 1e-9)  # relative, so that rounding of large coordinates drops nothing
        for S in range(1, 1 << inner):
            low = 0
            while not (S >> low) & 1:
                low += 1
            left[S] = left[S & (S - 1)] - 0.5 * (nearest[low + 1] + second[low + 1])
            alive[S] = False
            if has_priority and not S & 1 and _size(S) >= within:
                continue
            for k in range(low, inner):
                before = S ^ (1 << k)
                if not (S >> k) & 1 or not alive[before]:
                    continue
                reach = f[before, k]
                if reach + 0.5 * nearest[k + 1] + left[S] > limit:
                    continue
                if not alive[S]:
                    alive[S] = True
                    row[:] = np.inf
                for j in range(n - 1):
                    row[j] = min(row[j], reach + E[k, j])
            if alive[S]:
                f[S] = row
        _trace(f, alive, E, tours[i])


@compiled(nogil=True)
def _two_nearest(D: np.ndarray, nearest: np.ndarray, second: np.ndarray) -> None:
    """Distances of every city to its two nearest others."""
    for c in range(D.shape[0]):
        nearest[c] = second[c] = np.inf
        for other in range(D.shape[0]):
            if other == c:
                continue
            if D[c, other] < nearest[c]:
                second[c] = nearest[c]
                nearest[c] = D[c, other]
            elif D[c, other] < second[c]:
                second[c] = D[c, other]


@compiled(nogil=True)
def _size(S: int) -> int:
    """How many cities a set has."""
    size = 0
    while S:
        S &= S - 1
        size += 1
    return size


@compiled(nogil=True)
def _trace(f: np.ndarray, alive: np.ndarray, E: np.ndarray, tour: np.ndarray) -> None:
    """Walk back from the end: at every set, the city that the minimum came from."""
    n = tour.shape[0]
    tour[0] = 0
    tour[n - 1] = n - 1
    S, city = f.shape[0] - 1, n - 2
    for position in range(n - 2, 0, -1):
        shortest, best = np.inf, 0
        for k in range(n - 2):
            if (S >> k) & 1 and alive[S ^ (1 << k)]:
                way = f[S ^ (1 << k), k] + E[k, city]
                if way < shortest:
                    shortest, best = way, k
        tour[position] = best + 1
        S ^= 1 << best
        city = best
