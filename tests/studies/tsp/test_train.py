"""The training loop: it learns, a resumed run is the same run, two processes make the run of one, budgets hold."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from linsat_studies.checkpoints import CheckpointError, read_checkpoint
from linsat_studies.settings import Plan, to_json
from linsat_studies.training import CURVE, fit, learning_rate, share
from linsat_studies.tsp.checkpoint import load_network
from linsat_studies.tsp.config import NetworkConfig, TourConfig
from linsat_studies.tsp.data import random_instances
from linsat_studies.tsp.learner import TourLearner
from linsat_studies.tsp.model import soft_tours
from linsat_studies.tsp.train import train

SMALL = NetworkConfig(cities=7, width=16, layers=2, heads=2, hidden=16)


def small_config(steps, **changes):
    plan = Plan(steps=steps, every=5, warmup=5, rate=3e-3, average=0.9)
    return TourConfig(**{"network": SMALL, "plan": plan, "batch": 16, "validation": 16, "beam": 4, **changes})


def curve(folder):
    return [json.loads(line) for line in (folder / CURVE).read_text().splitlines()]


class Parabola:
    """Least squares with a known answer, and a random part that comes from torch's generator."""

    def __init__(self, noise=0.0):
        torch.manual_seed(0)
        self.module = nn.Linear(3, 1)
        self.noise, self.calls, self.killed_at = noise, 0, None

    def loss(self, step):
        if step == self.killed_at:
            raise KeyboardInterrupt
        self.calls += 1
        x = torch.randn(64, 3, generator=torch.Generator().manual_seed(step))
        target = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 3 + self.noise * torch.randn(64, 1)
        return (self.module(x) - target).square().mean()

    def validate(self):
        return float((self.module.weight - torch.tensor([[1.0, -2.0, 0.5]])).abs().max())

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def test_least_squares_reaches_its_closed_form(tmp_path):
    learner = Parabola()
    path = fit(learner, Plan(steps=400, rate=0.05, warmup=10, every=100, average=0.9, decay=0.0), tmp_path / "run")
    averaged = read_checkpoint(path)["averaged"]
    torch.testing.assert_close(averaged["weight"], torch.tensor([[1.0, -2.0, 0.5]]), atol=2e-3, rtol=0)
    torch.testing.assert_close(averaged["bias"], torch.tensor([3.0]), atol=2e-3, rtol=0)
    assert curve(tmp_path / "run")[-1]["validation"] < 2e-3


def test_a_killed_run_resumes_as_if_never_killed(tmp_path):
    plan = Plan(steps=20, rate=0.05, every=5)
    whole = Parabola(noise=1.0)
    fit(whole, plan, tmp_path / "whole")
    killed = Parabola(noise=1.0)
    killed.killed_at = 13
    with pytest.raises(KeyboardInterrupt):
        fit(killed, plan, tmp_path / "killed")
    resumed = Parabola(noise=1.0)
    fit(resumed, plan, tmp_path / "killed")
    assert torch.equal(resumed.module.weight, whole.module.weight)
    assert resumed.calls == whole.calls == 20
    assert [(r["step"], r["loss"], r["validation"]) for r in curve(tmp_path / "killed")] == [
        (r["step"], r["loss"], r["validation"]) for r in curve(tmp_path / "whole")
    ]
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == ["curve.jsonl", "last.pt"]


def test_a_finished_run_is_left_alone_or_extended(tmp_path):
    fit(Parabola(), Plan(steps=10, every=5), tmp_path)
    again = Parabola()
    fit(again, Plan(steps=10, every=5), tmp_path)
    assert [line["step"] for line in curve(tmp_path)] == [5, 10]
    fit(again, Plan(steps=15, every=5), tmp_path)
    assert [line["step"] for line in curve(tmp_path)] == [5, 10, 15]


def test_a_run_of_another_network_is_refused(tmp_path):
    fit(Parabola(), Plan(steps=1), tmp_path)
    other = Parabola()
    other.module = nn.Linear(4, 1)
    with pytest.raises(CheckpointError, match="trains another network"):
        fit(other, Plan(steps=2), tmp_path)


def test_minutes_count_training_and_not_pauses(tmp_path, monkeypatch):
    clock = {"now": 0.0}

    class Paused(Parabola):
        def loss(self, step):
            clock["now"] += 1000.0 if step == 3 else 1.0  # one step is interrupted for a quarter of an hour
            return super().loss(step)

    monkeypatch.setattr("linsat_studies.training.time.perf_counter", lambda: clock["now"])
    fit(Paused(), Plan(minutes=0.5, every=1000), tmp_path)
    assert curve(tmp_path)[-1]["step"] == 26  # 25 seconds of ordinary steps, and 5 for the interrupted one
    assert curve(tmp_path)[-1]["seconds"] == 30.0


def test_learning_rate_rises_and_falls():
    assert learning_rate(0, 0.0, 10) == pytest.approx(0.1)
    assert learning_rate(9, 0.0, 10) == pytest.approx(1.0)
    assert learning_rate(500, 0.5, 10) == pytest.approx(0.505)
    assert learning_rate(999, 1.0, 10) == pytest.approx(0.01)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    (tmp_path / "last.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="cannot be read"):
        fit(Parabola(), Plan(steps=1), tmp_path)


@pytest.mark.parametrize(("teacher", "length"), [(1.0, 0.0), (0.0, 1.0)])
def test_networks_learn_from_either_signal(tmp_path, teacher, length):
    config = small_config(30, teacher_weight=teacher, length_weight=length, batch=32)
    train(config, tmp_path)
    lines = curve(tmp_path)
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    assert set(lines[-1]) == {"step", "seconds", "loss", "validation", "se", "pri"}
    assert lines[-1]["validation"] == pytest.approx((lines[-1]["se"] + lines[-1]["pri"]) / 2)


def test_a_run_may_start_from_other_weights_at_another_temperature(tmp_path):
    first = train(small_config(5), tmp_path / "first")
    config = small_config(1, tau=0.4, tau_end=0.4)
    second = train(config, tmp_path / "second", initial=first)
    coords = torch.rand(4, 7, 2)
    before = soft_tours(load_network("se", first), coords, "se", 0.1)
    after = soft_tours(load_network("se", second), coords, "se", 0.4)
    torch.testing.assert_close(after, before, atol=0.02, rtol=0)  # one warm-up step apart


def test_temperature_follows_the_run():
    learner = TourLearner(small_config(10, tau=0.1, tau_end=0.025))
    learner.schedule(0.5)
    assert learner.tau == pytest.approx(0.05)


def test_steps_are_reproducible_and_differ():
    learner = TourLearner(small_config(10))
    assert learner.loss(3).item() == learner.loss(3).item()
    assert learner.loss(3).item() != learner.loss(4).item()


def test_validation_instances_are_not_trained_on():
    held = TourLearner(small_config(10)).held_out[0].coords
    for step in range(5):
        drawn = random_instances("se", 8, n=7, seed=np.random.default_rng((0, step, 0))).coords
        assert np.abs(held[:, None] - drawn[None]).max(axis=(2, 3)).min() > 1e-3


def test_share_of_a_single_process():
    assert share(10) == slice(0, 10)


def test_two_processes_make_the_run_of_one(tmp_path):
    # The expected length only: the teacher's random starts depend on how many instances a process has.
    config = small_config(10, teacher_weight=0.0, length_weight=1.0)
    (tmp_path / "config.json").write_text(to_json(config))
    train(config, tmp_path / "one")
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "linsat_studies.tsp.train"]
    done = subprocess.run(
        [sys.executable, *run, str(tmp_path / "two"), "--config", str(tmp_path / "config.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    one, two = curve(tmp_path / "one"), curve(tmp_path / "two")
    assert [line["step"] for line in two] == [line["step"] for line in one] == [5, 10]
    for a, b in zip(one, two):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
        assert b["validation"] == pytest.approx(a["validation"], rel=1e-3)
    assert "training" in done.stdout
