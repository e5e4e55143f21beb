"""What `linsat.solve` returns."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from linsat.constraints.constraint_set import Constraints
from linsat.solvers.result import SOLVERS
from linsat.status import Status


@dataclass(frozen=True)
class Solution:
    """A batch of projections; every field has the batch dimensions of the scores. numpy scores give numpy fields.

    Attributes:
        x: the projected scores, in the shape (or dict of shapes) and dtype of the scores.
        steps: steps or Sinkhorn sweeps taken.
        duals: (batch..., rows) multipliers of the rows as written: x is what the objective makes of ``y + A' duals``,
            for `Entropy` ``lower + width * sigmoid(width * (y + A' duals) / tau)``, for `Euclidean`
            ``clip(y + A' duals, lower, upper)``. At most zero for ``<=`` rows and at least zero for ``>=`` rows, zero
            where a row does not bind (a row that every feasible point holds with equality is an equality here, of any
            sign; so are all rows with the paper's entropic slack). Differentiable, and a
            warm start for a later solve.
        codes: how each instance ended as positions in `Status`; see ``status``.
        solver_codes: who solved each instance as positions in `linsat.solvers.result.SOLVERS`; see ``solved_by``.
    """

    x: Any
    steps: Any
    duals: Any
    codes: Any
    solver_codes: Any
    constraints: Constraints

    @functools.cached_property
    def violation(self) -> Any:
        """The worst violation of any row or bound at ``x``, of the batch shape, as `Constraints.violation` measures it.

        On ``x`` as it is returned, in its dtype; worked out when first asked for.
        """
        with torch.no_grad():
            return self.constraints.violation(self.x)

    @property
    def converged(self) -> Any:
        """Whether each instance's rows hold, and x is optimal, to tolerance."""
        return self.codes == Status.CONVERGED.code

    @property
    def solved_by(self) -> np.ndarray:
        """Who solved each instance: ``"newton"``, ``"interior_point"`` or ``"sinkhorn"``, of the batch shape."""
        codes = self.solver_codes
        return np.array(SOLVERS, dtype=object)[codes.cpu().numpy() if isinstance(codes, torch.Tensor) else codes]

    @property
    def status(self) -> np.ndarray:
        """`Status` of each instance as an object array of the batch shape (a scalar array without batch)."""
        codes = self.codes.cpu().numpy() if isinstance(self.codes, torch.Tensor) else np.asarray(self.codes)
        found = np.empty(codes.shape, dtype=object)
        for index, code in np.ndenumerate(codes):
            found[index] = Status.of(int(code))
        return found

    def __repr__(self) -> str:
        status = self.status.ravel().tolist()
        counts = ", ".join(f"{status.count(s)} {s}" for s in Status if s in status) or "empty batch"
        named = self.x.items() if isinstance(self.x, Mapping) else [("x", self.x)]
        shape = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named)
        worst = f"{float(self.violation.max()):.1e}" if status else "none"
        steps = int(self.steps.max()) if status else 0
        return f"Solution({shape}: {counts}; worst violation {worst}; at most {steps} steps)"
