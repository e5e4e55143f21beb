"""Answers by trying everything, for instances small enough."""

from itertools import pairwise, permutations
from math import dist

import numpy as np

from linsat_studies.tsp.data import Instances


def walk(points, tour) -> float:
    """Length of an open tour, leg by leg."""
    return sum(dist(points[a], points[b]) for a, b in pairwise(tour))


def feasible_tours(instances: Instances, which: int) -> list[tuple[int, ...]]:
    """Every tour of one instance that keeps the rules, straight from their wording."""
    start, end = int(instances.start[which]), int(instances.end[which])
    inner = [city for city in range(instances.cities) if city not in (start, end)]
    tours = [(start, *order, end) for order in permutations(inner)]
    if instances.priority is not None:
        tours = [tour for tour in tours if tour.index(int(instances.priority[which])) <= instances.within]
    return tours


def shortest_lengths(instances: Instances) -> np.ndarray:
    """Length of a shortest tour of each instance."""
    return np.array(
        [min(walk(instances.coords[i], tour) for tour in feasible_tours(instances, i)) for i in range(len(instances))]
    )


def scattered(task: str, count: int, n: int, seed: int, within: int = 2) -> Instances:
    """Random instances whose start, end and priority cities differ from instance to instance."""
    rng = np.random.default_rng(seed)
    special = np.array([rng.permutation(n)[:3] for _ in range(count)])
    coords = rng.random((count, n, 2))
    if task == "se":
        return Instances(coords, special[:, 0], special[:, 1])
    return Instances(coords, special[:, 0], special[:, 1], special[:, 2], within)
