"""Constraints -> standard form: slack masses, row scales and bounds on duals, differentiable in every given number."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from linsat._transforms import plain, plain_tensors
from linsat.compile.problem import StandardForm, Tensor
from linsat.compile.rows import RowMatrix
from linsat.constraints.arrays import Shape
from linsat.constraints.structure import EQUAL, GREATER, LESS, SparsityPattern, Values
from linsat.objectives import Objective


@dataclass(frozen=True)
class Box:
    """What follows from coefficients and bounds alone: the same for sets that differ in their right-hand sides only."""

    rows: RowMatrix
    lower: Tensor  # (., l)
    upper: Tensor  # (., l)
    least: Tensor  # (., k) of a x over the box
    most: Tensor  # (., k)
    scale: Tensor  # (., k)
    signed: Tensor  # (., k) whether the row has negative coefficients


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
    if objective.entropic_slack:
        covering = _covering_slack(rhs - box.least, box.most - box.least, gamma_shift)
        slack = torch.where(
            senses == LESS,
            rhs - box.least,
            torch.where(senses == EQUAL, torch.zeros_like(rhs), torch.where(box.signed, box.most - rhs, covering)),
        )
        if price is not None:
            slack = torch.where(torch.isfinite(price[:1]), 0.0, slack)
        rhs = torch.where(senses == GREATER, rhs + slack, rhs)
    else:
        slack = torch.zeros_like(rhs[:1].detach())
    bounds = _dual_bounds(senses, price, objective.entropic_slack)
    return StandardForm(box.rows, box.lower, box.upper, rhs, slack, box.scale, *bounds)


def _dual_bounds(senses: Tensor, price: Tensor | None, entropic: bool) -> tuple[Tensor, Tensor]:
    """Between which values the multiplier of each row lies, (., k) each: its sense and price, without slack."""
    if price is None:
        price = torch.full((1, len(senses)), torch.inf, dtype=torch.float64, device=senses.device)
    # With entropic slack a hard row, of infinite price, has a multiplier of any sign.
    signed = torch.isfinite(price) if entropic else torch.ones_like(price, dtype=torch.bool)
    return torch.where(signed & (senses == GREATER), 0.0, -price), torch.where(signed & (senses == LESS), 0.0, price)


def _box(pattern: SparsityPattern, values: Values, num_variables: int, batch_shape: Shape, finite: bool) -> Box:
    device = values.values.device
    row, col, _ = pattern.on(device)
    cache = pattern.cache.setdefault((str(device), num_variables), {})
    coefficients = _flatten(values.values, len(row), batch_shape)
    rows = RowMatrix(row, col, coefficients, (pattern.num_rows, num_variables), cache)
    lower = _flatten(values.lower, num_variables, batch_shape)
    upper = _flatten(values.upper, num_variables, batch_shape)
    if finite:
        low, high = (_of_entries(bound, given, col) for bound, given in ((lower, values.lower), (upper, values.upper)))
        at_lower, at_upper, width = low * coefficients, high * coefficients, high - low
        reach = coefficients.abs() * width
        counts = rows.row_sums(((coefficients != 0) & (width > 0)).to(reach.dtype))
        scale = rows.row_sums(reach) / counts.clamp_min(1.0)
        least, most = rows.row_sums(torch.minimum(at_lower, at_upper)), rows.row_sums(torch.maximum(at_lower, at_upper))
    else:
        counts = rows.row_sums((coefficients != 0).to(coefficients.dtype))
        # A scale changes the path of the solver only; without entropic slack it has no gradient.
        scale = rows.row_sums(coefficients.detach() ** 2).sqrt()
        least = most = torch.zeros_like(scale)
    return Box(
        rows=rows,
        lower=lower,
        upper=upper,
        least=least,
        most=most,
        scale=torch.where(counts > 0, scale, torch.ones_like(scale)),
        signed=rows.row_sums((coefficients < 0).to(coefficients.dtype)) > 0,
    )


def _of_entries(bound: Tensor, given: Tensor, col: Tensor) -> Tensor:
    """The bound (., l) of the variable of each coefficient, (., nnz); (1, 1) where all variables have the same."""
    return given.reshape(1, 1) if given.numel() == 1 else bound[:, col]


def _covering_slack(need: Tensor, total: Tensor, gamma_shift: float) -> Tensor:
    """g d for rows c x >= d with c >= 0, measured from the row's smallest value."""
    safe = torch.where(need > 0, need, torch.ones_like(need))
    # The relative nudge keeps ratios that are whole numbers in exact arithmetic (0.3 / 0.1) from rounding down.
    multiplier = torch.floor((total / (safe + gamma_shift)).detach() * (1 + 1e-12))
    return multiplier * need


def _flatten(tensor: Tensor, size: int, batch_shape: Shape) -> Tensor:
    """Shared numbers as (1, size), per-instance ones as (instances, size)."""
    if tensor.dim() <= 1:
        return tensor.expand(1, size)
    return tensor.expand(*batch_shape, size).reshape(math.prod(batch_shape), size)
