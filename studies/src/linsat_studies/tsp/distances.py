"""Distances between the cities of one instance, inside compiled code."""

from __future__ import annotations

import numpy as np

from linsat_studies.compiled import compiled


@compiled(nogil=True)
def fill_distances(coords: np.ndarray, D: np.ndarray) -> float:
    """Write the Euclidean distances between the rows of ``coords`` (n, 2) into ``D`` (n, n); return the largest."""
    n = coords.shape[0]
    largest = 0.0
    for i in range(n):
        D[i, i] = 0.0
        for j in range(i):
            dx = coords[i, 0] - coords[j, 0]
            dy = coords[i, 1] - coords[j, 1]
            D[i, j] = np.sqrt(dx * dx + dy * dy)
            D[j, i] = D[i, j]
            largest = max(largest, D[i, j])
    return largest


@compiled(nogil=True)
def path_length(D: np.ndarray, tour: np.ndarray) -> float:
    """Length of an open tour."""
    total = 0.0
    for k in range(tour.shape[0] - 1):
        total += D[tour[k], tour[k + 1]]
    return total
