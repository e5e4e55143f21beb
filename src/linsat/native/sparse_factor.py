"""L D L' of a sparse symmetric matrix in the native core: a pattern is analysed once, then factored for any values."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from linsat.native.binding import Core

Array = np.ndarray
_NO_MEMORY, _OUT_OF_TIME = -1, -2


class Analysis:
    """The order of elimination of a pattern, in the memory of the core; freed with this object, shared by threads.

    ``start`` and ``index`` are the upper triangle by columns, diagonals included. Raises TimeoutError.
    """

    def __init__(self, core: Core, start: Array, index: Array, seconds: float) -> None:
        start, index = np.ascontiguousarray(start, dtype=np.int64), np.ascontiguousarray(index, dtype=np.int32)
        address, entries = ctypes.c_void_p(), ctypes.c_int64()
        functions, self.size = core.functions, len(start) - 1
        _check(
            functions.linsat_analyse(
                self.size, start.ctypes.data, index.ctypes.data, seconds, ctypes.byref(address), ctypes.byref(entries)
            )
        )
        self.functions, self.address, self.entries = functions, address, entries.value
        weakref.finalize(self, functions.linsat_analysis_free, address).atexit = False


class Factor:
    """The factor of one matrix after another in the pattern of an analysis."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.numbers = np.empty(analysis.entries)
        self.pivots = np.zeros(3, dtype=np.int64)  # positive, negative, dropped

    def factor(self, values: Array, seconds: float) -> None:
        """The values of the upper triangle, in the order of its pattern. Raises TimeoutError."""
        analysis = self.analysis
        _check(
            analysis.functions.linsat_factor(
                analysis.address, values.ctypes.data, seconds, self.numbers.ctypes.data, self.pivots.ctypes.data
            )
        )

    def solve(self, rhs: Array) -> Array:
        x = np.array(rhs)
        analysis = self.analysis
        _check(analysis.functions.linsat_substitute(analysis.address, self.numbers.ctypes.data, x.ctypes.data))
        return x


def _check(code: int) -> None:
    if code == _NO_MEMORY:
        raise MemoryError("there is not enough memory for a sparse factorisation.")
    if code == _OUT_OF_TIME:
        raise TimeoutError("the time limit of a sparse factorisation is over.")
