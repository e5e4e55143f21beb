"""The output of ``linsat project``: an array that grows by chunks, and the csv or parquet file made of it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from linsat.errors import ConstraintError, LinSATError
from linsat_tools.cli.record import Job, Record
from linsat_tools.scores import ScoreFile

_NUMBERS_AT_ONCE = 2**21


def _header(scores: ScoreFile) -> bytes:
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(scores.dtype)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": scores.shape})
    return header.getvalue()


@contextlib.contextmanager
def unfinished(job: Job, record: Record, scores: ScoreFile) -> Iterator[IO[bytes]]:
    """The unfinished output, cut to what the record vouches for, ready to be continued."""
    header = _header(scores)
    size = len(header) + record.done * scores.variables * scores.dtype.itemsize
    if record.done and (not job.part.exists() or job.part.stat().st_size < size):
        raise ConstraintError(f"{job.part} is shorter than {job.record} says. Fix: --overwrite to start again.")
    with open(job.part, "r+b" if record.done else "a+b") as file:
        _lock(file, job.part)
        if record.done == 0:
            record.write(job.record)  # first: the record of an older run may not vouch for this file
            file.truncate(0)
            file.write(header)
        else:
            file.truncate(size)
            file.seek(size)
        try:
            yield file
        except LinSATError:
            if record.done == 0:  # nothing to continue, and the corrected run may start
                job.part.unlink(missing_ok=True)
                job.record.unlink(missing_ok=True)
            raise


def _lock(file: IO[bytes], path: Path) -> None:
    """Two runs into one file would spoil both; the lock ends with the process, however it ends."""
    with contextlib.suppress(ImportError):  # not on every system
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConstraintError(
                f"{path} is being written by another run. Fix: wait for it, or another --out."
            ) from None


def finish(job: Job, scores: ScoreFile, variables: Sequence[str]) -> None:
    """Make the output of the complete ``.part``: by renaming, or by writing a table beside and renaming that.

    Killed at any moment, it can be called again.
    """
    if job.out.suffix.lower() == ".npy":
        job.part.replace(job.out)
        return
    beside = job.out.with_name(job.out.name + ".new")
    try:
        with open(beside, "wb") as file:
            _write_table(file, job, scores, variables)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(job.out)
    finally:
        beside.unlink(missing_ok=True)
    job.part.unlink(missing_ok=True)


def check_table(job: Job, scores: ScoreFile, variables: Sequence[str]) -> None:
    """Reject a table that cannot be written, before anything is solved."""
    if job.out.suffix.lower() == ".npy":
        return
    import pyarrow as arrow

    with _writer(io.BytesIO(), job.out, arrow.schema([])):
        pass
    schema = _schema(scores, variables)
    for field in schema:
        try:
            with _writer(io.BytesIO(), job.out, arrow.schema([field])) as writer:
                writer.write_table(arrow.schema([field]).empty_table())
        except arrow.ArrowException:
            raise ConstraintError(
                f"{scores.path}: column {field.name!r} has type {field.type}, which {job.out.name} cannot hold. "
                f"Fix: --out with another ending, or leave the column out."
            ) from None


def _schema(scores: ScoreFile, variables: Sequence[str]) -> Any:
    """The columns of the output: those of the score file, x in place of the scores; else one per variable."""
    import pyarrow as arrow

    number = arrow.float32() if scores.dtype == np.float32 else arrow.float64()
    table = scores.table
    if table is None or table.names is None:
        return arrow.schema([(name, number) for name in variables])
    types = table.types or [arrow.string()] * table.width
    chosen = set(scores.places)
    return arrow.schema([(name, number if place in chosen else types[place]) for place, name in enumerate(table.names)])


def _write_table(file: IO[bytes], job: Job, scores: ScoreFile, variables: Sequence[str]) -> None:
    import pyarrow as arrow

    schema = _schema(scores, variables)
    size = max(1, _NUMBERS_AT_ONCE // len(schema))
    table = scores.table if scores.table is not None and scores.table.names is not None else None
    places = list(range(len(variables))) if table is None else list(scores.places)
    others = [place for place in range(len(schema)) if place not in set(places)]
    passed = table.passed(others, size) if table is not None and others else None
    with open(job.part, "rb") as part, _writer(file, job.out, schema) as writer:
        part.seek(len(_header(scores)))
        for first in range(0, scores.instances, size):
            rows = min(size, scores.instances - first)
            x = np.fromfile(part, dtype=scores.dtype, count=rows * scores.variables).reshape(rows, scores.variables)
            columns: list[Any] = [None] * len(schema)
            for column, place in enumerate(places):
                columns[place] = arrow.array(np.ascontiguousarray(x[:, column]), schema.field(place).type)
            if passed is not None:
                for place, values in zip(others, next(passed).columns, strict=True):
                    columns[place] = values
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))


def _writer(file: IO[bytes], out: Path, schema: Any) -> Any:
    from pyarrow import csv, parquet

    if out.suffix.lower() == ".csv":
        return csv.CSVWriter(file, schema)
    return parquet.ParquetWriter(file, schema)
