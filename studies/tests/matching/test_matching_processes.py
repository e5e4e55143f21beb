"""Training as a command, and by two processes."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from matching_cases import RandomFeatures, collection

from linsat_studies.checkpoints import read_checkpoint
from linsat_studies.matching.config import MatchingConfig, NetworkConfig
from linsat_studies.matching.train import train
from linsat_studies.settings import Plan


def settings():
    network = NetworkConfig(kind="bbgm", width=12, layers=1, dropout=0.0)
    plan = Plan(steps=3, rate=5e-3, warmup=1, every=3, average=0.5)
    return MatchingConfig(technique="sinkhorn", network=network, plan=plan, batch=8, validated=5)


def test_the_command_says_what_is_wrong_in_one_line(tmp_path):
    command = [sys.executable, "-m", "linsat_studies.matching.train", str(tmp_path / "run")]
    done = subprocess.run([*command, "--data", str(tmp_path)], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "holds annotations.json.gz" in done.stderr
    assert done.stderr.count("\n") == 1


def test_two_processes_make_the_run_of_one(tmp_path):
    """What torchrun starts: each process takes half of every batch, and gradients are averaged."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, torch\n"
        "torch.set_num_threads(1)\n"
        "from matching_cases import RandomFeatures, collection\n"
        "from test_matching_processes import settings\n"
        "from linsat_studies.matching.train import train\n"
        "made = collection()\n"
        "train(settings(), made, sys.argv[1], features=RandomFeatures(made))\n"
    )
    here = os.path.dirname(os.path.abspath(__file__))
    environment = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run([*torchrun, str(script), str(tmp_path / "two")], check=True, capture_output=True, env=environment)
    made = collection()
    one = train(settings(), made, tmp_path / "one", features=RandomFeatures(made))
    first, second = read_checkpoint(one), read_checkpoint(tmp_path / "two" / "last.pt")
    assert second["step"] == 3
    for name, tensor in first["averaged"].items():
        torch.testing.assert_close(tensor, second["averaged"][name], atol=1e-5, rtol=1e-4, msg=name)
