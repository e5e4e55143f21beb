"""The training loop of the studies: it learns, a resumed run is the same run, budgets hold."""

import json

import pytest
import torch
from torch import nn

from linsat_studies.checkpoints import CheckpointError, read_checkpoint
from linsat_studies.settings import Plan
from linsat_studies.training import CURVE, fit, learning_rate, share


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
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == ["curve.jsonl", "last.pt", "previous.pt"]


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


def test_share_of_a_single_process():
    assert share(10) == slice(0, 10)
