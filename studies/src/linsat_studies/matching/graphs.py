"""Graphs over the keypoints of an object."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def delaunay(points: Array) -> Array:
    """(n, n) bool, symmetric, without loops: edges of the Delaunay triangulation of (n, 2) points.

    Three points or fewer, and points on one line, have no triangulation of use: there every two are joined. A point
    that coincides with another one gets that one's neighbours, and an edge to it. About 0.1 ms for 14 points.
    """
    from scipy.spatial import Delaunay, QhullError

    count = len(points)
    complete = ~np.eye(count, dtype=bool)
    if count <= 3:
        return complete
    try:
        triangulation = Delaunay(points.astype(np.float64))
    except QhullError:  # what scipy calls points on one line
        return complete
    edges = np.zeros((count, count), dtype=bool)
    for first, second in ((0, 1), (1, 2), (2, 0)):
        edges[triangulation.simplices[:, first], triangulation.simplices[:, second]] = True
    for left_out, _, twin in triangulation.coplanar:
        edges[left_out] |= edges[twin] | edges[:, twin]
        edges[left_out, twin] = True
    return (edges | edges.T) & complete
