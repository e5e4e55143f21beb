"""The numbers in formulas and in arguments of families: anything array-like as plain float64 arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat._optional import is_tensor
from linsat.errors import ConstraintError

Array = np.ndarray[Any, Any]


def read_constant(value: Any, name: str = "The constant", *, missing: float | None = None) -> Array:
    """A number or array-like as a float64 numpy array, finite but for ``missing``; else it is rejected by ``name``."""
    if is_tensor(value):
        if value.requires_grad:
            raise ConstraintError(
                f"{name} requires gradients, which would be lost here. Fix: pass its .detach(), then put the "
                f"tensor back with Constraints.with_rhs or Constraints.with_bounds."
            )
        value = value.to_dense().cpu()
        value = (value if value.is_complex() else value.double()).numpy()
    elif sp.issparse(value):
        value = value.toarray()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ConstraintError(
            f"{name} is not a regular array ({error}). Fix: give every row the same length."
        ) from None
    if array.dtype.kind not in "fiub":
        kind = f"dtype {array.dtype}" if isinstance(value, np.ndarray) else f"type {type(value).__name__}"
        raise ConstraintError(
            f"{name} has {kind}; expected a number or an array of real numbers. Fix: convert it first."
        )
    array = array.astype(np.float64)  # a copy, so that later changes to the user's array do not reach us
    wrong = ~np.isfinite(array) if missing is None else ~np.isfinite(array) & (array != missing)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = f" at index {', '.join(map(str, index))}" if index else ""
        expected = "finite numbers" if missing is None else f"finite numbers, or {missing} for no bound"
        raise ConstraintError(
            f"{name} is {array[index]}{where}; expected {expected}. Fix: leave out what is not meant to bind."
        )
    return array
