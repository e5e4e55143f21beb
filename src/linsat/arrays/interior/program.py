r"""One instance as the interior-point method takes it: rows with two ends, a box, and the cost of its columns.

    minimise  x'Px / 2  +  sum_j [q_j x_j^2 / 2 - c_j x_j]  +  entropies
    subject to  row_lower <= A x <= row_upper,   lower <= x <= upper

The entropy of a column is one of two, with t = x - lower, w the width of the box, p = t / w:

    a w [p log p + (1 - p) log(1 - p)]         two-sided
    a [t log(t / prior) - t + prior]           at the lower bound alone, where there is a prior; upper may be infinite

A column may have any of these costs, or none: auxiliary variables of a formula have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

Array = np.ndarray

_PASSES, _EVEN = 8, 1.1  # of equilibration, and the largest factor of a pass that changes nothing any more


@dataclass(frozen=True)
class Program:
    """One instance in the user's units; bounds of variables and rows may be infinite. `Program.of` fills in what is not
    there."""

    matrix: sp.csr_array  # (k, l) A
    row_lower: Array  # (k,)
    row_upper: Array
    lower: Array  # (l,)
    upper: Array
    linear: Array  # (l,) c
    quadratic: Array  # (l,) q
    entropy: Array  # (l,) a
    row_entropy: Array  # (k,) a of the slacks, two-sided
    P: sp.csr_array | None = None  # (l, l) symmetric, positive semi-definite
    prior: Array | None = None  # (l,) positive where the entropy is that of the lower bound alone, 0 elsewhere

    @classmethod
    def of(
        cls,
        matrix: Any,
        row_lower: Any,
        row_upper: Any,
        lower: Any,
        upper: Any,
        linear: Any,
        *,
        P: Any = None,
        quadratic: Any = 0.0,
        entropy: Any = 0.0,
        prior: Any = None,
        row_entropy: Any = 0.0,
    ) -> Program:
        """A program from matrices of any kind; a number is that of all rows or columns, P is made symmetric."""
        matrix = sp.csr_array(matrix, dtype=np.float64)
        k, l = matrix.shape

        def spread(value: Any, size: int) -> Array:
            return np.broadcast_to(np.asarray(value, dtype=np.float64), (size,)).copy()

        whole = None
        if P is not None:
            whole = sp.csr_array(P, dtype=np.float64)
            whole = sp.csr_array((whole + whole.T) / 2)
            whole.eliminate_zeros()
        return cls(
            matrix,
            row_lower=spread(row_lower, k),
            row_upper=spread(row_upper, k),
            lower=spread(lower, l),
            upper=spread(upper, l),
            linear=spread(linear, l),
            quadratic=spread(quadratic, l),
            entropy=spread(entropy, l),
            row_entropy=spread(row_entropy, k),
            P=whole,
            prior=None if prior is None else spread(prior, l),
        )

    @property
    def one_sided(self) -> Array:
        """(l,) columns whose entropy is that of the lower bound alone."""
        return np.zeros(len(self.linear), dtype=bool) if self.prior is None else (self.prior > 0) & (self.entropy > 0)

    def gradient_of_P(self, x: Array) -> Array:
        """P x."""
        return np.zeros_like(x) if self.P is None else self.P @ x


def violation(program: Program, x: Array) -> float:
    """By how much a point violates the worst row, relative to max(1, sum_j |a_ij x_j|)."""
    values, size = program.matrix @ x, np.maximum(1.0, abs(program.matrix) @ np.abs(x))
    outside = np.maximum(program.row_lower - values, values - program.row_upper) / size
    return float(outside.max(initial=0.0))


def equilibrate(matrix: sp.csr_array, P: sp.csr_array | None = None) -> tuple[Array, Array]:
    """Powers of two that bring the largest entries of rows and columns, of A and of P, close to one."""
    k, l = matrix.shape
    scale = np.ones(k + l)  # of rows, then of columns: those of the symmetric matrix [0 A; A' P]
    parts = sp.coo_array(matrix), sp.coo_array((l, l)) if P is None else sp.coo_array(P)
    first = np.concatenate([parts[0].row, k + parts[1].row])
    second = np.concatenate([k + parts[0].col, k + parts[1].col])
    sizes = np.abs(np.concatenate([parts[0].data, parts[1].data]))
    by_row, by_column = _Largest(first, k + l), _Largest(second, k + l)
    for _ in range(_PASSES):
        spread = 1.0
        for largest in (by_row, by_column):
            most = largest.of(sizes * scale[first] * scale[second])
            shrink = np.where(most > 0, np.sqrt(np.where(most > 0, most, 1.0)), 1.0)
            scale /= shrink
            spread = max(spread, float(shrink.max(initial=1.0)), 1 / float(shrink.min(initial=1.0)))
        if spread < _EVEN:
            break
    scale = 2.0 ** np.round(np.log2(scale))
    return scale[:k], scale[k:]


class _Largest:
    """The largest of the numbers that belong to each place."""

    def __init__(self, place: Array, count: int) -> None:
        self.order = np.argsort(place, kind="stable")
        self.there, self.start = np.unique(place[self.order], return_index=True)
        self.count = count

    def of(self, values: Array) -> Array:
        largest = np.zeros(self.count)
        if len(self.start):
            largest[self.there] = np.maximum.reduceat(values[self.order], self.start)
        return largest
