"""The layer without a network: random and trained matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linsat_studies.tsp.ablation import MatrixTraining, ablation, canonical, random_matrices, trained_matrices
from linsat_studies.tsp.constraints import project_scores
from linsat_studies.tsp.data import Instances, random_instances


def soft_length(instances: Instances, scores: torch.Tensor) -> np.ndarray:
    """The expected length, written out entry by entry."""
    X = project_scores(scores, instances.task, 0.1, within=instances.within).numpy()
    D = np.linalg.norm(instances.coords[:, :, None] - instances.coords[:, None], axis=-1)
    return np.einsum("aij,aik,ajk->a", D, X[:, :, :-1], X[:, :, 1:])


@pytest.mark.parametrize("task", ["se", "pri"])
def test_training_a_matrix_shortens_tours_as_in_table_6(task):
    instances = random_instances(task, 24, seed=8)
    start = random_matrices(instances)
    trained = trained_matrices(instances, MatrixTraining(steps=40))
    assert (soft_length(instances, trained) < soft_length(instances, start)).all()
    before, after = (ablation(instances, scores, width=128) for scores in (start, trained))
    assert after["plain"] < before["plain"] - 0.5
    assert before["merged"] <= before["plain"]
    assert after["merged"] <= after["plain"]


def test_a_matrix_depends_on_its_own_instance_alone():
    instances = random_instances("pri", 6, seed=9)
    together = trained_matrices(instances, MatrixTraining(steps=5, batch=6))
    apart = trained_matrices(instances, MatrixTraining(steps=5, batch=2))
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)


def test_progress_reaches_the_end():
    seen: list[tuple[int, int]] = []
    instances = random_instances("se", 5, seed=9)
    trained_matrices(instances, MatrixTraining(steps=1, batch=2), progress=lambda *at: seen.append(at))
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_canonical_puts_start_priority_and_end_in_their_places():
    coords = np.random.default_rng(0).uniform(size=(1, 6, 2))
    relabelled = canonical(Instances(coords, np.array([4]), np.array([2]), np.array([5]), 3))
    np.testing.assert_array_equal(relabelled.coords[0, [0, 1, 5]], coords[0, [4, 5, 2]])
