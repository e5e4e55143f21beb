"""The training run that makes the shipped networks of the routing study, also as a command for torchrun."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from linsat_studies.checkpoints import load_weights, read_checkpoint
from linsat_studies.settings import from_dict, to_json
from linsat_studies.training import fit, keep_freed_memory
from linsat_studies.tsp.config import TourConfig, read_config
from linsat_studies.tsp.learner import TourLearner


def train(config: TourConfig, folder: str | Path, *, initial: str | Path | None = None) -> Path:
    """Train a `TourNet` as configured; resumes or extends the run in ``folder``. Returns the checkpoint's path.

    Args:
        config: network, losses, plan.
        folder: of the run; see `fit`.
        initial: a checkpoint or shipped file whose weights a new run starts from. Its scores are multiplied by this
            run's first temperature over that run's last one, so that its soft tours stay as they were.
    """
    learner = TourLearner(config)
    if initial is not None:
        load_weights(learner.module, initial)
        before = from_dict(TourConfig, read_checkpoint(initial)["config"])
        learner.module.multiply_scores(config.tau / before.tau_end)
    torch.set_flush_denormal(True)  # soft tours hold entries below 1e-38, on which processors are slow
    keep_freed_memory()
    return fit(learner, config.plan, folder, config=json.loads(to_json(config)))


def main() -> None:
    """The training run as a command, which is also what torchrun starts: ``python -m linsat_studies.tsp.train``."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m linsat_studies.tsp.train", description=main.__doc__)
    parser.add_argument("folder", help="of the run: checkpoint and learning curve; an earlier run there is continued")
    parser.add_argument("--config", help="a JSON file with a TourConfig; by default the one of the shipped networks")
    parser.add_argument("--minutes", type=float, help="budget, in place of the configuration's")
    parser.add_argument("--steps", type=int, help="budget, in place of the configuration's")
    parser.add_argument("--initial", help="a checkpoint whose weights the run starts from")
    arguments = parser.parse_args()
    config = TourConfig() if arguments.config is None else read_config(arguments.config)
    if arguments.minutes is not None or arguments.steps is not None:
        plan = replace(config.plan, minutes=arguments.minutes, steps=arguments.steps)
        config = replace(config, plan=plan)
    train(config, arguments.folder, initial=arguments.initial)


if __name__ == "__main__":
    main()
