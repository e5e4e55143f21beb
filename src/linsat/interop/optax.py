"""A projection in the manner of optax and jaxopt: trees of parameters onto a polyhedron, within ``jit`` and ``grad``.

params = optax.projections.projection_box(params, 0, 1)
params = linsat.interop.optax.projection_polyhedron(params, A, b, G, h)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linsat._optional import require
from linsat.constraints.constraint_set import Constraints
from linsat.errors import ConstraintError
from linsat.objectives import Euclidean


def projection_polyhedron(
    tree: Any, A: Any = None, b: Any = None, G: Any = None, h: Any = None, *, lower: Any = -np.inf, upper: Any = np.inf
) -> Any:
    """The nearest tree with ``A x = b``, ``G x <= h`` and ``lower <= x <= upper``, x being all leaves in a row.

    Args:
        tree: arrays, nested as optax takes them; one array is a tree.
        A, b: equalities (rows, parameters) and their sides; leave both out for none.
        G, h: inequalities and their sides; leave both out for none.
        lower, upper: bounds, numbers or (parameters,).

    Returns:
        A tree like the one given. Gradients reach the leaves and the sides b and h, which may be traced; A, G and the
        bounds are constants. Projected gradient: call it after ``optax.apply_updates``.

    Raises:
        ConstraintError: rows without sides, sides without rows, shapes that do not fit the parameters.
        InfeasibleError: no point satisfies the rows.
    """
    flat, restore = require("jax.flatten_util", extra="jax", purpose="projection_polyhedron").ravel_pytree(tree)
    given: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for (matrix, M), (side, v), (left, right) in ((("A", A), ("b", b), "Ef"), (("G", G), ("h", h), "Ab")):
        if (M is None) != (v is None):
            there, missing = (side, matrix) if M is None else (matrix, side)
            raise ConstraintError(f"{there} comes without {missing}; expected both or neither. Fix: pass {missing}.")
        if M is not None:
            M = np.atleast_2d(np.asarray(M, dtype=np.float64))
            if M.shape[1] != flat.size:
                raise ConstraintError(
                    f"{matrix} has shape {M.shape}; expected (rows, {flat.size}): the tree has {flat.size} parameters."
                )
            rows[left], rows[right], given[right] = M, np.zeros(len(M)), v
    if not rows:  # bounds alone: a row that does nothing
        rows = {"A": np.zeros((1, flat.size)), "b": np.ones(1)}
    cons = Constraints(**rows, lower=lower, upper=upper)
    door = require("linsat.jax", extra="jax", purpose="projection_polyhedron")
    return restore(door.project(flat, cons, objective=Euclidean(), **given))
