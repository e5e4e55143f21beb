"""What a constraint file holds, the limits on it, and writing files whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from linsat.constraints.constraint_set import Constraints
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
        variables: names of the variables, where the file gives them.
        scores: (variables,) scores that its objective asks for (minus the cost, where it minimises); None without one.
        notes: what a user should know: integrality relaxed, objective set aside, rows that became two.
        relaxed: whether some variables must be integers in the file, which `Constraints` does not ask for.
    """

    constraints: Constraints
    variables: tuple[str, ...] | None = None
    scores: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    relaxed: bool = False

    @property
    def num_variables(self) -> int:
        """How many variables there are; a set without rows over one variable does not know by itself."""
        return self.constraints.num_variables or 1

    def variable(self, index: int) -> str:
        """Name of a variable for messages."""
        return f"x[{index}]" if self.variables is None else self.variables[index]


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
    numbers = torch.from_numpy(price.astype(np.float64))
    return constraints.with_full_price(numbers.expand(*numbers.shape[:-1], len(constraints)))


def check_size(path: Path, most: int) -> None:
    """Reject files that are empty or larger than ``most`` bytes, before reading them."""
    size = path.stat().st_size
    if size == 0:
        raise ConstraintError(
            "the file is empty; expected constraints. Fix: write it again, e.g. with linsat.files.save."
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
