"""Presolve by a linear program: what every feasible point of one instance has in common, in terms of its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from linsat._array_namespace import Tensor, namespace, to_numpy
from linsat._senses import GREATER
from linsat.compile.implied import LARGEST_PROGRAM, Rows, implied
from linsat.compile.presolve import row_sides
from linsat.compile.problem import Presolved, StandardForm


def unit_rows(form: StandardForm, senses: Tensor, instance: int) -> Rows:
    """One instance's hard rows over the unit box, as the linear programs want them."""

    def of(tensor: Tensor) -> np.ndarray:
        return to_numpy(tensor[min(instance, tensor.shape[0] - 1)])

    rows = form.rows
    row, col = to_numpy(rows.row), to_numpy(rows.col)
    values = of(rows.values)
    lower, width, scale = of(form.lower), of(form.upper - form.lower), of(form.scale)
    base = np.bincount(row, values * lower[col], minlength=rows.shape[0])
    matrix = sp.csr_array((values * width[col] / scale[row], (row, col)), shape=rows.shape)
    side = (of(row_sides(form, senses)) - base) / scale
    hard = np.flatnonzero(~of(form.soft))
    return Rows(matrix[hard], side[hard], to_numpy(senses)[hard])


def presolve_by_program(form: StandardForm, senses: Tensor, presolved: Presolved, instance: int) -> Presolved:
    """What is decided (1, .) for one instance after a linear program has looked for everything that is forced.

    Unchanged where the program would be too large, or all rows are soft.
    """
    xp = namespace(form.rhs)
    here = presolved.select([min(instance, presolved.free.shape[0] - 1)])
    rows = unit_rows(form, senses, instance)
    if rows.size > LARGEST_PROGRAM or not len(rows.side):
        return here
    found = implied(rows)
    if found is None:
        return replace(here, infeasible=xp.ones_like(here.infeasible))
    at_lower = xp.from_numpy(found.at_lower, here.free) & here.free
    at_upper = xp.from_numpy(found.at_upper & ~found.at_lower, here.free) & here.free
    free = here.free & ~(at_lower | at_upper)
    filled = free[0, form.rows.col] & (form.rows.values[min(instance, form.rows.values.shape[0] - 1)] != 0)
    left = form.rows.row_sums(xp.cast(filled[None], form.rows.values)) > 0
    tight = np.zeros(here.active.shape, dtype=bool)
    tight[~to_numpy(form.soft)] = found.tight
    tight = xp.from_numpy(tight, here.free) & here.active
    return replace(
        here,
        free=free,
        at_upper=here.at_upper | at_upper,
        active=here.active & left,
        tight=tight,
        tight_share=xp.cast(tight & (senses == GREATER), form.rhs),
    )
