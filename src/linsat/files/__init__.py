"""Constraint sets in files: JSON, numpy archives, and LP or MPS through HiGHS."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError, LinSATWarning
from linsat.files.model import Model, write_whole
from linsat.interop.two_sided import read_box

__all__ = ["Model", "load", "read_model", "save"]

_ENDINGS = (".json", ".npz", ".lp", ".mps")


def load(path: str | os.PathLike[str], *, box: tuple[float, float] | None = None) -> Constraints:
    """The constraint set in a file.

    Args:
        path: a file that ends in .json, .npz, .lp or .mps (docs/files.md has the formats). LP and MPS are read by
            HiGHS and need the extra ``highs``.
        box: bounds (lower, upper) for variables of an LP or MPS file that have none; without it they stay infinite.

    Warns:
        LinSATWarning: variables of an LP or MPS file that must be integers are relaxed.

    Raises:
        ConstraintError: the file is missing, damaged, too large or not a constraint set; names file, place and fix.
        ImportError: HiGHS is not installed.
    """
    model = read_model(path, box=box)
    if model.relaxed:
        warnings.warn(f"{path}: {model.notes[0]}.", LinSATWarning, stacklevel=2)
    return model.constraints


def read_model(path: str | os.PathLike[str], *, box: tuple[float, float] | None = None) -> Model:
    """Like `load`, with the names of the variables, the objective as scores, and notes on what was changed."""
    file = Path(path)
    ending = file.suffix.lower()
    ends = read_box(box)
    if ending not in _ENDINGS:
        raise ConstraintError(f"{file}: the name ends in {ending!r}; expected one of {', '.join(_ENDINGS)}.")
    if not file.is_file():
        found = "is not a regular file" if file.exists() else "does not exist"
        raise ConstraintError(f"{file}: the file {found}; expected a constraint file. Fix: check the path.")
    try:
        if ending == ".json":
            from linsat.files.json_format import read_json

            return read_json(file)
        if ending == ".npz":
            from linsat.files.npz_format import read_npz

            return read_npz(file)
        from linsat.files.highs_format import read_highs

        return read_highs(file, ends)
    except ConstraintError as error:
        raise ConstraintError(f"{file}: {error}") from None
    except MemoryError:
        raise ConstraintError(f"{file}: not enough memory to read it. Fix: save large sets as sparse .npz.") from None


def save(constraints: Constraints, path: str | os.PathLike[str]) -> None:
    """Write a constraint set to a .json, .npz, .lp or .mps file, whole or not at all.

    JSON and npz keep every number to the last bit, names, and per-instance right-hand sides and bounds; npz keeps
    per-instance coefficients too. LP and MPS (extra ``highs``) hold one instance, names with spaces as underscores.
    Learned tensors are written as they are now.

    Raises:
        ConstraintError: an unknown ending, or a set that the format cannot hold.
    """
    file = Path(path)
    ending = file.suffix.lower()
    if not isinstance(constraints, Constraints):
        raise ConstraintError(f"constraints is {type(constraints).__name__}; expected linsat.Constraints.")
    if ending not in _ENDINGS:
        raise ConstraintError(f"{file}: the name ends in {ending!r}; expected one of {', '.join(_ENDINGS)}.")
    if constraints.num_variables is None:
        raise ConstraintError(
            "constraints fit any number of variables, so a file cannot hold them. "
            "Fix: give lower or upper one entry per variable."
        )
    if ending == ".json":
        from linsat.files.json_format import write_json

        write_whole(file, lambda part: write_json(part, constraints))
    elif ending == ".npz":
        from linsat.files.npz_format import write_npz

        write_whole(file, lambda part: write_npz(part, constraints))
    else:
        from linsat.files.highs_format import write_highs

        write_whole(file, lambda part: write_highs(part, constraints))
