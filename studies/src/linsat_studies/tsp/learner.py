"""What a `TourNet` learns from: the tours of a local search, the expected length of its own soft tours, or both."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from linsat_studies.training import share
from linsat_studies.tsp.config import TourConfig
from linsat_studies.tsp.data import random_instances
from linsat_studies.tsp.decode import beam_search
from linsat_studies.tsp.local_search import random_restarts
from linsat_studies.tsp.model import TourNet, distances, soft_tours
from linsat_studies.tsp.tours import lengths

# Validation instances come from a stream that no training step uses; all runs share it, so that curves compare.
_VALIDATION = 990_017


def expected_length(X: Tensor, D: Tensor) -> Tensor:
    """The paper's objective, (N,): sum over steps k and cities i, j of D[i, j] X[i, k] X[j, k + 1].

    It is the mean length of tours whose steps are drawn independently from the columns of X.
    """
    return ((D @ X[:, :, 1:]) * X[:, :, :-1]).sum((1, 2))


def cross_entropy(X: Tensor, tours: Tensor) -> Tensor:
    """-log of the probability of ``tours`` (N, n) under X (N, n, n) with independent steps, per instance."""
    # Entries that the rows fix at 0 belong to no feasible tour; the constant only guards against rounding to 0.
    return -(X.gather(1, tours[:, None]) + 1e-9).log().sum((1, 2))


class TourLearner:
    """A `TourNet` and its losses, for `fit`; instances depend on the plan's seed and the step alone."""

    def __init__(self, config: TourConfig) -> None:
        torch.manual_seed(config.plan.seed)
        self.config = config
        self.module = TourNet(config.network)
        self.tau = config.tau
        n = config.network.cities
        self.held_out = [
            random_instances(task, config.validation, n=n, seed=_VALIDATION)  # type: ignore[arg-type]
            for task in config.tasks
        ]

    def schedule(self, progress: float) -> None:
        """Temperature of this step: from tau to tau_end, geometrically."""
        self.tau = self.config.tau * (self.config.tau_end / self.config.tau) ** min(progress, 1.0)

    def loss(self, step: int) -> Tensor:
        """Mean over the tasks of this process's share of the batch."""
        return torch.stack([self._task_loss(task, step) for task in self.config.tasks]).mean()

    def _task_loss(self, task: str, step: int) -> Tensor:
        config = self.config
        rng = np.random.default_rng((config.plan.seed, step, ("se", "pri").index(task)))
        count = config.batch // len(config.tasks)
        instances = random_instances(task, count, n=config.network.cities, seed=rng)[share(count)]  # type: ignore[arg-type]
        coords = torch.as_tensor(instances.coords, dtype=torch.float32)
        projected = self.module.refinements(coords, task, self.tau)
        loss = coords.new_zeros(())
        if config.teacher_weight:
            found = random_restarts(
                instances, starts=config.teacher_starts, seed=int(rng.integers(2**31)), threads=torch.get_num_threads()
            )
            tours = torch.as_tensor(found)
            entropies = [cross_entropy(X, tours).mean() for X in projected]
            loss = loss + config.teacher_weight * (entropies[-1] + 0.5 * sum(entropies[:-1]))
        if config.length_weight:
            loss = loss + config.length_weight * expected_length(projected[-1], distances(coords)).mean()
        return loss

    def validate(self) -> float:
        """Mean length of beam search tours over all tasks."""
        return float(np.mean(list(self.by_task().values())))

    def by_task(self) -> dict[str, float]:
        """Mean length of beam search tours for each task, on instances kept for this purpose."""
        result: dict[str, float] = {}
        for held in self.held_out:
            coords = torch.as_tensor(held.coords, dtype=torch.float32)
            X = soft_tours(self.module, coords, held.task, self.tau).numpy()
            tours = beam_search(held, X, width=self.config.beam, threads=torch.get_num_threads())
            result[held.task] = float(lengths(held.coords, tours).mean())
        return result
