"""`Statement`: all numbers of a set as plain numpy arrays, for front ends that do not use torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Statement:
    """What a set states: coefficients row by row (A first, then C, then E), right-hand sides, the box, prices.

    Numbers that differ per instance have leading dimensions that broadcast to ``batch_shape``.
    """

    row: Array  # (nnz,) int64: row of each coefficient
    col: Array  # (nnz,) int64: variable of each coefficient
    senses: Array  # (rows,) int8: LESS, EQUAL or GREATER of linsat._senses
    values: Array  # (nnz,) or (batch..., nnz) float64
    rhs: Array  # (rows,) or (batch..., rows) float64
    lower: Array  # (), (variables,) or (batch..., variables) float64
    upper: Array  # (), (variables,) or (batch..., variables) float64
    price: Array | None  # (rows,) or (batch..., rows) float64, infinite where a row is hard; None: all are
    num_variables: int | None  # None: no rows and scalar bounds, so any number fits
    batch_shape: tuple[int, ...]
