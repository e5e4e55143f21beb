"""A fingerprint of a set: short texts by argument name that are equal where the rules are, for comparison only."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from linsat.constraints.arrays import Array, Numbers, as_array, spread
from linsat.constraints.soft import full_price

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints


def fingerprint(constraints: Constraints) -> dict[str, str]:
    """How many variables, and each argument that states rows or box: a hash of its numbers, or that it is learned.

    However the same numbers were stated, densely or sparsely, as one number or one for each; names do not count.
    """
    learned, width = constraints._followed, constraints.num_variables  # also those that were frozen since
    prints = {"variables": str(width)}
    terms = constraints._terms
    blocks = dict(constraints._matrices) | ({} if terms is None else {"T": terms.matrix})
    for name, matrix in blocks.items():
        values = as_array(matrix.values())
        filled = values.reshape(-1, len(matrix.row)).any(0) | (name in learned)
        parts = [np.array(matrix.shape, dtype=np.int64), matrix.row[filled], matrix.col[filled]]
        prints[name] = _hashed(*parts) if name in learned else _hashed(*parts, values[..., filled])
    numbers: dict[str, Numbers] = dict(constraints._sides())
    for name, bound in constraints._bounds().items():
        numbers[name] = bound if width is None else spread(bound, (*bound.shape[:-1], width))
    if terms is not None:
        numbers["t"] = terms.sides()
        prints["maxima"] = _hashed(terms.base, terms.sign, terms.of, terms.row, terms.weight)
    price = full_price(constraints._soft, len(constraints))
    if price is not None:
        numbers["price"] = price
    return prints | {name: "learned" if name in learned else _hashed(as_array(n)) for name, n in numbers.items()}


def _hashed(*arrays: Array) -> str:
    digest = hashlib.sha256()
    for array in arrays:  # + 0: the zero with a minus sign is another one in bytes only
        digest.update(str((array.shape, array.dtype.str)).encode())
        digest.update((array + 0).tobytes())
    return digest.hexdigest()
