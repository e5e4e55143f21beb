"""Gradients of full quadratics where the native core does not have them: on arrays that torch follows, or in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from linsat._array_namespace import to_numpy
from linsat.arrays.interior import quadratic
from linsat.arrays.problem import Tensor
from linsat.arrays.saddle import explicit
from linsat.errors import ConstraintError
from linsat.native.layout import fits_dense
from linsat.objectives.quadratic import Matrix
from linsat.plan import Numbers, Plan


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
            here = objective.changed(lambda _: own[-1])
            assert isinstance(here, Matrix)
            return explicit(plan, here, own[0], Numbers(*own[1:-1]), duals, decided, converged)

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
