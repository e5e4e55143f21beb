"""Table 6 of the paper: the layer and the beam search without a network.

Two matrices stand in for the network's scores: a random one, and one that starts random and is then trained for its
instance alone, by gradient descent through the layer on the expected tour length. What the network adds is the
distance to either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from linsat_studies.tsp.constraints import project_scores
from linsat_studies.tsp.data import Instances
from linsat_studies.tsp.decode import beam_search
from linsat_studies.tsp.learner import expected_length
from linsat_studies.tsp.model import distances
from linsat_studies.tsp.tours import lengths


@dataclass(frozen=True)
class MatrixTraining:
    """Adam on the matrix of each instance: 100 steps, as many as the paper trains epochs."""

    steps: int = 100
    learning_rate: float = 0.1
    tau: float = 0.1
    batch: int = 500
    seed: int = 0


def random_matrices(instances: Instances, *, seed: int = 0) -> torch.Tensor:
    """Scores (N, n, n), uniform between 0 and 1: nothing about the cities is in them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(instances), instances.cities, instances.cities, generator=generator)


def trained_matrices(
    instances: Instances,
    training: MatrixTraining | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> torch.Tensor:
    """Scores (N, n, n) trained for each canonical instance alone, from the random ones.

    Instances share a batch but not a parameter, and Adam works entry by entry: the batch size changes nothing.
    Cost: ``steps`` forward and backward passes of the layer, about 5 ms an instance and thread.
    """
    training = training or MatrixTraining()
    start = random_matrices(instances, seed=training.seed)
    coords = torch.as_tensor(instances.coords, dtype=torch.float32)
    found = []
    for first in range(0, len(instances), training.batch):
        part = slice(first, first + training.batch)
        scores = start[part].clone().requires_grad_()
        D = distances(coords[part])
        optimizer = torch.optim.Adam([scores], lr=training.learning_rate)
        for _ in range(training.steps):
            X = project_scores(scores, instances.task, training.tau, within=instances.within)
            optimizer.zero_grad()
            expected_length(X, D).sum().backward()
            optimizer.step()
        found.append(scores.detach())
        if progress is not None:
            progress(min(first + training.batch, len(instances)), len(instances))
    return torch.cat(found)


def ablation(
    instances: Instances,
    scores: torch.Tensor,
    *,
    tau: float = 0.1,
    width: int = 2048,
    threads: int | None = None,
) -> dict[str, float]:
    """Mean length of the tours that beam search finds on projected scores (N, n, n) of canonical instances.

    Returns:
        ``plain``: with the paper's beam search; ``merged``: with ours, which drops partial tours that another one
        dominates; ``seconds``: of the layer and the plain search.
    """
    begin = perf_counter()
    X = project_scores(scores, instances.task, tau, within=instances.within).numpy()
    plain = beam_search(instances, X, width=width, merge=False, threads=threads)
    seconds = perf_counter() - begin
    merged = beam_search(instances, X, width=width, threads=threads)
    return {
        "plain": float(lengths(instances.coords, plain).mean()),
        "merged": float(lengths(instances.coords, merged).mean()),
        "seconds": seconds,
    }


def canonical(instances: Instances) -> Instances:
    """The instances with start 0, priority 1 and end n - 1, as the functions here take them."""
    relabelled, _ = instances.canonical()
    return relabelled
