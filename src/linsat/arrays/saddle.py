r"""Full quadratics on arrays of torch or JAX: x and duals, as functions of every number, where what binds is known.

Each variable and each row has one linear equation: x_j is at its bound, or stationary; a row holds with equality, or
its multiplier is 0, or its price. Their solution is a formula that can be differentiated as often as one likes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from linsat._array_namespace import Tensor, namespace
from linsat.objectives.quadratic import Matrix

if TYPE_CHECKING:
    from linsat.plan import Numbers, Plan

_LIFT = 1e-9  # of the largest entry: on the diagonal, for rows that depend on each other
_REFINEMENTS = 4


def explicit(
    plan: Plan, objective: Matrix, scores: Tensor, numbers: Numbers, duals: Tensor, decided: Tensor, solved: Tensor
) -> tuple[Tensor, Tensor]:
    """x (N, l) and duals (N, k); 0 where an instance, (N, 1), was not solved.

    Args:
        scores: (N, l), -inf where a variable is held.
        duals: those of the solution, by which a soft row is known to be broken.
        decided: what binds, as the native core writes it.
    """
    xp, (count, l), k = namespace(scores, duals), scores.shape, plan.pattern.num_rows
    values, side, lower, upper, price = numbers
    (number,) = objective.parameters().values()
    y = xp.cast(xp.where(xp.isfinite(scores) & solved, scores, 0.0), number)
    flags = (decided != 0) & solved
    free, at_upper, active = flags[:, :l], flags[:, l : 2 * l], flags[:, 2 * l : 2 * l + k]
    whole = number.reshape(-1, l, l)
    P = xp.broadcast_to((whole + whole.swapaxes(-1, -2)) / 2, (count, l, l))
    plan.rows.places.setdefault("cells", plan.pattern.row * l + plan.pattern.col)
    cells, none = plan.rows.on("cells", values), xp.zeros((values.shape[0], k * l), number)
    flat = xp.index_add(none, cells, xp.cast(values, number))
    A = xp.broadcast_to(flat.reshape(-1, k, l), (count, k, l))
    c = objective.linear(y)
    bound = xp.where(at_upper, upper, lower)
    bound = xp.where(xp.isfinite(bound) & ~free & solved, bound, 0.0)
    priced = ~active & (duals != 0) & xp.isfinite(price) & solved
    way = xp.where(duals > 0, 1.0, -1.0)
    rest = xp.where(priced, way * xp.where(priced, price, 0.0), 0.0)
    moves, binds = xp.cast(free, number)[..., None], xp.cast(active, number)[..., None]
    still, idle = (xp.diagonal_matrix(xp.cast(~part, number)) for part in (free, active))
    top, below = (moves * P + still, -moves * A.swapaxes(-1, -2)), (binds * A, idle)
    system = xp.concatenate([xp.concatenate(part, -1) for part in (top, below)], -2)
    rhs = xp.concatenate([xp.where(free, c, bound), xp.where(active, side, rest)], -1)
    size = xp.amax(xp.amax(abs(xp.constant(system))))[:, None, None]
    lifted, solution = system + _LIFT * size * xp.eye(l + k, system), xp.zeros_like(rhs)
    for _ in range(_REFINEMENTS):
        left = rhs - (system @ solution[..., None])[..., 0]
        solution = solution + xp.solve(lifted, left)
    return solution[:, :l], solution[:, l:]
