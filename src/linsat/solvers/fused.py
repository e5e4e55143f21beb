"""Newton by the fused CPU kernel, for programs of any kind."""

from __future__ import annotations

import numpy as np
import torch

from linsat._equations import Equalities, Program, Tensor
from linsat._kernels import KernelBrokenError, load
from linsat._kernels.run import solve_batch
from linsat._kernels.tables import Pattern, build_tables, pattern_of
from linsat.errors import ConstraintError
from linsat.solvers.outcome import Outcome


def run_kernel(
    program: Program, tau: Tensor, start: Tensor | None, *, tol: float, max_steps: int, required: bool
) -> Outcome | None:
    """Solve by the kernel; None where the torch path should serve (other device, too large, kernel missing)."""
    state = load()
    reason = state.reason
    if state.available:
        pattern = pattern_of(program.rows) if program.scores.device.type == "cpu" else None
        reason = "it needs CPU tensors and at least one, and not too many, rows"
        if pattern is not None:
            try:
                return _run(pattern, program, tau, start, tol, max_steps)
            except KernelBrokenError as error:
                reason = str(error)
    if required:
        raise ConstraintError(f"backend='kernel' cannot be used here: {reason}. Fix: backend='auto'.")
    return None


def _run(pattern: Pattern, program: Program, tau: Tensor, start: Tensor | None, tol: float, max_steps: int) -> Outcome:
    tables = build_tables(pattern, Equalities(*_equality_fields(program)), program.reduction)
    scores = np.ascontiguousarray(program.scores.detach().numpy())
    first = None if start is None else np.ascontiguousarray(start.detach().numpy()[:, pattern.order])
    temperatures = np.ascontiguousarray(tau.detach().numpy())
    solved = solve_batch(tables, scores, temperatures, tol=tol, max_steps=max_steps, start=first)
    mu = np.empty_like(solved.mu)
    mu[:, pattern.order] = solved.mu
    codes, steps, p = (torch.from_numpy(array) for array in (solved.codes, solved.steps, solved.p))
    return Outcome(torch.from_numpy(mu), codes, steps, p)


def _equality_fields(program: Program) -> tuple:
    return program.rows, program.lower, program.width, program.rhs, program.slack, program.scale
