"""What the trained part of the backbone reads: the frozen part's output for every crop, computed once, kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from linsat_studies.files import read_json, write_json
from linsat_studies.matching.backbones import normalised, sample
from linsat_studies.matching.data import CROP, Collection, KeypointObject
from linsat_studies.matching.features import FeatureError, fingerprint
from linsat_studies.matching.lite0 import CUT, load_lite0
from linsat_studies.progress import Progress
from linsat_studies.training import keep_freed_memory

_MAPS, _POINTS, _DESCRIPTION, _DONE = "maps.npy", "points.npy", "maps.json", "done.json"
_CHANNELS, _CELLS, _READ = 40, CROP // 8, 24 + 40  # of a map; channels that frozen levels have at a keypoint
_BATCH, _PART = 4, 128  # crops at once; crops after which the files are flushed


@dataclass(frozen=True, eq=False)
class CachedMaps:
    """Maps by object id.

    Args:
        maps: (objects, 32, 32, 40) float16, input of the upper blocks.
        points: (all keypoints, 64) float16, the frozen levels at the keypoints, object after object.
        offsets: (objects + 1,) first row of each object in ``points``.
        rows: id to position of the object.
    """

    maps: np.ndarray
    points: np.ndarray
    offsets: np.ndarray
    rows: dict[str, int]

    def read(self, things: Sequence[KeypointObject]) -> tuple[Tensor, Tensor, Tensor]:
        """Maps (batch, 40, 32, 32), frozen features (batch, n, 64) and points (batch, n, 2), padded by zeros.

        Raises:
            FeatureError: there is no map of an object.
        """
        missing = [thing.id for thing in things if thing.id not in self.rows]
        if missing:
            raise FeatureError(f"there is no map of {missing[0]!r}. Fix: run `linsat-studies matching finetune` again.")
        rows = [self.rows[thing.id] for thing in things]
        maps = torch.from_numpy(np.stack([self.maps[row] for row in rows])).permute(0, 3, 1, 2).float()
        most = max(1, max(len(thing.names) for thing in things))
        low, points = torch.zeros(len(things), most, self.points.shape[1]), torch.zeros(len(things), most, 2)
        for place, (row, thing) in enumerate(zip(rows, things, strict=True)):
            count = len(thing.names)
            low[place, :count] = torch.from_numpy(self.points[self.offsets[row] : self.offsets[row + 1]].astype("f4"))
            points[place, :count] = torch.from_numpy(thing.points)
        return maps, low, points


def cache_maps(collection: Collection, folder: str | Path, *, progress: Progress | None = None) -> CachedMaps:
    """Compute and keep the maps of every object; goes on where a killed run stopped, returns at once when done.

    Args:
        collection: objects with images.
        folder: where they are kept; 82 kB for an object.
        progress: called with (objects done, all objects).

    Costs 0.03 s an object on one thread.

    Raises:
        FeatureError: the folder holds maps of other objects.
    """
    folder, objects = Path(folder), collection.objects
    description = {"backbone": "efficientnet-lite0", "cut": CUT, "objects": fingerprint(objects)}
    known = read_json(folder / _DESCRIPTION)
    if known is not None and known != description:
        raise FeatureError(
            f"{folder} holds maps of {known}; asked for {description}. Fix: another folder, or delete that one."
        )
    offsets = np.concatenate([[0], np.cumsum([len(thing.names) for thing in objects])])
    shapes = {_MAPS: (len(objects), _CELLS, _CELLS, _CHANNELS), _POINTS: (int(offsets[-1]), _READ)}
    if known is None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, shape in shapes.items():
            open_memmap(folder / name, mode="w+", dtype=np.float16, shape=shape).flush()
        write_json(folder / _DONE, 0)
        write_json(folder / _DESCRIPTION, description)
    _fill(collection, folder, offsets, progress or (lambda *_: None))
    maps, points = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in shapes)
    return CachedMaps(maps, points, offsets, {thing.id: row for row, thing in enumerate(objects)})


@torch.inference_mode()
def _fill(collection: Collection, folder: Path, offsets: np.ndarray, progress: Progress) -> None:
    objects, done = collection.objects, int(read_json(folder / _DONE))
    if done == len(objects):
        return
    keep_freed_memory()
    lower, _ = load_lite0(CROP)
    maps, points = (open_memmap(folder / name, mode="r+") for name in (_MAPS, _POINTS))
    for first in range(done, len(objects), _BATCH):
        some = objects[first : first + _BATCH]
        levels, x = lower(normalised(torch.from_numpy(np.stack([collection.image(thing.id) for thing in some]))))
        maps[first : first + len(some)] = x.permute(0, 2, 3, 1).half().numpy()
        for place, thing in enumerate(some):
            own = [type(level)(level.map[place : place + 1], level.stride, level.centre) for level in levels]
            values = sample(own, torch.from_numpy(thing.points).unsqueeze(0))[0]
            points[offsets[first + place] : offsets[first + place + 1]] = values.half().numpy()
        done = first + len(some)
        progress(done, len(objects))
        if done % _PART == 0 or done == len(objects):
            maps.flush()
            points.flush()
            write_json(folder / _DONE, done)
