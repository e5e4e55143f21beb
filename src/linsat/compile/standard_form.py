"""Constraints -> standard form: slack masses, row scales and bounds on duals, differentiable in every given number."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from linsat._transforms import plain, plain_tensors
from linsat.compile.box import Box
from linsat.compile.presolve import row_sides
from linsat.compile.problem import StandardForm, Tensor
from linsat.compile.rows import RowMatrix
from linsat.constraints.arrays import Shape
from linsat.constraints.structure import SparsityPattern, Values
from linsat.objectives import Objective


def standard_form(
    pattern: SparsityPattern,
    values: Values,
    num_variables: int,
    batch_shape: Shape,
    objective: Objective,
    *,
    gamma_shift: float = 0.0,
    cache: dict[Any, Any] | None = None,
) -> StandardForm:
    """Rows and the box as `linsat.compile.problem` wants them.

    With the paper's entropic slack every inequality gets a slack mass, so that the row holds exactly when its share z
    is in [0, 1]:

        a x <= b   becomes   a x + S z = b,       S = b - min over the box of a x      (b itself for a >= 0, box [0, 1])
        c x >= d   becomes   c x + S z = d + S,   S = max over the box of c x - d
        c x >= d, c >= 0:    the same with S = g d, g = floor(sum c / d), the multiplier of the paper
        e x = f    becomes   e x = f,             S = 0

    Without it, and for soft rows always, S = 0 and the sense of a row is a bound on its dual; the price of a soft row
    is a second bound. Rows are scaled by the mean |coefficient * width| of their non-zeros in a finite box (the paper's
    slack temperature is in these units), else by the norm of the row.

    Values that differ per instance are flattened over ``batch_shape``; shared ones keep a first dimension of 1.
    ``gamma_shift`` is added to d in the paper's multiplier, as the published package does with 1e-4. ``cache`` keeps
    the `Box` for other right-hand sides, where coefficients and bounds are constants.
    """
    device = values.values.device
    key = (str(device), num_variables, objective.finite_box)
    cache = None if torch.compiler.is_compiling() else cache  # in a graph nothing is made for later calls
    keeps = cache is not None and all(t.dim() <= 1 for t in (values.values, values.lower, values.upper))
    box = cache.get(key) if cache is not None and keeps else None
    if box is None:
        if cache is not None and keeps:
            # Kept, so plain tensors, also where a function transform of other numbers runs.
            own = {name: plain(getattr(values, name)) for name in ("values", "lower", "upper")}
            with plain_tensors():
                box = _box(pattern, replace(values, **own), num_variables, batch_shape, objective.finite_box)
            cache[key] = box
        else:
            box = _box(pattern, values, num_variables, batch_shape, objective.finite_box)
    _, _, senses = pattern.on(device)
    rhs = _flatten(values.rhs, pattern.num_rows, batch_shape)
    price = None if values.price is None else _flatten(values.price, pattern.num_rows, batch_shape)
    return box.form(rhs, price, senses, entropic=objective.entropic_slack, gamma_shift=gamma_shift)


def forbid(
    form: StandardForm, forbidden: Tensor, senses: Tensor, objective: Objective, *, gamma_shift: float = 0.0
) -> StandardForm:
    """The standard form of the same rows where some variables, (N, l) bool, have their lower bound as upper bound."""
    upper = torch.where(forbidden, form.lower, form.upper)
    if not objective.finite_box:  # then nothing else follows from the bounds
        return replace(form, upper=upper)
    rows = form.rows
    box = Box.of(rows, form.lower, upper, True, (form.lower[:, rows.col], upper[:, rows.col]))
    price = torch.where(form.soft, torch.maximum(-form.dual_lower, form.dual_upper), math.inf)
    sides, entropic = row_sides(form, senses), objective.entropic_slack
    return box.form(sides, price, senses, entropic=entropic, gamma_shift=gamma_shift)


def _box(pattern: SparsityPattern, values: Values, num_variables: int, batch_shape: Shape, finite: bool) -> Box:
    device = values.values.device
    row, col, _ = pattern.on(device)
    cache = pattern.cache.setdefault((str(device), num_variables), {})
    coefficients = _flatten(values.values, len(row), batch_shape)
    rows = RowMatrix(row, col, coefficients, (pattern.num_rows, num_variables), cache)
    lower = _flatten(values.lower, num_variables, batch_shape)
    upper = _flatten(values.upper, num_variables, batch_shape)
    ends = _of_entries(lower, values.lower, col), _of_entries(upper, values.upper, col)
    return Box.of(rows, lower, upper, finite, ends)


def _of_entries(bound: Tensor, given: Tensor, col: Tensor) -> Tensor:
    """The bound (., l) of the variable of each coefficient, (., nnz); (1, 1) where all variables have the same."""
    return given.reshape(1, 1) if given.numel() == 1 else bound[:, col]


def _flatten(tensor: Tensor, size: int, batch_shape: Shape) -> Tensor:
    """Shared numbers as (1, size), per-instance ones as (instances, size)."""
    if tensor.dim() <= 1:
        return tensor.expand(1, size)
    return tensor.expand(*batch_shape, size).reshape(math.prod(batch_shape), size)
