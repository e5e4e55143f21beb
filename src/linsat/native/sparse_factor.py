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
        analysis, self.values = self.analysis, values
        _check(
            analysis.functions.linsat_factor(
                analysis.address, values.ctypes.data, seconds, self.numbers.ctypes.data, self.pivots.ctypes.data
            )
        )

    def solve(
        self, rhs: Array, *, diagonal: Array, weight: Array, target: float, refinements: int
    ) -> tuple[Array, float, int]:
        """The solution for the same values with this diagonal, the share of the residual left, the number of solves.

        It is refined until the residual, weighted, is the share ``target`` of the right-hand side, or falls no longer.
        """
        x, share, solves = rhs.copy(), ctypes.c_double(), ctypes.c_int64()
        arrays = (array.ctypes.data for array in (self.numbers, self.values, diagonal, weight))
        functions, address = self.analysis.functions, self.analysis.address
        _check(
            functions.linsat_refine(
                address, *arrays, target, refinements, x.ctypes.data, ctypes.byref(share), ctypes.byref(solves)
            )
        )
        return x, share.value, solves.value


def _check(code: int) -> None:
    if code == _NO_MEMORY:
        raise MemoryError("there is not enough memory for a sparse factorisation.")
    if code == _OUT_OF_TIME:
        raise TimeoutError("the time limit of a sparse factorisation is over.")
