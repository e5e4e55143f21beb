"""The numbers of a problem as the kernel reads them, in its order and in the dtype it computes in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from linsat.backends.triton.layout import Layout
from linsat.compile.problem import Problem, Tensor
from linsat.objectives import Entropy


@dataclass(frozen=True)
class KernelData:
    """First dimensions are 1 where all instances share the numbers, else N."""

    coefficients: Tensor  # (., (1 + others) * places)
    rows: Tensor  # (., 6, positions): 1 / rho (0: not active), b, s, low, high of the dual, what a sweep may reach
    variables: Tensor  # (., 2, 4 or 5, places): width (0: fixed), x at p = 0, then bounds of p and weights (Euclidean)

    def to(self, dtype: torch.dtype) -> KernelData:
        return KernelData(self.coefficients.to(dtype), self.rows.to(dtype), self.variables.to(dtype))


def kernel_data(problem: Problem, layout: Layout) -> KernelData:
    """The data of a problem; kept where its numbers never change."""
    kept = None if problem.cache is None else problem.cache.get("triton")
    weighted = getattr(problem.objective, "weights", None) is not None
    if kept is None or kept[0] is not problem.presolved or weighted:
        base = _base(problem)
        found = KernelData(
            layout.coefficients(problem.rows.values), _rows(problem, layout, base), _variables(problem, layout, base)
        )
        kept = (problem.presolved, found)
        if problem.cache is not None and not weighted:  # weights belong to a call, not to the set
            problem.cache["triton"] = kept
    return kept[1]


def _base(problem: Problem) -> Tensor:
    """x where p is 0: the lower bound of a free variable with an entropy, the bound at which a fixed one is."""
    if isinstance(problem.objective, Entropy):
        return torch.where(problem.presolved.free, problem.lower, problem.anchor())
    return problem.anchor()


def _rows(problem: Problem, layout: Layout, base: Tensor) -> Tensor:
    p, zero = problem.presolved, torch.zeros_like(problem.scale)
    low, high = problem.dual_bounds()
    taken, slack, whole = problem.rows.matvec_each(base), zero, zero
    if problem.objective.entropic_slack:
        taken = taken + torch.where(p.tight, problem.slack * p.tight_share, 0.0)
        slack = torch.where(p.active & ~p.tight, problem.slack / problem.scale, 0.0)
    b = torch.where(p.active, (problem.rhs - taken) / problem.scale, 0.0)
    if problem.objective.temperature is not None and layout.groups:
        least, most = problem.row_ranges()
        signed = problem.rows.row_sums((problem.rows.values < 0).to(least.dtype)) > 0
        whole = torch.where(p.active & ~signed, most - least, 0.0)
    inverse = torch.where(p.active, 1.0 / problem.scale, 0.0)
    parts = [(inverse, 0.0), (b, 0.0), (slack, 0.0), (low, -torch.inf), (high, torch.inf), (whole, 0.0)]
    return _together([layout.spread_rows(numbers, padding) for numbers, padding in parts])


def _variables(problem: Problem, layout: Layout, base: Tensor) -> Tensor:
    free = problem.presolved.free
    if isinstance(problem.objective, Entropy):
        parts = [(torch.where(free, problem.upper - problem.lower, 0.0), 0.0), (base, 0.0)]
    else:
        low, high = (torch.where(free, bound, 0.0) for bound in (problem.lower, problem.upper))
        parts = [(free.to(base.dtype), 0.0), (base, 0.0), (low, 0.0), (high, 0.0)]
        weights = getattr(problem.objective, "weights", None)
        if weights is not None:
            parts.append((weights, 1.0))
    return _together([layout.spread_variables(numbers, padding) for numbers, padding in parts])


def _together(parts: list[Tensor]) -> Tensor:
    """Lists of (1 or N, size) as one (1 or N, parts, size), contiguous."""
    count = max((part.shape[0] for part in parts), default=1) if all(part.shape[0] for part in parts) else 0
    return torch.stack([part.expand(count, -1) for part in parts], 1).contiguous()
