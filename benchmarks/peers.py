"""The other peers: convex layers, QP layers, Sinkhorn of two packages, accelerated gradients on the dual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from equalities import to_equalities
from methods import ENTROPIC, EUCLIDEAN, PLAN_ENTROPIC, Applies, Forward, Method, Tensor, peers_may_try
from problems import Problem


@dataclass(frozen=True)
class Apdagd:
    """Accelerated gradient descent on the dual, ours after the GLinSAT paper; see `apdagd`."""

    name: str = "apdagd"
    program: str = ENTROPIC
    package: str = "torch"
    modules: tuple[str, ...] = ("torch",)
    in_sweeps: bool = True

    def applies_to(self, problem: Problem) -> Applies:
        return peers_may_try(problem)

    def prepare(self, problem: Problem) -> Forward:
        from apdagd import Apdagd as Layer

        return Layer(to_equalities(problem.rows), problem.tau)


# ------------------------------------------------------------------ cvxpylayers


@dataclass(frozen=True)
class CvxpyLayers:
    """A cvxpy program as a layer, with Clarabel: faster and more exact here than the default solver SCS."""

    name: str
    program: str
    package: str = "cvxpylayers"
    modules: tuple[str, ...] = ("cvxpylayers.torch", "diffcp", "clarabel")
    in_sweeps: bool = False

    def applies_to(self, problem: Problem) -> Applies:
        return peers_may_try(problem)

    def prepare(self, problem: Problem) -> Forward:
        import cvxpy as cp
        from cvxpylayers.torch import CvxpyLayer

        y, x = cp.Parameter(problem.l), cp.Variable(problem.l)
        build = _entropic if self.program == ENTROPIC else _euclidean
        layer = CvxpyLayer(build(cp, problem, y, x), parameters=[y], variables=[x])
        jobs = torch.get_num_threads()
        arguments = {"solve_method": "Clarabel", "n_jobs_forward": jobs}

        def forward(scores: Tensor) -> Tensor:
            # Without a gradient the layer hands its arguments on to Clarabel, which refuses those it does not know.
            backward = {"n_jobs_backward": jobs} if scores.requires_grad else {}
            return layer(scores.double(), solver_args=arguments | backward)[0]

        return forward


def _entropic(cp: Any, problem: Problem, y: Any, x: Any) -> Any:
    """The program of `equalities`; entr keeps its argument positive, so the box needs no rows of its own."""
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
    limits = [x >= 0, x <= 1]
    if rows.A.shape[0]:
        limits.append(rows.A @ x <= rows.b)
    if rows.C.shape[0]:
        limits.append(rows.C @ x >= rows.d)
    if rows.E.shape[0]:
        limits.append(rows.E @ x == rows.f)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - y)), limits)


# ------------------------------------------------------------------ QP layers, Euclidean projection


def _quadratic(problem: Problem) -> dict[str, Tensor]:
    """min |x - y|^2 / 2 over A x <= b, C x >= d, E x = f and the box, as dense float64 tensors."""
    rows, eye = problem.rows, np.eye(problem.l)
    ones = np.ones(problem.l)
    arrays = {
        "eye": eye,
        "upper": np.vstack([eye, rows.A.toarray()]),
        "upper_side": np.concatenate([ones, rows.b]),
        "lower": np.vstack([eye, rows.C.toarray()]),
        "lower_side": np.concatenate([0 * ones, rows.d]),
        "E": rows.E.toarray(),
        "f": rows.f,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@dataclass(frozen=True)
class Qpth:
    """OptNet's batched interior-point QP solver."""

    name: str = "qpth"
    program: str = EUCLIDEAN
    package: str = "qpth"
    modules: tuple[str, ...] = ("qpth",)
    in_sweeps: bool = False

    def applies_to(self, problem: Problem) -> Applies:
        return peers_may_try(problem)

    def prepare(self, problem: Problem) -> Forward:
        from qpth.qp import QPFunction

        part = _quadratic(problem)
        G = torch.cat([part["upper"], -part["lower"]])
        h = torch.cat([part["upper_side"], -part["lower_side"]])
        none = torch.empty(0, dtype=torch.float64)
        E, f = (part["E"], part["f"]) if len(part["f"]) else (none, none)

        def forward(y: Tensor) -> Tensor:
            return QPFunction(verbose=-1)(part["eye"], -y.double(), G, h, E, f)

        return forward


@dataclass(frozen=True)
class ProxQP:
    """The torch layer of proxsuite (augmented Lagrangian QP solver)."""

    name: str = "proxqp"
    program: str = EUCLIDEAN
    package: str = "proxsuite"
    modules: tuple[str, ...] = ("proxsuite.torch.qplayer",)
    in_sweeps: bool = False

    def applies_to(self, problem: Problem) -> Applies:
        return peers_may_try(problem)

    def prepare(self, problem: Problem) -> Forward:
        from proxsuite.torch.qplayer import QPFunction

        part = _quadratic(problem)
        rows, width = problem.rows, problem.l
        G = torch.cat([part["upper"], part["lower"][width:]])
        free_below, free_above = torch.full((len(rows.b),), -1e20), torch.full((len(rows.d),), 1e20)
        low = torch.cat([part["lower_side"][:width], free_below, part["lower_side"][width:]])
        high = torch.cat([part["upper_side"], free_above])
        none = torch.empty(0, dtype=torch.float64)
        E, f = (part["E"], part["f"]) if len(part["f"]) else (none, none)

        def forward(y: Tensor) -> Tensor:
            return QPFunction()(part["eye"], -y.double(), E, f, G, low, high)[0]

        return forward


# ------------------------------------------------------------------ Sinkhorn of other packages


def _only_doubly_stochastic(problem: Problem) -> Applies:
    may = peers_may_try(problem)
    if may.ok and problem.family != "doubly stochastic":
        return Applies(False, "Sinkhorn takes one set of row and column sums")
    return may


@dataclass(frozen=True)
class Pot:
    """POT's batched log-domain Sinkhorn, unrolled; its defaults: tolerance 1e-5, at most 1,000 iterations."""

    name: str = "pot"
    program: str = PLAN_ENTROPIC
    package: str = "POT"
    modules: tuple[str, ...] = ("ot",)
    in_sweeps: bool = False

    def applies_to(self, problem: Problem) -> Applies:
        return _only_doubly_stochastic(problem)

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
class Pygmtools:
    """pygmtools' batched Sinkhorn, unrolled; as many iterations as LinSATNet gets (its own default is 10)."""

    name: str = "pygmtools"
    program: str = PLAN_ENTROPIC
    package: str = "pygmtools"
    modules: tuple[str, ...] = ("pygmtools",)
    in_sweeps: bool = True

    def applies_to(self, problem: Problem) -> Applies:
        return _only_doubly_stochastic(problem)

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
    CvxpyLayers("cvxpylayers-entropic", ENTROPIC),
    CvxpyLayers("cvxpylayers-euclidean", EUCLIDEAN),
    Qpth(),
    ProxQP(),
    Pot(),
    Pygmtools(),
)
