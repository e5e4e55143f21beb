"""Mirrored training objects: the crop turned left to right, and the names of left and right parts exchanged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linsat_studies.matching.data import CROP, Collection, KeypointObject

MARK = "~"  # at the end of a mirrored object's id
_TURNED = {"L": "R", "R": "L", "Left": "Right", "Right": "Left"}


def mirrored(thing: KeypointObject) -> KeypointObject:
    """The object as a mirror shows it: what was its left eye is a right eye now, on the other side of the crop."""
    names = tuple("_".join(_TURNED.get(word, word) for word in name.split("_")) for name in thing.names)
    points = np.stack([CROP - thing.points[:, 0], thing.points[:, 1]], axis=1)
    return KeypointObject(thing.id + MARK, thing.cls, thing.split, names, points)


def with_mirrored(collection: Collection) -> Collection:
    """The collection with a mirrored copy of every training object; validation and test stay as they are."""

    def image(id: str) -> np.ndarray:
        if id.endswith(MARK):
            return np.ascontiguousarray(collection.image(id.removesuffix(MARK))[:, ::-1])
        return collection.image(id)

    copies = tuple(mirrored(thing) for thing in collection.objects if thing.split == "train")
    return Collection(collection.objects + copies, image)


def holds_mirrored(ids: Sequence[str]) -> bool:
    """Whether mirrored objects are among these."""
    return any(id.endswith(MARK) for id in ids)
