"""Whether a back end can be trusted on a device: small systems solved both ways, beside plain torch operations.

The C core and torch operations are tested on the machines that build them. A kernel that is compiled where it runs is
not: it proves itself there, at its first use, and on demand by ``python -m linsat check``.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from linsat.arrays import Newton
from linsat.constraints import Constraints
from linsat.errors import LinSATWarning
from linsat.objectives import KL, Entropy, Euclidean, Objective
from linsat.plan import Solver
from linsat.request import Options, Request

Tensor = torch.Tensor

_BATCH = 8
_X, _GRADIENT = 1e-7, 1e-5  # largest differences in x and, relative to the largest entry, in gradients
_PLAIN = Newton(backend="arrays")

_faults: dict[tuple[str, str], str | None] = {}  # of a back end on a device: None, or how it differs
_own = threading.local()  # whether this thread is checking


def trusted(solver: Solver, device: torch.device) -> Solver:
    """The solver; torch operations in its place where the back end that it asks for fails the check on the device."""
    if not isinstance(solver, Newton) or solver.backend != "triton" or getattr(_own, "checking", False):
        return solver
    return solver if fault_of(solver.backend, device) is None else replace(solver, backend="arrays")


def fault_of(backend: str, device: torch.device) -> str | None:
    """How a back end differs from torch operations on a device, worked out once; None: it does not. Warns of a fault.

    Raises:
        ConstraintError: the back end cannot be used on the device at all.
    """
    key = backend, str(device)
    if key not in _faults:
        _own.checking = True
        try:
            _faults[key] = next(_differences(Newton(backend=backend), device), None)  # type: ignore[arg-type]
        finally:
            _own.checking = False
        if _faults[key] is not None:
            warnings.warn(
                f"backend={backend!r} is turned off on {device}: {_faults[key]}. Torch operations serve in its place. "
                f"Please report it with the output of: python -m linsat check",
                LinSATWarning,
                stacklevel=2,
            )
    return _faults[key]


def _differences(solver: Newton, device: torch.device) -> Iterator[str]:
    """What differs, a line each."""
    draw = torch.Generator().manual_seed(0)
    for name, cons, objective in _systems():
        assert cons.num_variables is not None
        # Small, so that x is not at a vertex: of a gradient there, back ends choose between several.
        scores = 0.1 * torch.randn((_BATCH, cons.num_variables), generator=draw, dtype=torch.float64).to(device)
        weights = torch.randn(scores.shape, generator=draw, dtype=torch.float64).to(device)
        try:
            codes, x, gradient = _both_ways(scores, weights, cons, objective, solver)
        except RuntimeError as error:  # a kernel that does not compile, or stops
            yield f"{name} raises {type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        right_codes, right_x, right_gradient = _both_ways(scores, weights, cons, objective, _PLAIN)
        if not torch.equal(codes, right_codes):
            yield f"{name} ends with status codes {codes.tolist()}, expected {right_codes.tolist()}"
        apart = float((x - right_x).abs().max())
        if not apart <= _X:
            yield f"{name} is {apart:.1e} apart in x"
        apart = float((gradient - right_gradient).abs().max() / right_gradient.abs().max().clamp_min(1.0))
        if not apart <= _GRADIENT:
            yield f"{name} is {apart:.1e} apart in the gradient"


def _both_ways(
    scores: Tensor, weights: Tensor, cons: Constraints, objective: Objective, solver: Newton
) -> tuple[Tensor, Tensor, Tensor]:
    from linsat.torch.projection import solve

    y = scores.clone().requires_grad_()
    with torch.enable_grad():
        solution = solve(y, Request(cons, {}, objective, Options(solver, "ignore")))
        (gradient,) = torch.autograd.grad((solution.x * weights).sum(), y)
    return solution.codes, solution.x.detach(), gradient


def _systems() -> Iterator[tuple[str, Constraints, Objective]]:
    """Sums of rows and columns, limits of both kinds, and soft rows, with each objective."""
    sums = [[float(j // 4 == i) for j in range(16)] for i in range(4)]
    sums += [[float(j % 4 == i) for j in range(16)] for i in range(4)]
    mixed: dict[str, Any] = {"A": [[3, 1, 4, 1, 5, 9]], "b": [10], "C": [[1, 1, 0, 0, 0, 0]], "d": [1]}
    sets = {
        "a doubly stochastic matrix": Constraints(E=sums, f=[1.0] * 8),
        "a mixed system": Constraints(**mixed, E=[[1] * 6], f=[3]),
        "a system with soft rows": Constraints(**mixed, E=[[1] * 6], f=[3]).soften("A[0]", price=0.5),
    }
    for name, cons in sets.items():
        for objective in (Entropy(tau=0.3), Entropy(tau=0.3, slack="none"), Euclidean(), KL(tau=0.3)):
            yield f"{name} with {type(objective).__name__}", cons, objective
