"""Constraint sets in files: JSON, numpy archives, and LP or MPS through HiGHS."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError, LinSATWarning
from linsat.files.model import Model, write_whole
from linsat.interop.two_sided import read_box

__all__ = ["Model", "read_model"]

_ENDINGS = (".json", ".npz", ".lp", ".mps")


def load(path: str | os.PathLike[str], box: tuple[float, float] | None) -> Constraints:
    """See `Constraints.load`."""
    model = read_model(path, box=box)
    if model.relaxed:
        warnings.warn(f"{path}: {model.notes[0]}.", LinSATWarning, stacklevel=3)
    return model.constraints


def read_model(path: str | os.PathLike[str], *, box: tuple[float, float] | None = None) -> Model:
    """Like `Constraints.load`, with names of variables, the objective as scores, and notes on what was changed."""
    file = Path(path)
    ending = file.suffix.lower()
    ends = read_box(box)
    _check_ending(file)
    if not file.is_file():
        fault = "is not a regular file" if file.exists() else "does not exist"
        raise ConstraintError(f"{file}: the file {fault}; expected a constraint file. Fix: check the path.")
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


def _check_ending(file: Path) -> None:
    if file.suffix.lower() not in _ENDINGS:
        raise ConstraintError(
            f"{file}: the name ends in {file.suffix!r}; expected one of {', '.join(_ENDINGS)}. Fix: {file.stem}.json."
        )


def save(constraints: Constraints, path: str | os.PathLike[str]) -> None:
    """See `Constraints.save`."""
    file = Path(path)
    ending = file.suffix.lower()
    _check_ending(file)
    if not file.parent.is_dir():
        raise ConstraintError(f"{file}: there is no folder {file.parent}; expected one. Fix: make it first.")
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
