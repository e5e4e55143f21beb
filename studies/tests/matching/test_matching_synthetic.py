"""Synthetic point sets: counts, deformations, seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from linsat_studies.matching.data import KeypointError, test_pairs
from linsat_studies.matching.synthetic import Deformation, synthetic_collection, synthetic_pairs


def test_synthetic_pairs_have_the_counts_asked_for() -> None:
    for one in synthetic_pairs(30, 0, 6, 2):
        assert (one.phi, len(one.left.names), len(one.right.names)) == (6, 8, 8)
    spread = synthetic_pairs(300, 1, (4, 7), (0, 3))
    assert {one.phi for one in spread} == {4, 5, 6, 7}
    assert {len(one.left.names) - one.phi for one in spread} == {0, 1, 2, 3}
    assert {len(one.right.names) - one.phi for one in spread} == {0, 1, 2, 3}


def test_synthetic_points_fill_the_crop() -> None:
    for one in synthetic_pairs(20, 2, 5, 3):
        for side in (one.left, one.right):
            np.testing.assert_array_equal(side.points.min(axis=0), 0)
            np.testing.assert_array_equal(side.points.max(axis=0), 256)


def test_copy_without_deformation_is_the_same_point_set() -> None:
    still = Deformation(rotation=0, stretch=0, bend=0, noise=0)
    for one in synthetic_pairs(20, 3, 7, 0, deformation=still):
        left, right = one.left.points[one.truth[:, 0]], one.right.points[one.truth[:, 1]]
        np.testing.assert_allclose(left, right, atol=1e-3)


def test_turned_and_stretched_copy_is_an_affine_image() -> None:
    affine = Deformation(rotation=0.5, stretch=0.3, bend=0, noise=0)
    for one in synthetic_pairs(20, 4, 8, 0, deformation=affine):
        left, right = one.left.points[one.truth[:, 0]], one.right.points[one.truth[:, 1]]
        design = np.concatenate([left, np.ones((8, 1))], axis=1)
        residual = np.linalg.lstsq(design, right, rcond=None)[1]
        assert residual.max() < 1e-3
        assert np.abs(left - right).max() > 1


def test_seeds_make_synthetic_pairs() -> None:
    one, same, other = (synthetic_pairs(3, seed) for seed in (7, 7, 8))
    assert all((a.left.points == b.left.points).all() for a, b in zip(one, same))
    assert one[0].left.points.tolist() != other[0].left.points.tolist()


def test_synthetic_collection_serves_as_data() -> None:
    collection = synthetic_collection(0, classes=3, objects=40, keypoints=9, visible=0.5)
    assert collection.classes == ("shape0", "shape1", "shape2")
    counts = {split: len(collection.usable(split, "shape1")) for split in ("train", "validation", "test")}
    assert counts == {"train": 32, "validation": 4, "test": 4}
    shown = np.array([len(one.names) for one in collection.objects])
    assert shown.min() >= 3
    # Three are always shown, the other six with probability one half.
    assert abs(shown.mean() - 6) < 5 * np.sqrt(6 / 4 / len(shown))
    assert len(test_pairs(collection)) <= 3 * 6
    with pytest.raises(KeypointError, match="no image of shape0-0000"):
        collection.image("shape0-0000")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"inliers": 0}, "inliers is 0"),
        ({"inliers": (5, 4)}, r"inliers is \(5, 4\)"),
        ({"outliers": -1}, "outliers is -1"),
        ({"count": -1}, "count is -1"),
    ],
)
def test_impossible_synthetic_pairs_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(KeypointError, match=text):
        synthetic_pairs(**{"count": 1, "seed": 0, **arguments})


def test_impossible_deformations_and_collections_are_refused() -> None:
    with pytest.raises(KeypointError, match="noise is -1"):
        Deformation(noise=-1)
    with pytest.raises(KeypointError, match="visible is 0"):
        synthetic_collection(visible=0)
    with pytest.raises(KeypointError, match="objects is 3; expected at least 20"):
        synthetic_collection(objects=3)
