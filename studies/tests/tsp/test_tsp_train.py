"""Training the routing networks: they learn from either signal, and two processes make the run of one."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from linsat_studies.settings import Plan, to_json
from linsat_studies.training import CURVE
from linsat_studies.tsp.config import NetworkConfig, TourConfig
from linsat_studies.tsp.data import random_instances
from linsat_studies.tsp.learner import TourLearner
from linsat_studies.tsp.model import soft_tours
from linsat_studies.tsp.shipped import load_network
from linsat_studies.tsp.train import train

SMALL = NetworkConfig(cities=7, width=16, layers=2, heads=2, hidden=16)


def small_config(steps, **changes):
    plan = Plan(steps=steps, every=5, warmup=5, rate=3e-3, average=0.9)
    return TourConfig(**{"network": SMALL, "plan": plan, "batch": 16, "validation": 16, "beam": 4, **changes})


def curve(folder):
    return [json.loads(line) for line in (folder / CURVE).read_text().splitlines()]


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
