"""Proofs of infeasibility: multipliers of rows, checked without rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

Array = np.ndarray


def exact_gap(
    coefficients: tuple[Array, Array, Array], sides: Array, lower: Array, upper: Array, multipliers: Array
) -> Fraction:
    """By how much multipliers (rows,) refute rows over a box; positive is a proof that no point satisfies them.

    Weighted by multipliers that are at least zero for ``<=``, at most zero for ``>=`` and any for ``==``, the rows say
    ``v x <= c`` with ``v = multipliers A`` and ``c = multipliers . sides``. The gap is the smallest ``v x`` of the box
    less c; the multipliers of the bounds are the parts of v: ``max(v, 0)`` for lower, ``min(v, 0)`` for upper. Floats
    are taken as the fractions they are, so no rounding has to be allowed for. Cost: a microsecond or two a coefficient.

    Args:
        coefficients: row, column and value of each coefficient.
    """
    weights = [Fraction(m) for m in multipliers.tolist()]
    combined: dict[int, Fraction] = {}
    for i, j, value in zip(*(part.tolist() for part in coefficients), strict=True):
        if weights[i]:
            combined[j] = combined.get(j, Fraction(0)) + weights[i] * Fraction(value)
    least = sum((v * Fraction(float(lower[j] if v > 0 else upper[j])) for j, v in combined.items()), Fraction(0))
    return least - sum((w * Fraction(side) for w, side in zip(weights, sides.tolist(), strict=True)), Fraction(0))
