"""A user's cities: the shortest tour the study can find, and how it was found."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from linsat_studies.files import write_whole
from linsat_studies.tsp.data import CITIES, PRIORITY_STEPS, Cities, InstanceError, Instances, read_cities
from linsat_studies.tsp.tours import lengths

Method = Literal["auto", "network", "exact", "search"]
EXACT_LIMIT = 20  # dynamic programming over subsets doubles in time and memory with every further city
RESTARTS = 500


@dataclass(frozen=True, eq=False)
class Found:
    """A tour through a user's cities.

    ``tour`` (n,) in the numbers of ``cities``; ``how`` says which method found it and why that one; ``optimum`` is
    the length of the shortest tour where it was computed.
    """

    cities: Cities
    instance: Instances
    tour: np.ndarray
    how: str
    optimum: float | None

    @property
    def length(self) -> float:
        """In the unit of the coordinates."""
        return float(lengths(self.instance.coords, self.tour[None])[0])

    @property
    def names(self) -> list[str]:
        """The cities' names in order of visit."""
        return [self.cities.names[city] for city in self.tour]


def read_file(path: Path) -> Cities:
    """The cities of a CSV file; see `read_cities`."""
    try:
        return read_cities(path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InstanceError(f"{path} is not a text file ({error}); expected one city a line: name,x,y.") from None


def read_problem(cities: Cities, start: str, end: str, priority: str | None, within: int | None) -> Instances:
    """The problem as a batch of one; cities by name or number.

    ``within`` is the priority city's latest position counted from the start (0); by default 5, or the last possible
    one where there are fewer cities.
    """
    n = len(cities.names)
    if within is not None and priority is None:
        raise InstanceError(f"within is {within} but no priority city is named. Fix: add --priority NAME.")
    if priority is None:
        return Instances(cities.coords[None], _one(cities, "start", start), _one(cities, "end", end))
    if n < 3:
        raise InstanceError(f"there are {n} cities; a priority city needs at least 3. Fix: leave --priority out.")
    limit = min(PRIORITY_STEPS, n - 2) if within is None else within
    return Instances(
        cities.coords[None],
        _one(cities, "start", start),
        _one(cities, "end", end),
        _one(cities, "priority", priority),
        limit,
    )


def _one(cities: Cities, role: str, name: str) -> np.ndarray:
    try:
        return np.array([cities.number(name)])
    except InstanceError as error:
        raise InstanceError(f"{role}: {error}") from None


def solve_cities(cities: Cities, instance: Instances, *, method: Method = "auto", threads: int | None = None) -> Found:
    """Find a short tour.

    Args:
        cities: where they are and what they are called.
        instance: from ``read_problem``.
        method: ``"network"`` (20 cities): the trained network, beam search and a descent of local search; ``"exact"``
            (up to 20): dynamic programming; ``"search"`` (any number): local search from 500 random starts;
            ``"auto"``: the network for 20 cities, else exact up to 20, else local search.
        threads: None for every processor.

    Raises:
        InstanceError: the method does not take that many cities.
    """
    from linsat_studies.tsp.exact import optimal_tours
    from linsat_studies.tsp.local_search import random_restarts

    n = instance.cities
    if method == "network" and n != CITIES:
        raise InstanceError(
            f"method is network but there are {n} cities; the trained networks take {CITIES}. Fix: --method auto."
        )
    if method == "exact" and n > EXACT_LIMIT:
        raise InstanceError(
            f"method is exact but there are {n} cities; it takes up to {EXACT_LIMIT}. Fix: --method search."
        )
    optimal = optimal_tours(instance)[0] if n <= EXACT_LIMIT else None
    optimum = None if optimal is None else float(lengths(instance.coords, optimal[None])[0])
    why = f" (the trained networks take {CITIES} cities, these are {n})" if method == "auto" and n != CITIES else ""
    if method == "network" or (method == "auto" and n == CITIES):
        return Found(cities, instance, _by_network(instance, threads), "network, beam search, local search", optimum)
    if method == "exact" or (method == "auto" and optimal is not None):
        assert optimal is not None
        return Found(cities, instance, optimal, "exact dynamic programming" + why, optimum)
    tour = random_restarts(instance, starts=RESTARTS, seed=0, threads=threads)[0]
    return Found(cities, instance, tour, f"local search from {RESTARTS} random starts{why}", optimum)


def _by_network(instance: Instances, threads: int | None) -> np.ndarray:
    """The network knows the unit square: cities are moved and scaled into it, which keeps their order by length."""
    from linsat_studies.tsp.evaluate import Settings, evaluate_network
    from linsat_studies.tsp.shipped import load_network

    low = instance.coords.min(axis=1, keepdims=True)
    size = float(np.ptp(instance.coords, axis=1).max()) or 1.0
    scaled = Instances((instance.coords - low) / size, instance.start, instance.end, instance.priority, instance.within)
    settings = Settings("search", width=2048, views=8, threads=threads)
    return evaluate_network(load_network(instance.task), scaled, settings).tours[0]


def picture_kind(path: Path) -> str:
    """What to draw, by the end of the file's name."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise InstanceError(f"out is {path}; expected a file that ends in .png, .svg or .pdf. Fix: --out tour.png.")
    return kind


def draw_found(found: Found, path: Path) -> None:
    """Draw the tour with names to a .png, .svg or .pdf file."""
    from linsat_studies.tsp.pictures import own_tour

    kind = picture_kind(path)
    figure = own_tour(found.instance, found.tour, found.cities.names, f"length {found.length:.4g}, by {found.how}")
    write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=150))
