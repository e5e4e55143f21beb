"""Two processes that share each batch make the run of one."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from linsat_studies.checkpoints import read_checkpoint
from linsat_studies.portfolio.config import NetworkConfig, Periods, PortfolioConfig, Rules
from linsat_studies.portfolio.data import read_prices
from linsat_studies.portfolio.train import train
from linsat_studies.settings import Plan, to_json

# The command, and what is left at its end: a thread of gloo that outlives its group may end the process with SIGABRT.
PROGRAM = """
import atexit, glob, pathlib
names = lambda: sorted(pathlib.Path(path).read_text().strip() for path in glob.glob("/proc/self/task/*/comm"))
atexit.register(lambda: print("threads at the end:", *names()))
from linsat_studies.cli import main
main()
"""


def test_two_processes_make_the_run_of_one(tmp_path):
    """Started by torchrun, as a person starts it, all techniques in one command."""
    days = np.arange(np.datetime64("2020-01-01"), np.datetime64("2021-01-01"))
    dates = days[np.is_busday(days)]
    values = 40 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.01, size=(len(dates), 5)), axis=0))
    lines = [f"{day}," + ",".join(repr(float(value)) for value in row) for day, row in zip(dates, values)]
    (tmp_path / "prices.csv").write_text("\n".join(["date,A,B,C,D,E", *lines]) + "\n")
    config = PortfolioConfig(
        network=NetworkConfig("lstm", hidden=8),
        periods=Periods("2020-01-01", "2020-09-30", "2020-10-10", "2020-12-31", past=20, future=10),
        rules=Rules(("A", "B"), 0.5),
        plan=Plan(steps=6, every=3, warmup=2, rate=1e-2, average=0.5),
        batch=8,
    )
    (tmp_path / "config.json").write_text(to_json(config))
    words = ["portfolio", "train", "--predictor", "lstm", "--seeds", "1", "--prices", str(tmp_path / "prices.csv")]
    words += ["--config", str(tmp_path / "config.json"), "--out", str(tmp_path / "two")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [*torchrun, str(tmp_path / "program.py"), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained:") == 5  # one process speaks, once for each of the five techniques that train
    assert done.stdout.count("threads at the end:") == 2
    assert "gloo" not in done.stdout
    prices = read_prices(tmp_path / "prices.csv")
    for technique in ("softmax", "layer"):
        alone = read_checkpoint(train(replace(config, technique=technique), prices, tmp_path / technique))
        shared = read_checkpoint(tmp_path / "two" / "runs" / f"lstm_{technique}_0" / "last.pt")
        assert shared["config"] == alone["config"]
        for one, two in zip(alone["curve"], shared["curve"]):
            assert two["step"] == one["step"]
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-4, abs=1e-5)
        for name, tensor in alone["averaged"].items():
            torch.testing.assert_close(shared["averaged"][name], tensor, rtol=1e-3, atol=1e-5)
    curve = [json.loads(line) for line in (tmp_path / "two/runs/lstm_layer_0/curve.jsonl").read_text().splitlines()]
    assert [line["step"] for line in curve] == [3, 6]
