"""Moreau's torch layer: Euclidean projection as a quadratic program, the entropic program with exponential cones.

Its defaults throughout (tolerances 1e-8, which leave violations of about 1e-12). The lower bound x >= 0 is a direct
cone, which is about a third faster here than rows of slack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from equalities import to_equalities
from methods import YES, Applies, Forward, Peer, Tensor
from problems import ENTROPY, Problem


@dataclass(frozen=True)
class Moreau(Peer):
    """`moreau.torch.Solver`, batched, all cores; the solver (active set or interior point) is its own choice."""

    package: str = "moreau"
    modules: tuple[str, ...] = ("moreau.torch",)

    def applies_to(self, problem: Problem) -> Applies:
        return YES

    def prepare(self, problem: Problem) -> Forward:
        entropic = problem.objective == ENTROPY
        program = _entropic(problem) if entropic else _euclidean(problem)
        return program.layer(problem.batch, problem.l)


@dataclass(frozen=True, eq=False)
class _Program:
    """min v'Pv / 2 + cost'v over A v + s = b; the scores are subtracted from the first costs."""

    P: sp.sparray
    cost: np.ndarray
    A: sp.sparray
    b: np.ndarray
    cones: dict[str, Any]

    def layer(self, batch: int, width: int) -> Forward:
        import moreau
        from moreau.torch import Solver

        P, A = sp.csr_array(self.P), sp.csr_array(self.A)
        pattern = [torch.from_numpy(part.astype(np.int64)) for part in (P.indptr, P.indices, A.indptr, A.indices)]
        settings = moreau.Settings(device="cpu", batch_size=batch)
        solver = Solver(A.shape[1], A.shape[0], *pattern, moreau.Cones(**self.cones), settings)
        values = torch.from_numpy(P.data.astype(float)), torch.from_numpy(A.data.astype(float))
        b = torch.from_numpy(self.b).expand(batch, -1)
        cost = torch.from_numpy(self.cost).expand(batch, -1)

        def forward(y: Tensor) -> Tensor:
            linear = torch.cat([cost[:, :width] - y.double(), cost[:, width:]], dim=1)
            return solver.solve(*values, linear, b).x.reshape(batch, -1)[:, :width]

        return forward


def _euclidean(problem: Problem) -> _Program:
    rows, width = problem.rows, problem.l
    blocks, sides = [rows.E, rows.A, -rows.C], [rows.f, rows.b, -rows.d]
    direct: list[dict[str, Any]] = []
    if rows.box:
        blocks, sides = [*blocks, sp.eye_array(width)], [*sides, np.ones(width)]
        direct = [{"kind": "nonneg", "indices": list(range(width))}]
    b = np.concatenate(sides)
    cones = {"num_zero_cones": len(rows.f), "num_nonneg_cones": len(b) - len(rows.f), "dir_cones": direct}
    return _Program(sp.eye_array(width), np.zeros(width), sp.vstack(blocks), b, cones)


def _entropic(problem: Problem) -> _Program:
    """The program of `equalities` over v = (shares, t, u): t <= entr(share) and u <= entr(1 - share)."""
    assert problem.tau is not None
    form = to_equalities(problem.rows)
    slack = np.flatnonzero(form.s)
    mass = form.s[slack]
    rows, shares = len(form.q), problem.l + len(slack)
    G = sp.hstack([form.G, sp.csr_array((mass, (slack, np.arange(len(slack)))), shape=(rows, len(slack)))])
    weight = problem.tau * np.concatenate([np.ones(problem.l), mass])
    A = sp.vstack([sp.hstack([G, sp.csr_array((rows, 2 * shares))]), _cones(shares, 1), _cones(shares, 2)])
    # An exponential cone holds (t, share, 1) where t <= -share log(share).
    b = np.concatenate([form.q, np.tile([0.0, 0.0, 1.0], shares), np.tile([0.0, 1.0, 1.0], shares)])
    cost = np.concatenate([np.zeros(shares), -weight, -weight])
    empty = sp.csr_array((3 * shares, 3 * shares))
    return _Program(empty, cost, A, b, {"num_zero_cones": rows, "num_exp_cones": 2 * shares})


def _cones(shares: int, block: int) -> sp.csr_array:
    """Rows of s = b - A v for the cones of t (block 1, around the share) or u (block 2, around 1 - share)."""
    each = np.arange(shares)
    sign = -1.0 if block == 1 else 1.0
    values = np.concatenate([-np.ones(shares), np.full(shares, sign)])
    at = np.concatenate([3 * each, 3 * each + 1]), np.concatenate([block * shares + each, each])
    return sp.csr_array((values, at), shape=(3 * shares, 3 * shares))
