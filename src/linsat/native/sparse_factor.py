"""L D L' of a sparse symmetric matrix in the native core: a pattern is analysed once, then factored for any values."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from linsat.native.binding import Core

Array = np.ndarray
_NO_MEMORY, _OUT_OF_TIME = -1, -2
_MOST_NUMBERS = 1 << 29  # of a factor and of what is at work while it is made: 4 GB


class Analysis:
    """The order of elimination of a pattern, in the memory of the core; freed with this object, shared by threads.

    ``start`` and ``index`` are the upper triangle by columns, diagonals included.

    Raises:
        TimeoutError: so many seconds were not enough.
        MemoryError: the factor would be too large.
    """

    def __init__(self, core: Core, start: Array, index: Array, seconds: float) -> None:
        start, index = np.ascontiguousarray(start, dtype=np.int64), np.ascontiguousarray(index, dtype=np.int32)
        address, sizes = ctypes.c_void_p(), (ctypes.c_int64 * 3)()
        self.functions, self.address = core.functions, address
        arrays = start.ctypes.data, index.ctypes.data
        _check(core.functions.linsat_analyse(len(start) - 1, *arrays, seconds, ctypes.byref(address), sizes))
        # Not when Python ends: a thread may still be at work, and the memory goes anyway.
        weakref.finalize(self, core.functions.linsat_analysis_free, address).atexit = False
        self.entries, self.room, work = sizes
        if self.entries + work > _MOST_NUMBERS:
            raise MemoryError(
                f"the sparse factor of these rows would take {(self.entries + work) / 2**27:.1f} GB; expected at most "
                f"{_MOST_NUMBERS / 2**27:.0f}. Fix: fewer rows in one set, or rows with fewer variables in common."
            )


class Factor:
    """The factor of one matrix after another in the pattern of an analysis."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.numbers, self.room = np.empty(analysis.entries), np.empty(analysis.room)
        self.pivots = np.zeros(3, dtype=np.int64)  # positive, negative, dropped

    def factor(self, values: Array, diagonal: Array, weight: Array, seconds: float) -> None:
        """Of the upper triangle, in the order of its pattern; solves will be for another diagonal. Raises TimeoutError.

        ``weight`` says how much the residual of each equation counts.
        """
        given = (array.ctypes.data for array in (values, diagonal, weight))
        own = (array.ctypes.data for array in (self.numbers, self.room, self.pivots))
        _check(self.analysis.functions.linsat_factor(self.analysis.address, *given, seconds, *own))

    def solve(self, rhs: Array, target: float, refinements: int) -> tuple[Array, float]:
        """The solution, and the share of the weighted residual that is left.

        It is refined until that is at most ``target``, or falls no longer.
        """
        x, own = rhs.copy(), (self.numbers.ctypes.data, self.room.ctypes.data)
        refine = self.analysis.functions.linsat_refine
        return x, refine(self.analysis.address, own[0], target, refinements, own[1], x.ctypes.data)


def _check(code: int) -> None:
    if code == _NO_MEMORY:
        raise MemoryError("there is not enough memory for a sparse factorisation.")
    if code == _OUT_OF_TIME:
        raise TimeoutError("the time limit of a sparse factorisation is over.")
