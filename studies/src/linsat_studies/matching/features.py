"""Image features at the keypoints of every object: computed once, kept on disk, read through memory maps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from linsat_studies.files import read_json, write_json, write_whole
from linsat_studies.matching.backbones import Backbone, load_backbone, sample
from linsat_studies.matching.data import CROP, Collection, KeypointObject
from linsat_studies.progress import Progress

Array = np.ndarray
DEFAULT_BACKBONE = "efficientnet-lite0"
_PART = 128  # objects in a part; what a kill can cost
_BATCH = 4  # crops at once; larger batches fall out of the cache and are slower
_DESCRIPTION, _POINTS, _IMAGES, _INDEX = "features.json", "points.npy", "images.npy", "index.npz"
_SMALLEST_DEVIATION = 1e-3  # a channel that never varies is not blown up


class FeatureError(ValueError):
    """Features are missing, unfinished or of other objects; the message says what to do."""


class Features(NamedTuple):
    """Features of one object: (keypoints, F) float16 in the order of its keypoints, and (G,) float16 of its image."""

    points: Array
    image: Array


Compute = Callable[[Sequence[KeypointObject]], list[Features]]  # raw features of a few objects


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Features by object id. Every channel has mean 0 and deviation 1 over the training objects.

    Args:
        points: (all keypoints, F) float16, object after object.
        images: (objects, G) float16.
        offsets: (objects + 1,) first row of each object in ``points``.
        rows: id to position of the object.
        backbone: the network they come from.
        tuned: what its upper blocks were trained with, in words; empty where they are as ImageNet left them.
    """

    points: Array
    images: Array
    offsets: Array
    rows: dict[str, int]
    backbone: str
    tuned: str = ""

    @property
    def width(self) -> int:
        """F, the features of a keypoint."""
        return int(self.points.shape[1])

    @property
    def image_width(self) -> int:
        """G, the features of an image."""
        return int(self.images.shape[1])

    @property
    def name(self) -> str:
        """The network and how it was trained, as results state it."""
        return f"{self.backbone}, {self.tuned}" if self.tuned else self.backbone

    def __contains__(self, id: object) -> bool:
        return id in self.rows

    def __getitem__(self, id: str) -> Features:
        """Features of one object.

        Raises:
            FeatureError: there are none of it.
        """
        if id not in self.rows:
            raise FeatureError(f"there are no features of {id!r}. Fix: run `linsat-studies matching prepare` again.")
        row = self.rows[id]
        return Features(self.points[self.offsets[row] : self.offsets[row + 1]], self.images[row])


def extract(
    collection: Collection,
    folder: str | Path,
    *,
    backbone: str = DEFAULT_BACKBONE,
    size: int = CROP,
    progress: Progress | None = None,
) -> FeatureStore:
    """Compute and keep the features of every object; goes on where a killed run stopped, returns at once when done.

    Args:
        collection: objects with images.
        folder: where they are kept; about 1.6 kB for a keypoint.
        backbone: "efficientnet-lite0", or "vgg16" where torchvision's weights are on this machine.
        size: crops are resized to this many pixels first; a multiple of 32.
        progress: called with (objects done, all objects).

    Costs 0.05 s an object at size 256 on one thread.

    Raises:
        FeatureError: the folder holds features of other objects or of another backbone.
    """
    description = {"backbone": backbone, "size": size}

    def load() -> Compute:
        network = load_backbone(backbone, size)

        def compute(things: Sequence[KeypointObject]) -> list[Features]:
            images = np.stack([collection.image(thing.id) for thing in things])
            return features_at(network, images, [thing.points for thing in things], size)

        return compute

    return keep_features(collection.objects, folder, load, description, progress=progress)


def keep_features(
    objects: Sequence[KeypointObject],
    folder: str | Path,
    load: Callable[[], Compute],
    description: dict[str, Any],
    *,
    progress: Progress | None = None,
) -> FeatureStore:
    """Compute features and keep them with their description; what `extract` says of resuming and errors holds here.

    Args:
        objects: whose features.
        folder: where they are kept.
        load: gives the function from a few objects to their raw features; called when something is missing.
        description: what the features are of; compared with that of a folder that holds some.
        progress: called with (objects done, all objects).
    """
    folder = Path(folder)
    description = {**description, "objects": fingerprint(objects)}
    known = read_json(folder / _DESCRIPTION)
    if known is not None and known != description:
        raise FeatureError(
            f"{folder} holds features of {known}; asked for {description}. Fix: another folder, or delete that one."
        )
    write_json(folder / _DESCRIPTION, description)
    if not (folder / _INDEX).exists():
        _compute_parts(objects, folder, load, progress or (lambda *_: None))
        _join(objects, folder)
    return load_features(folder)


def load_features(path: str | Path) -> FeatureStore:
    """What `extract` kept; reads the index only, features come from the disk when they are asked for.

    Raises:
        FeatureError: the folder holds no finished features.
    """
    folder = Path(path)
    if not (folder / _INDEX).exists():
        what, fix = ("unfinished", "again, it goes on") if (folder / _DESCRIPTION).exists() else ("no", "first")
        raise FeatureError(f"{folder} holds {what} features. Fix: run `linsat-studies matching prepare` {fix}.")
    with np.load(folder / _INDEX, allow_pickle=False) as index:
        ids, offsets = index["ids"].tolist(), index["offsets"]
    points = np.load(folder / _POINTS, mmap_mode="r", allow_pickle=False)
    images = np.load(folder / _IMAGES, mmap_mode="r", allow_pickle=False)
    description = read_json(folder / _DESCRIPTION)
    rows = {id: row for row, id in enumerate(ids)}
    return FeatureStore(points, images, offsets, rows, description["backbone"], description.get("tuned", ""))


def fingerprint(objects: Sequence[KeypointObject]) -> str:
    """A short text that differs for other objects, other keypoints or another order of them."""
    content = hashlib.sha256()
    for thing in objects:
        content.update(f"{thing.id},{thing.split},{','.join(thing.names)};".encode())
        content.update(np.ascontiguousarray(thing.points).tobytes())
    return content.hexdigest()[:16]


def features_at(backbone: Backbone, images: Array, points: Sequence[Array], size: int = CROP) -> list[Features]:
    """Raw features of (batch, 256, 256, 3) uint8 crops at (keypoints, 2) crop coordinates, one array for each crop."""
    pixels = torch.from_numpy(images)
    if size != CROP:
        pixels = _resized(pixels, size)
    most = max(max(len(array) for array in points), 1)
    padded = torch.zeros(len(points), most, 2)
    for row, array in enumerate(points):
        padded[row, : len(array)] = torch.from_numpy(array)
    levels, whole = backbone(pixels)
    values = sample(levels, padded * (size / CROP)).half().numpy()
    return [Features(values[row, : len(array)], whole[row].half().numpy()) for row, array in enumerate(points)]


def _resized(pixels: torch.Tensor, size: int) -> torch.Tensor:
    planes = pixels.permute(0, 3, 1, 2).float()
    bigger = torch.nn.functional.interpolate(planes, size=(size, size), mode="bicubic", antialias=True)
    return bigger.round().clamp(0, 255).byte().permute(0, 2, 3, 1)


def _part(folder: Path, number: int) -> Path:
    return folder / f"part{number:05d}.npz"


def _compute_parts(
    objects: Sequence[KeypointObject], folder: Path, load: Callable[[], Compute], progress: Progress
) -> None:
    compute = None
    for number, start in enumerate(range(0, len(objects), _PART)):
        progress(start, len(objects))
        if _part(folder, number).exists():
            continue
        compute = compute or load()
        found: list[Features] = []
        some = objects[start : start + _PART]
        for first in range(0, len(some), _BATCH):
            found += compute(some[first : first + _BATCH])
            progress(start + len(found), len(objects))
        points, image = np.concatenate([f.points for f in found]), np.stack([f.image for f in found])
        # The default arguments bind this part's arrays; the file is written before the loop goes on.
        write_whole(_part(folder, number), lambda file, p=points, i=image: np.savez(file, points=p, images=i))  # type: ignore[misc]


def _join(objects: Sequence[KeypointObject], folder: Path) -> None:
    """Parts to one standardised array each; the index is written last and says that all is there."""
    parts = [_part(folder, number) for number in range(-(-len(objects) // _PART))]
    loaded = [np.load(path, allow_pickle=False) for path in parts]
    counts = np.array([len(thing.names) for thing in objects])
    training = np.array([thing.split == "train" for thing in objects])
    if not training.any():
        training[:] = True
    for name, key, chosen in ((_POINTS, "points", np.repeat(training, counts)), (_IMAGES, "images", training)):
        values = _standardised(np.concatenate([part[key] for part in loaded]), chosen)
        write_whole(folder / name, lambda file, v=values: np.save(file, v))  # type: ignore[misc]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids = np.array([thing.id for thing in objects])
    write_whole(folder / _INDEX, lambda file: np.savez(file, ids=ids, offsets=offsets))
    for path, part in zip(parts, loaded):
        part.close()
        path.unlink()


def _standardised(raw: Array, chosen: Array) -> Array:
    """(rows, channels) float16 with mean 0 and deviation 1 over the chosen rows."""
    basis = raw[chosen].astype(np.float32)
    mean, deviation = basis.mean(axis=0), np.maximum(basis.std(axis=0), _SMALLEST_DEVIATION)
    return ((raw - mean) / deviation).astype(np.float16)
