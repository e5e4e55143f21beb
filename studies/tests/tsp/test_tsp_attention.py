"""The Attention Model: its probabilities against enumeration of all tours, its rules, its gradient."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from linsat_studies.tsp.attention import (
    AttentionConfig,
    AttentionModel,
    AttentionRun,
    Reinforce,
    attention_tours,
    tour_lengths,
)
from linsat_studies.tsp.data import Instances, random_instances
from linsat_studies.tsp.tours import broken, lengths

SMALL = AttentionConfig(width=16, layers=2, heads=2, hidden=32)


@pytest.fixture
def model() -> AttentionModel:
    torch.manual_seed(0)
    return AttentionModel(SMALL).eval()


def all_tours(n: int, within: int | None) -> torch.Tensor:
    """Every path from 0 to n - 1, city 1 at most at position `within`: enumeration, not our decoder."""
    paths = [(0, *middle, n - 1) for middle in permutations(range(1, n - 1))]
    return torch.tensor([path for path in paths if within is None or path.index(1) <= within])


@pytest.mark.parametrize("within", [None, 1, 2, 3, 4])
def test_probabilities_of_all_tours_sum_to_one(model, within):
    tours = all_tours(6, within)
    priority = torch.full((3,), within is not None)
    cache = model.encode(torch.rand(3, 6, 2), priority)
    every = tours.expand(3, -1, -1)
    total = model.log_likelihood(cache, every, priority, within=within or 2).exp().sum(1)
    torch.testing.assert_close(total, torch.ones(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("within", [None, 2])
def test_sampled_tours_follow_the_stated_probabilities(model, within):
    torch.manual_seed(1)
    tours = all_tours(5, within)
    priority = torch.full((2,), within is not None)
    cache = model.encode(torch.rand(2, 5, 2), priority)
    stated = model.log_likelihood(cache, tours.expand(2, -1, -1), priority, within=within or 2).exp()
    drawn = model.decode(cache, priority, samples=20_000, within=within or 2)
    seen = torch.stack([(drawn == tour).all(-1).double().mean(1) for tour in tours], dim=1)
    assert seen.sum(1).tolist() == pytest.approx([1.0, 1.0])
    torch.testing.assert_close(seen, stated.double(), atol=0.015, rtol=0)


def test_the_greedy_step_is_the_most_likely_city(model):
    priority = torch.tensor([False])
    cache = model.encode(torch.rand(1, 4, 2), priority)
    tours = all_tours(4, None)[None]
    best = tours[0, model.log_likelihood(cache, tours, priority)[0].argmax()]
    assert model.decode(cache, priority, greedy=True)[0, 0].tolist() == best.tolist()


@pytest.mark.parametrize("within", [1, 3, 18])
def test_tours_keep_the_rules_for_any_start_end_and_priority(model, within):
    rng = np.random.default_rng(3)
    marks = np.array([rng.permutation(20)[:3] for _ in range(30)])
    instances = Instances(rng.uniform(size=(30, 20, 2)), marks[:, 0], marks[:, 1], marks[:, 2], within)
    for samples in (1, 4):
        assert not broken(instances, attention_tours(model, instances, samples=samples)).any()


def test_relabelling_cities_does_not_change_the_greedy_tour(model):
    plain = random_instances("pri", 20, seed=5)
    rng = np.random.default_rng(0)
    order = np.array([rng.permutation(20) for _ in range(20)])  # new city i is old city order[i]
    where = np.argsort(order, axis=1)
    mixed = Instances(
        np.take_along_axis(plain.coords, order[:, :, None], axis=1), where[:, 0], where[:, 19], where[:, 1], 5
    )
    back = np.take_along_axis(order, attention_tours(model, mixed), axis=1)
    same = (back == attention_tours(model, plain)).all(axis=1)
    assert same.mean() >= 0.9  # sums in another order may tip a tie


def test_more_samples_never_lengthen_a_tour(model):
    instances = random_instances("se", 20, seed=2)
    greedy, best = (lengths(instances.coords, attention_tours(model, instances, samples=k)) for k in (1, 32))
    assert (best <= greedy + 1e-12).all()
    assert best.mean() < greedy.mean()


def test_tour_lengths_agree_with_numpy():
    instances = random_instances("se", 5, seed=2)
    tours = np.array([np.random.default_rng(i).permutation(20) for i in range(5)])
    ours = tour_lengths(torch.as_tensor(instances.coords), torch.as_tensor(tours)[:, None])[:, 0]
    expected = [np.linalg.norm(np.diff(c[t], axis=0), axis=1).sum() for c, t in zip(instances.coords, tours)]
    np.testing.assert_allclose(ours.numpy(), expected)


def test_the_loss_gradient_is_that_of_the_expected_length():
    problem = Reinforce(AttentionRun(SMALL, cities=7, batch=2, samples=6000, validation=2))
    problem.module.eval()  # batch statistics would make instances depend on each other
    problem.loss(7).backward()
    sampled = torch.cat([p.grad.flatten() for p in problem.module.parameters() if p.grad is not None])
    problem.module.zero_grad()
    coords = torch.rand(2, 7, 2, generator=torch.Generator().manual_seed(7))
    priority = torch.tensor([False, True])
    every = all_tours(7, None).expand(2, -1, -1)  # priority within 5: no path through 7 cities is late
    cache = problem.module.encode(coords, priority)
    likelihood = problem.module.log_likelihood(cache, every, priority).exp()
    (likelihood * tour_lengths(coords, every)).sum(1).mean().backward()
    exact = torch.cat([p.grad.flatten() for p in problem.module.parameters() if p.grad is not None])
    assert torch.cosine_similarity(sampled, exact, dim=0) > 0.97


def test_a_loss_depends_on_seed_and_step_alone():
    first, second = (Reinforce(AttentionRun(SMALL, batch=4, samples=4, validation=2)) for _ in range(2))
    first.loss(0)
    torch.rand(5)
    assert first.loss(3).item() == pytest.approx(second.loss(3).item(), rel=1e-5)
    assert first.loss(4).item() != pytest.approx(second.loss(3).item(), rel=1e-5)
