r"""Full quadratics in torch operations: x and duals, as functions of every number, where what binds is known.

Each variable and each row has one linear equation: x_j is at its bound, or stationary; a row holds with equality, or its
multiplier is 0, or its price. Their solution is a formula that torch differentiates as often as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from linsat._array_namespace import to_numpy
from linsat.backends import quadratic
from linsat.compile.problem import Tensor
from linsat.errors import ConstraintError
from linsat.native.layout import fits_dense
from linsat.objectives.quadratic import Matrix, Metric
from linsat.plan import Numbers, Plan

_LIFT = 1e-9  # of the largest entry: on the diagonals, for rows that depend on each other
_REFINEMENTS = 4


def explicit(
    plan: Plan, objective: Matrix, duals: Tensor, decided: Tensor, converged: Tensor, tensors: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """x (N, l) and duals (N, k) from scores, `Numbers` and the matrix."""
    scores, values, side, lower, upper, price, matrix = tensors
    count, l = scores.shape
    k, y = plan.pattern.num_rows, torch.where(torch.isfinite(scores) & converged, scores, 0.0).to(torch.float64)
    flags = (decided != 0) & converged
    free, at_upper, active = flags[:, :l], flags[:, l : 2 * l], flags[:, 2 * l : 2 * l + k]
    whole = matrix.reshape(-1, l, l)
    P = ((whole + whole.mT) / 2).expand(count, l, l)
    row, col, _ = plan.pattern.on(values.device)
    A = torch.zeros(values.shape[0], k, l, dtype=values.dtype, device=values.device)
    A = A.index_put((torch.arange(values.shape[0], device=row.device)[:, None], row[None], col[None]), values)
    A = A.to(torch.float64).expand(count, k, l)
    c = (P @ y[..., None])[..., 0] if isinstance(objective, Metric) else y
    bound = torch.where(free, 0.0, torch.where(at_upper, upper, lower))
    bound = torch.where(torch.isfinite(bound) & converged, bound, 0.0)
    priced = ~active & (duals != 0) & torch.isfinite(price) & converged
    rest = torch.where(priced, torch.sign(duals.detach()) * torch.where(priced, price, 0.0), 0.0)
    over = free.to(P.dtype)[..., None]
    top = torch.cat([over * P + torch.diag_embed((~free).to(P.dtype)), -over * A.mT], -1)
    on = active.to(P.dtype)[..., None]
    below = torch.cat([on * A, torch.diag_embed((~active).to(P.dtype))], -1)
    system = torch.cat([top, below], -2)
    rhs = torch.cat([torch.where(free, c, bound), torch.where(active, side, rest)], -1)
    lift = _LIFT * system.detach().abs().amax((-1, -2), keepdim=True) * torch.eye(l + k, dtype=P.dtype, device=P.device)
    lifted, found = system + lift, torch.zeros_like(rhs)
    for _ in range(_REFINEMENTS):
        left = rhs - (system @ found[..., None])[..., 0]
        found = found + torch.linalg.solve(lifted, left)
    return found[:, :l], found[:, l:]


def gradients(
    plan: Plan,
    objective: Matrix,
    tensors: Sequence[Tensor],
    duals: Tensor,
    decided: Tensor,
    converged: Tensor,
    grad_x: Tensor,
    grad_duals: Tensor,
    needed: Sequence[bool],
) -> Sequence[Tensor | None]:
    """Gradients to scores, `Numbers` and the matrix."""
    if objective.sparsity is None and fits_dense(plan.pattern.num_rows, plan.width):

        def solution(*own: Tensor) -> tuple[Tensor, Tensor]:
            return explicit(plan, objective, duals, decided, converged, own)

        pull_back: Callable[..., Any] = torch.func.vjp(solution, *tensors)[1]
        return pull_back((grad_x.to(torch.float64), grad_duals.to(torch.float64)))
    if torch.is_grad_enabled():
        raise ConstraintError(
            "second derivatives and function transforms need dense factors of P, which this set is too large for. "
            "Fix: call backward or torch.autograd.grad once, without create_graph."
        )
    arrays = [to_numpy(tensor) for tensor in tensors]
    problem = plan.problem(Numbers(*arrays[1:-1]), arrays[0].astype("float64"), objective.probe(arrays[3]), None)
    own = objective.changed(lambda _: arrays[-1])
    assert isinstance(own, Matrix)
    shapes = [tuple(tensor.shape) if wants else None for tensor, wants in zip(tensors[1:], needed[1:], strict=True)]
    x = quadratic.point(problem, own, to_numpy(duals), to_numpy(decided))
    to_scores, others = quadratic.pull_back(
        problem, own, x, to_numpy(duals), to_numpy(decided), to_numpy(grad_x), to_numpy(grad_duals), shapes
    )
    made = [to_scores, *others]
    return [
        None if array is None else torch.from_numpy(array).to(like.device, like.dtype)
        for array, like in zip(made, tensors, strict=True)
    ]
