"""What the arguments of a constraint set must agree on, beyond what each must be by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from linsat._senses import EQUAL, GREATER, LESS
from linsat._transforms import plain_together, tracing
from linsat.constraints import arrays
from linsat.constraints.arrays import Array, Numbers, Shape
from linsat.constraints.coefficients import Matrix
from linsat.constraints.layout import Layout
from linsat.constraints.structure import BLOCKS, SparsityPattern
from linsat.errors import ConstraintError


def check_names(names: Sequence[str] | None, num_rows: int) -> tuple[str, ...] | None:
    """Names of rows as a tuple: one string per row."""
    if names is None:
        return None
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConstraintError(
            f"names is {arrays.shown(names)}; expected a list of strings. "
            f"Fix: one name per row, rows of A first, then C, then E."
        )
    if len(names) != num_rows:
        raise ConstraintError(
            f"names has length {len(names)}, and the set {num_rows} {'row' if num_rows == 1 else 'rows'}. "
            f"Fix: one name per row, rows of A first, then C, then E."
        )
    return tuple(names)


def _together(lower: Numbers, upper: Numbers) -> tuple[Numbers, Numbers]:
    """Both bounds in one shape, without gradients and those of all mapped instances."""
    low, high = arrays.alike((lower, upper))
    shape = arrays.broadcast_shapes(low.shape, high.shape)
    wide = arrays.spread(low, shape), arrays.spread(high, shape)
    return wide if arrays.namespace(low) is np else plain_together(*wide)  # type: ignore[return-value]


def check_bounds(lower: Numbers, upper: Numbers, layout: Layout | None) -> None:
    """Reject bounds that do not broadcast, or cross."""
    try:
        low, high = _together(lower, upper)
    except ValueError:
        raise ConstraintError(
            f"lower has shape {tuple(lower.shape)} and upper {tuple(upper.shape)}, which do not "
            f"broadcast. Fix: give both a scalar, (variables,) or (batch, variables)."
        ) from None
    if tracing(low if arrays.namespace(low) is not np else None):
        return
    crossed = low > high
    if bool(crossed.any()):
        index = arrays.first_place(crossed)
        if layout is not None and index and low.shape[-1] == layout.size:
            raise ConstraintError(
                f"lower = {float(low[index]):g} is above upper = {float(high[index]):g} at {layout.entry(index[-1])}"
                f"{f' of instance {index[0]}' if len(index) > 1 else ''}. Fix: swap or widen them."
            )
        raise ConstraintError(
            f"{arrays.indexed('lower', index)} = {float(low[index])} is above {arrays.indexed('upper', index)} = "
            f"{float(high[index])}. Fix: swap or widen them."
        )


def check_finite_box(lower: Numbers, upper: Numbers, layout: Layout | None, lower_only: bool) -> None:
    """Reject infinite bounds, or lower ones only; the message names the first variable that has one."""
    low, high = (arrays.as_array(bound) for bound in _together(lower, upper))
    missing = np.isinf(low) | (np.isinf(high) & (not lower_only))
    if not missing.any():
        return
    index = arrays.first_place(missing)
    each = missing.ndim > 0 and missing.shape[-1] > 1
    count = int(missing.reshape(-1, missing.shape[-1]).any(0).sum()) if each else 1
    where = "x" if not each else f"x[{index[-1]}]" if layout is None else layout.entry(index[-1])
    others = f" (and {count - 1} more)" if count > 1 else ""
    if lower_only:
        raise ConstraintError(
            f"variable {where}{others} has no lower bound; this objective measures from it. Fix: a finite lower bound "
            f"for each such variable, Variable(..., lower=0) or with_bounds(lower=...); or "
            f"objective=linsat.Euclidean(), which needs none."
        )
    raise ConstraintError(
        f"variable {where}{others} lies between {float(low[index]):g} and {float(high[index]):g}; the entropic "
        f"objective works in a finite box. Fix: a finite lower and upper bound for each such variable, "
        f"Variable(..., lower=-10, upper=10) or with_bounds(lower=..., upper=...); or objective=linsat.Euclidean(), "
        f"which needs none, or linsat.KL(), which needs a lower bound only."
    )


def check_empty_rows(
    structure: SparsityPattern,
    matrices: Mapping[str, Matrix],
    right_sides: Mapping[str, Numbers],
    filled: Sequence[int] | Array = (),
) -> None:
    """Reject a row without coefficients that cannot hold: ``0 <= -1``, ``0 >= 1``, ``0 == 1``.

    Rows ``filled`` have other terms.
    """
    if "empty rows" not in structure.cache:
        structure.cache["empty rows"] = {
            name: np.flatnonzero(np.bincount(matrix.row, minlength=matrix.shape[0]) == 0).tolist()
            for name, matrix in matrices.items()
            if not matrix.live
        }
    others, start = set(map(int, filled)), 0
    for matrix_name, side_name, sense in BLOCKS:
        rows = structure.cache["empty rows"].get(matrix_name, ())
        first, start = start, start + (matrices[matrix_name].shape[0] if matrix_name in matrices else 0)
        for row in rows:
            if first + row in others:
                continue
            side = arrays.visible(right_sides[side_name])
            if side is None:
                continue
            here: Array = arrays.as_array(side[..., row] if side.ndim else side).reshape(-1)
            fails = here < 0 if sense == LESS else here > 0 if sense == GREATER else here != 0
            wrong = here[fails].tolist()
            if wrong:
                text = {LESS: "<=", GREATER: ">=", EQUAL: "=="}[sense]
                raise ConstraintError(
                    f"{matrix_name}[{row}] has no non-zero coefficient but {side_name}[{row}] = {wrong[0]}, and "
                    f"0 {text} {wrong[0]:g} cannot hold. Fix: give the row coefficients or remove it."
                )


def joint_batch_shape(shapes: Mapping[str, Shape]) -> Shape:
    """The leading dimensions of coefficients, right-hand sides and bounds together."""
    if not any(shapes.values()):
        return ()
    try:
        return arrays.broadcast_shapes(*shapes.values())
    except ValueError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items() if shape)
        raise ConstraintError(
            f"The batch dimensions of coefficients, right-hand sides and bounds do not fit together: {listed}. "
            f"Fix: give each the same leading dimensions, or none."
        ) from None
