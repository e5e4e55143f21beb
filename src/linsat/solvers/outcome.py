"""What a solver hands back, and the proof of infeasibility every solver can ask for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from linsat._equations import Program, Tensor
from linsat.status import Status


@dataclass
class Outcome:
    """Duals of the normalised rows, how each instance ended and how many steps it took.

    ``p`` are the shares at which the solver saw the rows hold, where it keeps them: computed again from mu, in another
    order of summation, they may differ by more than the tolerance when the duals are large.
    """

    mu: Tensor  # (N, k)
    codes: Tensor  # (N,) positions in Status
    steps: Tensor  # (N,)
    p: Tensor | None = None  # (N, l)

    def shares(self, program: Program, tau: Tensor) -> Tensor:
        """The shares at which the rows hold, (N, l), at temperatures tau (N,)."""
        return program.shares(self.mu, tau[:, None])[0] if self.p is None else self.p

    @classmethod
    def empty(cls, program: Program, count: int) -> Outcome:
        scores = program.scores
        return cls(
            mu=scores.new_zeros((count, program.rows.shape[0])),
            codes=torch.full((count,), Status.STEP_LIMIT.code, dtype=torch.int64, device=scores.device),
            steps=torch.zeros(count, dtype=torch.int64, device=scores.device),
        )


def farkas_gap(program: Program, mu: Tensor) -> Tensor:
    """By how much the weights mu prove an instance infeasible, (N,); positive is a proof, zero or less says nothing.

    If <mu, B> exceeds the largest value of <mu, A x + S z> over the box, no point can satisfy the rows. The margin
    left for rounding grows with the size of the terms.
    """
    r = program.reduction
    nu = torch.where(r.active, mu, 0.0) / program.scale
    gain = program.rows.pull(nu)
    low = program.point(torch.where(r.free, 0.0, r.pinned))
    high = program.point(torch.where(r.free, 1.0, r.pinned))
    best_x = torch.maximum(gain * low, gain * high)
    slack = program.slack * nu
    best_z = torch.where(r.tight, slack * r.tight_share, slack.clamp_min(0.0))
    target = program.rhs * nu
    size = best_x.abs().sum(-1) + best_z.abs().sum(-1) + target.abs().sum(-1)
    return target.sum(-1) - best_x.sum(-1) - best_z.sum(-1) - 1e-9 * size
