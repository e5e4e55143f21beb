"""Small batches with everything in them: graphs of different sizes, features, images, outliers on both sides."""

from __future__ import annotations

import numpy as np
import torch

from linsat_studies.matching.batches import Batch, collate
from linsat_studies.matching.data import Collection, KeypointObject, Pair, pair
from linsat_studies.matching.features import Features

FEATURES, IMAGE = 6, 5


class RandomFeatures:
    """Features by object id: what a keypoint is called, plus noise; so there is something to learn."""

    width, image_width = FEATURES, IMAGE

    def __init__(self, collection: Collection) -> None:
        names = sorted({name for thing in collection.objects for name in thing.names})
        random = np.random.default_rng(0)
        meaning = {name: random.normal(size=FEATURES) for name in names}
        self.known = {}
        for thing in collection.objects:
            clean = np.stack([meaning[name] for name in thing.names])
            noisy = clean + 0.5 * random.normal(size=clean.shape)
            self.known[thing.id] = Features(noisy.astype(np.float16), random.normal(size=IMAGE).astype(np.float16))

    def __getitem__(self, id: str) -> Features:
        return self.known[id]


def collection(objects: int = 12, *, keypoints: int = 8, seed: int = 0) -> Collection:
    """Two classes; objects show 4 to all of their named keypoints, near the place each has in the class."""
    random = np.random.default_rng(seed)
    things = []
    for cls in ("cat", "dog"):
        places = random.uniform(40, 216, size=(keypoints, 2))
        for number in range(objects):
            shown = random.permutation(keypoints)[: random.integers(4, keypoints + 1)]
            points = (places[shown] + random.normal(scale=12, size=(len(shown), 2))).astype(np.float32)
            split = ("train", "train", "validation", "test")[number % 4]
            names = tuple(f"part {k}" for k in shown)
            things.append(KeypointObject(f"{cls}{number:03d}", cls, split, names, points))
    return Collection(tuple(things))


def pairs(count: int = 5, *, seed: int = 0) -> tuple[list[Pair], RandomFeatures]:
    """Pairs of different sizes, and features of their objects."""
    made = collection(seed=seed)
    random = np.random.default_rng(seed)
    found: list[Pair] = []
    while len(found) < count:
        left, right = random.integers(len(made.objects), size=2)
        drawn = pair(made.objects[left], made.objects[right])
        if left != right and 0 < drawn.phi < min(len(drawn.left.names), len(drawn.right.names)):
            found.append(drawn)
    return found, RandomFeatures(made)


def batch(count: int = 5, *, seed: int = 0) -> Batch:
    """A batch of such pairs."""
    return collate(*pairs(count, seed=seed))


def sizes(b: Batch) -> list[tuple[int, int]]:
    """Keypoints of both sides of each pair."""
    return list(zip(b.mask_l.sum(1).tolist(), b.mask_r.sum(1).tolist()))


def scores(b: Batch, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random scores of all pairs of keypoints, padding included."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*b.truth.shape, generator=generator, dtype=dtype)
