"""Decoders: beam search against plain lists and against every tour, and rounding."""

import numpy as np
import pytest
from tour_oracles import scattered, shortest_lengths, walk

from linsat_studies.tsp.data import random_instances
from linsat_studies.tsp.decode import beam_search, rounded_tours
from linsat_studies.tsp.tours import TourError, broken, lengths


def soft_tours(instances, seed: int, spread: float = 1.5) -> np.ndarray:
    """Random positive matrices: whatever the search is given, it must do what it says."""
    shape = (len(instances), instances.cities, instances.cities)
    return np.exp(spread * np.random.default_rng(seed).normal(size=shape) - 4.0)


def beam_by_lists(instances, which: int, X: np.ndarray, width: int, merge: bool) -> float:
    """Length of the tour that the search as described in words returns."""
    n, points = instances.cities, instances.coords[which]
    end = int(instances.end[which])
    beam = [((int(instances.start[which]),), 0.0)]
    for step in range(1, n - 1):
        grown = []
        for tour, score in beam:
            free = [city for city in range(n) if city not in tour and city != end]
            if instances.priority is not None and step == instances.within and instances.priority[which] in free:
                free = [int(instances.priority[which])]
            grown += [((*tour, city), score + np.log(X[city, step])) for city in free]
        if merge:
            best: dict = {}
            for tour, score in grown:
                key = (frozenset(tour), tour[-1])
                kept, top = best.get(key, (tour, score))
                best[key] = (min(kept, tour, key=lambda t: walk(points, t)), max(top, score))
            grown = list(best.values())
        beam = sorted(grown, key=lambda state: -state[1])[:width]
    return min(walk(points, (*tour, end)) for tour, _ in beam)


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("task", ["se", "pri"])
@pytest.mark.parametrize("width", [1, 2, 7, 40])
def test_the_search_does_what_it_says(task, width, merge):
    instances = scattered(task, 25, 8, seed=width, within=3)
    X = soft_tours(instances, seed=1)
    tours = beam_search(instances, X, width=width, merge=merge)
    assert not broken(instances, tours).any()
    expected = [beam_by_lists(instances, i, X[i], width, merge) for i in range(len(instances))]
    assert lengths(instances.coords, tours) == pytest.approx(expected)


@pytest.mark.parametrize("task", ["se", "pri"])
def test_a_beam_that_holds_every_state_finds_the_optimum_whatever_the_scores(task):
    instances = scattered(task, 30, 8, seed=5)
    # Six inner cities: at most C(6, 3) * 3 = 60 states of a set and a last city, but 720 plain partial tours.
    tours = beam_search(instances, soft_tours(instances, seed=2), width=60)
    assert lengths(instances.coords, tours) == pytest.approx(shortest_lengths(instances))


@pytest.mark.parametrize("task", ["se", "pri"])
def test_zeros_do_not_stop_the_search_and_break_no_rule(task):
    instances = scattered(task, 20, 9, seed=3, within=2)
    zeros = np.zeros((20, 9, 9), dtype=np.float32)
    assert not broken(instances, beam_search(instances, zeros, width=16)).any()
    # All the weight on tours that break every rule: end first, priority last.
    wrong = zeros.copy()
    wrong[np.arange(20), instances.end, :] = 1.0
    if task == "pri":
        wrong[np.arange(20), instances.priority, 7] = 1.0
    assert not broken(instances, beam_search(instances, wrong, width=16)).any()


def test_a_matrix_that_is_a_tour_gives_that_tour_with_one_beam():
    instances = scattered("pri", 30, 12, seed=9, within=4)
    tours = beam_search(instances, soft_tours(instances, seed=3), width=3)
    X = np.zeros((30, 12, 12), dtype=np.float32)
    X[np.arange(30)[:, None], tours, np.arange(12)] = 1.0
    assert np.array_equal(beam_search(instances, X, width=1), tours)
    rounded, feasible = rounded_tours(instances, 0.9 * X)
    assert feasible.all()
    assert np.array_equal(rounded, tours)


def test_views_give_the_best_of_their_separate_searches():
    instances = random_instances("pri", 40, n=10, seed=2)
    X = np.stack([soft_tours(instances, seed=s) for s in range(4)])
    together = lengths(instances.coords, beam_search(instances, X, width=32))
    apart = [lengths(instances.coords, beam_search(instances, view, width=8)) for view in X]
    assert np.array_equal(together, np.min(apart, axis=0))


def test_threads_and_batch_mates_do_not_change_the_answer():
    instances = random_instances("se", 70, seed=4)
    X = soft_tours(instances, seed=5).astype(np.float32)
    alone = beam_search(instances, X, width=50, threads=1)
    assert np.array_equal(alone, beam_search(instances, X, width=50, threads=3))
    assert np.array_equal(alone[33:34], beam_search(instances[33:34], X[33:34], width=50))


@pytest.mark.parametrize("n", [2, 3, 4, 64])
def test_smallest_and_largest_instances(n):
    instances = random_instances("se", 3, n=n, seed=1)
    tours = beam_search(instances, soft_tours(instances, seed=1), width=30)
    assert not broken(instances, tours).any()
    if n < 5:
        assert lengths(instances.coords, tours) == pytest.approx(shortest_lengths(instances))


def test_rounding_reports_what_is_no_tour():
    instances = random_instances("pri", 5, n=8, seed=1, within=2)
    good = [0, 2, 1, 3, 4, 5, 6, 7]
    X = np.zeros((5, 8, 8))
    X[:, good, np.arange(8)] = 0.7
    X[1, 3, 3] = 0.49  # a position without a city
    X[2, 4, 3] = 0.5  # a position with two
    X[3] = 0.0
    X[3, [0, 2, 3, 1, 4, 5, 6, 7], np.arange(8)] = 1.0  # a permutation with a late priority city
    X[4] = 0.0
    X[4, [7, 2, 1, 3, 4, 5, 6, 0], np.arange(8)] = 1.0  # the wrong way round
    tours, feasible = rounded_tours(instances, X)
    assert feasible.tolist() == [True, False, False, False, False]
    assert tours[0].tolist() == good
    assert (tours[1:] == -1).all()


def test_bad_arguments_are_refused():
    instances = random_instances("se", 2, n=6, seed=1)
    X = soft_tours(instances, seed=1)
    for wrong in (X[:1], X[:, :5], X.astype(int), X[0]):
        with pytest.raises(TourError, match="expected floating shares"):
            beam_search(instances, wrong)
    with pytest.raises(TourError, match="NaN"):
        beam_search(instances, np.full_like(X, np.nan))
    with pytest.raises(TourError, match="width is 0"):
        beam_search(instances, X, width=0)
    with pytest.raises(TourError, match="width is 3 for 4 soft tours"):
        beam_search(instances, np.stack([X] * 4), width=3)
    with pytest.raises(TourError, match="expected floating shares"):
        rounded_tours(instances, np.stack([X]))
    large = random_instances("se", 1, n=65, seed=1)
    with pytest.raises(TourError, match="at most 64"):
        beam_search(large, soft_tours(large, seed=1))
