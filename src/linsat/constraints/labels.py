"""Labels of the axes of an array: in an index, in the text of an index, and after entries were picked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linsat.constraints.names import reject_unknown
from linsat.errors import ConstraintError

Labels = tuple[tuple[str, ...] | None, ...]  # one entry per axis; None: its indices are numbers


def index_text(index: Sequence[Any], labels: Labels) -> str:
    """``[3, Mon]`` for an index into an array whose second axis has labels; empty for an array without axes."""
    parts = [str(i) if axis is None else axis[i] for i, axis in zip(index, labels, strict=True)]
    return f"[{', '.join(parts)}]" if parts else ""


def labels_at(chosen: np.ndarray, shape: tuple[int, ...], labels: Labels) -> Labels:
    """Labels for an array of entries of an array: an axis along which the index of one old axis changes has its labels.

    Args:
        chosen: positions in the flattened old array.
        shape, labels: of the old array.
    """
    found: list[tuple[str, ...] | None] = [None] * chosen.ndim
    if not any(labels) or not chosen.size:
        return tuple(found)
    places = np.unravel_index(chosen, shape)
    axes = range(chosen.ndim)
    changes = [[bool((place != place.take([0], axis)).any()) for axis in axes] for place in places]
    for axis in axes:
        here = [old for old, changed in enumerate(changes) if changed[axis]]
        words = labels[here[0]] if len(here) == 1 and sum(changes[here[0]]) == 1 else None
        if words is not None:
            line = np.moveaxis(places[here[0]], axis, 0).reshape(chosen.shape[axis], -1)[:, 0]
            found[axis] = tuple(words[i] for i in line)
    return tuple(found)


def numbered_index(parts: tuple[Any, ...], labels: Labels) -> tuple[Any, ...]:
    """An index with numbers in place of labels."""
    used = [_axes_used(part) for part in parts]
    found, axis = [], 0
    for position, part in enumerate(parts):
        if part is ...:
            axis = len(labels) - sum(used[position + 1 :])
        words = labels[axis] if used[position] and axis < len(labels) else None
        found.append(_numbered(part, words))
        axis += used[position]
    return tuple(found)


def _axes_used(part: Any) -> int:
    """How many axes of an array one part of an index takes."""
    if part is None or part is ...:
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1


def _numbered(part: Any, labels: tuple[str, ...] | None) -> Any:
    if isinstance(part, list) and part and all(isinstance(word, str) for word in part):
        return [_numbered(word, labels) for word in part]
    if not isinstance(part, str):
        return part
    if labels is None:
        raise ConstraintError(
            f"The index has the label {part!r}, but that axis has none. Fix: a number, or Variable([{part!r}, ...]) "
            f"with labels for the axis."
        )
    if part not in labels:
        reject_unknown("entry of this axis", part, labels)
    return labels.index(part)
