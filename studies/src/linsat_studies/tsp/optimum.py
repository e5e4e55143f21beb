"""Shortest tours, computed once: kept on disk under the content of the instances they belong to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from linsat_studies.files import write_whole
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.tours import TourError, check_tours

BLOCK = 250  # instances per file: an interrupted run loses at most this many


def cache_folder() -> Path:
    """Where optima are kept: ``$XDG_CACHE_HOME/linsat-studies``, by default under ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "linsat-studies" / "tsp-optima"


def known_optima(instances: Instances, *, folder: Path | None = None) -> np.ndarray | None:
    """Shortest tours (N, n) if every one of them is already on disk, else None. Cost: reading files."""
    folder = folder or cache_folder()
    found = [_read(_file(folder, block), block) for block in _blocks(instances)]
    kept = [tours for tours in found if tours is not None]
    return np.concatenate(kept) if kept and len(kept) == len(found) else None


def optima(
    instances: Instances, *, folder: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> np.ndarray:
    """Shortest tours (N, n) by dynamic programming; those on disk are read, the others computed and kept.

    Args:
        instances: any start, end and priority; time and memory grow like ``n * 2**n``.
        folder: where to keep them, by default ``cache_folder()``.
        progress: called as ``progress(done, count)`` after every block of instances.

    Each block is stored when it is done, so that an interrupted run continues where it stopped.
    """
    from linsat_studies.tsp.exact import optimal_tours

    folder = folder or cache_folder()
    parts: list[np.ndarray] = []
    done = 0
    for block in _blocks(instances):
        tours = _read(_file(folder, block), block)
        if tours is None:
            tours = optimal_tours(block)
            small = tours.astype(np.uint8 if tours.shape[1] < 256 else np.int64)
            write_whole(_file(folder, block), lambda file, small=small: np.save(file, small))  # type: ignore[misc]
        parts.append(tours)
        done += len(block)
        if progress is not None:
            progress(done, len(instances))
    return np.concatenate(parts) if parts else np.empty((0, instances.cities), dtype=np.int64)


def _blocks(instances: Instances) -> list[Instances]:
    return [instances[first : first + BLOCK] for first in range(0, len(instances), BLOCK)]


def _file(folder: Path, block: Instances) -> Path:
    digest = hashlib.sha256(repr((block.coords.shape, block.within)).encode())
    for array in (block.coords, block.start, block.end, block.priority):
        if array is not None:
            digest.update(np.ascontiguousarray(array).tobytes())
    return folder / f"{digest.hexdigest()[:32]}.npy"


def _read(path: Path, block: Instances) -> np.ndarray | None:
    """The tours of a file; None where there is none, or one that was damaged: it is then computed again."""
    try:
        return check_tours(block, np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError, TourError):
        return None
