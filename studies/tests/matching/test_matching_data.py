"""Keypoints from files, and pairs drawn from them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linsat_studies.matching.data import (
    ANNOTATIONS,
    CROPS,
    Collection,
    KeypointError,
    KeypointObject,
    fixed_pairs,
    load_collection,
    pair,
    random_pairs,
    test_pairs,
    validation_pairs,
    write_collection,
)
from linsat_studies.matching.original import load_original

Image = pytest.importorskip("PIL.Image")


def row(number: int, **changes: Any) -> dict[str, Any]:
    """One annotation; the box is 64 wide and 128 high, so crop = (4 (x - 10), 2 (y - 20))."""
    usual = {
        "id": f"2008_{number:06d}_1_dog",
        "split": "train",
        "cls": "dog",
        "image": f"2008_{number:06d}",
        "bbox": [10.0, 20.0, 64.0, 128.0],
        "kpts": [["nose", 10, 20], ["tail", 74, 148], ["paw", 26, 84]],
    }
    return {**usual, **changes}


def picture(color: tuple[int, int, int]) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (256, 256), color).save(content, format="webp", lossless=True)
    return content.getvalue()


def keep(folder: Path, rows: list[dict[str, Any]]) -> Path:
    write_collection(folder, rows, [(one["id"], picture((number, 100, 200))) for number, one in enumerate(rows)])
    return folder


def thing(id: str, names: str, *, cls: str = "dog", split: str = "test") -> KeypointObject:
    points = np.random.default_rng(len(id)).random((len(names), 2)).astype(np.float32) * 256
    return KeypointObject(id, cls, split, tuple(names), points)


def test_keypoints_are_placed_in_the_crop(tmp_path: Path) -> None:
    (found,) = load_collection(keep(tmp_path, [row(1)])).objects
    places = {name: tuple(point) for name, point in zip(found.names, found.points.tolist())}
    assert places == {"nose": (0, 0), "tail": (256, 256), "paw": (64, 128)}


def test_keypoints_outside_the_box_are_left_out(tmp_path: Path) -> None:
    outside = [["above", 30, 19], ["right", 75, 84], ["in", 30, 84], ["edge", 74, 20]]
    (found,) = load_collection(keep(tmp_path, [row(1, kpts=outside)])).objects
    assert sorted(found.names) == ["edge", "in"]


def test_order_of_keypoints_does_not_follow_the_file(tmp_path: Path) -> None:
    names = [[f"k{index}", 20, 30 + index] for index in range(12)]
    objects = load_collection(keep(tmp_path, [row(number, kpts=names) for number in range(8)])).objects
    assert len({found.names for found in objects}) == 8
    assert all(sorted(found.names) == sorted(name for name, _, _ in names) for found in objects)


def test_loading_twice_gives_the_same(tmp_path: Path) -> None:
    keep(tmp_path, [row(number) for number in range(4)])
    first, second = load_collection(tmp_path).objects, load_collection(tmp_path).objects
    for one, other in zip(first, second):
        assert one.names == other.names
        assert (one.points == other.points).all()


def test_each_crop_belongs_to_its_object(tmp_path: Path) -> None:
    rows = [row(number) for number in (5, 1, 3)]
    collection = load_collection(keep(tmp_path, rows))
    for number, one in enumerate(rows):
        image = collection.image(one["id"])
        assert image.shape == (256, 256, 3)
        assert image.dtype == np.uint8
        assert (image == (number, 100, 200)).all()


def test_validation_is_every_eighth_training_image(tmp_path: Path) -> None:
    rows = [row(number) for number in range(16)] + [row(number, split="test") for number in range(16, 20)]
    rows += [row(8, id="2008_000008_2_cat", cls="cat"), row(9, id="2008_000009_2_cat", cls="cat")]
    split = {found.id: found.split for found in load_collection(keep(tmp_path, rows)).objects}
    held_out = {"2008_000000_1_dog", "2008_000008_1_dog", "2008_000008_2_cat"}
    assert {id for id, name in split.items() if name == "validation"} == held_out
    assert {id for id, name in split.items() if name == "test"} == {f"2008_{n:06d}_1_dog" for n in range(16, 20)}


def test_truth_joins_equal_names() -> None:
    both = pair(thing("a", "xyzu"), thing("b", "vzx"))
    assert both.truth.tolist() == [[0, 2], [2, 1]]
    assert both.phi == 2
    assert pair(thing("a", "xy"), thing("b", "uv")).truth.shape == (0, 2)


def test_random_pairs_keep_the_conditions() -> None:
    objects = [
        thing("a", "xyz"),
        thing("b", "xuv"),
        thing("c", "uvw"),
        thing("d", "xy"),
        thing("e", "xyz", split="train"),
    ]
    found = random_pairs(Collection(tuple(objects)), "test", "dog", 200, seed=0)
    ids = {(one.left.id, one.right.id) for one in found}
    # d has two keypoints, e is of another split, a and c share none; both orders of the rest occur.
    assert ids == {("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")}
    again = random_pairs(Collection(tuple(objects)), "test", "dog", 200, seed=0)
    assert [(one.left.id, one.right.id) for one in again] == [(one.left.id, one.right.id) for one in found]
    other = random_pairs(Collection(tuple(objects)), "test", "dog", 200, seed=1)
    assert [one.left.id for one in other] != [one.left.id for one in found]


def test_classes_are_drawn_evenly() -> None:
    objects = [thing(f"dog{n}", "xyz") for n in range(50)] + [thing(f"cat{n}", "xyz", cls="cat") for n in range(2)]
    found = random_pairs(Collection(tuple(objects)), "test", None, 2000, seed=3)
    cats = sum(one.left.cls == "cat" for one in found)
    assert all(one.left.cls == one.right.cls for one in found)
    assert abs(cats - 1000) < 5 * np.sqrt(500)  # five deviations of a fair coin


def test_fixed_pairs_are_different_and_all_where_there_are_few() -> None:
    objects = [thing(f"dog{n}", "xyz") for n in range(9)] + [thing(f"cat{n}", "xyz", cls="cat") for n in range(3)]
    found = fixed_pairs(Collection(tuple(objects)), "test", per_class=20, seed=0)
    sets = [frozenset((one.left.id, one.right.id)) for one in found]
    assert len(set(sets)) == len(sets) == 20 + 3
    assert [one.left.cls for one in found] == ["cat"] * 3 + ["dog"] * 20


def test_fixed_pairs_of_a_class_do_not_depend_on_the_others() -> None:
    dogs = [thing(f"dog{n}", "xyz") for n in range(9)]
    cats = [thing(f"cat{n}", "xyz", cls="cat") for n in range(5)]
    alone = test_pairs(Collection(tuple(dogs)), per_class=10)
    mixed = test_pairs(Collection(tuple(cats + dogs[::-1])), per_class=10)
    of_dogs = [(one.left.id, one.right.id) for one in mixed if one.left.cls == "dog"]
    assert [(one.left.id, one.right.id) for one in alone] == of_dogs


def test_validation_pairs_touch_no_other_split() -> None:
    objects = [thing(f"{split}{n}", "xyz", split=split) for n in range(4) for split in ("train", "validation", "test")]
    collection = Collection(tuple(objects))
    assert {one.split for two in validation_pairs(collection) for one in (two.left, two.right)} == {"validation"}
    assert {one.split for two in test_pairs(collection) for one in (two.left, two.right)} == {"test"}


@pytest.mark.parametrize(
    ("split", "cls", "text"),
    [
        ("dev", "dog", "split is 'dev'; expected one of train, validation, test"),
        ("test", "cow", "cls is 'cow'; expected one of dog"),
        ("train", "dog", "train has 0 objects of class dog"),
    ],
)
def test_unknown_split_or_class_is_refused(split: str, cls: str, text: str) -> None:
    with pytest.raises(KeypointError, match=text):
        random_pairs(Collection((thing("a", "xyz"), thing("b", "xyz"))), split, cls, 1, 0)


def test_objects_without_common_keypoints_are_refused() -> None:
    with pytest.raises(KeypointError, match="no two dog objects with a common keypoint"):
        random_pairs(Collection((thing("a", "xyz"), thing("b", "uvw"))), "test", "dog", 1, 0)


def test_unknown_object_is_refused() -> None:
    with pytest.raises(KeypointError, match="no object 'z'.*there is a, for example"):
        Collection((thing("a", "xyz"),))["z"]


@pytest.mark.parametrize(
    ("names", "points", "text"),
    [
        (("a", "b"), np.zeros((3, 2)), r"shape \(3, 2\); expected \(2, 2\)"),
        (("a", "a"), np.zeros((2, 2)), "occurs twice"),
        (("a",), np.full((1, 2), np.nan), "no finite position"),
    ],
)
def test_malformed_objects_are_refused(names: tuple[str, ...], points: np.ndarray, text: str) -> None:
    with pytest.raises(KeypointError, match=text):
        KeypointObject("x", "dog", "test", names, points)


def test_missing_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeypointError, match="neither .* holds annotations.json.gz and crops256.tar"):
        load_collection(tmp_path)
    monkeypatch.delenv("LINSAT_DATA", raising=False)
    with pytest.raises(KeypointError, match="pass --data FOLDER or set LINSAT_DATA"):
        load_collection()
    keep(tmp_path / "voc_keypoints", [row(1)])
    monkeypatch.setenv("LINSAT_DATA", str(tmp_path))
    assert len(load_collection().objects) == 1


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"{"), gzip.compress(b'[{"id": 3}]')],
    ids=["no gzip", "half a list", "no fields"],
)
def test_malformed_annotations_are_told(tmp_path: Path, content: bytes) -> None:
    keep(tmp_path, [row(1)])
    (tmp_path / ANNOTATIONS).write_bytes(content)
    with pytest.raises(KeypointError, match="is not a gzipped JSON list of objects"):
        load_collection(tmp_path)


def test_malformed_crops_are_told(tmp_path: Path) -> None:
    collection = load_collection(keep(tmp_path, [row(1)]))
    with pytest.raises(KeypointError, match="holds no image of nothing"):
        collection.image("nothing")
    (tmp_path / CROPS).write_bytes(b"x" * 2000)
    with pytest.raises(KeypointError, match="is not a readable tar file"):
        load_collection(tmp_path).image(row(1)["id"])
    with tarfile.open(tmp_path / CROPS, "w") as tar:
        entry = tarfile.TarInfo(f"{row(1)['id']}.webp")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"wrong"))
    with pytest.raises(KeypointError, match="cannot be read"):
        load_collection(tmp_path).image(row(1)["id"])


# The original data: a small copy in the layout people have


def original(root: Path, *, mark: str = "", cls: str = "dog") -> Path:
    """Two images with a red left half; object 1 of each is a dog. ``mark`` makes the second one difficult, say."""
    voc = root / "TrainVal" / "VOCdevkit" / "VOC2011"
    for folder in (voc / "JPEGImages", voc / "Annotations", root / "annotations" / cls):
        folder.mkdir(parents=True)
    pixels = np.zeros((100, 200, 3), dtype=np.uint8)
    pixels[:, :100, 0] = 255
    for name, marks in (("2009_000001", ""), ("2009_000002", mark)):
        Image.fromarray(pixels).save(voc / "JPEGImages" / f"{name}.jpg", quality=95)
        (voc / "Annotations" / f"{name}.xml").write_text(
            f"<annotation><object><name>dog</name>{marks}</object></annotation>"
        )
        (root / "annotations" / cls / f"{name}_1.xml").write_text(
            f"<annotation><image>{name}</image><visible_bounds xmin='0' ymin='0' width='100' height='50'/><keypoints>"
            "<keypoint name='nose' visible='1' x='50' y='25'/><keypoint name='tail' visible='0' x='9' y='9'/>"
            "</keypoints></annotation>"
        )
    lists = {"train": [f"{cls}/2009_000001_1.xml"], "test": [f"{cls}/2009_000002_1.xml"]}
    arrays = {part: np.array([names, []], dtype=object) for part, names in lists.items()}
    np.savez(root / "voc2011_pairs.npz", **arrays)
    return root


def test_original_data_become_the_same_two_files(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    source = original(tmp_path / "voc")
    collection = load_original(source, tmp_path / "out", progress=lambda done, total: steps.append((done, total)))
    assert steps == [(0, 4), (1, 4), (3, 4), (4, 4)]
    assert [(one.id, one.cls, one.names) for one in collection.objects] == [
        ("2009_000001_1_dog", "dog", ("nose",)),
        ("2009_000002_1_dog", "dog", ("nose",)),
    ]
    assert [one.split for one in collection.objects] == ["validation", "test"]  # one image: it is the first of eight
    assert collection.objects[0].points.tolist() == [[128, 128]]
    # The box is the red half: the crop is all red, up to compression.
    assert np.abs(collection.image("2009_000001_1_dog").astype(int) - (255, 0, 0)).mean() < 6
    rows = json.loads(gzip.decompress((tmp_path / "out" / ANNOTATIONS).read_bytes()))
    assert rows[0]["bbox"] == [0, 0, 100, 50]


@pytest.mark.parametrize("mark", ["difficult", "occluded", "truncated"])
def test_hidden_objects_of_the_original_are_left_out(tmp_path: Path, mark: str) -> None:
    collection = load_original(original(tmp_path / "voc", mark=f"<{mark}>1</{mark}>"), tmp_path / "out")
    assert [one.id for one in collection.objects] == ["2009_000001_1_dog"]


def test_people_of_later_years_are_left_out(tmp_path: Path) -> None:
    assert not load_original(original(tmp_path / "voc", cls="person"), tmp_path / "out").objects


def test_split_list_is_never_unpickled(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "harm",))

    root = original(tmp_path / "voc")
    arrays = {
        part: np.array([[f"dog/2009_00000{n}_1.xml", Harm()]], dtype=object) for n, part in ((1, "train"), (2, "test"))
    }
    np.savez(root / "voc2011_pairs.npz", **arrays)
    assert len(load_original(root, tmp_path / "out").objects) == 2
    assert not (tmp_path / "harm").exists()
    pickle.loads(pickle.dumps(Harm()))  # the same content does run when it is unpickled
    assert (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("TrainVal/VOCdevkit/VOC2011/JPEGImages/2009_000002.jpg", "2009_000002.jpg cannot be cropped"),
        ("TrainVal/VOCdevkit/VOC2011/Annotations/2009_000001.xml", "2009_000001.xml cannot be read as XML"),
        ("annotations/dog/2009_000001_1.xml", "2009_000001_1.xml cannot be read as XML"),
        ("voc2011_pairs.npz", "holds 0 .npz files"),
    ],
)
def test_missing_part_of_the_original_is_named(tmp_path: Path, missing: str, text: str) -> None:
    root = original(tmp_path / "voc")
    (root / missing).unlink()
    with pytest.raises(KeypointError, match=text):
        load_original(root, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))
