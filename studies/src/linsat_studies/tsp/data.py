"""Routing problems: where the cities are, which one starts, which one ends, which one must be visited early."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

Task = Literal["se", "pri"]

TEST_SEED = 1234
TEST_COUNT = 10_000
CITIES = 20
PRIORITY_STEPS = 5


class InstanceError(ValueError):
    """A routing problem is malformed: wrong shape, city number, task or file."""


@dataclass(frozen=True, eq=False)
class Instances:
    """A batch of N problems over n cities each; every tour starts at ``start`` and ends at ``end``.

    Args:
        coords: positions, (N, n, 2), finite.
        start: first city of each tour, (N,) or one number for all.
        end: last city of each tour, (N,) or one number for all, never the start.
        priority: city that must be visited early, (N,) or one number for all; None for TSP-SE.
        within: the priority city's latest position, the start being position 0; None for TSP-SE.

    Raises:
        InstanceError: naming the argument, what came and what was expected.
    """

    coords: np.ndarray
    start: np.ndarray
    end: np.ndarray
    priority: np.ndarray | None = None
    within: int | None = None

    def __post_init__(self) -> None:
        coords = np.ascontiguousarray(self.coords, dtype=np.float64)
        if coords.ndim != 3 or coords.shape[2] != 2 or coords.shape[1] < 2:
            raise InstanceError(f"coords has shape {coords.shape}; expected (N, n, 2) with n >= 2. Fix: coords[None].")
        if not np.isfinite(coords).all():
            where = int(np.argmin(np.isfinite(coords).all(axis=(1, 2))))
            raise InstanceError(f"coords of instance {where} is not finite; expected numbers. Fix: drop or repair it.")
        object.__setattr__(self, "coords", coords)
        object.__setattr__(self, "start", self._cities("start", self.start))
        object.__setattr__(self, "end", self._cities("end", self.end))
        self._differ("end", self.end, "start", self.start)
        if (self.priority is None) != (self.within is None):
            raise InstanceError(
                f"priority is {'given' if self.within is None else 'None'} but within is {self.within}; expected both "
                "(TSP-PRI) or neither (TSP-SE). Fix: give a priority city and its latest position, or leave both out."
            )
        if self.priority is not None and self.within is not None:
            priority = self._cities("priority", self.priority)
            object.__setattr__(self, "priority", priority)
            self._differ("priority", priority, "start", self.start)
            self._differ("priority", priority, "end", self.end)
            if int(self.within) != self.within or not 1 <= self.within <= self.cities - 2:
                raise InstanceError(
                    f"within is {self.within}; expected a position from 1 (right after the start) to n - 2 = "
                    f"{self.cities - 2} (right before the end). Fix: choose a position in this range."
                )
            object.__setattr__(self, "within", int(self.within))

    def priority_rule(self) -> tuple[np.ndarray, int]:
        """Priority cities (N,) and their latest position, as compiled code takes them: -1 and n where there is none."""
        if self.priority is None or self.within is None:
            return np.full(len(self), -1, dtype=np.int64), self.cities
        return self.priority, self.within

    def _cities(self, name: str, value: object) -> np.ndarray:
        cities = np.asarray(value)
        if cities.dtype.kind not in "iu" or cities.shape not in ((), (len(self.coords),)):
            raise InstanceError(
                f"{name} has dtype {cities.dtype} and shape {cities.shape}; expected integers of shape "
                f"({len(self.coords)},) or one integer. Fix: one city number per instance."
            )
        if cities.size and (cities.min() < 0 or cities.max() >= self.cities):
            raise InstanceError(
                f"{name} holds city {cities.max() if cities.max() >= self.cities else cities.min()}; expected numbers "
                f"from 0 to {self.cities - 1}. Fix: count cities from 0."
            )
        return np.array(np.broadcast_to(cities, (len(self.coords),)), dtype=np.int64)

    @staticmethod
    def _differ(name: str, cities: np.ndarray, other_name: str, others: np.ndarray) -> None:
        same = np.flatnonzero(cities == others)
        if same.size:
            raise InstanceError(
                f"{name} and {other_name} of instance {same[0]} are both city {cities[same[0]]}; expected two "
                "different cities. Fix: choose another one (for a round trip, add the start a second time)."
            )

    @property
    def task(self) -> Task:
        """``"se"`` without a priority city, ``"pri"`` with one."""
        return "se" if self.priority is None else "pri"

    @property
    def cities(self) -> int:
        """How many cities each instance has (n)."""
        return int(self.coords.shape[1])

    def __len__(self) -> int:
        return len(self.coords)

    def __getitem__(self, which: slice | np.ndarray) -> Instances:
        """The chosen instances: a slice, a mask, or an array of numbers; for a single one write ``[i : i + 1]``."""
        if not isinstance(which, (slice, np.ndarray)):
            raise InstanceError(f"index is {which!r}; expected a slice or an array. Fix: instances[i : i + 1].")
        priority = None if self.priority is None else self.priority[which]
        return Instances(self.coords[which], self.start[which], self.end[which], priority, self.within)

    def canonical(self) -> tuple[Instances, np.ndarray]:
        """The same problems with cities relabelled: start 0, priority 1 (TSP-PRI), end n - 1, others in old order.

        Returns:
            The relabelled instances and ``order`` (N, n), the old city behind each new label. Tours of the relabelled
            instances map back by ``numpy.take_along_axis(order, tours, axis=1)``.
        """
        n = self.cities
        rows = np.arange(len(self))
        rank = np.ones((len(self), n), dtype=np.int64)  # sorted stably, ties keep the old order
        if self.priority is not None:
            rank[rows, self.priority] = 0
        rank[rows, self.start] = -1
        rank[rows, self.end] = 2
        order = np.argsort(rank, axis=1, kind="stable")
        coords = np.take_along_axis(self.coords, order[:, :, None], axis=1)
        priority = None if self.priority is None else np.ones(len(self), dtype=np.int64)
        return Instances(coords, np.zeros(len(self), np.int64), np.full(len(self), n - 1), priority, self.within), order


def _assemble(task: str, coords: np.ndarray, within: int) -> Instances:
    """Start = first city, end = last, priority = second: the literature's choice, harmless for uniform cities."""
    if task not in ("se", "pri"):
        raise InstanceError(f'task is {task!r}; expected "se" (start and end) or "pri" (also a priority city).')
    first, last = np.int64(0), np.int64(coords.shape[1] - 1)
    if task == "se":
        return Instances(coords, first, last)
    return Instances(coords, first, last, np.int64(1), within)


def random_instances(
    task: Task, count: int, *, n: int = CITIES, seed: int | np.random.Generator, within: int = PRIORITY_STEPS
) -> Instances:
    """``count`` canonical problems with n cities drawn uniformly from the unit square.

    Args:
        task: ``"se"`` or ``"pri"``.
        count: how many.
        n: cities per instance.
        seed: a number or a numpy Generator, which then moves on. 1234 is rejected: it names the test instances, and
            what is tuned on them proves nothing.
        within: the priority city's latest position (TSP-PRI only).
    """
    if isinstance(seed, (int, np.integer)) and seed == TEST_SEED:
        raise InstanceError(
            f"seed is {seed}, which is kept for the test instances. Fix: another seed, or test_instances({task!r})."
        )
    if count < 0 or n < 2:
        raise InstanceError(f"count is {count} and n is {n}; expected count >= 0 and n >= 2.")
    return _assemble(task, np.random.default_rng(seed).uniform(size=(count, n, 2)), within)


def test_instances(task: Task, count: int = TEST_COUNT) -> Instances:  # noqa: PT028 (data, not a test)
    """The literature's test problems: ``numpy.random.seed(1234); numpy.random.uniform(size=(10000, 20, 2))``.

    Args:
        task: ``"se"`` or ``"pri"`` (priority city within 5 steps after the start).
        count: only the first so many, at most 10,000. numpy's global random state is not touched.
    """
    if not 0 <= count <= TEST_COUNT:
        raise InstanceError(f"count is {count}; expected 0 to {TEST_COUNT}. Fix: random_instances for more.")
    coords = np.random.RandomState(TEST_SEED).uniform(size=(TEST_COUNT, CITIES, 2))
    return _assemble(task, coords[:count], PRIORITY_STEPS)


# pytest collects what is called test_*; this name is the data's, not a test's.
test_instances.__test__ = False  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Cities:
    """Named places: ``names`` (n strings) and ``coords`` (n, 2)."""

    names: tuple[str, ...]
    coords: np.ndarray

    def number(self, name: str) -> int:
        """The city called ``name``, or, if none is, the city with that number (counted from 0)."""
        if name in self.names:
            return self.names.index(name)
        if name.isdigit() and int(name) < len(self.names):
            return int(name)
        raise InstanceError(
            f"no city is called {name!r}; expected one of {', '.join(self.names[:10])}"
            f"{', ...' if len(self.names) > 10 else ''} or a number from 0 to {len(self.names) - 1}."
        )


def read_cities(path: str | Path) -> Cities:
    """Read one's own cities from a CSV file: one city a line, ``name,x,y`` or ``x,y``.

    A first line naming the columns (``name``, ``x``, ``y`` in any order, others ignored) is optional. Without names
    the cities are called "0", "1", ... Blank lines are skipped.

    Raises:
        InstanceError: naming the line, for a missing column, a coordinate that is no finite number, a name that comes
            twice, or fewer than two cities.
    """
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = [(number, [cell.strip() for cell in row]) for number, row in enumerate(csv.reader(file), start=1)]
    rows = [(number, row) for number, row in rows if any(row)]
    if not rows:
        raise InstanceError(f"{path} is empty; expected one city a line: name,x,y.")
    x, y, name, has_header = _columns(path, rows[0][1])
    names: list[str] = []
    places: list[tuple[float, float]] = []
    for number, row in rows[1:] if has_header else rows:
        if len(row) <= max(x, y, -1 if name is None else name):
            raise InstanceError(f"{path}, line {number} has {len(row)} column(s): {row}; expected name,x,y or x,y.")
        label = str(len(names)) if name is None else row[name]
        if label in names:
            raise InstanceError(f"{path}, line {number}: city {label!r} comes twice. Fix: one name per city.")
        names.append(label)
        places.append((_coordinate(path, number, "x", row[x]), _coordinate(path, number, "y", row[y])))
    if len(names) < 2:
        raise InstanceError(f"{path} holds {len(names)} city; expected at least 2, a start and an end.")
    return Cities(tuple(names), np.array(places, dtype=np.float64))


def _columns(path: str | Path, first: list[str]) -> tuple[int, int, int | None, bool]:
    """Column numbers of x, y and the name, and whether the first line names them."""
    header = [cell.lower() for cell in first]
    if "x" in header and "y" in header:
        return header.index("x"), header.index("y"), header.index("name") if "name" in header else None, True
    if len(first) == 2:
        return 0, 1, None, False
    if len(first) == 3:
        return 1, 2, 0, False
    raise InstanceError(f"{path} starts with {first}; expected name,x,y or x,y, or a first line that names x and y.")


def _coordinate(path: str | Path, number: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise InstanceError(f"{path}, line {number}: {name} is {text!r}; expected a finite number such as 0.25.")
    return value
