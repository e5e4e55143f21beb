"""What the arguments of a constraint set must agree on, beyond what each must be by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from linsat._senses import EQUAL, GREATER, LESS
from linsat._transforms import plain, plain_together, tracing
from linsat.constraints.arrays import Tensor
from linsat.constraints.coefficients import Matrix
from linsat.constraints.layout import Layout
from linsat.constraints.structure import BLOCKS, SparsityPattern
from linsat.errors import ConstraintError


def check_names(names: Sequence[str] | None, num_rows: int) -> tuple[str, ...] | None:
    """Names of rows as a tuple: one string per row."""
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConstraintError("names must be a sequence of strings, one per row (rows of A, then C, then E).")
    if len(names) != num_rows:
        raise ConstraintError(
            f"names has {len(names)} entries but there are {num_rows} rows. "
            f"Fix: one name per row, rows of A first, then C, then E."
        )
    return tuple(names)


def check_bounds(lower: Tensor, upper: Tensor, layout: Layout | None) -> None:
    """Reject bounds that do not broadcast, or cross."""
    try:
        low, high = plain_together(*torch.broadcast_tensors(lower, upper.to(lower.device)))
    except RuntimeError:
        raise ConstraintError(
            f"lower has shape {tuple(lower.shape)} and upper {tuple(upper.shape)}, which do not "
            f"broadcast. Fix: give both a scalar, (variables,) or (batch, variables)."
        ) from None
    if tracing(lower) or tracing(upper):
        return
    crossed = low > high
    if bool(crossed.any()):
        index = tuple(int(i) for i in crossed.nonzero()[0])
        where = f"[{', '.join(map(str, index))}]" if index else ""
        if layout is not None and index and low.shape[-1] == layout.size:
            raise ConstraintError(
                f"lower = {float(low[index]):g} is above upper = {float(high[index]):g} at {layout.entry(index[-1])}"
                f"{f' of instance {index[0]}' if len(index) > 1 else ''}. Fix: swap or widen them."
            )
        raise ConstraintError(
            f"lower{where} = {float(low[index])} is above upper{where} = {float(high[index])}. Fix: swap or widen them."
        )


def check_finite_box(lower: Tensor, upper: Tensor, layout: Layout | None) -> None:
    """Reject infinite bounds; the message names the first variable that has one."""
    low, high = plain_together(*torch.broadcast_tensors(lower.cpu(), upper.cpu()))
    missing = torch.isinf(low) | torch.isinf(high)
    if not bool(missing.any()):
        return
    index = tuple(int(i) for i in missing.nonzero()[0])
    each = missing.dim() > 0 and missing.shape[-1] > 1
    count = int(missing.reshape(-1, missing.shape[-1]).any(0).sum()) if each else 1
    where = "x" if not each else f"x[{index[-1]}]" if layout is None else layout.entry(index[-1])
    others = f" (and {count - 1} more)" if count > 1 else ""
    raise ConstraintError(
        f"variable {where}{others} lies between {float(low[index]):g} and {float(high[index]):g}; the entropic "
        f"objective works in a finite box. Fix: a finite lower and upper bound for each such variable, "
        f"Variable(..., lower=-10, upper=10) or with_bounds(lower=..., upper=...); or objective=linsat.Euclidean(), "
        f"which needs none."
    )


def check_empty_rows(
    structure: SparsityPattern, matrices: Mapping[str, Matrix], right_sides: Mapping[str, Tensor]
) -> None:
    """Reject a row without coefficients that cannot hold: ``0 <= -1``, ``0 >= 1``, ``0 == 1``."""
    if "empty rows" not in structure.cache:
        structure.cache["empty rows"] = {
            name: (torch.bincount(matrix.row, minlength=matrix.shape[0]) == 0).nonzero().squeeze(-1).tolist()
            for name, matrix in matrices.items()
            if not matrix.live
        }
    for matrix_name, side_name, sense in BLOCKS:
        for row in structure.cache["empty rows"].get(matrix_name, ()):
            side = right_sides[side_name]
            if tracing(side):
                continue
            here = plain(side[..., row] if side.dim() else side).reshape(-1)
            fails = here < 0 if sense == LESS else here > 0 if sense == GREATER else here != 0
            wrong = here[fails].tolist()
            if wrong:
                text = {LESS: "<=", GREATER: ">=", EQUAL: "=="}[sense]
                raise ConstraintError(
                    f"{matrix_name}[{row}] has no non-zero coefficient but {side_name}[{row}] = {wrong[0]}, and "
                    f"0 {text} {wrong[0]:g} cannot hold. Fix: give the row coefficients or remove it."
                )


def joint_batch_shape(shapes: Mapping[str, torch.Size]) -> torch.Size:
    """The leading dimensions of coefficients, right-hand sides and bounds together."""
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items() if shape)
        raise ConstraintError(
            f"The batch dimensions of coefficients, right-hand sides and bounds do not fit together: {listed}. "
            f"Fix: give each the same leading dimensions, or none."
        ) from None
