"""Score files read piece by piece, so that a file may be larger than memory: npy, npz, csv and parquet."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from linsat._optional import require
from linsat.errors import ConstraintError
from linsat.files.npz_format import array_header, open_archive

_LONGEST_LINE = 64 * 2**20


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
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    columns: tuple[str, ...] | None
    read: Callable[[int, int], Iterator[np.ndarray]]
    axes: int = 1

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

        return replace(self, read=read, axes=len(shape))

    def digest(self) -> str:
        """SHA-256 of the file; about a second per gigabyte."""
        found = hashlib.sha256()
        with open(self.path, "rb") as file:
            while block := file.read(2**22):
                found.update(block)
        return found.hexdigest()


def open_scores(path: Path) -> ScoreFile:
    """Look at a score file without reading its numbers (a csv file is read once to count its lines).

    Raises:
        ConstraintError: missing, damaged, or not floating-point scores; names file, place and fix.
    """
    openers = {".npy": _open_npy, ".npz": _open_npz, ".csv": _open_csv, ".parquet": _open_parquet}
    ending = path.suffix.lower()
    if ending not in openers:
        raise ConstraintError(f"{path}: the name ends in {ending!r}; expected one of {', '.join(openers)}.")
    if not path.is_file():
        found = "is not a regular file" if path.exists() else "does not exist"
        raise ConstraintError(f"{path}: the file {found}; expected scores. Fix: check the path.")
    try:
        scores = openers[ending](path)
    except ConstraintError as error:
        raise ConstraintError(f"{path}: {error}") from None
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


def _open_csv(path: Path) -> ScoreFile:
    first: list[str] | None = None
    lines = 0
    for _, cells in _csv_lines(path):
        first = cells if first is None else first
        lines += 1
    if first is None:
        raise ConstraintError("the file is empty; expected one line of scores per instance.")
    names = None if all(_is_number(cell) for cell in first) else tuple(cell.strip() for cell in first)
    variables = len(first)

    def read(start: int, size: int) -> Iterator[np.ndarray]:
        chunk: list[list[float]] = []
        skip = start + (names is not None)
        for position, (line, cells) in enumerate(_csv_lines(path)):
            if position < skip:
                continue
            if len(cells) != variables:
                raise ConstraintError(
                    f"{path}: line {line} has {len(cells)} cells; expected {variables} as in the first."
                )
            try:
                chunk.append([float(cell) for cell in cells])
            except ValueError:
                column = next(i for i, cell in enumerate(cells) if not _is_number(cell))
                raise ConstraintError(
                    f"{path}: line {line}, column {column + 1} holds {cells[column][:40]!r}; expected a number."
                ) from None
            if len(chunk) == size:
                yield np.array(chunk)
                chunk = []
        if chunk:
            yield np.array(chunk)

    return ScoreFile(path, (lines - (names is not None), variables), np.dtype(np.float64), names, read)


def _csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of every line that is not empty."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_bounded(file), strict=True)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConstraintError(f"{path.name} is not comma-separated text ({error}).") from None


def _bounded(file: Any) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise ConstraintError(
                f"a line is longer than {_LONGEST_LINE:,} characters; expected one line per instance."
            )
        yield line


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _open_parquet(path: Path) -> ScoreFile:
    parquet = require("pyarrow.parquet", extra="cli", purpose="reading parquet files")
    pyarrow = require("pyarrow", extra="cli", purpose="reading parquet files")
    try:
        with parquet.ParquetFile(path) as file:
            schema, count = file.schema_arrow, int(file.metadata.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConstraintError(f"not a parquet file ({str(error).partition(chr(10))[0]}).") from None
    for field in schema:
        if not pyarrow.types.is_floating(field.type):
            raise ConstraintError(
                f"column {field.name!r} has type {field.type}; expected floating scores, one column per variable. "
                f"Fix: leave out or convert the column."
            )
    single = all(field.type == pyarrow.float32() for field in schema)
    dtype = np.dtype(np.float32 if single else np.float64)

    def read(start: int, size: int) -> Iterator[np.ndarray]:
        skip = start
        kept: list[np.ndarray] = []
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=size):
                for name, column in zip(schema.names, batch.columns, strict=True):
                    if column.null_count:
                        raise ConstraintError(f"{path}: column {name!r} has missing values; expected a score each.")
                columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                rows = np.stack(columns, axis=1).astype(dtype, copy=False)
                rows, skip = rows[skip:], max(0, skip - len(rows))
                kept.append(rows)
                # Row groups end where they like; chunks may not depend on them.
                while sum(map(len, kept)) >= size:
                    joined = np.concatenate(kept)
                    yield joined[:size]
                    kept = [joined[size:]]
        if sum(map(len, kept)):
            yield np.concatenate(kept)

    return ScoreFile(path, (count, len(schema)), dtype, tuple(schema.names), read)
