"""Violations of a point and the rounding they may hide, in numpy, from the numbers of a case alone."""

from __future__ import annotations

import numpy as np
import torch

from fuzz.families import Array
from fuzz.systems import Case

_ROUNDING = 64 * np.finfo(np.float64).eps  # of the sum of the sizes of a row's terms


def signed_gap(case: Case, system: int, x: Array) -> Array:
    """a x - b of every row, in extended precision."""
    return case.matrix_of(system).astype(np.longdouble) @ x.astype(np.longdouble) - case.sides[system]


def violations(case: Case, system: int, x: Array) -> Array:
    """Violation of every row, then of both bounds of every variable, in original units."""
    gap = signed_gap(case, system, x).astype(np.float64)
    senses = np.array(case.senses)
    rows = np.where(senses == "<=", gap, np.where(senses == ">=", -gap, np.abs(gap)))
    return np.maximum(np.concatenate([rows, case.lower - x, x - case.upper]), 0.0)


def row_size(case: Case, system: int, x: Array) -> Array:
    """max(1, sum_j |a_ij x_j|), what the violation of a row is relative to."""
    return np.maximum(1.0, np.abs(case.matrix_of(system)) @ np.abs(x))


def relative_violation(case: Case, system: int, x: Array) -> float:
    """The worst of the hard rows relative to their size, and of the bounds relative to max(1, |x_j|)."""
    found = violations(case, system, x)
    found[: len(case.senses)][~case.hard] = 0.0
    bound = np.maximum(1.0, np.abs(x))
    return float((found / np.concatenate([row_size(case, system, x), bound, bound])).max(initial=0.0))


def evaluation_rounding(case: Case, system: int, x: Array) -> Array:
    """What evaluating each row at x in float64 may add to its violation, in any order of summation."""
    return _ROUNDING * (np.abs(case.matrix_of(system)) @ np.abs(x) + np.abs(case.sides[system]))


def spacing(case: Case, x: Array) -> Array:
    """How far rounding to the dtype of the scores may move each x."""
    info = torch.finfo(getattr(torch, case.dtype))
    bounds = np.maximum(*(np.where(np.isfinite(b), np.abs(b), 0.0) for b in (case.lower, case.upper)))
    return info.eps * np.maximum(np.abs(x), bounds) + info.tiny * info.eps


def allowance(case: Case, system: int, x: Array) -> Array:
    """What evaluation, and rounding x to the dtype of the scores, may add to the violation of each row and bound."""
    apart = spacing(case, x)
    of_x = np.abs(case.matrix_of(system)) @ apart if case.dtype != "float64" else 0.0
    return np.concatenate([evaluation_rounding(case, system, x) + of_x, apart, apart])
