"""Synthetic point sets to match by geometry alone: deformed, with outliers on both sides; no data needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linsat_studies.matching.data import CROP, Collection, KeypointError, KeypointObject, Pair, pair

Array = np.ndarray
Span = int | tuple[int, int]
_SHARES = (("train", 0.8), ("validation", 0.9), ("test", 1.0))  # of a class's objects, cumulated
_WAVES = 3  # smooth waves that bend the plane


@dataclass(frozen=True)
class Deformation:
    """How far a copy of a point set may stray, in shares of its size.

    Args:
        rotation: largest angle, in radians.
        stretch: largest stretch or shear of an axis.
        bend: height of the smooth waves.
        noise: standard deviation of each point's own step.
    """

    rotation: float = 0.5
    stretch: float = 0.3
    bend: float = 0.05
    noise: float = 0.015

    def __post_init__(self) -> None:
        for name in ("rotation", "stretch", "bend", "noise"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise KeypointError(f"{name} is {value}; expected a number of at least 0.")


def synthetic_pairs(
    count: int,
    seed: int,
    inliers: Span = (5, 10),
    outliers: Span = (0, 5),
    *,
    deformation: Deformation | None = None,
) -> list[Pair]:
    """Pairs of a random point set and its deformed copy, each with separate outliers.

    Args:
        count: how many pairs.
        seed: equal seeds give equal pairs.
        inliers: common keypoints, a number or (least, most), at least 1.
        outliers: keypoints of one side only, on either side, a number or (least, most).
        deformation: of the copy.

    Raises:
        KeypointError: a count or a span that cannot be.
    """
    if count < 0:
        raise KeypointError(f"count is {count}; expected at least 0.")
    common, single = _span("inliers", inliers, 1), _span("outliers", outliers, 0)
    random = np.random.default_rng(seed)
    how = deformation or Deformation()
    return [_pair(f"synthetic-{seed}-{number}", random, common, single, how) for number in range(count)]


def _pair(id: str, random: np.random.Generator, common: Array, single: Array, how: Deformation) -> Pair:
    shape = random.random((random.integers(common[0], common[1] + 1), 2))
    names = [f"common{number}" for number in range(len(shape))]
    sides = []
    for side, points in (("left", shape), ("right", deformed(shape, random, how))):
        extra = random.integers(single[0], single[1] + 1)
        low, high = points.min(axis=0), points.max(axis=0)
        scattered = low + (high - low) * random.random((extra, 2))
        labels = names + [f"{side}{number}" for number in range(extra)]
        sides.append(_thing(f"{id}-{side}", "synthetic", "test", labels, np.concatenate([points, scattered]), random))
    return pair(*sides)


def synthetic_collection(
    seed: int = 0,
    *,
    classes: int = 4,
    objects: int = 100,
    keypoints: int = 12,
    visible: float = 0.75,
    deformation: Deformation | None = None,
) -> Collection:
    """Classes of objects without images, in place of real data: every object is a deformed copy of its class's point
    set, of which each keypoint is visible with probability ``visible`` (at least three are).

    Eight in ten objects of a class are for training, one for validation, one for testing.

    Raises:
        KeypointError: an argument that cannot be.
    """
    for name, value, least in (("classes", classes, 1), ("objects", objects, 20), ("keypoints", keypoints, 3)):
        if value < least:
            raise KeypointError(f"{name} is {value}; expected at least {least}.")
    if not 0 < visible <= 1:
        raise KeypointError(f"visible is {visible}; expected a probability above 0, at most 1.")
    random = np.random.default_rng(seed)
    how = deformation or Deformation()
    made = []
    for cls in range(classes):
        shape = random.random((keypoints, 2))
        for number in range(objects):
            split = next(name for name, share in _SHARES if number < share * objects)
            shown = random.random(keypoints) < visible
            shown[random.permutation(keypoints)[:3]] = True
            points = deformed(shape, random, how)[shown]
            labels = [f"k{index}" for index in np.flatnonzero(shown)]
            made.append(_thing(f"shape{cls}-{number:04d}", f"shape{cls}", split, labels, points, random))
    return Collection(tuple(made))


def deformed(points: Array, random: np.random.Generator, how: Deformation) -> Array:
    """A copy of (n, 2) points of the unit square, turned, stretched, bent and shaken at random."""
    angle = random.uniform(-how.rotation, how.rotation)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    stretch = np.eye(2) + random.uniform(-how.stretch, how.stretch, size=(2, 2))
    centred = points - 0.5
    waves = random.normal(size=(_WAVES, 2))
    waves *= np.pi / np.maximum(np.linalg.norm(waves, axis=1, keepdims=True), 1e-9)  # half a wave across the square
    heights = how.bend * random.normal(size=(_WAVES, 2)) / np.sqrt(_WAVES)
    bent = centred + np.sin(centred @ waves.T + random.uniform(0, 2 * np.pi, _WAVES)) @ heights
    return bent @ (stretch @ turn).T + how.noise * random.normal(size=points.shape)


def _thing(
    id: str, cls: str, split: str, names: list[str], points: Array, random: np.random.Generator
) -> KeypointObject:
    """An object whose points just fill the crop, as the box of a real one does; keypoints in random order."""
    low, high = points.min(axis=0), points.max(axis=0)
    placed = np.clip((points - low) / np.maximum(high - low, 1e-9), 0, 1) * CROP
    order = random.permutation(len(names))
    return KeypointObject(id, cls, split, tuple(names[i] for i in order), placed[order].astype(np.float32))


def _span(name: str, span: Span, least: int) -> Array:
    low, high = (span, span) if isinstance(span, int) else span
    if not least <= low <= high:
        raise KeypointError(f"{name} is {span}; expected a number or (least, most), {least} or more.")
    return np.array([low, high])
