"""`LinSAT`: the projection as a layer of a model."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from linsat._compile import compile_constraints
from linsat._request import Solver, check_options
from linsat.constraints import Constraints
from linsat.errors import ConstraintError
from linsat.projection import project


class LinSAT(nn.Module):
    """Projects the last dimension of its input onto a constraint set; see `linsat.project`.

    Args:
        constraints: rows and box, compiled here once (so contradictory rows are refused here).
        tau: temperature; an ``nn.Parameter`` is learned with the model.
        solver, on_failure: as in `linsat.project`.

    The layer has no parameters of its own. ``nn.Parameter`` right sides, coefficients or bounds inside the constraint
    set (and tau) are registered under their names, so optimisers, ``state_dict`` and ``.to(device)`` see them.

    Example::

        model = nn.Sequential(nn.Linear(64, 9), LinSAT(linsat.constraints.doubly_stochastic(3), tau=0.1))
    """

    def __init__(
        self,
        constraints: Constraints,
        *,
        tau: Any = 0.1,
        solver: Solver | None = None,
        on_failure: str = "warn",
    ) -> None:
        super().__init__()
        if not isinstance(constraints, Constraints):
            raise ConstraintError(
                f"constraints is a {type(constraints).__name__}; expected linsat.Constraints. "
                f"Fix: linsat.Constraints(A=A, b=b)."
            )
        if not isinstance(tau, torch.Tensor) and not (isinstance(tau, (int, float)) and 0 < tau < math.inf):
            raise ConstraintError(f"tau is {tau!r}; expected a positive number or tensor. Fix: tau=0.1, say.")
        check_options(solver, on_failure)
        compile_constraints(constraints)
        self.constraints = constraints
        self.solver = solver
        self.on_failure = on_failure
        parameters = {n: t for n, t in constraints.learned_tensors().items() if isinstance(t, nn.Parameter)}
        self._learned = tuple(parameters)
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)
        self.tau = tau

    def forward(
        self,
        y: Any,
        *,
        b: Any = None,
        d: Any = None,
        f: Any = None,
        lower: Any = None,
        upper: Any = None,
        tau: Any = None,
    ) -> Any:
        """x like y (..., variables). Right sides, bounds or tau given here replace the layer's own for this call."""
        constraints = self.constraints
        kept = constraints.learned_tensors()
        # Parameters may be swapped for others: load_state_dict(assign=True), torch.func.functional_call.
        swapped = {
            name: self._parameters[name] for name in self._learned if self._parameters[name] is not kept.get(name)
        }
        if swapped:
            constraints = constraints.with_tensors({name: t for name, t in swapped.items() if t is not None})
        if not (b is None and d is None and f is None):
            constraints = constraints.with_rhs(b=b, d=d, f=f)
        if not (lower is None and upper is None):
            constraints = constraints.with_bounds(lower=lower, upper=upper)
        return project(
            y,
            constraints,
            tau=self.tau if tau is None else tau,
            solver=self.solver,
            on_failure=self.on_failure,
        )

    def extra_repr(self) -> str:
        tau = f"{float(self.tau):g}" if not isinstance(self.tau, torch.Tensor) else "learned or per instance"
        if isinstance(self.tau, torch.Tensor) and self.tau.numel() == 1:
            tau = f"{float(self.tau.detach()):g}"
        return f"{repr(self.constraints).splitlines()[0]}, tau={tau}"
