"""Constrained local search: local optima by brute force over the moves, rules kept, better with more starts."""

from math import inf

import numpy as np
import pytest
from tour_oracles import feasible_tours, scattered, shortest_lengths, walk

from linsat_studies.tsp.data import random_instances
from linsat_studies.tsp.exact import optimal_tours
from linsat_studies.tsp.local_search import descend, random_restarts
from linsat_studies.tsp.tours import TourError, broken, lengths


def moved_tours(tour: list[int]) -> list[list[int]]:
    """Every tour one 2-opt or Or-opt move away, made by slicing lists."""
    n = len(tour)
    moved = []
    for i in range(1, n - 1):
        for j in range(i + 1, n - 1):
            moved.append(tour[:i] + tour[i : j + 1][::-1] + tour[j + 1 :])
        for size in (1, 2, 3):
            if i + size <= n - 1:
                segment, rest = tour[i : i + size], tour[:i] + tour[i + size :]
                for gap in range(1, len(rest)):
                    moved.append(rest[:gap] + segment + rest[gap:])
                    moved.append(rest[:gap] + segment[::-1] + rest[gap:])
    return moved


def exchanged_tours(tour: list[int], place: int) -> list[list[int]]:
    """Every tour in which a city from before ``place`` and one from behind it have changed sides."""
    moved = []
    for i in range(1, place):
        for j in range(place + 1, len(tour) - 1):
            front = [c for c in tour[:place] if c != tour[i]]
            back = [c for c in tour[place + 1 :] if c != tour[j]]
            for g in range(1, len(front) + 1):
                for h in range(len(back)):
                    new_back = [*back[:h], tour[i], *back[h:]]
                    moved.append([*front[:g], tour[j], *front[g:], tour[place], *new_back])
    return moved


@pytest.mark.parametrize("task", ["se", "pri"])
def test_no_allowed_move_shortens_the_result(task):
    instances = scattered(task, 60, 11, seed=3, within=4)
    tours = random_restarts(instances, starts=1, seed=0)
    for i, tour in enumerate(tours.tolist()):
        points, here = instances.coords[i], walk(instances.coords[i], tour)
        neighbours = moved_tours(tour)
        place = inf
        if task == "pri":
            city = int(instances.priority[i])
            place = tour.index(city)
            neighbours = [other for other in neighbours if other.index(city) <= 4]
            if place == 4:
                neighbours += exchanged_tours(tour, place)
        assert min(walk(points, other) for other in neighbours) >= here - 1e-9


@pytest.mark.parametrize("task", ["se", "pri"])
def test_a_descent_keeps_the_rules_and_never_lengthens(task):
    instances = scattered(task, 80, 9, seed=8, within=3)
    rng = np.random.default_rng(0)
    given = []
    for i in range(len(instances)):
        choices = feasible_tours(instances, i)
        given.append(choices[rng.integers(len(choices))])
    given = np.array(given)
    kept = given.copy()
    better = descend(instances, given)
    assert np.array_equal(given, kept)
    assert not broken(instances, better).any()
    assert (lengths(instances.coords, better) <= lengths(instances.coords, given) + 1e-12).all()
    assert np.array_equal(descend(instances, better), better)


@pytest.mark.parametrize("task", ["se", "pri"])
def test_many_starts_find_the_optimum(task):
    instances = scattered(task, 50, 7, seed=2)
    tours = random_restarts(instances, starts=40, seed=1)
    assert lengths(instances.coords, tours) == pytest.approx(shortest_lengths(instances), abs=1e-12)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_tiny_instances(n):
    instances = scattered("se", 10, max(n, 3), seed=1) if n > 2 else random_instances("se", 10, n=2, seed=1)
    tours = random_restarts(instances, starts=3, seed=0)
    assert lengths(instances.coords, tours) == pytest.approx(shortest_lengths(instances))


def test_gaps_are_small_and_shrink_with_starts():
    for task, worst in (("se", (0.02, 0.003)), ("pri", (0.03, 0.006))):
        instances = random_instances(task, 24, n=16, seed=6)
        best = lengths(instances.coords, optimal_tours(instances)).mean()
        for starts, gap in zip((1, 8), worst):
            found = lengths(instances.coords, random_restarts(instances, starts=starts, seed=4)).mean()
            assert 0.999999 <= found / best <= 1 + gap


def test_threads_do_not_change_the_answer_and_seeds_do():
    instances = random_instances("pri", 300, n=15, seed=1)
    alone = random_restarts(instances, starts=2, seed=5, threads=1)
    assert np.array_equal(alone, random_restarts(instances, starts=2, seed=5, threads=3))
    assert not np.array_equal(alone, random_restarts(instances, starts=2, seed=6))
    more = random_restarts(instances, starts=6, seed=5)
    assert (lengths(instances.coords, more) <= lengths(instances.coords, alone) + 1e-12).all()


def test_random_starts_are_spread_evenly():
    # All cities but the end at one spot: no move gains anything, so the tours are the random starts themselves.
    instances = random_instances("se", 6000, n=5, seed=1)
    coords = np.zeros_like(instances.coords)
    coords[:, -1] = 1.0
    together = type(instances)(coords, instances.start, instances.end)
    tours = random_restarts(together, starts=1, seed=3)
    counts = np.unique(tours, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert abs(counts / 6000 - 1 / 6).max() < 0.02


def test_bad_arguments_are_refused():
    instances = random_instances("pri", 2, n=8, seed=0)
    with pytest.raises(ValueError, match="starts is 0"):
        random_restarts(instances, starts=0, seed=0)
    with pytest.raises(TourError, match="priority city"):
        descend(instances, np.array([[0, 2, 3, 4, 5, 6, 1, 7]] * 2))
    with pytest.raises(ValueError, match="threads is 0"):
        random_restarts(instances, starts=1, seed=0, threads=0)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_unit_of_length_does_not_matter(scale):
    instances = random_instances("pri", 200, n=12, seed=7)
    scaled = type(instances)(instances.coords * scale, instances.start, instances.end, instances.priority, 5)
    tours, same = (random_restarts(i, starts=2, seed=1) for i in (instances, scaled))
    assert lengths(scaled.coords, same) / scale == pytest.approx(lengths(instances.coords, tours), rel=1e-9)


def test_equal_distances_end_the_descent():
    # A grid has many tours of equal length; rounding must not make two of them alternate.
    x, y = np.meshgrid(np.arange(4.0), np.arange(4.0))
    grid = np.stack([x.ravel(), y.ravel()], axis=1)[None] * np.array([1e-3, 0.1, 1.0, 1e6])[:, None, None] + 1 / 3
    instances = random_instances("se", 4, n=16, seed=1)
    tours = random_restarts(type(instances)(grid, instances.start, instances.end), starts=50, seed=1)
    # Corner to opposite corner of a 4 x 4 grid: colouring rules out 15 unit steps, one diagonal step is needed.
    assert lengths(grid, tours) == pytest.approx((14 + 2**0.5) * np.array([1e-3, 0.1, 1.0, 1e6]))
