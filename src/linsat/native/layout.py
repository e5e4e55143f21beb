"""How the native core arranges a sparsity pattern: index tables, made once by arrange.h."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from linsat.native.binding import Core

Array = np.ndarray
# What linsat_layout returns, and why the array path or the interior-point method is the better choice.
_NO_MEMORY, _MADE = -1, 0
_REASONS = {
    2: "{} rows are more than {}",
    3: "{} variables are more than {}",
    4: "its tables would have {:,} entries, more than {:,}",
    5: "{} rows share variables with other rows, more than {}",
}
# The interior-point method of the core, and full quadratics, have dense factors of sets up to this size.
MOST_DENSE, LARGEST_DENSE = 1000, 250_000  # rows and variables together, and multiplied


class NativeLayout:
    """A layout in the memory of the core, freed with this object."""

    def __init__(self, address: int, rows: int, variables: int, coefficients: int, core: Core) -> None:
        self.address, self.rows, self.core = address, rows, core
        self.sizes = coefficients, rows, variables, variables, rows  # of the numbers of one instance
        # Not when Python ends: a thread may still be at work, and the memory goes anyway.
        weakref.finalize(self, core.functions.linsat_layout_free, address).atexit = False


def make_layout(row: Array, col: Array, senses: Array, variables: int, core: Core) -> NativeLayout | str:
    """The layout of a pattern, or the reason why the core does not take it."""
    row, col = (np.ascontiguousarray(index, dtype=np.int64) for index in (row, col))
    senses = np.ascontiguousarray(senses, dtype=np.int8)
    address, refused = ctypes.c_void_p(), (ctypes.c_int64 * 2)()
    tables = (array.ctypes.data for array in (row, col, senses))
    code = core.functions.linsat_layout(
        len(senses), variables, len(col), *tables, ctypes.addressof(address), ctypes.addressof(refused)
    )
    if code == _NO_MEMORY:
        raise MemoryError("there is not enough memory for the tables of the native core.")
    if code in _REASONS:
        return _REASONS[code].format(*refused)
    if code != _MADE or address.value is None:
        raise ValueError("a coefficient lies outside of the matrix, or in the same place as another.")
    return NativeLayout(address.value, len(senses), variables, len(col), core)


def fits_dense(rows: int, variables: int) -> bool:
    """Whether dense factors pay: as `interior_takes` of the core has it."""
    return rows + variables <= MOST_DENSE and rows * variables <= LARGEST_DENSE
