"""The other peers: convex layers, QP layers, Sinkhorn of two packages, accelerated gradients on the dual.

Moreau and Pinet have files of their own: `peer_moreau`, `peer_pinet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from equalities import to_equalities
from methods import YES, Applies, Forward, Method, Peer, Tensor
from peer_moreau import Moreau
from peer_pinet import Pinet
from problems import ENTROPY, EUCLIDEAN, Problem


@dataclass(frozen=True)
class Apdagd(Peer):
    """Accelerated gradient descent on the dual, ours after the GLinSAT paper; see `apdagd`."""

    name: str = "apdagd"
    objectives: tuple[str, ...] = (ENTROPY,)
    package: str = "torch"
    modules: tuple[str, ...] = ("torch",)
    in_sweeps: bool = True

    def prepare(self, problem: Problem) -> Forward:
        from apdagd import Apdagd as Layer

        return Layer(to_equalities(problem.rows), problem.tau)


# ------------------------------------------------------------------ cvxpylayers


@dataclass(frozen=True)
class CvxpyLayers(Peer):
    """A cvxpy program as a layer, with Clarabel: faster and more exact here than the default solver SCS."""

    package: str = "cvxpylayers"
    modules: tuple[str, ...] = ("cvxpylayers.torch", "diffcp", "clarabel")

    def prepare(self, problem: Problem) -> Forward:
        import cvxpy as cp
        from cvxpylayers.torch import CvxpyLayer

        y, x = cp.Parameter(problem.l), cp.Variable(problem.l)
        build = _entropic if problem.objective == ENTROPY else _euclidean
        layer = CvxpyLayer(build(cp, problem, y, x), parameters=[y], variables=[x])
        jobs = torch.get_num_threads()
        arguments = {"solve_method": "Clarabel", "n_jobs_forward": jobs}

        def forward(scores: Tensor) -> Tensor:
            # Without a gradient the layer hands its arguments on to Clarabel, which rejects those it does not know.
            backward = {"n_jobs_backward": jobs} if scores.requires_grad else {}
            return layer(scores.double(), solver_args=arguments | backward)[0]

        return forward


def _entropic(cp: Any, problem: Problem, y: Any, x: Any) -> Any:
    """The program of `equalities`; entr keeps its argument positive, so the box needs no rows."""
    form = to_equalities(problem.rows)
    cost = -y @ x - problem.tau * cp.sum(cp.entr(x) + cp.entr(1 - x))
    slack = np.flatnonzero(form.s)
    if not len(slack):
        return cp.Problem(cp.Minimize(cost), [form.G @ x == form.q])
    z = cp.Variable(len(slack))
    mass = np.zeros((len(form.s), len(slack)))
    mass[slack, np.arange(len(slack))] = form.s[slack]
    cost = cost - problem.tau * form.s[slack] @ (cp.entr(z) + cp.entr(1 - z))
    return cp.Problem(cp.Minimize(cost), [form.G @ x + mass @ z == form.q])


def _euclidean(cp: Any, problem: Problem, y: Any, x: Any) -> Any:
    rows = problem.rows
    limits = [x >= 0, x <= 1] if rows.box else []
    if rows.A.shape[0]:
        limits.append(rows.A @ x <= rows.b)
    if rows.C.shape[0]:
        limits.append(rows.C @ x >= rows.d)
    if rows.E.shape[0]:
        limits.append(rows.E @ x == rows.f)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - y)), limits)


# ------------------------------------------------------------------ QP layers, Euclidean projection


def _quadratic(problem: Problem) -> dict[str, Tensor]:
    """min |x - y|^2 / 2 over E x = f and low <= G x <= high, the box among these rows, as dense float64 tensors."""
    rows = problem.rows
    box = np.eye(problem.l) if rows.box else np.zeros((0, problem.l))
    free = np.full(len(rows.b), -1e20), np.full(len(rows.d), 1e20)
    arrays = {
        "eye": np.eye(problem.l),
        "G": np.vstack([box, rows.A.toarray(), rows.C.toarray()]),
        "low": np.concatenate([np.zeros(len(box)), free[0], rows.d]),
        "high": np.concatenate([np.ones(len(box)), rows.b, free[1]]),
        "E": rows.E.toarray() if len(rows.f) else np.empty(0),
        "f": rows.f,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@dataclass(frozen=True)
class Qpth(Peer):
    """OptNet's batched interior-point QP solver."""

    name: str = "qpth"
    objectives: tuple[str, ...] = (EUCLIDEAN,)
    package: str = "qpth"
    modules: tuple[str, ...] = ("qpth",)

    def prepare(self, problem: Problem) -> Forward:
        from qpth.qp import QPFunction

        part = _quadratic(problem)
        above, below = part["high"] < 1e20, part["low"] > -1e20
        G = torch.cat([part["G"][above], -part["G"][below]])
        h = torch.cat([part["high"][above], -part["low"][below]])

        def forward(y: Tensor) -> Tensor:
            return QPFunction(verbose=-1)(part["eye"], -y.double(), G, h, part["E"], part["f"])

        return forward


@dataclass(frozen=True)
class ProxQP(Peer):
    """The torch layer of proxsuite (augmented Lagrangian QP solver)."""

    name: str = "proxqp"
    objectives: tuple[str, ...] = (EUCLIDEAN,)
    package: str = "proxsuite"
    modules: tuple[str, ...] = ("proxsuite.torch.qplayer",)

    def prepare(self, problem: Problem) -> Forward:
        from proxsuite.torch.qplayer import QPFunction

        part = _quadratic(problem)
        fixed = [part[name] for name in ("E", "f", "G", "low", "high")]

        def forward(y: Tensor) -> Tensor:
            return QPFunction()(part["eye"], -y.double(), *fixed)[0]

        return forward


# ------------------------------------------------------------------ Sinkhorn of other packages


@dataclass(frozen=True)
class Sinkhorn(Peer):
    objectives: tuple[str, ...] = (ENTROPY,)
    same_program: bool = False  # the entropy of x alone, without that of 1 - x

    def applies_to(self, problem: Problem) -> Applies:
        if problem.family != "doubly stochastic":
            return Applies(False, "Sinkhorn takes one set of row and column sums")
        return YES


@dataclass(frozen=True)
class Pot(Sinkhorn):
    """POT's batched log-domain Sinkhorn, unrolled; its defaults: tolerance 1e-5, at most 1,000 iterations."""

    name: str = "pot"
    package: str = "POT"
    modules: tuple[str, ...] = ("ot",)

    def prepare(self, problem: Problem) -> Forward:
        import ot

        n = problem.size

        def forward(y: Tensor) -> Tensor:
            mass = y.new_ones(len(y), n)
            cost = -y.reshape(-1, n, n)
            solved = ot.solve_batch(cost, reg=problem.tau, a=mass, b=mass, method="log_sinkhorn", grad="autodiff")
            return solved.plan.reshape(len(y), n * n)

        return forward


@dataclass(frozen=True)
class Pygmtools(Sinkhorn):
    """pygmtools' batched Sinkhorn, unrolled; as many iterations as LinSATNet gets (its own default is 10)."""

    name: str = "pygmtools"
    package: str = "pygmtools"
    modules: tuple[str, ...] = ("pygmtools",)
    in_sweeps: bool = True

    def prepare(self, problem: Problem) -> Forward:
        import pygmtools

        n = problem.size

        def forward(y: Tensor) -> Tensor:
            scores = y.reshape(-1, n, n)
            doubly = pygmtools.sinkhorn(
                scores,
                tau=problem.tau,
                max_iter=problem.iterations,
                batched_operation=True,
                backend="pytorch",
            )
            return doubly.reshape(len(y), n * n)

        return forward


PEERS: Sequence[Method] = (
    Apdagd(),
    CvxpyLayers("cvxpylayers-entropy", (ENTROPY,)),
    CvxpyLayers("cvxpylayers-euclidean", (EUCLIDEAN,)),
    Moreau("moreau-entropy", (ENTROPY,)),
    Moreau("moreau-euclidean", (EUCLIDEAN,)),
    Pinet("pinet-50", iterations=50),
    Pinet("pinet-100", iterations=100),
    Pinet("pinet-exact", iterations=1000, backward_iterations=100, double=True),
    Qpth(),
    ProxQP(),
    Pot(),
    Pygmtools(),
)
