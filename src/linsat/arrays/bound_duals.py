r"""The multipliers of the bounds, from x and the multipliers of the rows, on arrays of any library.

    bound_duals = Omega'(x) - linear(y) - A' duals        where x is at a bound, 0 elsewhere

which is what keeps x from going farther: at least zero at the lower bound, at most zero at the upper one, as the
multipliers of rows >= and <= are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from linsat._array_namespace import Tensor, namespace

if TYPE_CHECKING:
    from linsat.objectives import Objective
    from linsat.plan import Numbers


def bound_duals(
    objective: Objective, numbers: Numbers, places: tuple[Any, Any], scores: Tensor, x: Tensor, duals: Tensor
) -> Tensor:
    """(N, l); 0 too where a score of -inf holds a variable, and where Omega has no finite slope.

    Args:
        objective: its numbers spread over the batch.
        places: row and column of each coefficient.
        scores, x: (N, l); duals: (N, k).
    """
    xp, (row, col) = namespace(duals), places
    lower, upper = (xp.broadcast_to(end, x.shape) for end in (numbers.lower, numbers.upper))
    held = xp.isneginf(xp.constant(scores))
    y = xp.cast(xp.where(held, 0.0, scores), duals)
    at = ((x == xp.cast(lower, x)) | (x == xp.cast(upper, x))) & ~held
    at_x = xp.cast(x, duals)
    pull = xp.index_add(xp.zeros(x.shape, duals), col, numbers.values * duals[:, row])
    slope = objective.cost_slope(at_x, xp.where(xp.isfinite(lower), lower, 0.0))
    at = at & xp.isfinite(xp.constant(slope))
    return xp.where(at, xp.where(at, slope, 0.0) - objective.linear(y) - pull, 0.0)
