"""Two sets at once: all rows of both, in the intersection of their boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from linsat.constraints.arrays import Numbers, alike, as_array, namespace, picked, side_by_side
from linsat.constraints.checks import joint_batch_shape
from linsat.constraints.coefficients import join
from linsat.constraints.soft import full_price
from linsat.constraints.structure import BLOCKS
from linsat.constraints.terms import both as terms_of_both
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    from linsat.constraints.constraint_set import Constraints
    from linsat.verdict.diagnosis import NamedBound


def joined(left: Constraints, right: Constraints) -> Constraints:
    """See `Constraints.__and__`."""
    both = (left, right)
    _check(left, right)
    low, high = (alike([s._bounds()[side] for s in both]) for side in ("lower", "upper"))
    arguments: dict[str, Any] = {
        "lower": namespace(*low).maximum(*low),
        "upper": namespace(*high).minimum(*high),
        "variables": left._layout or right._layout,
    }
    names: list[str] = []
    prices: list[Numbers] = []
    places = [np.zeros(len(s), dtype=np.int64) for s in both]  # of the rows of both sets in the joined one
    for matrix_name, side_name, _ in BLOCKS:
        parts = [s for s in both if matrix_name in s._matrices]
        if not parts:
            continue
        arguments[matrix_name] = join(matrix_name, [s._matrices[matrix_name] for s in parts])
        arguments[side_name] = side_by_side([s._sides()[side_name] for s in parts])
        for s in parts:
            here = [i for i, block in enumerate(_row_blocks(s)) if block == matrix_name]
            places[0 if s is left else 1][here] = len(names) + np.arange(len(here))
            names += [s.names[i] for i in here]
            price = full_price(s._soft, len(s))
            prices.append(np.full(len(here), np.inf) if price is None else picked(price, here))
    if left._names is not None or right._names is not None:
        arguments["names"] = names
    moved = [None if s._terms is None else s._terms.on_rows(place) for s, place in zip(both, places, strict=True)]
    made = type(left)(**arguments, terms=terms_of_both(*moved))
    if left._soft or right._soft:
        made = made._with_full_price(side_by_side(prices))
    return made._with_named_bounds([bound for s in both for bound in s._named_bounds if _binds(s, made, bound)])


def _check(left: Constraints, right: Constraints) -> None:
    """Reject sets that do not fit together, and learned numbers."""
    if len({left.num_variables, right.num_variables} - {None}) > 1:
        raise ConstraintError(
            f"Cannot join sets over {left.num_variables} and {right.num_variables} variables. "
            f"Fix: build both over the same variables (linsat.Variable stacks several into one vector)."
        )
    joint_batch_shape({"the left set": left.batch_shape, "the right set": right.batch_shape})
    for side, s in (("left", left), ("right", right)):
        learned = [name for name, t in s._learned_tensors().items() if t.is_leaf]
        if learned:
            raise ConstraintError(
                f"The {side} set has learned numbers ({', '.join(learned)}), which a joined set could not follow. "
                f"Fix: join first, then put them in with with_rhs, with_bounds, with_coefficients or soften."
            )


def _row_blocks(constraints: Constraints) -> list[str]:
    return [name for name, matrix in constraints._matrices.items() for _ in range(matrix.shape[0])]


def _binds(owner: Constraints, made: Constraints, bound: NamedBound) -> bool:
    """Whether a bound of a set is also that of the set it was joined into."""
    own, theirs = (as_array(s._bounds()[bound.side]) for s in (owner, made))
    pick = [end[..., bound.variable] if end.ndim and end.shape[-1] > 1 else end for end in (own, theirs)]
    return bool((pick[0] == pick[1]).all())
