"""Training runs: settings, learning, resuming, two processes, and commands that fail in one line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from matching_cases import RandomFeatures, collection

from linsat_studies.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from linsat_studies.matching.config import MatchingConfig, NetworkConfig, default_config
from linsat_studies.matching.train import MatchingLearner, load_run, run_name, train
from linsat_studies.settings import ConfigError, Plan, from_json, to_json
from linsat_studies.training import fit

ROWS = [
    ("pca-gm", "sinkhorn"),
    ("bbgm", "black-box"),
    ("bbgm", "black-box-partial"),
    ("ngm", "sinkhorn"),
    ("ngm", "layer"),
]


def settings(kind="ngm", technique="layer", *, steps=6, **changes):
    plan = Plan(steps=steps, rate=5e-3, warmup=1, every=3, average=0.5)
    network = NetworkConfig(kind=kind, width=12, channels=6, layers=1, rounds=1, dropout=0.0)
    return replace(MatchingConfig(technique=technique, network=network, plan=plan, batch=8, validated=5), **changes)


def test_settings_survive_json_and_say_what_is_wrong():
    config = default_config("bbgm", "black-box", seed=3)
    assert from_json(MatchingConfig, to_json(config)) == config
    assert run_name("ngm", "layer", 2) == "ngm-layer-2"
    for wrong, message in (
        ({"technique": "softmax"}, "technique is 'softmax'; expected sinkhorn or"),
        ({"tau": 0.0}, "tau is 0.0; expected a positive number"),
        ({"batch": 0}, "batch is 0; expected at least 1"),
        ({"margin": -1.0}, "margin is -1.0"),
        ({"soft": 1.0}, "soft is 1.0; expected a share"),
    ):
        with pytest.raises(ConfigError, match=message):
            replace(config, **wrong)
    for wrong, message in (
        ({"kind": "gmn"}, "kind is 'gmn'"),
        ({"dropout": 1.0}, "dropout"),
        ({"kernel": 1}, "kernel"),
    ):
        with pytest.raises(ConfigError, match=message):
            NetworkConfig(**wrong)


@pytest.mark.parametrize(("kind", "technique"), ROWS)
def test_every_row_learns_to_match(kind, technique):
    """Features name the keypoints up to noise, so a few steps must beat a fresh network by far.

    A bijective technique also matches outliers: its error cannot fall to 0.
    """
    made = collection(24)
    learner = MatchingLearner(settings(kind, technique), made, RandomFeatures(made))
    before = learner.validate()
    optimiser = torch.optim.Adam(learner.module.parameters(), lr=1e-2)
    for step in range(40):
        optimiser.zero_grad()
        learner.loss(step).backward()
        optimiser.step()
    assert learner.validate() < before - 0.15


def test_a_resumed_run_is_the_same_run(tmp_path):
    made = collection()
    features = RandomFeatures(made)
    whole = train(settings(steps=6), made, tmp_path / "whole", features=features)
    first = settings(steps=6)
    learner = MatchingLearner(first, made, features)

    # What an interrupted run leaves behind: the checkpoint of its third step.
    class InterruptedRunError(Exception):
        pass

    usual = learner.loss

    def stop(step):
        if step == 4:
            raise InterruptedRunError
        return usual(step)

    learner.loss = stop
    said = read_checkpoint(whole)["config"]
    with pytest.raises(InterruptedRunError):
        fit(learner, first.plan, tmp_path / "cut", config=said)
    assert read_checkpoint(tmp_path / "cut" / "last.pt")["step"] == 3
    again = train(first, made, tmp_path / "cut", features=features)
    one, other = read_checkpoint(whole), read_checkpoint(again)
    assert one["step"] == other["step"] == 6
    for name, tensor in one["averaged"].items():
        torch.testing.assert_close(tensor, other["averaged"][name], msg=name)


def test_bbgm_starts_from_another_run_and_has_other_losses(tmp_path):
    """A run of no length but for one step at rate 0: the weights are those it started from, edges included."""
    made = collection()
    features = RandomFeatures(made)
    first = train(settings("bbgm", "sinkhorn", steps=2), made, tmp_path / "sinkhorn", features=features)
    still = Plan(steps=1, rate=1e-12, warmup=1, every=1, average=0.0, decay=0.0)
    goal = settings("bbgm", "black-box-partial", scaled=False, margin=1.0, strength=5.0, soft=0.0)
    goal = replace(goal, plan=still)
    second = train(goal, made, tmp_path / "black-box", features=features, initial=first)
    before, after = read_checkpoint(first), read_checkpoint(second)
    assert after["config"]["initial"] == "sinkhorn"
    for name, tensor in before["averaged"].items():
        torch.testing.assert_close(tensor, after["averaged"][name], msg=name)
    learner = MatchingLearner(goal, made, features)
    mixed = MatchingLearner(replace(goal, soft=0.25), made, features)
    smooth = MatchingLearner(replace(goal, technique="sinkhorn"), made, features)
    hard, both, soft = (one.loss(0).item() for one in (learner, mixed, smooth))
    assert both == pytest.approx(0.75 * hard + 0.25 * soft, rel=1e-5)
    full = MatchingLearner(replace(goal, network=replace(goal.network, edges=0.5)), made, features)
    assert full.module.weight.tolist() == [0.5] * 6


def test_a_trained_network_comes_back_and_other_runs_are_refused(tmp_path):
    made = collection()
    path = train(settings("pca-gm", "sinkhorn", steps=1), made, tmp_path / "run")
    network, config = load_run(path)
    assert config == settings("pca-gm", "sinkhorn", steps=1)
    assert not network.training
    with pytest.raises(CheckpointError, match="other settings"):
        train(settings("pca-gm", "sinkhorn", steps=1, tau=0.7), made, tmp_path / "run")
    write_checkpoint(tmp_path / "other.pt", {"config": {}})
    with pytest.raises(CheckpointError, match="not a run of this study"):
        load_run(tmp_path / "other.pt")
