"""How the kernel arranges rows and coefficients: index tables, made once per sparsity pattern by arrange.h."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from linsat.backends.cpu_kernel import native
from linsat.backends.cpu_kernel.native import Library
from linsat.compile.rows import RowMatrix

# What linsat_layout returns, and why the torch back end or the interior-point method is the better choice.
_NO_MEMORY, _MADE = -1, 0
_REASONS = {
    2: "{} rows are more than {}",
    3: "{} variables are more than {}",
    4: "its tables would have {:,} entries, more than {:,}",
    5: "{} rows share variables with other rows, more than {}",
}


class KernelLayout:
    """A layout in the kernel's memory, freed with this object."""

    def __init__(self, address: int, loaded: Library) -> None:
        self.address = address
        self.seconds: float = native.Layout.from_address(address).seconds
        # Not when Python ends: a thread may still be at work, and the memory goes anyway.
        weakref.finalize(self, loaded.functions.linsat_layout_free, address).atexit = False


def layout_of(rows: RowMatrix, loaded: Library) -> KernelLayout | str:
    """The layout of a pattern, or the reason why the kernel does not take it; kept with the pattern."""
    if "kernel" not in rows.cache:
        rows.cache["kernel"] = _build(rows, loaded)
    return rows.cache["kernel"]


def _build(rows: RowMatrix, loaded: Library) -> KernelLayout | str:
    row, col = (np.ascontiguousarray(index.cpu().numpy(), dtype=np.int64) for index in (rows.row, rows.col))
    address, refused = ctypes.c_void_p(), (ctypes.c_int64 * 2)()
    code = loaded.functions.linsat_layout(
        *rows.shape, len(col), row.ctypes.data, col.ctypes.data, ctypes.addressof(address), ctypes.addressof(refused)
    )
    if code == _NO_MEMORY:
        raise MemoryError("there is not enough memory for the kernel's tables.")
    if code in _REASONS:
        return _REASONS[code].format(*refused)
    if code != _MADE or address.value is None:
        raise ValueError("a coefficient lies outside of the matrix, or in the same place as another.")
    return KernelLayout(address.value, loaded)
