"""Network, layer and decoder on a batch of instances: tours, and where the time went."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, local
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch

from linsat_studies.files import write_arrays
from linsat_studies.threads import available_threads, run_blocks
from linsat_studies.tsp.constraints import project_scores
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.decode import beam_search, rounded_tours
from linsat_studies.tsp.local_search import descend
from linsat_studies.tsp.model import TourNet
from linsat_studies.tsp.tours import check_tours, lengths

Decoder = Literal["beam", "search", "round"]
CHUNK = 250  # instances a thread works on at once: large enough for full speed, small enough to share out evenly


@dataclass(frozen=True)
class Settings:
    """How to turn scores into tours.

    Args:
        decoder: ``"beam"``: beam search on the projected matrix. ``"search"``: a small beam, then one descent of
            constrained local search. ``"round"``: entries of at least 0.5 become 1; a tour only where that is one.
        width: beams in all (shared by the views).
        tau: temperature of the layer.
        views: mirror images and rotations of each instance that the network sees; the best tour of all counts.
        threads: of network, layer and decoder; None for every processor.
    """

    decoder: Decoder = "beam"
    width: int = 2048
    tau: float = 0.1
    views: int = 1
    threads: int | None = None

    @classmethod
    def default(cls, decoder: Decoder) -> Settings:
        """The settings the reports use."""
        if decoder == "beam":
            return cls("beam", width=2048, tau=0.1, views=1)
        if decoder == "search":
            return cls("search", width=64, tau=0.1, views=1)
        return cls("round", width=1, tau=0.01, views=1)

    def replace(self, **changes: Any) -> Settings:
        """These settings with others in their place; None changes nothing."""
        return dataclasses.replace(self, **{name: value for name, value in changes.items() if value is not None})

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise ValueError(f"tau is {self.tau}; expected a positive temperature such as 0.1.")
        if not 1 <= self.views <= 8:
            raise ValueError(f"views is {self.views}; expected 1 to 8, the symmetries of a square.")
        if self.decoder == "round" and self.views > 1:
            raise ValueError(f"views is {self.views}; rounding takes one view. Fix: leave --views out.")


@dataclass(frozen=True, eq=False)
class Result:
    """Tours of a batch.

    ``tours`` (N, n) are -1 where ``feasible`` (N,) is false, which only happens with ``decoder="round"``.
    ``seconds`` is the wall-clock time of network, layer and search, all instances together; threads work at once, so it
    is shared out as they spent theirs.
    """

    instances: Instances
    settings: Settings
    tours: np.ndarray
    feasible: np.ndarray
    seconds: dict[str, float]

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of the feasible tours, in the order of the instances."""
        which = self.feasible
        return lengths(self.instances.coords[which], self.tours[which])

    def summary(self, optimal: np.ndarray | None = None) -> dict[str, Any]:
        """What the json file holds; ``optimal`` are shortest tours (N, n), for the gap.

        Means are over the feasible tours; the gap is that of their mean length to the mean optimum of the same
        instances, in per cent. An average over nothing is null.
        """
        own = self.lengths
        mean = float(own.mean()) if own.size else None
        found: dict[str, Any] = {
            "task": self.instances.task,
            "decoder": self.settings.decoder,
            "count": len(self.instances),
            "mean_length": mean,
            "mean_optimum": None,
            "gap_percent": None,
            "optimal_share": None,
            "feasible_share": float(self.feasible.mean()) if len(self.feasible) else None,
        }
        if optimal is not None and own.size:
            best = lengths(self.instances.coords, optimal)[self.feasible]
            found["mean_optimum"] = float(best.mean())
            found["gap_percent"] = 100 * (float(own.sum() / best.sum()) - 1)
            found["optimal_share"] = float((own <= best * (1 + 1e-9)).mean())
        total = sum(self.seconds.values())
        found["seconds"] = self.seconds | {"total": total}
        found["settings"] = {name: getattr(self.settings, name) for name in ("width", "tau", "views")}
        found["threads"] = self.settings.threads or available_threads()
        return found

    def write_tours(self, path: Path) -> None:
        """Write ``coords`` (N, n, 2) and ``tours`` (N, n): only feasible ones; ``index`` says which instances."""
        which = self.feasible
        index = np.flatnonzero(which)
        write_arrays(path, coords=self.instances.coords[which], tours=self.tours[which], index=index)


def evaluate_network(
    network: TourNet,
    instances: Instances,
    settings: Settings | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Solve every instance; every tour is checked before it counts.

    Args:
        network: trained for the task of ``instances``.
        instances: any start, end and priority city, as many cities as the network was built for.
        settings: decoder, width, temperature, views, threads.
        progress: called as ``progress(done, count)`` after every chunk of instances.

    Cost: some 13 s of processor time for 10,000 instances with a small beam, 40 s with 2,048 beams.
    """
    settings = settings or Settings()
    canonical, order = instances.canonical()
    tours = np.empty(instances.coords.shape[:2], dtype=np.int64)
    feasible = np.ones(len(instances), dtype=bool)
    network.eval()
    before = torch.get_num_threads()

    def task(first: int, last: int) -> None:
        torch.set_num_threads(1)  # each thread has its own chunk: no waiting for others inside an operation
        part = slice(first, last)
        X = soft_matrices(network, canonical[part], settings, clock)
        with clock.measure("search"):
            tours[part], feasible[part] = _decode(canonical[part], X, settings)

    try:
        clock = Clock()
        if len(instances):
            task(0, min(2, len(instances)))  # compiled code is made or loaded before the time counts
        clock = Clock()
        begin = perf_counter()
        with clock.watch(network):
            run_blocks(task, len(instances), threads=settings.threads, block=CHUNK, progress=progress)
        total = perf_counter() - begin
    finally:
        torch.set_num_threads(before)
    tours = np.where(feasible[:, None], np.take_along_axis(order, tours, axis=1), -1)
    if feasible.any():
        check_tours(instances[feasible], tours[feasible])
    return Result(instances, settings, tours, feasible, clock.split(total))


class Clock:
    """Seconds by part of the work, added up over threads."""

    def __init__(self) -> None:
        self.seconds = {"network": 0.0, "layer": 0.0, "search": 0.0}
        self._lock = Lock()
        self._began = local()

    def add(self, name: str, seconds: float) -> None:
        """Add to a part; threads may do so at once."""
        with self._lock:
            self.seconds[name] += seconds

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent inside to ``name``."""
        start = perf_counter()
        yield
        self.add(name, perf_counter() - start)

    @contextmanager
    def watch(self, network: TourNet) -> Iterator[None]:
        """Count the projections between the network's own layers as time of the layer, not of the network.

        They happen after a head has made scores and before the feedback reads the soft tour.
        """

        def begin(*_: Any) -> None:
            self._began.at = perf_counter()

        def end(*_: Any) -> None:
            spent = perf_counter() - self._began.at
            self.add("layer", spent)
            self.add("network", -spent)

        hooks = [head.register_forward_hook(begin) for head in network.heads]
        hooks += [feedback.register_forward_pre_hook(end) for feedback in network.feedback]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def split(self, total: float) -> dict[str, float]:
        """The wall-clock time ``total``, shared out as the threads spent theirs."""
        scale = total / max(sum(self.seconds.values()), 1e-12)
        return {name: scale * seconds for name, seconds in self.seconds.items()}


@torch.no_grad()
def soft_matrices(network: TourNet, canonical: Instances, settings: Settings, clock: Clock) -> np.ndarray:
    """Projected matrices (views, N, n, n) [city, step] of canonical instances."""
    with clock.measure("network"):
        seen = symmetric_views(torch.as_tensor(canonical.coords, dtype=torch.float32), settings.views)
        scores = network(seen.flatten(0, 1), canonical.task, canonical.within)
    with clock.measure("layer"):
        X = project_scores(scores, canonical.task, settings.tau, within=canonical.within)
        return X.view(settings.views, len(canonical), *X.shape[1:]).numpy()


def symmetric_views(coords: torch.Tensor, count: int) -> torch.Tensor:
    """The first ``count`` symmetries of the unit square, (count, N, n, 2): tours are the same length in each."""
    x, y = coords.unbind(-1)
    pairs = [(x, y), (1 - x, 1 - y), (y, 1 - x), (1 - y, x), (1 - x, y), (x, 1 - y), (y, x), (1 - y, 1 - x)]
    return torch.stack([torch.stack(pair, dim=-1) for pair in pairs[:count]])


def _decode(canonical: Instances, X: np.ndarray, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    if settings.decoder == "round":
        return rounded_tours(canonical, X[0])
    tours = beam_search(canonical, X, width=settings.width, threads=1)
    if settings.decoder == "search":
        tours = descend(canonical, tours, threads=1)
    return tours, np.ones(len(tours), dtype=bool)
