"""Construction heuristics: nearest neighbour, and nearest, farthest and random insertion, with the priority rule."""

from __future__ import annotations

from typing import Literal

import numpy as np

from linsat_studies.compiled import compiled
from linsat_studies.threads import run_blocks
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.distances import fill_distances
from linsat_studies.tsp.tours import TourError, check_tours

_KINDS = {"nearest": 0, "farthest": 1, "random": 2}


def nearest_neighbour(instances: Instances, *, threads: int | None = None) -> np.ndarray:
    """Go on to the nearest unvisited city; the end comes last, whatever the way there.

    TSP-PRI: a priority city not yet visited is taken at step ``within``.

    Returns:
        Tours (N, n), checked. O(n^2) an instance.
    """
    tours = np.empty(instances.coords.shape[:2], dtype=np.int64)
    priority, within = instances.priority_rule()

    def task(first: int, last: int) -> None:
        part = slice(first, last)
        _neighbour_each(
            instances.coords[part], instances.start[part], instances.end[part], priority[part], within, tours[part]
        )

    run_blocks(task, len(instances), threads=threads, block=512)
    return check_tours(instances, tours)


def insertion(
    instances: Instances,
    kind: Literal["nearest", "farthest", "random"] = "farthest",
    *,
    seed: int = 0,
    priority_first: bool = False,
    threads: int | None = None,
) -> np.ndarray:
    """Grow a path from start and end: choose a city, put it where the path gets least longer, until all are in.

    Args:
        instances: N problems.
        kind: which city next: the ``"nearest"`` to the path (its closest city), the ``"farthest"`` from it, or a
            ``"random"`` one.
        seed: for ``"random"``; each instance has its own order, drawn from (seed, batch).
        priority_first: put the priority city in before all others, see below; no effect on TSP-SE.
        threads: None for every processor.

    TSP-PRI, as the paper words it: once the priority city is at position ``within``, nothing goes in before it. The
    paper does not say how the priority city itself comes in, and the tour breaks its rule unless that is settled:

    - by default it waits until it is chosen like any other city, and goes to the best of the first ``within`` gaps;
    - with ``priority_first`` the path starts as start, priority city, end.

    On the 10,000 test instances the paper reports 4.349 (nearest), 4.403 (farthest) and 4.469 (random). The default
    gives 4.424, 4.405 and 4.437; ``priority_first`` gives 4.371, 4.655 and 4.588. No reading that the paper gives a
    reason for was found to give all three figures, so none is claimed to be the paper's. Without a priority city
    nearest and farthest insertion agree with the paper to three digits.

    Returns:
        Tours (N, n), checked. O(n^2) an instance.
    """
    if kind not in _KINDS:
        raise TourError(f"kind is {kind!r}; expected one of {', '.join(map(repr, _KINDS))}.")
    n = instances.cities
    tours = np.empty(instances.coords.shape[:2], dtype=np.int64)
    priority, within = instances.priority_rule()
    # For "random": the city of the smallest key is next.
    keys = np.zeros((len(instances), n))
    if kind == "random":
        keys = np.random.default_rng(seed).random((len(instances), n))

    def task(first: int, last: int) -> None:
        part = slice(first, last)
        _insert_each(
            instances.coords[part],
            instances.start[part],
            instances.end[part],
            priority[part],
            within,
            _KINDS[kind],
            priority_first,
            keys[part],
            tours[part],
        )

    run_blocks(task, len(instances), threads=threads, block=512)
    return check_tours(instances, tours)


@compiled(nogil=True)
def _neighbour_each(
    coords: np.ndarray, start: np.ndarray, end: np.ndarray, priority: np.ndarray, within: int, tours: np.ndarray
) -> None:
    n = coords.shape[1]
    D = np.empty((n, n))
    visited = np.empty(n, np.bool_)
    for i in range(coords.shape[0]):
        fill_distances(coords[i], D)
        visited[:] = False
        visited[start[i]] = True
        visited[end[i]] = True
        tours[i, 0] = start[i]
        tours[i, n - 1] = end[i]
        for step in range(1, n - 1):
            here, best, nearest = tours[i, step - 1], -1, np.inf
            for city in range(n):
                if not visited[city] and D[here, city] < nearest:
                    best, nearest = city, D[here, city]
            if step == within and priority[i] >= 0 and not visited[priority[i]]:
                best = priority[i]
            tours[i, step] = best
            visited[best] = True


@compiled(nogil=True)
def _insert_each(
    coords: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    priority: np.ndarray,
    within: int,
    kind: int,
    priority_first: bool,
    keys: np.ndarray,
    tours: np.ndarray,
) -> None:
    """Grow each tour in place: the path so far fills tour[0 .. size - 1], ``place`` is the priority city's position."""
    n = coords.shape[1]
    D = np.empty((n, n))
    outside = np.empty(n, np.bool_)
    reach = np.empty(n)  # distance of each city outside to its closest city on the path
    for i in range(coords.shape[0]):
        fill_distances(coords[i], D)
        tour = tours[i]
        tour[0], tour[1] = start[i], end[i]
        size = 2
        outside[:] = True
        outside[start[i]] = False
        outside[end[i]] = False
        place = -1
        if priority[i] >= 0 and priority_first:
            outside[priority[i]] = False
            place = 1
            tour[1], tour[2] = priority[i], end[i]
            size = 3
        for city in range(n):
            reach[city] = np.inf
            for k in range(size):
                reach[city] = min(reach[city], D[city, tour[k]])
        while size < n:
            city = _next_city(kind, outside, reach, keys[i])
            first = place if place == within else 0
            last = min(size - 1, within) if city == priority[i] else size - 1
            cheapest, gap = np.inf, first
            for k in range(first, last):
                cost = D[tour[k], city] + D[city, tour[k + 1]] - D[tour[k], tour[k + 1]]
                if cost < cheapest:
                    cheapest, gap = cost, k
            for k in range(size, gap + 1, -1):
                tour[k] = tour[k - 1]
            tour[gap + 1] = city
            if city == priority[i]:
                place = gap + 1
            elif gap < place:
                place += 1
            size += 1
            outside[city] = False
            for other in range(n):
                reach[other] = min(reach[other], D[other, city])


@compiled(nogil=True)
def _next_city(kind: int, outside: np.ndarray, reach: np.ndarray, keys: np.ndarray) -> int:
    best, least = -1, np.inf
    for city in range(outside.shape[0]):
        if outside[city]:
            value = reach[city] if kind == 0 else -reach[city] if kind == 1 else keys[city]
            if value < least:
                best, least = city, value
    return best
