"""What a command works on: prepared keypoints with their features, or synthetic point sets where no data is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linsat_studies.matching.config import MatchingConfig, NetworkConfig
from linsat_studies.matching.data import ENVIRONMENT, Collection, load_collection
from linsat_studies.matching.features import FeatureStore, load_features
from linsat_studies.matching.mirror import holds_mirrored, with_mirrored
from linsat_studies.matching.synthetic import synthetic_collection
from linsat_studies.settings import Plan

SHIPPED = Path(__file__).parent / "checkpoints"  # networks for the synthetic point sets


@dataclass(frozen=True, eq=False)
class Source:
    """Objects, their features (None for geometry alone), and what they are in words."""

    collection: Collection
    features: FeatureStore | None
    name: str
    synthetic: bool = False

    @property
    def image(self) -> Callable[[str], np.ndarray] | None:
        """Crop of an object by its id; None where there are none."""
        return None if self.synthetic else self.collection.image


def open_source(data: Path | None, features: Path) -> Source:
    """Keypoints in the folder ``data``, or in the one LINSAT_DATA names; synthetic ones where neither is given.

    Args:
        data: a folder with prepared keypoints.
        features: a folder with their features. Where these are of mirrored training objects too, so is the collection.

    Raises:
        ValueError: a named folder does not hold what it should.
    """
    if data is None and not os.environ.get(ENVIRONMENT):
        return Source(demo_collection(), None, "synthetic point sets", synthetic=True)
    collection, store = load_collection(data), load_features(features)
    if holds_mirrored(list(store.rows)):
        collection = with_mirrored(collection)
    return Source(collection, store, "Pascal VOC Keypoint")


def demo_collection() -> Collection:
    """The synthetic point sets of the study; the shipped networks know their four shapes."""
    return synthetic_collection(objects=400)


def demo_config(network: str, technique: str, seed: int = 0) -> MatchingConfig:
    """A small network and a short plan for the synthetic point sets: half a minute a run."""
    plan = Plan(steps=400, rate=3e-3, warmup=20, every=200, average=0.98, seed=seed)
    sizes = NetworkConfig(kind=network, width=32, channels=8)
    return MatchingConfig(technique=technique, network=sizes, plan=plan)
