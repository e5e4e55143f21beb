"""Constrained local search: tours made shorter move by move, start, end and priority city kept throughout.

The moves, each accepted only if the tour gets shorter and the priority city stays at or before position ``within``:

- 2-opt: turn a segment round.
- Or-opt: take out a segment of 1 to 3 cities and put it elsewhere, either way round.
- exchange (TSP-PRI, when the priority city sits at its latest position): take one city from before it and one from
  after it, and put each back on the other side where it costs least. Neither of the other moves can let a city in
  before the priority city there, since one must leave first; on random instances this move cuts the gap to the optimum
  by a quarter for one descent and by more for several.

Together they cost O(n^2) per round (the exchange O(m n^2)) and a descent of 20 cities takes some 20 microseconds.
"""

from __future__ import annotations

import numpy as np

from linsat_studies.compiled import compiled
from linsat_studies.threads import run_blocks
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.distances import fill_distances, path_length
from linsat_studies.tsp.tours import check_tours

# A move must gain more than this share of the largest distance: less is rounding, and would let two equal tours
# alternate for ever.
_GAIN = 1e-10
_SEGMENT = 3


def descend(instances: Instances, tours: np.ndarray, *, threads: int | None = None) -> np.ndarray:
    """One descent from each given tour to a local optimum of the moves above; never longer than what came in.

    Args:
        instances: N problems.
        tours: (N, n), each keeping its problem's rules.
        threads: None for every processor.

    Returns:
        New tours (N, n), checked; the argument is left alone.

    Raises:
        TourError: a given tour breaks a rule.
    """
    better = check_tours(instances, tours).copy()
    priority, within = instances.priority_rule()

    def task(first: int, last: int) -> None:
        _descend_each(instances.coords[first:last], better[first:last], priority[first:last], within)

    run_blocks(task, len(instances), threads=threads, block=256)
    return check_tours(instances, better)


def random_restarts(instances: Instances, *, starts: int, seed: int, threads: int | None = None) -> np.ndarray:
    """The best of ``starts`` descents from random feasible tours, for each instance.

    Args:
        instances: N problems.
        starts: descents per instance (K).
        seed: instance i of the batch draws from its own stream (seed, i), so threads do not change the answer, and
            more starts with the same seed are never worse.
        threads: None for every processor.

    Returns:
        Tours (N, n), checked.
    """
    if starts < 1:
        raise ValueError(f"starts is {starts}; expected at least 1 descent per instance.")
    tours = np.empty(instances.coords.shape[:2], dtype=np.int64)
    priority, within = instances.priority_rule()
    streams = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] + np.arange(len(instances), dtype=np.uint64)

    def task(first: int, last: int) -> None:
        part = slice(first, last)
        _restart_each(
            instances.coords[part],
            instances.start[part],
            instances.end[part],
            priority[part],
            within,
            starts,
            streams[part],
            tours[part],
        )

    run_blocks(task, len(instances), threads=threads, block=max(1, 256 // starts))
    return check_tours(instances, tours)


@compiled(nogil=True)
def _descend_each(coords: np.ndarray, tours: np.ndarray, priority: np.ndarray, within: int) -> None:
    n = coords.shape[1]
    D = np.empty((n, n))
    spare = np.empty(n, np.int64)
    for i in range(coords.shape[0]):
        gain = _GAIN * fill_distances(coords[i], D)
        _descend_one(D, tours[i], priority[i], within, gain, spare)


@compiled(nogil=True)
def _restart_each(
    coords: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    priority: np.ndarray,
    within: int,
    starts: int,
    streams: np.ndarray,
    tours: np.ndarray,
) -> None:
    n = coords.shape[1]
    D = np.empty((n, n))
    spare = np.empty(n, np.int64)
    tour = np.empty(n, np.int64)
    state = np.empty(1, np.uint64)
    for i in range(coords.shape[0]):
        gain = _GAIN * fill_distances(coords[i], D)
        # Two rounds of mixing turn neighbouring stream numbers into unrelated states.
        state[0] = streams[i]
        state[0] = _random(state) ^ (streams[i] << np.uint64(32))
        shortest = np.inf
        for _ in range(starts):
            _draw(tour, start[i], end[i], priority[i], within, state)
            _descend_one(D, tour, priority[i], within, gain, spare)
            length = path_length(D, tour)
            if length < shortest:
                shortest = length
                tours[i] = tour


@compiled(nogil=True)
def _random(state: np.ndarray) -> int:
    """Next number of a SplitMix64 stream (Steele, Lea and Flood 2014): 64 bits, one word of state."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled(nogil=True)
def _below(state: np.ndarray, bound: int) -> int:
    """A random number from 0 to bound - 1."""
    return np.int64((_random(state) >> np.uint64(32)) * np.uint64(bound) >> np.uint64(32))


@compiled(nogil=True)
def _draw(tour: np.ndarray, start: int, end: int, priority: int, within: int, state: np.ndarray) -> None:
    """A random tour that keeps the rules: inner cities shuffled, a late priority city swapped forward."""
    n = tour.shape[0]
    tour[0] = start
    tour[n - 1] = end
    filled = 1
    for city in range(n):
        if city != start and city != end:
            tour[filled] = city
            filled += 1
    for i in range(n - 2, 1, -1):
        j = 1 + _below(state, i)
        tour[i], tour[j] = tour[j], tour[i]
    if priority >= 0:
        for i in range(within + 1, n - 1):
            if tour[i] == priority:
                j = 1 + _below(state, within)
                tour[i], tour[j] = tour[j], tour[i]
                break


@compiled(nogil=True)
def _descend_one(D: np.ndarray, tour: np.ndarray, priority: int, within: int, gain: float, spare: np.ndarray) -> None:
    """Rounds of moves until none gains more than ``gain``; ``place`` is where the priority city is, -1 if none."""
    place = -1
    if priority >= 0:
        for k in range(tour.shape[0]):
            if tour[k] == priority:
                place = k
    moved = True
    while moved:
        moved, place = _two_opt(D, tour, place, within, gain)
        for size in range(1, _SEGMENT + 1):
            moved_segment, place = _or_opt(D, tour, size, place, within, gain, spare)
            moved = moved or moved_segment
        if not moved and place == within:
            moved = _exchange(D, tour, place, gain, spare)


@compiled(nogil=True)
def _two_opt(D: np.ndarray, tour: np.ndarray, place: int, within: int, gain: float) -> tuple[bool, int]:
    n = tour.shape[0]
    moved = False
    for i in range(1, n - 1):
        for j in range(i + 1, n - 1):
            a, b, c, d = tour[i - 1], tour[i], tour[j], tour[j + 1]
            if D[a, c] + D[b, d] - D[a, b] - D[c, d] >= -gain:
                continue
            if i <= place <= j:
                if i + j - place > within:
                    continue
                place = i + j - place
            left, right = i, j
            while left < right:
                tour[left], tour[right] = tour[right], tour[left]
                left += 1
                right -= 1
            moved = True
    return moved, place


@compiled(nogil=True)
def _or_opt(
    D: np.ndarray, tour: np.ndarray, size: int, place: int, within: int, gain: float, spare: np.ndarray
) -> tuple[bool, int]:
    """Each segment tour[i .. j] of ``size`` cities goes to the gap (k, k + 1) and orientation that gain most."""
    n = tour.shape[0]
    moved = False
    for i in range(1, n - size):
        j = i + size - 1
        before, head, tail, after = tour[i - 1], tour[i], tour[j], tour[j + 1]
        freed = D[before, head] + D[tail, after] - D[before, after]
        best, best_gap, best_turned, best_place = -gain, -1, False, place
        for k in range(n - 1):
            if i - 1 <= k <= j:
                continue
            u, v = tour[k], tour[k + 1]
            for turned in (False, True):
                if turned:
                    change = D[u, tail] + D[head, v] - D[u, v] - freed
                else:
                    change = D[u, head] + D[tail, v] - D[u, v] - freed
                if change < best:
                    new_place = _place_after(place, i, j, k, turned)
                    if new_place <= within:
                        best, best_gap, best_turned, best_place = change, k, turned, new_place
        if best_gap >= 0:
            _move_segment(tour, i, j, best_gap, best_turned, spare)
            place = best_place
            moved = True
    return moved, place


@compiled(nogil=True)
def _place_after(place: int, i: int, j: int, k: int, turned: bool) -> int:
    """Where the city at ``place`` stands once the segment i .. j has gone to the gap (k, k + 1)."""
    size = j - i + 1
    if i <= place <= j:
        first = k + 1 if k < i else k - size + 1
        return first + (j - place if turned else place - i)
    if j < place <= k:
        return place - size
    if k < place < i:
        return place + size
    return place


@compiled(nogil=True)
def _move_segment(tour: np.ndarray, i: int, j: int, k: int, turned: bool, spare: np.ndarray) -> None:
    size = j - i + 1
    for q in range(size):
        spare[q] = tour[j - q] if turned else tour[i + q]
    if k > j:
        for q in range(j + 1, k + 1):
            tour[q - size] = tour[q]
        first = k - size + 1
    else:
        for q in range(i - 1, k, -1):
            tour[q + size] = tour[q]
        first = k + 1
    for q in range(size):
        tour[first + q] = spare[q]


@compiled(nogil=True)
def _exchange(D: np.ndarray, tour: np.ndarray, place: int, gain: float, rest: np.ndarray) -> bool:
    """The first gain from moving tour[i] behind the city at ``place`` and tour[j] before it; that city keeps its place.

    i < place < j, so the two cities are never neighbours and what their removal frees adds up.
    """
    n = tour.shape[0]
    for i in range(1, place):
        for j in range(place + 1, n - 1):
            a, b = tour[i], tour[j]
            freed = D[tour[i - 1], a] + D[a, tour[i + 1]] - D[tour[i - 1], tour[i + 1]]
            freed += D[tour[j - 1], b] + D[b, tour[j + 1]] - D[tour[j - 1], tour[j + 1]]
            filled = 0
            for q in range(n):
                if q not in (i, j):
                    rest[filled] = tour[q]
                    filled += 1
            cost_b, gap_b = _cheapest_gap(D, rest, b, 0, place - 1)
            if cost_b >= freed:
                continue
            cost_a, gap_a = _cheapest_gap(D, rest, a, place - 1, n - 3)
            if cost_a + cost_b - freed < -gain:
                filled = 0
                for q in range(n - 2):
                    tour[filled] = rest[q]
                    filled += 1
                    if q == gap_b:
                        tour[filled] = b
                        filled += 1
                    if q == gap_a:
                        tour[filled] = a
                        filled += 1
                return True
    return False


@compiled(nogil=True)
def _cheapest_gap(D: np.ndarray, path: np.ndarray, city: int, first: int, last: int) -> tuple[float, int]:
    """Least cost of putting ``city`` between path[q] and path[q + 1], q from ``first`` to ``last`` - 1, and that q."""
    best, gap = np.inf, first
    for q in range(first, last):
        cost = D[path[q], city] + D[city, path[q + 1]] - D[path[q], path[q + 1]]
        if cost < best:
            best, gap = cost, q
    return best, gap
