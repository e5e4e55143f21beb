"""Which numbers an instance can be solved with, and what becomes of one that has others.

The host rejects what it can see (`linsat.jax.arguments`). Of traced numbers, and of the instances of a batch that may
fail alone, only a status can say it: the instance gets harmless numbers, so that nothing infinite reaches the others or
a gradient, and ends with the status that its own numbers ask for.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from linsat._senses import EQUAL, GREATER, LESS
from linsat.jax.plan import Numbers, Plan
from linsat.status import Status

Array = Any

_HARMLESS = {"y": 0.0, "values": 0.0, "rhs": 0.0, "lower": 0.0, "upper": 1.0, "price": 1.0, "tau": 1.0, "weights": 1.0}
# The infinite right-hand side at which a row of each sense says nothing.
_OPEN = {LESS: np.inf, GREATER: -np.inf, EQUAL: np.nan}


def unusable(name: str, array: Array, senses: Any, soft: Any, finite_box: bool) -> Array:
    """Which numbers cannot be solved with, like the array; ``senses`` and ``soft`` are those of its rows."""
    finite = jnp.isfinite(array)
    if name == "y":
        return ~finite & ~jnp.isneginf(array)
    if name == "rhs":
        return ~finite & (array != jnp.asarray(np.vectorize(_OPEN.get, otypes=[float])(senses), array.dtype))
    if name in ("lower", "upper"):
        return ~finite & (finite_box | (array != (-jnp.inf if name == "lower" else jnp.inf)))
    if name == "price":
        return soft & ~(finite & (array > 0))
    return ~finite if name == "values" else ~(finite & (array > 0))


def repaired(plan: Plan, numbers: Numbers) -> tuple[Numbers, Array]:
    """The numbers with harmless ones in place of those that are not, and the status (N,) they ask for, or 0."""
    usable, count = dict(numbers), numbers["y"].shape[:1]
    invalid = impossible = infinite = jnp.zeros(count, bool)
    for name, harmless in _HARMLESS.items():
        if name not in numbers:
            continue
        array = numbers[name]
        wrong = unusable(name, array, plan.senses, plan.soft, plan.objective.finite_box)
        # A side that is infinite on the wrong end is a statement, and one that no point satisfies.
        none = wrong & jnp.isinf(array) if name == "rhs" else wrong & False
        invalid, impossible = invalid | (wrong & ~none).any(-1), impossible | none.any(-1)
        infinite = infinite | (wrong & ~none & ~jnp.isfinite(array)).any(-1)
        usable[name] = jnp.where(wrong, harmless, array)
    if "lower" in usable:
        empty = usable["lower"] > usable["upper"]
        impossible = impossible | empty.any(-1)
        usable["upper"] = jnp.where(empty, usable["lower"] + 1.0, usable["upper"])
    if "held" in usable:
        low = usable["lower"] if "lower" in usable else jnp.asarray(plan.form.lower)  # type: ignore[union-attr]
        nowhere = usable["held"] & ~jnp.isfinite(low)
        invalid, usable["held"] = invalid | nowhere.any(-1), usable["held"] & ~nowhere
    codes = jnp.where(invalid, Status.STALLED.code, jnp.where(impossible, Status.INFEASIBLE.code, 0))
    codes = jnp.where(infinite, Status.NOT_FINITE.code, codes)
    return usable, jnp.broadcast_to(codes, count)
