"""PyEPO's benchmarks: predict costs from features, decide by them, pay the regret.

Shortest path: its notebook 03 (5 x 5 grid, 1,000 + 1,000 instances, 5 features, degree 4, noise 0.5, linear predictor,
batches of 32, 20 epochs, Adam 1e-2). Knapsack: its data with 32 items in 2 dimensions, otherwise the same. Data, models
(with OR-Tools, the free solver it takes), rivals' losses and the regret are PyEPO's; ours are three ways to use linsat.
Everybody trains on the linear relaxation, which PyEPO recommends for knapsacks; the regret is that of whole decisions.
Temperatures were chosen on other draws (`choose`), never on test instances.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import linsat

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # predicted, costs, w, z
DRAWS = (42, 43, 44)
CHOOSING_DRAW = 1042
# Published in PyEPO's notebook 03 (draw 42, Gurobi): normalised regret in per cent, and seconds of training.
PUBLISHED = {"SPO+": (7.59, 165), "PFYL": (7.29, 297), "AI-MLE": (7.24, 614), "RFWO": (7.40, 3363)}


@dataclass(frozen=True)
class Task:
    """A problem of PyEPO with its size."""

    name: str
    train: int = 1000
    test: int = 1000
    epochs: int = 20
    batch: int = 32
    rate: float = 1e-2
    grid: tuple[int, int] = (5, 5)
    items: int = 32
    dimensions: int = 2

    def data(self, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
        """The model, features and costs of one draw; training instances first."""
        import pyepo
        from pyepo.model import ort

        count = self.train + self.test
        if self.name == "shortest path":
            x, c = pyepo.data.shortestpath.genData(count, 5, self.grid, deg=4, noise_width=0.5, seed=seed)
            return ort.shortestPathModel(self.grid), x, c
        weights, x, c = pyepo.data.knapsack.genData(
            count, 5, self.items, dim=self.dimensions, deg=4, noise_width=0.5, seed=seed
        )
        return ort.knapsackModel(weights, [20.0] * self.dimensions, solver="scip"), x, c


def _rows(model: Any) -> tuple[linsat.Constraints, float]:
    """The rows of a model, and the sign that makes its costs scores."""
    from linsat.interop.pyepo import constraints_of

    return constraints_of(model), float(-model.modelSense.value)


def _objective(name: str, tau: float) -> tuple[linsat.Objective, float]:
    """The objective, and what scores are multiplied with: the Euclidean one has its temperature in the scores."""
    return (linsat.Entropy(tau, slack="none"), 1.0) if name == "entropy" else (linsat.Euclidean(), 1 / tau)


def fenchel_young(name: str, tau: float) -> Callable[[Any], Loss]:
    """`linsat.fenchel_young_loss` of predicted costs against the best decision."""

    def make(model: Any) -> Loss:
        cons, sign = _rows(model)
        objective, scale = _objective(name, tau)
        return lambda p, c, w, z: linsat.fenchel_young_loss(sign * scale * p, w, cons, objective=objective)

    return make


def augmented(name: str, tau: float) -> Callable[[Any], Loss]:
    """The same at costs 2 p - c, as SPO+ asks its solver: a smooth SPO+."""

    def make(model: Any) -> Loss:
        cons, sign = _rows(model)
        objective, scale = _objective(name, tau)
        return lambda p, c, w, z: linsat.fenchel_young_loss(sign * scale * (2 * p - c), w, cons, objective=objective)

    return make


def surrogate(name: str, tau: float) -> Callable[[Any], Loss]:
    """The layer: true costs of the regularised decision."""

    def make(model: Any) -> Loss:
        cons, sign = _rows(model)
        objective, scale = _objective(name, tau)

        def loss(p: torch.Tensor, c: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            x = linsat.project(sign * scale * p, cons, objective=objective)
            return -sign * (c * x).sum(-1).mean()

        return loss

    return make


def _spo(model: Any) -> Loss:
    import pyepo

    return pyepo.func.SPOPlus(model)


def _pfyl(model: Any) -> Loss:
    import pyepo

    loss = pyepo.func.perturbedFenchelYoung(model, n_samples=3, sigma=1.0)
    return lambda p, c, w, z: loss(p, w)


def _aimle(model: Any) -> Loss:
    import pyepo

    layer = pyepo.func.adaptiveImplicitMLE(model, n_samples=3, sigma=1.0)
    sign = float(model.modelSense.value)
    return lambda p, c, w, z: sign * (c * layer(p)).sum(-1).mean()


def _negative_identity(model: Any) -> Loss:
    import pyepo

    layer = pyepo.func.negativeIdentity(model)
    sign = float(model.modelSense.value)
    return lambda p, c, w, z: sign * (c * layer(p)).sum(-1).mean()


def _rfwo(model: Any) -> Loss:
    import pyepo

    layer = pyepo.func.regularizedFrankWolfeOpt(model, max_iter=FRANK_WOLFE)
    sign = float(model.modelSense.value)
    return lambda p, c, w, z: sign * (c * layer(p)).sum(-1).mean()


RIVALS: dict[str, Callable[[Any], Loss]] = {
    "SPO+": _spo,
    "PFYL": _pfyl,
    "AI-MLE": _aimle,
    "negative identity": _negative_identity,
    "RFWO": _rfwo,
}
MAKERS = {"Fenchel-Young": fenchel_young, "Fenchel-Young at 2p - c": augmented, "layer, regret": surrogate}
FRANK_WOLFE = 10  # its steps at most; by default 10,000, and an epoch takes minutes
TEMPERATURES = (0.03, 0.1, 0.3, 1.0)


def _dataset(model: Any, x: np.ndarray, c: np.ndarray) -> Any:
    import pyepo

    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        return pyepo.data.dataset.optDataset(model, x, c)


def train(task: Task, make: Callable[[Any], Loss], parts: tuple[Any, Any, Any], *, seed: int) -> dict[str, float]:
    """Train a linear predictor on one loss; regret on the second data set of ``parts`` = (model, train, test)."""
    import pyepo

    model, learn, judge = parts
    relaxed = learn.model
    torch.manual_seed(seed)
    network = torch.nn.Linear(learn.feats.shape[1], learn.costs.shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=task.rate)
    loader = DataLoader(learn, batch_size=task.batch, shuffle=True)
    loss = make(relaxed)
    x, c, w, z = (part[:2] for part in (learn.feats, learn.costs, learn.sols, learn.objs))
    loss(network(x), c, w, z).backward()  # whatever is set up at the first call is not the training
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(task.epochs):
        for x, c, w, z in loader:
            optimizer.zero_grad()
            loss(network(x), c, w, z).backward()
            optimizer.step()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    found = pyepo.metric.regret(network, model, DataLoader(judge, batch_size=256))
    return {"regret": float(found), "seconds": seconds, "cpu seconds": cpu}


def parts_of(task: Task, seed: int) -> tuple[Any, Any, Any]:
    """Model, training and test data set of a draw."""
    from sklearn.model_selection import train_test_split

    model, x, c = task.data(seed)
    x_train, x_test, c_train, c_test = train_test_split(x, c, test_size=task.test, random_state=seed)
    relaxed = model if task.name == "shortest path" else _relaxed(model)
    return model, _dataset(relaxed, x_train, c_train), _dataset(model, x_test, c_test)


def _relaxed(knapsack: Any) -> Any:
    from pyepo.model.ort.knapsack import knapsackModelRel

    return knapsackModelRel(knapsack.weights, knapsack.capacity, "glop")


def smaller_test(task: Task) -> Task:
    """The same with fewer test instances, which are the expensive part of a knapsack."""
    return replace(task, test=min(task.test, 200))


def choose(task: Task, seed: int, temperatures: tuple[float, ...] | None = None) -> list[dict[str, Any]]:
    """Regret of every way and temperature on one of the draws that serve for nothing else."""
    parts = parts_of(task, seed)
    found = []
    for kind, maker in MAKERS.items():
        for name in ("entropy", "Euclidean"):
            for tau in temperatures or TEMPERATURES:
                result = train(task, maker(name, tau), parts, seed=seed)
                found.append({"kind": kind, "objective": name, "tau": tau, **result})
    return found
