"""The rows of a constraint set stacked into one: the pattern, which never changes, and the numbers, which may."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from linsat._senses import EQUAL, GREATER, LESS
from linsat._transforms import Kept, constant_in_graphs, plain_tensors
from linsat.constraints.arrays import Array
from linsat.constraints.coefficients import Matrix
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor

_SHARED_ENTRIES = 10_000  # of patterns that sets made apart share: what is derived from them is kept for long
# The three kinds of rows in the order in which they are stacked: matrix, right-hand side, sense.
BLOCKS = (("A", "b", LESS), ("C", "d", GREATER), ("E", "f", EQUAL))


@dataclass(frozen=True)
class SparsityPattern:
    """What stays the same when right-hand sides and bounds change: the pattern of all rows, A first, then C, then E."""

    num_rows: int
    num_variables: int | None  # None: no rows and scalar bounds, so any number of variables fits
    row: Array  # (nnz,) int64: row of each coefficient
    col: Array  # (nnz,) int64: variable of each coefficient
    senses: Array  # (rows,) int8: LESS, EQUAL or GREATER
    default_names: tuple[str, ...]
    cache: dict[Any, Any] = field(default_factory=dict, compare=False)  # derived from the pattern, made on demand
    in_graphs: Kept = field(default_factory=Kept, compare=False)

    def on(self, device: torch.device | str) -> tuple[Tensor, Tensor, Tensor]:
        """row, col and senses on a device; plain tensors also when asked for from inside a function transform."""
        import torch

        if torch.compiler.is_compiling():
            return getattr(self.in_graphs, _keep_on(self, device))
        key = ("on", str(device))
        if key not in self.cache:
            self.cache[key] = self._tensors(device)
        return self.cache[key]

    def _tensors(self, device: torch.device | str) -> tuple[Tensor, ...]:
        import torch

        with plain_tensors():
            return tuple(torch.from_numpy(part).to(device) for part in (self.row, self.col, self.senses))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": {}, "in_graphs": Kept()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@constant_in_graphs
def _keep_on(pattern: SparsityPattern, device: torch.device | str) -> str:
    return pattern.in_graphs.put(str(device), pattern._tensors(device))


class Numbers(NamedTuple):
    """What a set states: (.) or (1, .) where all instances share it, else (batch..., .) or (N, .); of any library."""

    values: Any  # (., nnz) coefficients in the order of the pattern
    side: Any  # (., k) right-hand sides
    lower: Any  # (., l)
    upper: Any  # (., l)
    price: Any  # (., k) of breaking a row, infinite where it is hard

    def select(self, index: Any) -> Numbers:
        """Those of some of N instances."""
        return Numbers(*(array if array.shape[0] == 1 else array[index] for array in self))


def joint_width(matrices: Mapping[str, Matrix], bounds: Mapping[str, Any], named: int | None = None) -> int | None:
    """The number of variables, after a check that blocks, bounds and names agree on it; None where nothing says."""
    widths = {name: matrix.shape[1] for name, matrix in matrices.items()}
    widths |= {name: int(b.shape[-1]) for name, b in bounds.items() if b.ndim > 0 and b.shape[-1] != 1}
    if named is not None:
        widths["variables"] = named
    if len(set(widths.values())) > 1:
        listed = ", ".join(f"{name} has {width}" for name, width in widths.items())
        raise ConstraintError(
            f"The arguments disagree on the number of variables: {listed}. "
            f"Fix: give every matrix one column, and every bound one entry, per variable."
        )
    return next(iter(widths.values()), None)


def stack_rows(matrices: Mapping[str, Matrix], num_variables: int | None) -> SparsityPattern:
    """The pattern of all blocks over ``num_variables``, see `joint_width`; one for all sets of full, equal blocks."""
    entries = sum(len(matrix.row) for matrix in matrices.values())
    if entries <= _SHARED_ENTRIES and entries == sum(math.prod(matrix.shape) for matrix in matrices.values()):
        return _full_pattern(tuple((name, matrix.shape[0]) for name, matrix in matrices.items()), num_variables)
    blocks = {name: (matrix.row, matrix.col, matrix.shape[0]) for name, matrix in matrices.items()}
    return _stacked(blocks, num_variables)


@functools.lru_cache(maxsize=64)
def _full_pattern(blocks: tuple[tuple[str, int], ...], num_variables: int | None) -> SparsityPattern:
    """The pattern of blocks of so many rows without a zero."""
    full = {
        name: (*np.divmod(np.arange(rows * (num_variables or 0)), num_variables or 1), rows) for name, rows in blocks
    }
    return _stacked(full, num_variables)


def _stacked(blocks: Mapping[str, tuple[Array, Array, int]], num_variables: int | None) -> SparsityPattern:
    """The pattern of blocks by name: row and column of each coefficient, and the number of rows."""
    rows, cols, senses, names, offset = [], [], [], [], 0
    for matrix_name, _, sense in BLOCKS:
        if matrix_name not in blocks:
            continue
        row, col, count = blocks[matrix_name]
        rows.append(row + offset)
        cols.append(col)
        senses += [sense] * count
        names += [f"{matrix_name}[{i}]" for i in range(count)]
        offset += count
    empty = np.zeros(0, dtype=np.int64)
    return SparsityPattern(
        num_rows=offset,
        num_variables=num_variables,
        row=np.concatenate(rows) if rows else empty,
        col=np.concatenate(cols) if cols else empty.copy(),
        senses=np.array(senses, dtype=np.int8),
        default_names=tuple(names),
    )
