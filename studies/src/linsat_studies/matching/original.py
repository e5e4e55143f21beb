"""Keypoints from a user's own copy of the original data: VOC 2011 images with the Berkeley keypoint annotations."""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from linsat_studies.matching.data import CROP, Collection, KeypointError, load_collection, write_collection
from linsat_studies.progress import Progress

_HIDDEN = ("difficult", "occluded", "truncated")  # objects so marked are left out, as in the literature
_LAST_CLEAN_YEAR = 2008  # the annotations' authors advise against using later people
_QUALITY = 90  # of the kept crops


def load_original(
    path: str | Path, folder: str | Path, *, split: str | Path | None = None, progress: Progress | None = None
) -> Collection:
    """Read the original data, keep annotations and crops in ``folder``, and load them from there.

    Args:
        path: a folder that holds, at any depth, ``JPEGImages`` and ``Annotations`` of VOC 2011 and a folder
            ``annotations`` with the Berkeley files, ``<class>/<image>_<number>.xml``.
        folder: where the two files go; `load_collection` reads them.
        split: the literature's list ``voc2011_pairs.npz`` of training and test objects; by default the one .npz file
            under ``path``. It is searched for names, never unpickled.
        progress: called with (steps done, all steps): every listed object is read, then cropped.

    Raises:
        KeypointError: a part of the data is missing or malformed; the message names it.
    """
    root = Path(path)
    if not root.is_dir():
        raise KeypointError(f"{root} is not a folder; expected the original data. Fix: correct the path.")
    images, boxes = _find(root, "JPEGImages"), _find(root, "Annotations")
    keypoints = _find(root, "annotations")
    listed = _read_split(Path(split) if split is not None else _find_split(root))
    tell = progress or (lambda *_: None)
    rows = []
    for number, (part, name) in enumerate(listed):
        tell(number, 2 * len(listed))
        if not _is_hidden(boxes, name):
            rows.append(_read_object(keypoints / name, part))
    # How many objects are left out shows only now: the second half of the bar stretches over those that remain.
    kept = max(len(rows), 1)
    write_collection(
        folder, rows, _crops(rows, images, lambda done: tell((kept + done) * len(listed) // kept, 2 * len(listed)))
    )
    return load_collection(folder)


def _find(root: Path, name: str) -> Path:
    found = [place for place in (root, *sorted(root.rglob(name))) if place.name == name and place.is_dir()]
    if not found:
        raise KeypointError(f"{root} holds no folder {name}; expected VOC 2011 with Berkeley keypoints. Fix: add it.")
    return found[0]


def _find_split(root: Path) -> Path:
    found = sorted(root.rglob("*.npz"))
    if len(found) != 1:
        raise KeypointError(
            f"{root} holds {len(found)} .npz files; expected one, the list of training and test objects. Fix: pass it "
            f"by --split."
        )
    return found[0]


def _read_split(path: Path) -> list[tuple[str, str]]:
    """("train" or "test", "<class>/<image>_<number>.xml") of every listed object.

    The file holds pickled lists of names. Loading a pickle runs whatever it says, so only its texts are read.
    """
    listed = []
    try:
        with zipfile.ZipFile(path) as archive:
            for part in ("train", "test"):
                with archive.open(f"{part}.npy") as file:
                    content = file.read()
                header = int.from_bytes(content[8:10], "little")  # .npy, version 1: magic, version, length of header
                texts = [argument for _, argument, _ in pickletools.genops(content[10 + header :])]
                listed += [(part, text) for text in texts if isinstance(text, str) and text.endswith(".xml")]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise KeypointError(
            f"{path} is not a list of training and test objects ({error}). Fix: pass --split."
        ) from None
    if not listed:
        raise KeypointError(f"{path} names no objects; expected names like dog/2008_000001_1.xml. Fix: pass --split.")
    return listed


def _parse(path: Path) -> ElementTree.Element:
    try:
        return ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise KeypointError(f"{path} cannot be read as XML ({error}). Fix: copy the file again.") from None


def _is_hidden(boxes: Path, name: str) -> bool:
    """Whether an object is to be left out, by VOC's own annotation of its image."""
    cls, stem = Path(name).parent.name, Path(name).stem
    image, _, number = stem.rpartition("_")
    if cls == "person" and int(image.split("_")[0]) > _LAST_CLEAN_YEAR:
        return True
    objects = _parse(boxes / f"{image}.xml").findall("object")
    if not 1 <= int(number) <= len(objects):
        raise KeypointError(f"{boxes / image}.xml has {len(objects)} objects; expected object {number} of {name}.")
    return any(objects[int(number) - 1].findtext(mark, "0").strip() == "1" for mark in _HIDDEN)


def _read_object(path: Path, part: str) -> dict[str, Any]:
    """One row of the prepared annotations."""
    root = _parse(path)
    bounds, image = root.find("visible_bounds"), root.findtext("image")
    try:
        if bounds is None or image is None:
            raise KeyError("image or visible_bounds")
        bbox = [float(bounds.attrib[name]) for name in ("xmin", "ymin", "width", "height")]
        keypoints = [
            [point.attrib["name"], float(point.attrib["x"]), float(point.attrib["y"])]
            for point in root.findall("keypoints/keypoint")
            if point.get("visible", "1") != "0"
        ]
    except (KeyError, ValueError) as error:
        raise KeypointError(f"{path} lacks a box or a position ({error}). Fix: copy the file again.") from None
    cls = path.parent.name
    return {
        "id": f"{path.stem}_{cls}",
        "split": part,
        "cls": cls,
        "image": image.strip(),
        "bbox": bbox,
        "kpts": keypoints,
    }


def _crops(rows: list[dict[str, Any]], images: Path, tell: Callable[[int], None]) -> Iterator[tuple[str, bytes]]:
    """(id, encoded crop) of every row: its box, resized to a square."""
    from PIL import Image

    for number, row in enumerate(rows):
        tell(number + 1)
        left, top, width, height = row["bbox"]
        try:
            with Image.open(images / f"{row['image']}.jpg") as image:
                # A box may reach a pixel over the edge; cutting it there moves no keypoint.
                box = (max(left, 0), max(top, 0), min(left + width, image.width), min(top + height, image.height))
                crop = image.convert("RGB").resize((CROP, CROP), resample=Image.Resampling.BICUBIC, box=box)
        except (OSError, ValueError) as error:
            raise KeypointError(
                f"{images / row['image']}.jpg cannot be cropped ({error}). Fix: copy it again."
            ) from None
        content = io.BytesIO()
        crop.save(content, format="webp", quality=_QUALITY)
        yield row["id"], content.getvalue()
