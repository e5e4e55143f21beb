"""Estimating phi: the head learns it from numbers of inliers, or from the layer's gradient alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from matching_cases import IMAGE, RandomFeatures, batch, collection, scores, sizes
from torch import nn

from linsat_studies.checkpoints import CheckpointError
from linsat_studies.matching.config import MatchingConfig, NetworkConfig
from linsat_studies.matching.phi import PhiConfig, PhiHead, PhiLearner, load_phi, train_phi, with_phi
from linsat_studies.matching.train import train
from linsat_studies.settings import ConfigError, Plan


class TruthPlusNoise(nn.Module):
    """In place of a trained network: true pairs score about 1, others about 0."""

    def forward(self, b):
        generator = torch.Generator().manual_seed(int(b.points_l.sum()))
        return b.truth + 0.1 * torch.randn(b.truth.shape, generator=generator)


def test_the_estimate_lies_between_nothing_and_the_smaller_side():
    torch.manual_seed(0)
    b = batch(20)
    fewest = torch.tensor([min(size) for size in sizes(b)])
    phi = PhiHead(IMAGE, width=8, dropout=0.0)(100 * scores(b, dtype=torch.float32), b, tau=1.0)
    assert phi.shape == (20,)
    assert bool((phi > 0).all())
    assert bool((phi < fewest).all())


def test_decoders_get_whole_numbers_that_can_be():
    b = batch(3)
    fewest = [min(size) for size in sizes(b)]
    given = torch.tensor([0.2, 2.6, 99.0], requires_grad=True)
    changed = with_phi(b, given)
    assert changed.phi.tolist() == [1, 3, fewest[2]]
    assert torch.equal(changed.truth, b.truth)


@pytest.mark.parametrize("signal", ["regression", "bound"])
def test_both_signals_find_the_number_of_inliers(signal):
    """Scores give the inliers away; predicting the mean of phi, what a head could do without them, errs by more."""
    made = collection(24)
    config = PhiConfig(signal=signal, width=16, dropout=0.0, batch=16, validated=10)
    learner = PhiLearner(config, TruthPlusNoise(), MatchingConfig(tau=0.2), made, RandomFeatures(made))
    true = torch.cat([b.phi for b in learner.validated]).double()
    of_the_mean = float((true - true.mean()).abs().mean())
    optimiser = torch.optim.Adam(learner.module.parameters(), lr=1e-2)
    for step in range(80):
        optimiser.zero_grad()
        learner.loss(step).backward()
        optimiser.step()
    assert of_the_mean > 0.8
    assert learner.validate() < 0.5 * of_the_mean


def test_only_the_head_is_trained_and_it_comes_back(tmp_path):
    made = collection()
    plan = Plan(steps=2, rate=1e-2, warmup=1, every=2, average=0.5)
    network = NetworkConfig(width=8, channels=4, layers=1, rounds=1)
    run = train(MatchingConfig(network=network, plan=plan, batch=4, validated=2), made, tmp_path / "run")
    before = run.read_bytes()
    config = PhiConfig(signal="bound", width=8, plan=plan, batch=4, validated=2)
    path = train_phi(config, run, made, tmp_path / "phi")
    head, read = load_phi(path)
    assert read == config
    assert not head.training
    assert run.read_bytes() == before
    with pytest.raises(CheckpointError, match="holds no estimate of phi"):
        load_phi(run)


def test_settings_that_cannot_be():
    for wrong, message in (
        ({"signal": "guess"}, "signal is 'guess'; expected regression or bound"),
        ({"width": 0}, "width"),
    ):
        with pytest.raises(ConfigError, match=message):
            replace(PhiConfig(), **wrong)
