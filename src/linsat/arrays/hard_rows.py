"""One instance of a problem as plain arrays, in the user's units: all rows, or the hard ones for a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from linsat._array_namespace import to_numpy
from linsat._senses import GREATER, LESS
from linsat.arrays.problem import Problem, Tensor
from linsat.verdict.system import LinearSystem

ROW_LOST = 64 * float(np.finfo(np.float64).eps)  # of a row by rounding, relative to the sum of its terms
RUNS_OFF = 1e6  # times the largest score or right-hand side


def one(tensor: Tensor, instance: int) -> np.ndarray:
    """Of an array that all instances share, (1, .), or not, (N, .), that of an instance, (.)."""
    return to_numpy(tensor[min(instance, tensor.shape[0] - 1)])


def linear_system(problem: Problem, instance: int) -> LinearSystem:
    """The rows and the box of one instance as plain arrays, in the user's units."""
    rows = problem.rows
    matrix = sp.csr_array((one(rows.values, instance), (to_numpy(rows.row), to_numpy(rows.col))), shape=rows.shape)
    matrix.sum_duplicates()
    rhs, slack = one(problem.rhs, instance), one(problem.slack, instance)
    low, high = one(problem.dual_lower, instance), one(problem.dual_upper, instance)
    # A dual that may be negative belongs to a cap, one that may be positive to a floor; entropic slack is one way only.
    entropic = problem.objective.entropic_slack & ~one(problem.soft, instance)
    row_lower = np.where(entropic, rhs - slack, np.where(high > 0, rhs, -np.inf))
    row_upper = np.where(entropic | (low < 0), rhs, np.inf)
    return LinearSystem(matrix, row_lower, row_upper, one(problem.lower, instance), one(problem.upper, instance))


def hard_rows(problem: Problem, instance: int, x: np.ndarray | None = None) -> LinearSystem:
    """The hard rows of one instance as they were stated, for a verdict, loosened by what rounding may account for.

    Terms of fixed variables, and all terms at a point ``x`` where one is given, cannot be added up any better; but for
    an x that has run off, far beyond what scores and right-hand sides ask for, because nothing else would do.
    """
    assert problem.senses is not None
    assert problem.side is not None
    system, side, senses = linear_system(problem, instance), one(problem.side, instance), to_numpy(problem.senses)
    low, high = np.where(senses == LESS, -np.inf, side), np.where(senses == GREATER, np.inf, side)
    at = np.where(system.lower == system.upper, system.lower, 0.0) if x is None else np.abs(x)
    if x is not None:
        sides = np.where(np.isfinite(side), np.abs(side), 0.0) / one(problem.scale, instance)
        asked = max(1.0, np.abs(one(problem.scores, instance)).max(initial=0.0), sides.max(initial=0.0))
        at = np.minimum(at, np.minimum(RUNS_OFF * asked, np.maximum(np.abs(system.lower), np.abs(system.upper))))
    system.matrix.eliminate_zeros()  # coefficients that this instance does not have
    lost = ROW_LOST * (abs(system.matrix) @ np.abs(at))
    hard = np.flatnonzero(~one(problem.soft, instance))
    return replace(system, row_lower=low - lost, row_upper=high + lost).take(hard)


def contradictory(problem: Problem, ask: Callable[[LinearSystem, int], bool], near: Tensor | None = None) -> np.ndarray:
    """(N,) whether the hard rows of an instance contradict each other; the same numbers are asked about once.

    By less than the rounding of their terms, for variables as large as the largest of the points ``near`` (N, l) where
    these are given, they do not.
    """
    known: dict[bytes, bool] = {}
    answers = []
    for instance in range(problem.size):
        x = None if near is None else to_numpy(near[instance])
        if x is not None:  # the same power of two for most instances
            x = np.full_like(x, np.exp2(np.ceil(np.log2(max(1.0, float(np.abs(x).max(initial=0.0)))))))
        system = hard_rows(problem, instance, x)
        matrix = system.matrix
        ends = (system.row_lower, system.row_upper, system.lower, system.upper)
        key = b"".join(part.tobytes() for part in (matrix.data, matrix.indices, matrix.indptr, *ends))
        if key not in known:
            known[key] = ask(system, instance)
        answers.append(known[key])
    return np.array(answers, dtype=bool)
