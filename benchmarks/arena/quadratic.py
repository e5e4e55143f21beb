"""DC3's quadratic family: 100 variables, 50 equalities with per-instance right-hand sides, 50 inequalities, no box.

    minimise  z'Qz / 2 + p'z          (convex)      over  A z = x,  G z <= h
    minimise  z'Qz / 2 + p'sin(z)     (non-convex)

The numbers follow the rules of DC3's code (Donti, Rolnick and Kolter, 2021) from the same seed: numpy's legacy
generator gives the same draw, so published figures are about these very instances.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import linsat

Tensor = torch.Tensor
HELD_OUT = 0.0833  # share of the instances for validation, and again for the test, as in DC3's code
# Published: mean objective over the test instances of this draw (DC3's paper, tables 1 and 2).
PUBLISHED = {"convex": {"OSQP": -15.05, "DC3": -13.46}, "non-convex": {"IPOPT": -11.59, "DC3": -10.66}}


@dataclass(frozen=True, eq=False)
class Family:
    """The numbers that all instances share, and the right-hand sides of each."""

    Q: np.ndarray  # (n,) diagonal
    p: np.ndarray  # (n,)
    A: np.ndarray  # (equalities, n)
    G: np.ndarray  # (inequalities, n)
    h: np.ndarray  # (inequalities,)
    X: np.ndarray  # (instances, equalities)

    @property
    def splits(self) -> dict[str, np.ndarray]:
        train, valid = (int(len(self.X) * part) for part in (1 - 2 * HELD_OUT, 1 - HELD_OUT))
        return {"train": self.X[:train], "valid": self.X[train:valid], "test": self.X[valid:]}

    def constraints(self) -> linsat.Constraints:
        zeros = np.zeros(len(self.A))
        return linsat.Constraints(A=self.G, b=self.h, E=self.A, f=zeros, lower=-np.inf, upper=np.inf)

    def objective(self, z: Tensor, kind: str) -> Tensor:
        """(batch,) of z (batch, n)."""
        Q, p = (torch.from_numpy(part).to(z.dtype) for part in (self.Q, self.p))
        return (Q * z * z / 2 + p * (z if kind == "convex" else torch.sin(z))).sum(-1)

    def violation(self, z: np.ndarray, x: np.ndarray) -> float:
        """The worst absolute violation of any row of any instance."""
        equal, over = np.abs(z @ self.A.T - x).max(), (z @ self.G.T - self.h).max()
        return float(max(equal, over, 0.0))


def family(variables: int = 100, equalities: int = 50, inequalities: int = 50, instances: int = 10_000) -> Family:
    """The draw of DC3's code with its seed, 17."""
    draw = np.random.RandomState(17)
    Q, p = draw.random_sample(variables), draw.random_sample(variables)
    A = draw.normal(loc=0, scale=1.0, size=(equalities, variables))
    X = draw.uniform(-1, 1, size=(instances, equalities))
    G = draw.normal(loc=0, scale=1.0, size=(inequalities, variables))
    return Family(Q, p, A, G, np.abs(G @ np.linalg.pinv(A)).sum(1), X)


def optima(problem: Family, x: np.ndarray) -> np.ndarray:
    """The least convex objective for each right-hand side, by Clarabel."""
    import clarabel
    import scipy.sparse as sp

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    P, rows = sp.csc_matrix(sp.diags(problem.Q)), sp.csc_matrix(np.vstack([problem.A, problem.G]))
    cones = [clarabel.ZeroConeT(len(problem.A)), clarabel.NonnegativeConeT(len(problem.G))]
    solver, found = None, []
    for side in x:
        b = np.concatenate([side, problem.h])
        if solver is None:
            solver = clarabel.DefaultSolver(P, problem.p, rows, b, cones, settings)
        else:
            solver.update(b=b)
        found.append(solver.solve().obj_val)
    return np.array(found)


class Network(torch.nn.Module):
    """Two hidden layers of 200, as in the papers of DC3 and Pinet, in single precision."""

    def __init__(self, inputs: int, outputs: int, width: int = 200) -> None:
        super().__init__()
        sizes = [inputs, width, width, outputs]
        layers: list[torch.nn.Module] = []
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            layers += [torch.nn.Linear(a, b)] + ([torch.nn.ReLU()] if i < 2 else [])
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.float())


Projection = Callable[[Tensor, Tensor], Tensor]  # scores (batch, n), right-hand sides (batch, equalities) -> z


def linsat_projection(problem: Family) -> Projection:
    layer = linsat.LinSAT(problem.constraints(), objective=linsat.Euclidean())
    return lambda y, x: layer(y.double(), f=x)


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to train."""

    batch: int = 256
    rate: float = 3e-2
    epochs: int = 10
    look_every: int = 8  # steps between two looks at the validation instances


def train(
    problem: Family,
    kind: str,
    project: Projection,
    recipe: Recipe,
    *,
    seed: int,
    goal: float,
    stop_at_goal: bool = False,
    within: float = math.inf,
    judged_on: str = "test",
) -> dict[str, Any]:
    """Train a network with a projection on the objective; seconds do not count the looks at validation instances.

    Args:
        problem: the family.
        kind: ``"convex"`` or ``"non-convex"``.
        project: the last layer.
        recipe: batch, rate and epochs.
        seed: of weights and batches.
        goal: mean validation objective whose first time is recorded.
        stop_at_goal: whether to end there.
        within: seconds, the looks included, after which to end.
        judged_on: the instances of the objective and the violation in the result, ``"test"`` or ``"valid"``.
    """
    torch.manual_seed(seed)
    parts = {name: torch.from_numpy(x) for name, x in problem.splits.items()}
    network = Network(problem.A.shape[0], problem.A.shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.rate)
    steps = recipe.epochs * (len(parts["train"]) // recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, total_steps=max(steps, 2), pct_start=0.1)
    curve: list[tuple[int, float, float]] = []
    seconds, reached, step = 0.0, None, 0
    deadline = time.monotonic() + within

    def look(part: str) -> tuple[float, float, float]:
        with torch.no_grad():
            begin = time.perf_counter()
            z = project(network(parts[part]), parts[part])
            took = time.perf_counter() - begin
            return float(problem.objective(z, kind).mean()), problem.violation(z.numpy(), parts[part].numpy()), took

    for _ in range(recipe.epochs):
        order = torch.randperm(len(parts["train"]))
        for chosen in order[: len(order) // recipe.batch * recipe.batch].split(recipe.batch):
            if (stop_at_goal and reached is not None) or time.monotonic() > deadline:
                break
            begin = time.perf_counter()
            x = parts["train"][chosen]
            optimizer.zero_grad()
            problem.objective(project(network(x), x), kind).mean().backward()
            optimizer.step()
            schedule.step()
            seconds, step = seconds + time.perf_counter() - begin, step + 1
            if step % recipe.look_every == 0:
                value = look("valid")[0]
                curve.append((step, round(seconds, 4), value))
                if reached is None and value <= goal:
                    reached = seconds
    value, worst, took = look(judged_on)
    return {
        "objective": value,
        "violation": worst,
        "seconds": seconds,
        "seconds to goal": reached,
        "inference seconds": took,
        "steps": step,
        "stopped": step < steps and not (stop_at_goal and reached is not None),
        "curve": curve,
    }
