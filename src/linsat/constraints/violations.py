"""How far a point is from satisfying a set: in numpy, or in torch, with gradients, for a point that is a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from linsat._optional import is_tensor
from linsat._senses import EQUAL, GREATER
from linsat.constraints.arrays import Numbers, namespace, positions_on, read_array
from linsat.constraints.layout import flatten, holds_tensors
from linsat.constraints.numbers import present, values_on
from linsat.constraints.terms import summed

if TYPE_CHECKING:
    import torch

    from linsat.constraints.constraint_set import Constraints

    Tensor = torch.Tensor


def row_violation(constraints: Constraints, x: Any) -> Any:
    """See `Constraints.row_violation`."""
    return _row_gaps(constraints, read_point(constraints, x))[0]


def violation(constraints: Constraints, x: Any) -> Any:
    """See `Constraints.violation`."""
    point = read_point(constraints, x)
    point = point.detach() if is_tensor(point) else point
    xp, (*_, lower, upper) = namespace(point), _numbers(constraints, point)
    lower, upper = (end.detach() if is_tensor(end) else end for end in (lower, upper))
    outside = xp.clip(xp.maximum(lower - point, point - upper), 0.0, None) / xp.clip(abs(point), 1.0, None)
    worst = xp.amax(outside, -1)
    if not len(constraints):
        return worst if is_tensor(worst) else np.asarray(worst)
    gap, size = _row_gaps(constraints, point)
    hard = positions_on(point, ~constraints._soft_mask())
    share = xp.where(hard, gap, xp.zeros_like(gap)) / xp.clip(size, 1.0, None)
    worst = xp.maximum(worst, xp.amax(share, -1))
    return worst.detach() if is_tensor(worst) else np.asarray(worst)


def soft_violation(constraints: Constraints, x: Any, tol: float) -> Any:
    """`row_violation` of the soft rows, 0 for the others and where it is at most ``tol`` times the row's size."""
    point = read_point(constraints, x)
    xp = namespace(point)
    gap, size = _row_gaps(constraints, point)
    held = gap <= tol * xp.clip(size, 1.0, None)  # not for NaN, which stays
    return xp.where(held | positions_on(gap, ~constraints._soft_mask()), 0.0, gap)


def read_point(constraints: Constraints, x: Any) -> Numbers:
    """x (batch..., variables) in float64: a tensor where x holds one, else an array."""
    tensors = holds_tensors(x)

    def read(name: str, part: Any) -> Numbers:
        if is_tensor(part):
            return part if tensors else part.detach().cpu().numpy()
        return read_array(name, part)

    point, _ = flatten("x", x, constraints._layout, constraints.num_variables, read)
    return point.double() if is_tensor(point) else point


def _numbers(constraints: Constraints, point: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Coefficients, right-hand sides and bounds where the point is: tensors on its device, or arrays."""
    if is_tensor(point):
        return values_on(constraints, point.device)[:4]
    stated = present(constraints)
    return stated.values, stated.rhs, stated.lower, stated.upper


def _row_gaps(constraints: Constraints, point: Numbers) -> tuple[Numbers, Numbers]:
    """(batch..., rows): what each row misses at a point, in its units, at least 0; and its size, sum_j |a_ij x_j|."""
    values, side, *_ = _numbers(constraints, point)
    pattern, xp = constraints._structure, namespace(point)
    row, col, senses = pattern.on(point.device) if is_tensor(point) else (pattern.row, pattern.col, pattern.senses)
    terms = point[..., col] * values  # (batch..., nnz)
    sizes = abs(terms.detach() if is_tensor(terms) else terms)
    activity, size = (summed(part, row, pattern.num_rows) for part in (terms, sizes))
    if constraints._terms is not None:
        added, more = constraints._terms.at(point, pattern.num_rows)
        activity, size = activity + added, size + more
    excess = activity - side
    gap = xp.where(senses == GREATER, -excess, xp.where(senses == EQUAL, abs(excess), excess))
    return xp.clip(gap, 0.0, None), size
