"""Bounds that rows imply one after another, until one of them contradicts another: multipliers that refute the rows.

Where the other variables of a row are at the bounds that favour it, the row bounds what is left to each variable. A
queue holds the rows whose variables have a new bound. When a row cannot reach its side any more, or two bounds of a
variable cross, the way back gives Farkas multipliers: a bound with a weight is replaced by the row that implied it, and
by the bounds that this row has used, each of which is older. Chains (stocks, orders, precedences) end here in one pass,
where a linear program pivots once for each link.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque

import numpy as np

from linsat.verdict.system import Array, Deadline, LinearSystem

_MOST_VISITS = 5  # of each coefficient, on average
_LEAST_GAIN = 1e-3  # share of its range, or of its size, by which a bound must improve to count
_SLIGHT = 1e-9  # relative: smaller contradictions are left to linear programs
_INF = float("inf")


def refuted_by_bounds(system: LinearSystem, deadline: Deadline) -> Array | None:
    """Multipliers (k,) of rows that implied bounds refute, up to rounding; None where they show no contradiction."""
    begin = _promising(system)
    return _Search(system).run(begin, deadline) if len(begin) else None


def _promising(system: LinearSystem) -> Array:
    """Rows that imply a better bound than the box, or cannot hold in it."""
    matrix = system.matrix
    row = np.repeat(np.arange(system.num_rows), np.diff(matrix.indptr))
    low, high = system.lower[matrix.indices], system.upper[matrix.indices]
    with np.errstate(invalid="ignore"):
        ends = matrix.data * low, matrix.data * high
        least, most = np.minimum(*ends), np.maximum(*ends)
        reach = np.where(np.isfinite(most - least), most - least, _INF)
        promising = np.zeros(system.num_rows, dtype=bool)
        for terms, side in ((least, system.row_upper), (-most, -system.row_lower)):
            infinite = np.bincount(row, np.isinf(terms), minlength=system.num_rows)
            total = np.bincount(row, np.where(np.isinf(terms), 0.0, terms), minlength=system.num_rows)
            room = np.where(np.isfinite(side), side - total, _INF)
            # One infinite term may be bounded by the others; without one, the widest term by its reach.
            widest = np.zeros(system.num_rows)
            np.maximum.at(widest, row, reach)
            promising |= np.isfinite(side) & np.where(infinite == 0, room < (1 - _LEAST_GAIN) * widest, infinite == 1)
            promising |= np.isfinite(side) & (infinite == 0) & (room < 0)
    return np.flatnonzero(promising)


class _Search:
    """The present bounds, and of each side of a variable when it was improved, to what, and by which row."""

    def __init__(self, system: LinearSystem) -> None:
        self.system = system
        matrix = system.matrix.copy()
        matrix.eliminate_zeros()  # which imply nothing
        self.start, self.col, self.value = matrix.indptr.tolist(), matrix.indices.tolist(), matrix.data.tolist()
        self.sides = list(zip(system.row_lower.tolist(), system.row_upper.tolist(), strict=True))
        self.bounds = system.lower.tolist(), system.upper.tolist()
        self.times: dict[tuple[int, int], list[int]] = {}
        self.reasons: dict[tuple[int, int], list[tuple[int, int]]] = {}  # the row and its sign
        self.now = 0

    def run(self, begin: Array, deadline: Deadline) -> Array | None:
        columns = self.system.matrix.tocsc()
        above, rows_of = columns.indptr.tolist(), columns.indices.tolist()
        queue, queued = deque(begin.tolist()), set(begin.tolist())
        visits = _MOST_VISITS * len(self.value)
        while queue and visits > 0 and not deadline.passed:
            row = queue.popleft()
            queued.discard(row)
            visits -= self.start[row + 1] - self.start[row]
            for sign in (1, -1):
                side = self.sides[row][1] if sign > 0 else -self.sides[row][0]
                if side == _INF:
                    continue
                refuting = self._look(row, sign, side)
                if refuting is not None:
                    return refuting
                for j in self.improved:
                    for other in rows_of[above[j] : above[j + 1]]:
                        if other not in queued and other != row:
                            queued.add(other)
                            queue.append(other)
        return None

    def _look(self, row: int, sign: int, side: float) -> Array | None:
        """The bounds that ``sign * a x <= side`` implies; multipliers where that is a contradiction."""
        here = range(self.start[row], self.start[row + 1])
        lower, upper = self.bounds
        total, size, infinite, place = 0.0, 1.0, 0, -1
        for e in here:
            value = sign * self.value[e]
            term = value * (lower if value > 0 else upper)[self.col[e]]
            if term == -_INF:
                infinite, place = infinite + 1, e
            else:
                total, size = total + term, size + abs(term)
        self.improved: list[int] = []
        if infinite > 1:
            return None
        if not infinite and total - side > _SLIGHT * (size + abs(side)):
            return self._traced({}, [(row, sign, 1.0, self.now)])
        for e in here if not infinite else (place,):
            value, j = sign * self.value[e], self.col[e]
            own = 0.0 if infinite else value * (lower if value > 0 else upper)[j]
            bound = (side - (total - own)) / value
            which = 1 if value > 0 else 0
            known, opposite = self.bounds[which][j], self.bounds[1 - which][j]
            better = known - bound if which else bound - known
            if not better > _LEAST_GAIN * min(abs(known - opposite), max(1.0, abs(bound))):
                continue
            self.now += 1
            self.times.setdefault((j, which), []).append(self.now)
            self.reasons.setdefault((j, which), []).append((row, sign))
            self.bounds[which][j] = bound
            self.improved.append(j)
            crossed = opposite - bound if which else bound - opposite
            if crossed > _SLIGHT * ((size + abs(side)) / abs(value) + abs(opposite)):
                # x_j <= upper and -x_j <= -lower, both implied (or of the box).
                return self._traced({(j, 1): 1.0, (j, 0): -1.0}, [])
        return None

    def _traced(self, bounds: dict[tuple[int, int], float], rows: list[tuple[int, int, float, int]]) -> Array:
        """Multipliers from rows, each with its sign, weight and time, and from bounds at the end with their weights."""
        multipliers = np.zeros(self.system.num_rows)
        pending: dict[tuple[int, int, int], float] = {}  # side of a variable, which improvement: weight of its bound
        heap: list[tuple[int, tuple[int, int, int]]] = []

        def use_bound(j: int, which: int, weight: float, before: int) -> None:
            """Of the improvements of a bound the last one before a time; without any it is the box's own."""
            times = self.times.get((j, which), [])
            number = bisect_left(times, before) - 1
            if number < 0:
                return
            key = (j, which, number)
            if key not in pending:
                heapq.heappush(heap, (-times[number], key))
            pending[key] = pending.get(key, 0.0) + weight

        def use_row(row: int, sign: int, weight: float, before: int, but: int) -> None:
            """``weight`` times the row, whose variables but one are at bounds as of that time."""
            multipliers[row] += sign * weight
            for e in range(self.start[row], self.start[row + 1]):
                value = sign * self.value[e]
                if self.col[e] != but:
                    use_bound(self.col[e], 0 if value > 0 else 1, -weight * value, before)

        for row, sign, weight, before in rows:
            use_row(row, sign, weight, before + 1, -1)
        for (j, which), weight in bounds.items():
            use_bound(j, which, weight, self.now + 1)
        while heap:
            time, key = heapq.heappop(heap)
            j, which, number = key
            weight = pending.pop(key)
            row, sign = self.reasons[j, which][number]
            here = range(self.start[row], self.start[row + 1])
            value = next(sign * self.value[e] for e in here if self.col[e] == j)
            use_row(row, sign, weight / value, -time, j)
        return multipliers
