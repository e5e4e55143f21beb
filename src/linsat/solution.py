"""What `linsat.solve` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from linsat.status import Status


@dataclass(frozen=True)
class Solution:
    """A batch of projections; every field has the batch dimensions of the scores. numpy scores give numpy fields.

    Attributes:
        x: the projected scores (batch..., variables), of the dtype of the scores.
        violation: worst violation of any row or bound at ``x``, in original units.
        steps: Newton steps or Sinkhorn sweeps taken.
        duals: (batch..., rows) multipliers of the rows as written: for rows solved by Newton,
            ``x = lower + width * sigmoid(width * (y + A' duals) / tau)`` wherever nothing is forced. Differentiable,
            and a warm start for a later solve.
        codes: how each instance ended as positions in `Status`; see ``status``.
    """

    x: Any
    violation: Any
    steps: Any
    duals: Any
    codes: Any

    @property
    def converged(self) -> Any:
        """Whether each instance's rows hold to tolerance."""
        return self.codes == Status.CONVERGED.code

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
        shape = tuple(self.x.shape)
        worst = f"{float(self.violation.max()):.1e}" if status else "none"
        steps = int(self.steps.max()) if status else 0
        return f"Solution(x {shape}: {counts}; worst violation {worst}; at most {steps} steps)"
