"""From a soft tour to a tour: beam search over the projected matrix, and plain rounding.

A soft tour X (n, n) holds in X[i, k] the share of city i at position k; the layer has made its rows and columns sum to
one. The score of a tour is the sum of log X[city at k, k].
"""

from __future__ import annotations

import numpy as np

from linsat_studies.threads import run_blocks
from linsat_studies.tsp._beam import MAX_CITIES, beam_each
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.tours import TourError, broken, check_tours, lengths

# log of this stands for the log of zero: a city the matrix rules out is taken last, but the search never gets stuck.
_FLOOR = 1e-12


def beam_search(
    instances: Instances, X: np.ndarray, *, width: int = 2048, merge: bool = True, threads: int | None = None
) -> np.ndarray:
    """The shortest among the tours that a beam search by score keeps.

    The search goes from the start city by city and keeps, after each step, the ``width`` partial tours of the highest
    score. The end city is taken last, and never earlier; a priority city not yet visited is taken at step ``within``
    (the paper's rule). Of the tours that remain at the end, the shortest is returned.

    Args:
        instances: N problems of at most 64 cities.
        X: soft tours [city, position], (N, n, n). Or (G, N, n, n): G soft tours for each instance, e.g. from mirrored
            copies of its cities; each is searched with ``width // G`` beams, and the shortest tour of all is returned.
        width: partial tours kept per step.
        merge: of partial tours with the same cities visited and the same last city, keep only the shortest. Both can
            be completed in exactly the same ways, so the longer one can never give the shortest tour: nothing is lost,
            and its place in the beam goes to another tour. The one kept is ranked by the best score of those it
            replaces. With False the search is the plain one.
        threads: None for every processor.

    Returns:
        Tours (N, n), checked. Entries of X at or below 1e-12 all count as 1e-12.

    Raises:
        TourError: X has the wrong shape or is not finite, or there are more than 64 cities.
    """
    n = instances.cities
    X = _read_soft(instances, X, views=True)
    if n > MAX_CITIES:
        raise TourError(f"instances have {n} cities; expected at most {MAX_CITIES}: visited cities are bits of a word.")
    if not len(X) <= width:
        raise TourError(f"width is {width} for {len(X)} soft tours per instance; expected at least 1 beam for each.")
    views, count = X.shape[:2]
    priority = np.full(count, -1, dtype=np.int64) if instances.priority is None else instances.priority
    within = n if instances.within is None else instances.within
    found = np.empty((views, count, n), dtype=np.int64)

    def task(first: int, last: int) -> None:
        part = slice(first, last)
        for view in range(views):
            logs = np.log(np.maximum(X[view, part], _FLOOR), dtype=np.float32).transpose(0, 2, 1)  # [position, city]
            beam_each(
                instances.coords[part],
                np.ascontiguousarray(logs),
                instances.start[part],
                instances.end[part],
                priority[part],
                within,
                width // views,
                merge,
                found[view, part],
            )

    run_blocks(task, count, threads=threads, block=16)
    if views == 1:
        return check_tours(instances, found[0])
    best = np.stack([lengths(instances.coords, tours) for tours in found]).argmin(axis=0)
    return check_tours(instances, found[best, np.arange(count)])


def rounded_tours(instances: Instances, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tours read off directly where X[i, k] >= 0.5, without any repair.

    Args:
        instances: N problems.
        X: soft tours [city, position], (N, n, n).

    Returns:
        Tours (N, n) and (N,) booleans: whether the rounded matrix is a tour that keeps every rule. Where it is not,
        the tour is filled with -1.
    """
    X = _read_soft(instances, X, views=False)[0]
    chosen = X >= 0.5
    feasible = (chosen.sum(axis=1) == 1).all(axis=1) & (chosen.sum(axis=2) == 1).all(axis=1)
    tours = chosen.argmax(axis=1).astype(np.int64)
    feasible &= ~broken(instances, tours)
    tours[~feasible] = -1
    return tours, feasible


def _read_soft(instances: Instances, X: np.ndarray, views: bool) -> np.ndarray:
    """X as (G, N, n, n)."""
    X = np.asarray(X)
    shape = (len(instances), instances.cities, instances.cities)
    if X.dtype.kind != "f" or X.shape[-3:] != shape or X.ndim not in ((3, 4) if views else (3,)) or 0 in X.shape[:-3]:
        raise TourError(
            f"X has dtype {X.dtype} and shape {X.shape}; expected floating shares [city, position] of shape {shape}"
            f"{', or (G, ...) for G views' if views else ''}. Fix: X.detach().numpy() of a batch in the same order."
        )
    if not np.isfinite(X).all():
        raise TourError("X holds NaN or infinity; expected shares between 0 and 1. Fix: look at the network's scores.")
    return X if X.ndim == 4 else X[None]
