"""Tables in csv and parquet files: their columns, read by pyarrow in pieces of any size."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linsat.errors import ConstraintError

_LONGEST_LINE = 64 * 2**20
_BLOCK = 2**20  # bytes of a csv file that are parsed at once; pyarrow reads up to 32 blocks ahead


@dataclass(frozen=True)
class Table:
    """A file of columns.

    Attributes:
        path: the file.
        names: of the columns; None for a csv file without a line of names.
        width: how many columns there are.
        types: the arrow type of each column of a parquet file; None for a csv file, whose columns are read as asked.
        first_line: of a csv file, the number of physical lines before the first row of the table.
        block: of a csv file, bytes to parse at once; a line must fit.
    """

    path: Path
    names: tuple[str, ...] | None
    width: int
    types: tuple[Any, ...] | None = None
    first_line: int = 0
    block: int = _BLOCK

    def name(self, column: int) -> str:
        """A column for messages."""
        return f"column {column + 1}" if self.names is None else f"column {self.names[column]!r}"

    def dtype(self, columns: Sequence[int]) -> np.dtype:
        """The dtype of scores in these columns.

        Raises:
            ConstraintError: a column of a parquet file is not floating.
        """
        if self.types is None:
            return np.dtype(np.float64)
        import pyarrow as arrow

        for column in columns:
            if not arrow.types.is_floating(self.types[column]):
                raise ConstraintError(
                    f"{self.name(column)} has type {self.types[column]}; expected floating scores. Fix: convert the "
                    f"column, or pass it through with --id."
                )
        single = all(self.types[column] == arrow.float32() for column in columns)
        return np.dtype(np.float32 if single else np.float64)

    def count(self, texts: Sequence[int]) -> int:
        """How many rows there are. A csv file is parsed once for it, and the columns ``texts`` checked to be text."""
        if self.types is not None:
            from pyarrow import parquet

            with parquet.ParquetFile(self.path) as file:
                return int(file.metadata.num_rows)
        return sum(batch.num_rows for batch in self._csv_batches(texts or [0], numeric=False))

    def numbers(self, columns: Sequence[int], start: int, size: int) -> Iterator[np.ndarray]:
        """Arrays (size, columns) of the numbers from row ``start`` on; the last one may be shorter."""
        dtype = self.dtype(columns)
        for piece in _pieces(self._batches(columns, numeric=True), start, size):
            found = np.empty((piece.num_rows, len(columns)), dtype=dtype)
            for place, column in enumerate(columns):
                values = piece.column(place)
                if values.null_count:
                    raise ConstraintError(
                        f"{self.path}: {self.name(column)} has missing values; expected a score each."
                    )
                found[:, place] = values.to_numpy()
            yield found

    def passed(self, columns: Sequence[int], size: int) -> Iterator[Any]:
        """Arrow tables (size rows) of the columns as they are; those of a csv file are text."""
        yield from _pieces(self._batches(columns, numeric=False), 0, size)

    def _batches(self, columns: Sequence[int], *, numeric: bool) -> Iterator[Any]:
        return self._csv_batches(columns, numeric=numeric) if self.types is None else self._parquet_batches(columns)

    def _parquet_batches(self, columns: Sequence[int]) -> Iterator[Any]:
        import pyarrow as arrow
        from pyarrow import parquet

        assert self.names is not None
        names = [self.names[column] for column in columns]
        try:
            with parquet.ParquetFile(self.path) as file:
                for batch in file.iter_batches(columns=names):
                    yield batch.select(names)  # the file's order is another
        except (arrow.ArrowException, OSError) as error:
            raise ConstraintError(f"{self.path}: cannot be read ({_first_line(error)}).") from None

    def _csv_batches(self, columns: Sequence[int], *, numeric: bool) -> Iterator[Any]:
        import pyarrow as arrow
        import pyarrow.csv as csv_module

        places = [str(column) for column in range(self.width)]
        wanted = [places[column] for column in columns]
        kind = arrow.float64() if numeric else arrow.string()
        try:
            with csv_module.open_csv(
                self.path,
                csv_module.ReadOptions(
                    use_threads=False, block_size=self.block, skip_rows=self.first_line, column_names=places
                ),
                csv_module.ParseOptions(newlines_in_values=True),
                csv_module.ConvertOptions(
                    column_types=dict.fromkeys(wanted, kind), include_columns=wanted, null_values=[]
                ),
            ) as reader:
                yield from reader
        except arrow.ArrowInvalid as error:
            raise _explained(self, columns if numeric else (), error) from None


def open_csv(path: Path) -> Table:
    """Look at the first line of a csv file: names, unless every cell is a number."""
    first, lines = next(_csv_lines(path), (None, 0))
    if first is None:
        raise ConstraintError("the file is empty; expected one line of scores per instance.")
    with open(path, "rb") as file:
        longest = max(len(file.readline(_LONGEST_LINE)) for _ in range(3))
    block = min(_LONGEST_LINE, max(_BLOCK, 4 * longest))
    if all(map(_is_number, first)):
        return Table(path, None, len(first), block=block)
    fraction = next((cell for cell in first if _is_number(cell) and not cell.strip().isdigit()), None)
    if fraction is not None:  # a line of numbers with an id would be taken for names, and an instance lost
        raise ConstraintError(
            f"line {lines} holds words and the number {fraction.strip()[:40]}; expected the names of the columns, or "
            f"numbers only. Fix: a first line with a name for each column."
        )
    return Table(path, tuple(cell.strip() for cell in first), len(first), first_line=lines, block=block)


def open_parquet(path: Path) -> Table:
    """Look at the columns of a parquet file."""
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
    except (arrow.ArrowException, OSError) as error:
        raise ConstraintError(f"not a parquet file ({_first_line(error)}).") from None
    return Table(path, tuple(schema.names), len(schema), tuple(schema.types))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _pieces(batches: Iterator[Any], start: int, size: int) -> Iterator[Any]:
    """Arrow tables of ``size`` rows each from row ``start`` on, wherever batches end."""
    import pyarrow as arrow

    kept: list[Any] = []
    missing = size
    for batch in batches:
        skipped = min(start, batch.num_rows)
        start -= skipped
        rest = batch.slice(skipped)
        while rest.num_rows >= missing:
            kept.append(rest.slice(0, missing))
            yield arrow.Table.from_batches(kept)
            rest, kept, missing = rest.slice(missing), [], size
        if rest.num_rows:
            kept.append(rest)
            missing -= rest.num_rows
    if kept:
        yield arrow.Table.from_batches(kept)


def _explained(table: Table, numeric: Sequence[int], error: Exception) -> ConstraintError:
    """What is wrong with a csv file: found by reading it again line by line, since pyarrow does not say the line."""
    names = 0 if table.names is None else 1
    for position, (cells, line) in enumerate(_csv_lines(table.path)):
        if position < names:
            continue
        if len(cells) != table.width:
            return ConstraintError(
                f"{table.path}: line {line} has {len(cells)} cells; expected {table.width} as in the first."
            )
        for column in numeric:
            if not _is_number(cells[column]):
                where = f"line {line}, {table.name(column)}"
                return ConstraintError(f"{table.path}: {where} holds {cells[column][:40]!r}; expected a number.")
    return ConstraintError(f"{table.path} is not comma-separated text ({_first_line(error)}).")


def _csv_lines(path: Path) -> Iterator[tuple[list[str], int]]:
    """Cells of every line that is not empty, and its number."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_bounded(file), strict=True)
            for cells in reader:
                if cells:
                    yield cells, reader.line_num
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
    """Whether pyarrow reads a number: Python's float also takes 1_000 and the digits of other scripts."""
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isascii() and "_" not in cell
