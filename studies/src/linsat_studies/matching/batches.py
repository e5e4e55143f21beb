"""Pairs of objects as tensors, padded to the largest of their batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from linsat_studies.matching.data import KeypointObject, Pair
from linsat_studies.matching.features import FeatureError, Features

Array = np.ndarray


class FeatureSource(Protocol):
    """Features by object id, as `FeatureStore` has them."""

    @property
    def width(self) -> int: ...

    @property
    def image_width(self) -> int: ...

    def __getitem__(self, id: str) -> Features: ...


@dataclass(frozen=True, eq=False)
class Batch:
    """B pairs; n1 and n2 are the most keypoints of a left and of a right object among them.

    Padded entries are 0 or False everywhere.

    Args:
        points_l, points_r: (B, n, 2) float32, crop pixels.
        features_l, features_r: (B, n, F) float32.
        image_l, image_r: (B, G) float32.
        mask_l, mask_r: (B, n) bool, whether there is such a keypoint.
        adjacency_l, adjacency_r: (B, n, n) bool, Delaunay graphs.
        phi: (B,) int64, number of inliers.
        truth: (B, n1, n2) float32, 1 for the keypoints of one name.
    """

    points_l: Tensor
    points_r: Tensor
    features_l: Tensor
    features_r: Tensor
    image_l: Tensor
    image_r: Tensor
    mask_l: Tensor
    mask_r: Tensor
    adjacency_l: Tensor
    adjacency_r: Tensor
    phi: Tensor
    truth: Tensor

    def __len__(self) -> int:
        return len(self.phi)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return Batch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def collate(pairs: Sequence[Pair], features: FeatureSource | None = None) -> Batch:
    """Pairs to a `Batch`; without features, F and G are 0. About 0.1 ms a pair once graphs are known.

    Raises:
        ValueError: no pairs.
        FeatureError: features of an object are missing, or are not of its keypoints.
    """
    if not pairs:
        raise ValueError("pairs is empty; expected at least one pair. Fix: draw some.")
    left = _side([pair.left for pair in pairs], features)
    right = _side([pair.right for pair in pairs], features)
    truth = np.zeros((len(pairs), left["mask"].shape[1], right["mask"].shape[1]), dtype=np.float32)
    for row, pair in enumerate(pairs):
        truth[row, pair.truth[:, 0], pair.truth[:, 1]] = 1
    both = {
        f"{name}_{side}": torch.from_numpy(array)
        for side, part in zip("lr", (left, right))
        for name, array in part.items()
    }
    return Batch(**both, phi=torch.tensor([pair.phi for pair in pairs]), truth=torch.from_numpy(truth))


def _side(objects: Sequence[KeypointObject], features: FeatureSource | None) -> Mapping[str, Array]:
    """Arrays of all left, or all right objects."""
    most = max(len(thing.names) for thing in objects)
    batch = len(objects)
    width, image_width = (features.width, features.image_width) if features is not None else (0, 0)
    side = {
        "points": np.zeros((batch, most, 2), dtype=np.float32),
        "features": np.zeros((batch, most, width), dtype=np.float32),
        "image": np.zeros((batch, image_width), dtype=np.float32),
        "mask": np.zeros((batch, most), dtype=bool),
        "adjacency": np.zeros((batch, most, most), dtype=bool),
    }
    for row, thing in enumerate(objects):
        count = len(thing.names)
        side["points"][row, :count] = thing.points
        side["mask"][row, :count] = True
        side["adjacency"][row, :count, :count] = thing.adjacency
        if features is not None:
            found = features[thing.id]
            if len(found.points) != count:
                raise FeatureError(
                    f"features of {thing.id} are of {len(found.points)} keypoints; expected {count}. Fix: prepare them "
                    f"from the same data."
                )
            side["features"][row, :count] = found.points
            side["image"][row] = found.image
    return side
