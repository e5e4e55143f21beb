"""Objects with named keypoints, and pairs of them to match: common names are inliers, all others outliers."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from linsat_studies.files import write_whole
from linsat_studies.matching.graphs import delaunay

Array = np.ndarray
ENVIRONMENT = "LINSAT_DATA"
FOLDER = "voc_keypoints"
ANNOTATIONS, CROPS = "annotations.json.gz", "crops256.tar"
CROP = 256  # width and height of a crop in pixels
FEWEST_KEYPOINTS = 3  # of either object of a pair, as the literature has it
SPLITS = ("train", "validation", "test")
_HELD_OUT = 8  # every eighth training image is for validation
_ROUNDING = 1e-5  # pixels; coordinates in the files are rounded
_TRIES = 1000  # draws of two objects until they share a keypoint


class KeypointError(ValueError):
    """Keypoint data are missing, malformed or too few; the message says where and what was expected."""


@dataclass(frozen=True, eq=False)
class KeypointObject:
    """One object in one image.

    Args:
        id: unique, also the name of its crop.
        cls: the class, "dog" for example.
        split: "train", "validation" or "test".
        names: names of the visible keypoints, each once; their order says nothing.
        points: (keypoints, 2) float32, x and y in crop pixels, 0 to 256.
    """

    id: str
    cls: str
    split: str
    names: tuple[str, ...]
    points: Array

    def __post_init__(self) -> None:
        if self.points.shape != (len(self.names), 2):
            raise KeypointError(
                f"{self.id}: points have shape {self.points.shape}; expected ({len(self.names)}, 2) as there are "
                f"{len(self.names)} names."
            )
        if not np.isfinite(self.points).all():
            raise KeypointError(f"{self.id}: a keypoint has no finite position. Fix: correct or drop it.")
        if len(set(self.names)) < len(self.names):
            raise KeypointError(f"{self.id}: a keypoint name occurs twice in {', '.join(self.names)}. Fix: drop one.")
        if self.split not in SPLITS:
            raise KeypointError(f"{self.id}: split is {self.split!r}; expected one of {', '.join(SPLITS)}.")

    @cached_property
    def adjacency(self) -> Array:
        """(keypoints, keypoints) bool, the graph over them; computed once."""
        return delaunay(self.points)


@dataclass(frozen=True, eq=False)
class Pair:
    """Two objects of one class; ``truth`` (inliers, 2) holds the indices of keypoints with the same name."""

    left: KeypointObject
    right: KeypointObject
    truth: Array

    @property
    def phi(self) -> int:
        """The number of inliers."""
        return len(self.truth)


def pair(left: KeypointObject, right: KeypointObject) -> Pair:
    """All visible keypoints of two objects, matched by name (the literature's "unfiltered" setting)."""
    place = {name: index for index, name in enumerate(right.names)}
    truth = [(index, place[name]) for index, name in enumerate(left.names) if name in place]
    return Pair(left, right, np.array(truth, dtype=np.int64).reshape(-1, 2))


def no_image(id: str) -> Array:
    """The ``image`` of a collection that has none."""
    raise KeypointError(f"there is no image of {id}; expected a collection with images. Fix: pass --data.")


@dataclass(frozen=True, eq=False)
class Collection:
    """Many objects, and the crop of each: ``image(id)`` is a (256, 256, 3) uint8 array, RGB."""

    objects: tuple[KeypointObject, ...]
    image: Callable[[str], Array] = no_image

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(sorted({thing.cls for thing in self.objects}))

    @cached_property
    def _by_id(self) -> dict[str, KeypointObject]:
        return {thing.id: thing for thing in self.objects}

    @cached_property
    def _groups(self) -> dict[tuple[str, str], list[KeypointObject]]:
        groups: dict[tuple[str, str], list[KeypointObject]] = {}
        for thing in sorted(self.objects, key=lambda thing: thing.id):
            if len(thing.names) >= FEWEST_KEYPOINTS:
                groups.setdefault((thing.split, thing.cls), []).append(thing)
        return groups

    def __getitem__(self, id: str) -> KeypointObject:
        """The object of that id.

        Raises:
            KeypointError: there is none.
        """
        if id not in self._by_id:
            near = [known for known in self._by_id if known.startswith(id[:7])][:3] or list(self._by_id)[:3]
            raise KeypointError(f"there is no object {id!r}. Fix: correct it; there is {', '.join(near)}, for example.")
        return self._by_id[id]

    def usable(self, split: str, cls: str) -> list[KeypointObject]:
        """Objects of a split and a class with at least three keypoints, ordered by id.

        Raises:
            KeypointError: an unknown split or class, or fewer than two such objects.
        """
        if split not in SPLITS:
            raise KeypointError(f"split is {split!r}; expected one of {', '.join(SPLITS)}.")
        if cls not in self.classes:
            raise KeypointError(f"cls is {cls!r}; expected one of {', '.join(self.classes)}.")
        found = self._groups.get((split, cls), [])
        if len(found) < 2:
            raise KeypointError(
                f"{split} has {len(found)} objects of class {cls} with {FEWEST_KEYPOINTS} or more keypoints; expected "
                f"at least two. Fix: other data."
            )
        return found


def random_pairs(collection: Collection, split: str, cls: str | None, count: int, seed: int) -> list[Pair]:
    """``count`` pairs drawn with replacement; of class ``cls``, or each of a class drawn evenly.

    Both objects have at least three keypoints, at least one in common. Equal seeds give equal pairs. About 25
    microseconds a pair.
    """
    random = np.random.default_rng(seed)
    classes = collection.classes if cls is None else (cls,)
    return [
        _draw(random, collection.usable(split, classes[random.integers(len(classes))]), split) for _ in range(count)
    ]


def _draw(random: np.random.Generator, things: list[KeypointObject], split: str) -> Pair:
    for _ in range(_TRIES):
        left, right = random.integers(len(things), size=2)
        if left != right:
            found = pair(things[left], things[right])
            if found.phi:
                return found
    raise KeypointError(f"{_TRIES} draws from {split} gave no two {things[0].cls} objects with a common keypoint.")


def fixed_pairs(collection: Collection, split: str, *, per_class: int, seed: int) -> list[Pair]:
    """The same different pairs at every call, class by class: ``per_class`` of each, or all where there are fewer.

    A class's pairs depend on its objects and the seed alone. Conditions as for `random_pairs`.
    """
    return [
        found
        for cls in collection.classes
        for found in _some_pairs(collection.usable(split, cls), per_class, np.random.default_rng([seed, _number(cls)]))
    ]


def _some_pairs(things: list[KeypointObject], count: int, random: np.random.Generator) -> list[Pair]:
    everything = list(combinations(range(len(things)), 2))
    chosen: list[Pair] = []
    for index in random.permutation(len(everything)):
        if len(chosen) == count:
            break
        left, right = random.permutation(everything[index])
        found = pair(things[left], things[right])
        if found.phi:
            chosen.append(found)
    return chosen


def test_pairs(collection: Collection, *, per_class: int = 200, seed: int = 2023) -> list[Pair]:  # noqa: PT028
    """The pairs every figure of the study is measured on."""
    return fixed_pairs(collection, "test", per_class=per_class, seed=seed)


test_pairs.__test__ = False  # type: ignore[attr-defined]  # pytest collects functions of that name


def validation_pairs(collection: Collection, *, per_class: int = 50, seed: int = 2023) -> list[Pair]:
    """Pairs of training images that no network learns from, for choices."""
    return fixed_pairs(collection, "validation", per_class=per_class, seed=seed)


def find_folder(data: str | Path | None = None) -> Path:
    """The folder with prepared keypoints: ``data``, or what LINSAT_DATA names; or ``voc_keypoints`` in it.

    Raises:
        KeypointError: no folder was named, or it does not hold the two files.
    """
    named = data if data is not None else os.environ.get(ENVIRONMENT)
    if not named:
        raise KeypointError(
            f"no keypoint data named. Fix: pass --data FOLDER or set {ENVIRONMENT} to a folder that holds "
            f"{ANNOTATIONS} and {CROPS}; `linsat-studies matching prepare --original` makes them."
        )
    for folder in (Path(named), Path(named) / FOLDER):
        if (folder / ANNOTATIONS).is_file() and (folder / CROPS).is_file():
            return folder
    raise KeypointError(
        f"neither {named} nor {Path(named) / FOLDER} holds {ANNOTATIONS} and {CROPS}. Fix: correct the folder, or make "
        f"them by `linsat-studies matching prepare --original`."
    )


def load_collection(path: str | Path | None = None) -> Collection:
    """Objects and crops from a prepared folder (see `find_folder`): about a second.

    Every eighth training image, all its objects, becomes the split "validation". Keypoints outside the box of their
    object are left out, as usual with these data (1 in 100).

    Raises:
        KeypointError: the folder or one of its files is missing or malformed.
    """
    folder = find_folder(path)
    try:
        rows = json.loads(gzip.decompress((folder / ANNOTATIONS).read_bytes()))
        images = sorted({row["image"] for row in rows if row["split"] == "train"})
        held_out = set(images[::_HELD_OUT])
        objects = tuple(_from_row(row, row["image"] in held_out) for row in rows)
    except (OSError, EOFError, zlib.error, TypeError, KeyError, ValueError, ZeroDivisionError) as error:
        if isinstance(error, KeypointError):
            raise
        raise KeypointError(
            f"{folder / ANNOTATIONS} is not a gzipped JSON list of objects with id, split, cls, image, bbox and kpts "
            f"({error!r}). Fix: prepare it again."
        ) from None
    return Collection(objects, _Crops(folder / CROPS))


def _from_row(row: dict[str, Any], held_out: bool) -> KeypointObject:
    left, top, width, height = (float(number) for number in row["bbox"])
    placed = [(name, (x - left) * CROP / width, (y - top) * CROP / height) for name, x, y in row["kpts"]]
    seen = [keypoint for keypoint in placed if all(-_ROUNDING < number < CROP + _ROUNDING for number in keypoint[1:])]
    # Files list keypoints in a fixed order of names; a matcher that breaks ties by position would profit from it.
    order = np.random.default_rng(_number(row["id"])).permutation(len(seen))
    return KeypointObject(
        id=row["id"],
        cls=row["cls"],
        split="validation" if held_out and row["split"] == "train" else row["split"],
        names=tuple(seen[index][0] for index in order),
        points=np.array([seen[index][1:] for index in order], dtype=np.float32).reshape(-1, 2),
    )


def _number(text: str) -> int:
    """The same number for the same text in every process."""
    return zlib.crc32(text.encode())


class _Crops:
    """Reads crops out of a tar file at random: it is searched once, then each is one seek."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        try:
            with tarfile.open(self._path) as archive:
                return {Path(m.name).stem: (m.offset_data, m.size) for m in archive if m.isfile()}
        except (OSError, tarfile.TarError) as error:
            raise KeypointError(
                f"{self._path} is not a readable tar file of images ({error}). Fix: prepare it again."
            ) from None

    def __call__(self, id: str) -> Array:
        from PIL import Image, UnidentifiedImageError

        if id not in self._places:
            raise KeypointError(f"{self._path} holds no image of {id}. Fix: prepare it again.")
        offset, size = self._places[id]
        with open(self._path, "rb") as file:
            file.seek(offset)
            content = file.read(size)
        try:
            return np.array(Image.open(io.BytesIO(content)).convert("RGB"))
        except (UnidentifiedImageError, OSError) as error:
            raise KeypointError(
                f"{self._path}: the image of {id} cannot be read ({error}). Fix: prepare it again."
            ) from None


def write_collection(folder: str | Path, rows: list[dict[str, Any]], crops: Iterable[tuple[str, bytes]]) -> None:
    """Write what `load_collection` reads: annotation rows and (id, encoded image) of each; whole or not at all."""
    folder = Path(folder)

    def archive(file: Any) -> None:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for id, content in crops:
                entry = tarfile.TarInfo(f"{id}.webp")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))

    write_whole(folder / CROPS, archive)
    write_whole(folder / ANNOTATIONS, lambda file: file.write(gzip.compress(json.dumps(rows).encode(), mtime=0)))
