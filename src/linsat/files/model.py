"""What a constraint file holds, the limits on it, and writing files whole."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linsat.constraints.coefficients import read_matrix
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Layout
from linsat.constraints.terms import Terms
from linsat.constraints.variables import Variable, read_layout
from linsat.errors import ConstraintError

# An untrusted file may cost this much and no more. Text takes about ten times its size in memory while it is read.
MOST_TEXT_BYTES = 64 * 2**20
MOST_ARRAY_BYTES = 2**30
MOST_VARIABLES = 5_000_000
SECONDS_TO_READ = 60.0

VERSION = 1
MATRICES = {"A": "b", "C": "d", "E": "f"}  # each with its right-hand side


@dataclass(frozen=True)
class Model:
    """A constraint file.

    Attributes:
        constraints: its rows and box.
        scores: (variables,) scores that its objective asks for (minus the cost, where it minimises); None without one.
        notes: what a user should know: integrality relaxed, objective set aside, rows that became two.
        relaxed: whether some variables must be integers in the file, which `Constraints` does not ask for.
    """

    constraints: Constraints
    scores: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    relaxed: bool = False

    @property
    def num_variables(self) -> int:
        """How many variables there are; a set without rows over one variable does not know by itself."""
        return self.constraints.num_variables or 1

    @property
    def variables(self) -> tuple[str, ...] | None:
        """Names of the variables, where the file gives them."""
        layout = self.constraints._layout
        return None if layout is None else tuple(layout.entries())


def described(layout: Layout) -> list[Any]:
    """The variables of a set as a file lists them: names, or an object each with name, shape and labels."""
    if not layout.variables[0].name:
        return layout.entries()
    entries: list[dict[str, Any]] = []
    for variable in layout.variables:
        entries.append({"name": variable.name, "shape": list(variable.shape)})
        if any(variable.labels):
            entries[-1]["labels"] = [None if words is None else list(words) for words in variable.labels]
    return entries


def read_described(value: list[Any]) -> Layout:
    """Variables from a list of objects with name, shape and labels."""
    variables, size = [], 0
    for position, part in enumerate(value):
        place = f"variables[{position}]"
        if not isinstance(part, dict) or not {"name"} <= part.keys() <= {"name", "shape", "labels"}:
            raise ConstraintError(
                f'{place} is not understood; expected {{"name": "x", "shape": [4, 5]}}, with "labels" if there are any.'
            )
        shape, labels = part.get("shape", []), part.get("labels")
        if not isinstance(shape, list) or not all(type(n) is int and 1 <= n <= MOST_VARIABLES for n in shape):
            raise ConstraintError(f"shape of {place} is {str(shape)[:40]}; expected a list of positive lengths.")
        size += math.prod(shape)
        check_variable_count(size)
        labels = [None] * len(shape) if labels is None else labels
        if not isinstance(labels, list) or len(labels) != len(shape):
            raise ConstraintError(f"labels of {place} do not fit its shape; expected one list, or null, per axis.")
        axes = [length if words is None else words for length, words in zip(shape, labels, strict=True)]
        try:
            variables.append(Variable(*axes, name=part["name"]))
        except ConstraintError as error:
            raise ConstraintError(f"{place}: {error}") from None
        if list(variables[-1].shape) != shape:
            raise ConstraintError(f"labels of {place} do not fit its shape; expected one label per entry of an axis.")
    layout = read_layout(variables)
    assert layout is not None
    return layout


def check_variable_count(count: int) -> None:
    """Reject a number of variables that no file of this size can mean."""
    if not 1 <= count <= MOST_VARIABLES:
        raise ConstraintError(f"variables is {count}; expected between 1 and {MOST_VARIABLES:,}.")


def with_prices(constraints: Constraints, price: np.ndarray) -> Constraints:
    """The set with the prices of a file: a number, one per row or (batch..., rows); infinite where a row is hard."""
    if price.dtype.kind not in "fiub" or (price.ndim and price.shape[-1] != len(constraints)):
        raise ConstraintError(
            f"price has dtype {price.dtype} and shape {price.shape}; expected a number, or one for each of "
            f"{len(constraints)} rows."
        )
    return constraints._with_full_price(
        np.broadcast_to(price.astype(np.float64), (*price.shape[:-1], len(constraints)))
    )


def read_terms(T: Any, t: Any, names: Any, pieces: np.ndarray, rows: np.ndarray, arguments: Mapping[str, Any]) -> Terms:
    """The maxima of a file: pieces (base, sign, maximum) and rows (row, weight), in rows of the matrices in arguments.

    Raises:
        ConstraintError: they do not fit together, or the rows would not be convex.
    """
    fits = pieces.ndim == rows.ndim == 2 and pieces.shape[1:] == (3,) and rows.shape[1:] == (2,) and len(rows) > 0
    if not fits or not np.isfinite(pieces).all() or not np.isfinite(rows).all():
        raise ConstraintError(
            f"pieces and rows of the maxima have shapes {pieces.shape} and {rows.shape}; expected (base, sign, "
            f"maximum) and (row, weight) for each of them, finite."
        )
    base, sign, of = pieces.T
    row, weight = rows.T
    height = len(names)
    counts = [read_matrix(name, arguments[name]).shape[0] if name in arguments else 0 for name in MATRICES]
    whole = all((part == np.floor(part)).all() for part in (base, of, row))
    inside = whole and ((base >= 0) & (base < height)).all() and ((row >= 0) & (row < counts[0] + counts[1])).all()
    steps = np.diff(of, prepend=-1.0)
    ordered = ((steps == 0) | (steps == 1)).all() and of[0] == 0 and of[-1] == len(rows) - 1
    if not inside or not ordered or not (np.abs(sign) == 1).all():
        raise ConstraintError(
            "pieces or rows of the maxima refer to a base, a maximum or an inequality that does not exist, or are "
            "out of order; expected pieces in the order of their maxima, signs 1 or -1."
        )
    wrong = np.flatnonzero(np.where(row < counts[0], weight, -weight) <= 0)
    if len(wrong):
        raise ConstraintError(
            f"maximum {wrong[0]} has weight {weight[wrong[0]]:g}; expected a positive one in a <= row and a negative "
            f"one in a >= row, without which the set is not convex."
        )
    if not all(isinstance(name, str) for name in names):
        raise ConstraintError("names of the maxima must be texts, one for each row of T, empty without a name.")
    made = Terms.made(T, t, names, base, sign, of, row, weight)
    if made.matrix.shape[0] != height:
        raise ConstraintError(f"T of the maxima has {made.matrix.shape[0]} rows and {height} names; expected as many.")
    return made


def check_size(path: Path, most: int) -> None:
    """Reject files that are empty or larger than ``most`` bytes, before reading them."""
    size = path.stat().st_size
    if size == 0:
        raise ConstraintError(
            "the file is empty; expected constraints. Fix: write it again, e.g. with Constraints.save."
        )
    if size > most:
        raise ConstraintError(
            f"the file has {size:,} bytes; expected at most {most:,}. Fix: save large sets as sparse .npz."
        )


def read_text(path: Path) -> str:
    """A text file in UTF-8, within the limits."""
    check_size(path, MOST_TEXT_BYTES)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConstraintError(
            f"byte {error.start} is 0x{error.object[error.start]:02x}, which is not UTF-8; expected text. "
            f"Fix: check that this is the file you meant."
        ) from None


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside ``path`` and move it there: an error leaves an older file as it was."""
    # The ending stays: some writers choose the format by it.
    part = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        write(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
