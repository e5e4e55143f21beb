"""The dynamic programme against every tour."""

import numpy as np
import pytest
from tour_oracles import scattered, shortest_lengths

from linsat_studies.tsp.data import Instances, random_instances
from linsat_studies.tsp.exact import optimal_tours
from linsat_studies.tsp.tours import TourError, broken, lengths


@pytest.mark.parametrize("n", [4, 5, 7])
@pytest.mark.parametrize(("task", "within"), [("se", 0), ("pri", 1), ("pri", 2)])
def test_no_tour_is_shorter(task, within, n):
    instances = scattered(task, 40, n, seed=n, within=within)
    tours = optimal_tours(instances)
    assert not broken(instances, tours).any()
    assert lengths(instances.coords, tours) == pytest.approx(shortest_lengths(instances), abs=1e-12)


def test_two_and_three_cities():
    coords = np.random.default_rng(0).random((4, 3, 2))
    assert optimal_tours(Instances(coords[:, :2], 1, 0)).tolist() == [[1, 0]] * 4
    assert optimal_tours(Instances(coords, 2, 0)).tolist() == [[2, 1, 0]] * 4
    assert optimal_tours(Instances(coords, 2, 0, 1, 1)).tolist() == [[2, 1, 0]] * 4


def test_cities_on_a_line_are_visited_in_order():
    x = np.linspace(0, 1, 14)
    coords = np.stack([x, np.zeros(14)], axis=1)[None]
    assert optimal_tours(Instances(coords, 0, 13)).tolist() == [list(range(14))]
    # City 9 by position 2: out to it, past one more, back for the rest; 1.0 there and two extra stretches.
    tours = optimal_tours(Instances(coords, 0, 13, 9, 2))
    assert lengths(coords, tours) == pytest.approx([1 + 2 * 7 / 13])


def test_threads_and_progress_do_not_change_the_answer():
    instances = random_instances("pri", 20, n=10, seed=5)
    calls = []
    alone = optimal_tours(instances, threads=1)
    together = optimal_tours(instances, lambda done, count: calls.append((done, count)), threads=3)
    assert np.array_equal(alone, together)
    assert calls[-1] == (20, 20)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_too_many_cities_are_refused():
    with pytest.raises(TourError, match="23 cities; expected at most 22"):
        optimal_tours(random_instances("se", 1, n=23, seed=0))


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_unit_of_length_does_not_matter(scale):
    instances = scattered("pri", 300, 6, seed=7)
    scaled = Instances(instances.coords * scale, instances.start, instances.end, instances.priority, 2)
    found = lengths(scaled.coords, optimal_tours(scaled))
    assert found / scale == pytest.approx(shortest_lengths(instances), rel=1e-12)


def test_cities_at_one_spot():
    assert lengths(np.zeros((2, 6, 2)), optimal_tours(Instances(np.zeros((2, 6, 2)), 0, 5, 3, 1))).tolist() == [0, 0]
