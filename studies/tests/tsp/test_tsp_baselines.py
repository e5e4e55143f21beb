"""Construction heuristics against the same rules on plain lists, and against the paper's figures."""

import numpy as np
import pytest
from tour_oracles import scattered, walk

from linsat_studies.tsp import data
from linsat_studies.tsp.baselines import insertion, nearest_neighbour
from linsat_studies.tsp.data import random_instances
from linsat_studies.tsp.tours import TourError, broken, lengths


def neighbour_by_lists(instances, which: int) -> list[int]:
    points, end = instances.coords[which], int(instances.end[which])
    tour = [int(instances.start[which])]
    while len(tour) < instances.cities - 1:
        free = [c for c in range(instances.cities) if c not in tour and c != end]
        if instances.priority is not None and len(tour) == instances.within and instances.priority[which] in free:
            free = [int(instances.priority[which])]
        tour.append(min(free, key=lambda c: np.linalg.norm(points[c] - points[tour[-1]])))
    return [*tour, end]


def insertion_by_lists(instances, which: int, kind: str, first: bool) -> list[int]:
    points = instances.coords[which]
    priority = None if instances.priority is None else int(instances.priority[which])
    tour = [int(instances.start[which]), int(instances.end[which])]
    if first and priority is not None:
        tour.insert(1, priority)
    while len(tour) < instances.cities:
        reach = {
            c: min(np.linalg.norm(points[c] - points[v]) for v in tour)
            for c in range(instances.cities)
            if c not in tour
        }
        city = min(reach, key=reach.get) if kind == "nearest" else max(reach, key=reach.get)
        options = [[*tour[:gap], city, *tour[gap:]] for gap in range(1, len(tour))]
        if priority is not None:
            options = [t for t in options if priority not in t or t.index(priority) <= instances.within]
        tour = min(options, key=lambda t: walk(points, t))
    return tour


@pytest.mark.parametrize("task", ["se", "pri"])
def test_nearest_neighbour_follows_its_rule(task):
    instances = scattered(task, 50, 9, seed=1, within=3)
    expected = [neighbour_by_lists(instances, i) for i in range(50)]
    assert nearest_neighbour(instances).tolist() == expected


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("kind", ["nearest", "farthest"])
@pytest.mark.parametrize("task", ["se", "pri"])
def test_insertion_follows_its_rule(task, kind, first):
    instances = scattered(task, 50, 9, seed=2, within=3)
    expected = [insertion_by_lists(instances, i, kind, first) for i in range(50)]
    assert insertion(instances, kind, priority_first=first).tolist() == expected


def test_random_insertion_repeats_with_its_seed():
    instances = random_instances("pri", 200, seed=3)
    tours = insertion(instances, "random", seed=1)
    assert not broken(instances, tours).any()
    assert np.array_equal(tours, insertion(instances, "random", seed=1, threads=2))
    assert not np.array_equal(tours, insertion(instances, "random", seed=2))


@pytest.mark.parametrize("task", ["se", "pri"])
def test_the_papers_figures(task):
    instances = data.test_instances(task)
    figures = {"se": (4.367, 4.070, 3.772, 3.853), "pri": (4.674, 4.349, 4.403, 4.469)}[task]
    # The paper leaves open how the priority city is inserted: nearest insertion stays 1.7 % away from its figure.
    within = {"se": (0.001, 0.001, 0.001, 0.002), "pri": (0.001, 0.02, 0.01, 0.01)}[task]
    found = [nearest_neighbour(instances)] + [insertion(instances, k) for k in ("nearest", "farthest", "random")]
    for tours, figure, tolerance in zip(found, figures, within):
        assert lengths(instances.coords, tours).mean() == pytest.approx(figure, rel=tolerance)


@pytest.mark.parametrize("n", [2, 3])
def test_tiny_instances(n):
    instances = random_instances("se", 4, n=n, seed=1)
    expected = [list(range(n))] * 4
    assert nearest_neighbour(instances).tolist() == expected
    assert insertion(instances, "nearest").tolist() == expected


def test_unknown_kind_is_refused():
    with pytest.raises(TourError, match="kind is 'cheapest'"):
        insertion(random_instances("se", 1, seed=0), "cheapest")
