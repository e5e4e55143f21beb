"""Whether a program falls for ever: a direction that rows, bounds and curvature leave open, and the cost does not."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from linsat.arrays.interior.program import Program
from linsat.verdict.programs import linear_program
from linsat.verdict.system import Deadline

Array = np.ndarray

_FALLS = 1e-6  # by which a direction of entries up to 1 must lower the cost, relative to its largest entry


def recession(program: Program, deadline: Deadline | None = None) -> Array | None:
    """A direction d with P d = 0 and <c, d> > 0 along which every point of the program stays one; None: none was seen.

    Cost: a linear program where a column without curvature of its own has no bound on one side, else nothing.
    """
    free = (program.quadratic == 0) & (program.entropy == 0) & (program.upper > program.lower)
    upwards, downwards = free & np.isposinf(program.upper), free & np.isneginf(program.lower)
    open_columns = np.flatnonzero(upwards | downwards)
    if not len(open_columns) or not program.linear[open_columns].any():
        return None
    bounds = np.stack([np.where(downwards, -1.0, 0.0), np.where(upwards, 1.0, 0.0)], axis=1)[open_columns]
    rows, curves = program.matrix[:, open_columns], []
    if program.P is not None:
        curves = [program.P[:, open_columns]]
    low, high = np.isfinite(program.row_lower), np.isfinite(program.row_upper)
    equal = sp.csr_array(sp.vstack([rows[low & high], *curves]))
    capped = sp.csr_array(sp.vstack([rows[high & ~low], -rows[low & ~high]]))
    cost = program.linear[open_columns]
    solved = linear_program(
        -cost / np.abs(cost).max(),
        deadline,
        A_eq=equal,
        b_eq=np.zeros(equal.shape[0]),
        A_ub=capped,
        b_ub=np.zeros(capped.shape[0]),
        bounds=bounds,
    )
    if solved.status != 0 or solved.x is None or not -solved.fun > _FALLS:
        return None
    direction = np.zeros(len(program.linear))
    direction[open_columns] = solved.x
    return direction
