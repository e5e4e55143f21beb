"""Tours: their length, and the proof that each one keeps every rule. Everything that returns tours asks here."""

from __future__ import annotations

import numpy as np

from linsat_studies.tsp.data import Instances


class TourError(ValueError):
    """A tour breaks a rule of its problem, or tours have the wrong shape or type."""


def lengths(coords: np.ndarray, tours: np.ndarray) -> np.ndarray:
    """Euclidean length of each open tour, first city to last, without return.

    Args:
        coords: positions, (N, n, 2).
        tours: cities in order of visit, (N, n) integers.

    Returns:
        (N,) float64.
    """
    coords, tours = np.asarray(coords, dtype=np.float64), np.asarray(tours)
    if coords.ndim != 3 or tours.shape != coords.shape[:2]:
        raise TourError(f"tours has shape {tours.shape}; expected {coords.shape[:2]}, one row of cities per instance.")
    visited = np.take_along_axis(coords, tours[:, :, None], axis=1)
    legs = np.diff(visited, axis=1)
    return np.sqrt((legs**2).sum(axis=2)).sum(axis=1)


def broken(instances: Instances, tours: np.ndarray) -> np.ndarray:
    """(N,) booleans: true where a tour is not a permutation, starts or ends wrongly, or has its priority city late."""
    tours = _read(instances, tours)
    bad = (np.sort(tours, axis=1) != np.arange(instances.cities)).any(axis=1)
    bad |= tours[:, 0] != instances.start
    bad |= tours[:, -1] != instances.end
    if instances.priority is not None and instances.within is not None:
        bad |= (tours[:, : instances.within + 1] != instances.priority[:, None]).all(axis=1)
    return bad


def check_tours(instances: Instances, tours: np.ndarray) -> np.ndarray:
    """Return the tours as int64 if every one keeps every rule.

    Raises:
        TourError: naming the first broken tour and what is wrong with it.
    """
    tours = _read(instances, tours)
    bad = np.flatnonzero(broken(instances, tours))
    if bad.size:
        first = int(bad[0])
        raise TourError(
            f"tour {first} ({bad.size} of {len(tours)} broken) {_fault(instances, tours[first], first)}: "
            f"{tours[first].tolist()}."
        )
    return tours.astype(np.int64, copy=False)


def _read(instances: Instances, tours: np.ndarray) -> np.ndarray:
    tours = np.asarray(tours)
    if tours.dtype.kind not in "iu" or tours.shape != instances.coords.shape[:2]:
        raise TourError(
            f"tours has dtype {tours.dtype} and shape {tours.shape}; expected integers of shape "
            f"{instances.coords.shape[:2]}: the cities of each instance in order of visit."
        )
    return tours


def _fault(instances: Instances, tour: np.ndarray, which: int) -> str:
    n = instances.cities
    counts = np.bincount(tour[(tour >= 0) & (tour < n)], minlength=n)
    if tour.min() < 0 or tour.max() >= n:
        return f"names a city outside 0 .. {n - 1}"
    if counts.max() > 1:
        return f"visits city {int(counts.argmax())} {counts.max()} times and never city {int(counts.argmin())}"
    if tour[0] != instances.start[which]:
        return f"starts at city {tour[0]} instead of {instances.start[which]}"
    if tour[-1] != instances.end[which]:
        return f"ends at city {tour[-1]} instead of {instances.end[which]}"
    assert instances.priority is not None
    city = instances.priority[which]
    position = int(np.flatnonzero(tour == city)[0])
    return f"visits priority city {city} at position {position}, later than {instances.within}"
