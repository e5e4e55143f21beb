"""Rows -> equalities: slack masses and row scales, differentiable in every number the user gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from linsat._equations import Equalities, Tensor
from linsat._rows import RowMatrix
from linsat.constraints.structure import EQUAL, GREATER, LESS, Numbers, Structure


@dataclass(frozen=True)
class Box:
    """What follows from coefficients and bounds alone: the same for sets that differ in their right sides only."""

    rows: RowMatrix
    lower: Tensor  # (., l)
    width: Tensor  # (., l)
    least: Tensor  # (., k) of a x over the box
    most: Tensor  # (., k)
    scale: Tensor  # (., k) mean |coefficient * width| over non-zeros
    signed: Tensor  # (1, k) whether the row has negative coefficients


def to_equalities(
    structure: Structure,
    numbers: Numbers,
    num_variables: int,
    batch_shape: torch.Size,
    *,
    gamma_shift: float = 0.0,
    memory: dict[Any, Any] | None = None,
) -> Equalities:
    """Give every inequality its slack mass, so that the row holds exactly when its share z is in [0, 1].

        a x <= b   becomes   a x + S z = b,       S = b - min over the box of a x      (b itself for a >= 0, box [0, 1])
        c x >= d   becomes   c x + S z = d + S,   S = max over the box of c x - d
        c x >= d, c >= 0:    the same with S = g d, g = floor(sum c / d), the multiplier of the paper
        e x = f    becomes   e x = f,             S = 0

    Numbers that differ per instance are flattened over ``batch_shape``; shared ones keep a first dimension of 1.
    ``gamma_shift`` is added to d in the paper's multiplier, as the published package does with 1e-4. ``memory`` keeps
    the `Box` for other right sides, where coefficients and bounds are constants.
    """
    device = numbers.values.device
    key = (str(device), num_variables)
    keeps = memory is not None and numbers.lower.dim() <= 1 and numbers.upper.dim() <= 1
    box = memory.get(key) if memory is not None and keeps else None
    if box is None:
        box = _box(structure, numbers, num_variables, batch_shape)
        if memory is not None and keeps:
            memory[key] = box
    _, _, senses = structure.on(device)
    rhs = _flatten(numbers.rhs, structure.num_rows, batch_shape)
    covering = _covering_slack(rhs - box.least, box.most - box.least, gamma_shift)
    slack = torch.where(
        senses == LESS,
        rhs - box.least,
        torch.where(senses == EQUAL, torch.zeros_like(rhs), torch.where(box.signed, box.most - rhs, covering)),
    )
    target = torch.where(senses == GREATER, rhs + slack, rhs)
    return Equalities(box.rows, box.lower, box.width, target, slack, box.scale)


def _box(structure: Structure, numbers: Numbers, num_variables: int, batch_shape: torch.Size) -> Box:
    device = numbers.values.device
    row, col, _ = structure.on(device)
    memory = structure.memory.setdefault((str(device), num_variables), {})
    rows = RowMatrix(row, col, numbers.values, (structure.num_rows, num_variables), memory)
    lower = _flatten(numbers.lower, num_variables, batch_shape)
    upper = _flatten(numbers.upper, num_variables, batch_shape)
    width = upper - lower

    def per_row(terms: Tensor) -> Tensor:
        return terms.new_zeros((terms.shape[0], structure.num_rows)).index_add(1, row, terms)

    at_lower, at_upper = lower[:, col] * numbers.values, upper[:, col] * numbers.values
    reach = numbers.values.abs() * width[:, col]
    counts = per_row(((numbers.values != 0) & (width[:, col] > 0)).to(reach.dtype))
    scale = per_row(reach) / counts.clamp_min(1.0)
    return Box(
        rows=rows,
        lower=lower,
        width=width,
        least=per_row(torch.minimum(at_lower, at_upper)),
        most=per_row(torch.maximum(at_lower, at_upper)),
        scale=torch.where(counts > 0, scale, torch.ones_like(scale)),
        signed=per_row((numbers.values < 0).to(reach.dtype)[None, :]) > 0,
    )


def _covering_slack(need: Tensor, total: Tensor, gamma_shift: float) -> Tensor:
    """g d for rows c x >= d with c >= 0, measured from the row's smallest value."""
    safe = torch.where(need > 0, need, torch.ones_like(need))
    # The relative nudge keeps ratios that are whole numbers in exact arithmetic (0.3 / 0.1) from rounding down.
    multiplier = torch.floor((total / (safe + gamma_shift)).detach() * (1 + 1e-12))
    return multiplier * need


def _flatten(tensor: Tensor, size: int, batch_shape: torch.Size) -> Tensor:
    """Shared numbers as (1, size), per-instance ones as (instances, size)."""
    if tensor.dim() <= 1:
        return tensor.expand(1, size)
    return tensor.expand(*batch_shape, size).reshape(batch_shape.numel(), size)
