"""Score files read piece by piece, so that a file may be larger than memory: npy, npz, csv and parquet."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from linsat.constraints.names import reject_unknown
from linsat.errors import ConstraintError
from linsat.files.npz_format import array_header, open_archive
from linsat_tools.tables import Table, open_csv, open_parquet


@dataclass(frozen=True)
class ScoreFile:
    """Scores of many instances in a file.

    Attributes:
        path: the file.
        shape: of all scores, (batch..., variables), or (batch..., *shape) with ``axes``.
        dtype: of the scores, native byte order.
        columns: names of the variables, where the file has them.
        read: ``read(start, size)`` yields arrays (size, variables) from instance ``start`` on, the last one shorter.
        axes: how many of the last axes are one instance.
        table: the columns of a csv or parquet file, those that are no scores included.
        places: which columns of the table hold the scores, in the order of the variables.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    columns: tuple[str, ...] | None
    read: Callable[[int, int], Iterator[np.ndarray]]
    axes: int = 1
    table: Table | None = None
    places: tuple[int, ...] = ()

    @property
    def variables(self) -> int:
        return math.prod(self.shape[-self.axes :])

    @property
    def instances(self) -> int:
        return math.prod(self.shape[: -self.axes])

    def shaped(self, shape: tuple[int, ...]) -> ScoreFile:
        """The same scores where an instance has several axes: it is several lines of the file, which come as one."""
        lines = math.prod(shape[:-1])

        def read(start: int, size: int) -> Iterator[np.ndarray]:
            for piece in self.read(start * lines, size * lines):
                yield piece.reshape(-1, math.prod(shape))

        return replace(self, read=read, axes=len(shape), table=None)

    def digest(self) -> str:
        """SHA-256 of the file; about a second per gigabyte."""
        found = hashlib.sha256()
        with open(self.path, "rb") as file:
            while block := file.read(2**22):
                found.update(block)
        return found.hexdigest()


def open_scores(path: Path, *, variables: Sequence[str] | None = None, ids: Sequence[str] = ()) -> ScoreFile:
    """Look at a score file without reading its numbers (a csv file is read once to count its rows).

    Args:
        path: a file that ends in .npy, .npz, .csv or .parquet; the last two need the extra ``cli``.
        variables: names of the variables; the columns of a table are matched with them.
        ids: names of columns that are no scores.

    Raises:
        ConstraintError: missing, damaged, or not floating-point scores; names file, place and fix.
        ImportError: pyarrow is not installed.
    """
    arrays, tables = {".npy": _open_npy, ".npz": _open_npz}, {".csv": open_csv, ".parquet": open_parquet}
    ending = path.suffix.lower()
    if ending not in (*arrays, *tables):
        raise ConstraintError(f"{path}: the name ends in {ending!r}; expected one of {', '.join((*arrays, *tables))}.")
    if not path.is_file():
        found = "is not a regular file" if path.exists() else "does not exist"
        raise ConstraintError(f"{path}: the file {found}; expected scores. Fix: check the path.")
    try:
        if ids and ending in arrays:
            raise ConstraintError(f"--id is {ids[0]!r}, but the file is an array without columns. Fix: leave it out.")
        scores = arrays[ending](path) if ending in arrays else _open_table(tables[ending](path), variables, ids)
    except ConstraintError as error:
        said = str(error)
        raise ConstraintError(said if said.startswith(str(path)) else f"{path}: {said}") from None
    if scores.shape[-1] == 0 or scores.instances == 0:
        raise ConstraintError(f"{path}: scores have shape {scores.shape}; expected at least one instance and variable.")
    return scores


def _check_array(shape: tuple[int, ...], dtype: np.dtype) -> None:
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise ConstraintError(f"scores have dtype {dtype}; expected floating scores. Fix: scores.astype('float32').")
    if not shape:
        raise ConstraintError("scores have no dimension; expected (instances, variables).")


def _open_npy(path: Path) -> ScoreFile:
    with open(path, "rb") as file:
        shape, fortran, dtype = array_header(file)
        offset = file.tell()
    _check_array(shape, dtype)
    if fortran and len(shape) > 2:
        raise ConstraintError(
            f"scores {shape} are in Fortran order. Fix: numpy.save(path, numpy.ascontiguousarray(y))."
        )
    count, variables = _flat(shape)
    needed, there = offset + count * variables * dtype.itemsize, path.stat().st_size
    if there < needed:
        raise ConstraintError(f"the file has {there:,} bytes; expected {needed:,} for shape {shape}. It is cut off.")

    def read(start: int, size: int) -> Iterator[np.ndarray]:
        # Plain reads: pages of a memory map would count as memory of this process for as long as there is room.
        with open(path, "rb") as file:
            for first in range(start, count, size):
                rows = min(size, count - first)
                if not fortran:
                    file.seek(offset + first * variables * dtype.itemsize)
                    yield np.fromfile(file, dtype=dtype, count=rows * variables).reshape(rows, variables)
                    continue
                chunk = np.empty((rows, variables), dtype=dtype)
                for column in range(variables):
                    file.seek(offset + (column * count + first) * dtype.itemsize)
                    chunk[:, column] = np.fromfile(file, dtype=dtype, count=rows)
                yield chunk

    return ScoreFile(path, shape, dtype.newbyteorder("="), None, read)


def _open_npz(path: Path) -> ScoreFile:
    with open_archive(path) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        key = "scores" if "scores" in members else next(iter(members), None)
        if key is None or (key != "scores" and len(members) > 1):
            raise ConstraintError(
                f"the file holds arrays {', '.join(members) or 'none'}; expected one, or one named 'scores'."
            )
        member = members[key]
        with archive.open(member) as stream:
            shape, fortran, dtype = array_header(stream)
    _check_array(shape, dtype)
    if fortran:
        raise ConstraintError(f"array {key!r} is in Fortran order. Fix: save numpy.ascontiguousarray(y).")
    count, variables = _flat(shape)

    def read(start: int, size: int) -> Iterator[np.ndarray]:
        with open_archive(path) as archive, archive.open(member) as stream:
            array_header(stream)
            stream.seek(start * variables * dtype.itemsize, 1)
            for first in range(start, count, size):
                rows = min(size, count - first)
                block = stream.read(rows * variables * dtype.itemsize)
                if len(block) < rows * variables * dtype.itemsize:
                    raise ConstraintError(f"{path}: array {key!r} ends early. Fix: write the file again.")
                yield np.frombuffer(block, dtype=dtype).reshape(rows, variables)

    return ScoreFile(path, shape, dtype.newbyteorder("="), None, read)


def _flat(shape: Sequence[int]) -> tuple[int, int]:
    count = 1
    for length in shape[:-1]:
        count *= int(length)
    return count, int(shape[-1])


def _open_table(table: Table, variables: Sequence[str] | None, ids: Sequence[str]) -> ScoreFile:
    places, others = scores_and_others(table, variables, ids)
    dtype = table.dtype(places)
    columns = None if table.names is None else tuple(table.names[place] for place in places)

    def read(start: int, size: int) -> Iterator[np.ndarray]:
        return table.numbers(places, start, size)

    return ScoreFile(table.path, (table.count(others), len(places)), dtype, columns, read, table=table, places=places)


def scores_and_others(
    table: Table, variables: Sequence[str] | None, ids: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which columns hold the scores, in the order of the variables, and which are passed through, in the file's order.

    Columns are matched by name where both sides have names; else those that are not ``ids`` are the variables in turn.

    Raises:
        ConstraintError: a variable without a column, an id that is no column or is a variable, a name that is not
            unique.
    """
    if table.names is None:
        if ids:
            raise ConstraintError(f"--id is {ids[0]!r}, but the file has no line of names. Fix: add one.")
        return tuple(range(table.width)), ()
    position = {name: place for place, name in enumerate(table.names)}
    if len(position) < table.width:
        twice = next(name for place, name in enumerate(table.names) if position[name] != place)
        raise ConstraintError(f"two columns are named {twice!r}. Fix: one name per column.")
    for name in ids:
        if name not in position:
            reject_unknown("column", name, table.names)
        if variables is not None and name in variables:
            raise ConstraintError(f"--id is {name!r}, which is a variable of the constraint file. Fix: leave it out.")
    if variables is None:
        places = tuple(place for name, place in position.items() if name not in ids)
    else:
        for name in variables:
            if name not in position:
                reject_unknown("column", name, table.names)
        places = tuple(position[name] for name in variables)
    chosen = set(places)
    return places, tuple(place for place in range(table.width) if place not in chosen)
