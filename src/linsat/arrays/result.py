"""What a solver claims, what the verdict makes of it, and the proof of infeasibility that every solver can ask for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np

from linsat._array_namespace import Tensor, namespace
from linsat.arrays.problem import Problem
from linsat.status import Status

Ended = TypeVar("Ended", bound="_Ended")


class Stop(IntEnum):
    """Why a solver left an instance. Only `linsat.arrays.judgement` makes a status of it."""

    RUNS = -1  # it has not
    ARRIVED = 0  # its own rule says that it is done; whether that is an answer, the verdict says
    STEP_LIMIT = Status.STEP_LIMIT.code
    STALLED = Status.STALLED.code
    INFEASIBLE = Status.INFEASIBLE.code
    TIME_LIMIT = Status.TIME_LIMIT.code
    UNBOUNDED = Status.UNBOUNDED.code


@dataclass
class _Ended:
    """Duals of the scaled rows, x, and for each instance how it ended, how many steps it took and who solved it.

    ``x`` is the point at which the rows were seen to hold: computed again from mu, in another order of summation, it
    may differ by more than the tolerance when the duals are large.
    """

    mu: Tensor  # (N, k)
    x: Tensor  # (N, l)
    counts: Tensor  # (3, N) integers: how it ended, steps, positions in SOLVERS

    @property
    def steps(self) -> Tensor:
        """(N,)"""
        return self.counts[1]

    def put(self: Ended, index: Tensor, part: Ended) -> None:
        """Take over what became of the instances of ``index``."""
        self.mu[index], self.x[index], self.counts[:, index] = part.mu, part.x, part.counts


class Claim(_Ended):
    """What a solver hands back."""

    @property
    def stops(self) -> Tensor:
        """(N,) numbers of `Stop`."""
        return self.counts[0]

    @classmethod
    def empty(cls, problem: Problem, solver: str) -> Claim:
        """No step of the solver taken yet, and none to come."""
        xp, count = namespace(problem.scores), problem.size
        counts = xp.from_numpy(np.zeros((3, count), dtype=np.int64), problem.scores)
        counts[0], counts[2] = Stop.STEP_LIMIT, SOLVERS.index(solver)
        scores = problem.scores
        return cls(xp.zeros((count, problem.rows.shape[0]), scores), xp.zeros_like(scores), counts)


class SolverResult(_Ended):
    """The same after the verdict."""

    @property
    def codes(self) -> Tensor:
        """(N,) positions in Status."""
        return self.counts[0]

    @property
    def solved(self) -> bool:
        """Whether every instance has converged."""
        return not bool(self.codes.any())


SOLVERS = ("newton", "interior_point", "sinkhorn")


def farkas_gap(problem: Problem, mu: Tensor) -> Tensor:
    """By how much the weights mu prove an instance infeasible, (N,); positive is a proof, zero or less says nothing.

    If <mu, B> exceeds the largest value of <mu, A x + S z> over the box, no point can satisfy the rows. The margin
    left for rounding grows with the size of the terms. Weights of the wrong sign, and of soft rows, count nothing.
    """
    xp = namespace(mu)
    p = problem.presolved
    low, high = problem.dual_bounds()
    proves = p.active & ((mu <= 0) | xp.isposinf(high)) & ((mu >= 0) | xp.isneginf(low))
    nu = xp.where(proves, mu, 0.0) / problem.scale
    gain = problem.rows.rmatvec(nu)
    least = xp.where(p.free | ~p.at_upper, problem.lower, problem.upper)
    most = xp.where(p.free | p.at_upper, problem.upper, problem.lower)
    best = xp.where(gain > 0, gain * most, xp.where(gain < 0, gain * least, 0.0))
    slack = problem.slack * nu
    best_slack = xp.where(p.tight, slack * p.tight_share, xp.at_least(slack, 0.0))
    target = problem.rhs * nu
    size = abs(best).sum(-1) + abs(best_slack).sum(-1) + abs(target).sum(-1)
    return target.sum(-1) - best.sum(-1) - best_slack.sum(-1) - max(1e-9, 100 * xp.eps(mu)) * size
