"""Lengths and rules of tours, against the rules spelt out."""

from itertools import product

import numpy as np
import pytest
from tour_oracles import feasible_tours, scattered, walk

from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.tours import TourError, broken, check_tours, lengths


def test_lengths_are_sums_of_legs():
    square = np.array([[[0, 0], [0, 1], [1, 1], [1, 0]]], dtype=float)
    assert lengths(square, np.array([[0, 1, 2, 3]])) == pytest.approx([3.0])
    assert lengths(square, np.array([[0, 2, 1, 3]])) == pytest.approx([1 + 2 * 2**0.5])
    coords = np.random.default_rng(0).random((20, 6, 2))
    tours = np.array([np.random.default_rng(i).permutation(6) for i in range(20)])
    assert lengths(coords, tours) == pytest.approx([walk(coords[i], tours[i]) for i in range(20)])


@pytest.mark.parametrize("task", ["se", "pri"])
def test_broken_is_everything_but_the_feasible_tours(task):
    instances = scattered(task, 1, 5, seed=4)
    allowed = set(feasible_tours(instances, 0))
    every = np.array(list(product(range(5), repeat=5)))
    repeated = Instances(
        np.repeat(instances.coords, len(every), axis=0),
        np.repeat(instances.start, len(every)),
        np.repeat(instances.end, len(every)),
        None if task == "se" else np.repeat(instances.priority, len(every)),
        instances.within,
    )
    assert np.array_equal(broken(repeated, every), [tuple(tour) not in allowed for tour in every.tolist()])


@pytest.mark.parametrize(
    ("tour", "message"),
    [
        ([0, 1, 2, 2, 4], "visits city 2 2 times and never city 3"),
        ([0, 1, 2, 7, 4], r"names a city outside 0 \.\. 4"),
        ([0, -1, 2, 3, 4], r"names a city outside 0 \.\. 4"),
        ([1, 0, 2, 3, 4], "starts at city 1 instead of 0"),
        ([0, 1, 4, 3, 2], "ends at city 2 instead of 4"),
        ([0, 2, 3, 1, 4], "visits priority city 1 at position 3, later than 2"),
    ],
)
def test_the_first_broken_tour_is_named_with_its_fault(tour, message):
    instances = Instances(np.random.default_rng(0).random((3, 5, 2)), 0, 4, 1, 2)
    good = [0, 1, 2, 3, 4]
    assert check_tours(instances, np.array([good] * 3)).tolist() == [good] * 3
    with pytest.raises(TourError, match=rf"tour 1 \(1 of 3 broken\) {message}"):
        check_tours(instances, np.array([good, tour, good]))


@pytest.mark.parametrize("tours", [np.zeros((3, 4), int), np.zeros((3, 5)), np.zeros(5, int)])
def test_wrong_shapes_and_types_are_refused(tours):
    instances = Instances(np.random.default_rng(0).random((3, 5, 2)), 0, 4)
    with pytest.raises(TourError, match="expected integers of shape"):
        check_tours(instances, tours)


def test_lengths_refuse_tours_of_another_batch():
    with pytest.raises(TourError, match="one row of cities per instance"):
        lengths(np.zeros((3, 5, 2)), np.zeros((2, 5), int))
