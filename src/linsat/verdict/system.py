"""One instance of a constraint set as plain arrays, in the user's units."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

Array = np.ndarray


@dataclass(frozen=True)
class LinearSystem:
    """Rows ``row_lower <= matrix x <= row_upper`` in a box ``lower <= x <= upper``; any end may be infinite."""

    matrix: sp.csr_array  # (k, l)
    row_lower: Array  # (k,)
    row_upper: Array  # (k,)
    lower: Array  # (l,)
    upper: Array  # (l,)

    @property
    def num_rows(self) -> int:
        return int(self.matrix.shape[0])

    def take(self, rows: Array) -> LinearSystem:
        """Some of the rows, in the same box."""
        return LinearSystem(self.matrix[rows], self.row_lower[rows], self.row_upper[rows], self.lower, self.upper)

    def row_sizes(self) -> Array:
        """(k,) the largest coefficient of each row, 1 where it has none."""
        sizes, filled = np.zeros(self.num_rows), np.flatnonzero(np.diff(self.matrix.indptr))
        if len(filled):
            sizes[filled] = np.maximum.reduceat(np.abs(self.matrix.data), self.matrix.indptr[filled])
        return np.where(sizes > 0, sizes, 1.0)

    def clip(self, x: Array) -> Array:
        """The nearest point of the box."""
        return np.minimum(np.maximum(x, self.lower), self.upper)

    def lacks(self, x: Array) -> Array:
        """(k,) what each row lacks at a point, in its units, to hold; summed in extended precision."""
        activity = np.asarray(self.matrix.astype(np.longdouble) @ x.astype(np.longdouble))
        return (np.clip(activity, self.row_lower, self.row_upper) - activity).astype(np.float64)

    def outside(self, x: Array) -> Array:
        """(k,) by how much each row is violated at a point, in its units."""
        return np.abs(self.lacks(x))

    def violation(self, x: Array) -> float:
        """The worst violation of any row at a point of the box, each relative to ``max(1, sum_j |a_ij x_j|)``."""
        size = np.maximum(1.0, abs(self.matrix) @ np.abs(x))
        return float((self.outside(x) / size).max(initial=0.0))


class Deadline:
    """A time limit that several computations share."""

    def __init__(self, seconds: float | None = None) -> None:
        self._start = time.monotonic()
        self._end = np.inf if seconds is None else self._start + seconds

    @property
    def used(self) -> float:
        """Seconds since it was set."""
        return time.monotonic() - self._start

    @property
    def remaining(self) -> float:
        """Seconds left, at least 0; infinite without a limit."""
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return self.remaining <= 0.0

    def within(self, seconds: float) -> Deadline:
        """The earlier of this deadline and ``seconds`` from now."""
        return Deadline(min(self.remaining, seconds))


class OutOfTime(Exception):  # noqa: N818 - it ends a block that asked for it; no one else sees it
    """The time of the `time_limit` around a computation is over."""


_AROUND: ContextVar[Deadline | None] = ContextVar("linsat_deadline", default=None)


@contextmanager
def time_limit(deadline: Deadline) -> Iterator[None]:
    """Linear programs and interior-point steps in the block end when the deadline does, by `OutOfTime`."""
    token = _AROUND.set(deadline)
    try:
        yield
    finally:
        _AROUND.reset(token)


def time_left() -> float:
    """Seconds until the deadline of the `time_limit` around this call; infinite without one.

    Raises:
        OutOfTime: none are left.
    """
    around = _AROUND.get()
    if around is None:
        return np.inf
    if around.passed:
        raise OutOfTime
    return around.remaining
