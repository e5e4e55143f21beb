"""Training of the three studies, as programs that can be killed and started again (`fuzz.kills`).

PYTHONPATH=. python studies/tests/killed_programs.py --count 20    kills each so often; how many ended as if undisturbed
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.faults import killed
from fuzz.kills import Program
from linsat_studies.checkpoints import read_checkpoint
from linsat_studies.matching.config import MatchingConfig
from linsat_studies.matching.config import NetworkConfig as MatchingNetwork
from linsat_studies.portfolio.config import NetworkConfig as PortfolioNetwork
from linsat_studies.portfolio.config import Periods, PortfolioConfig, Rules
from linsat_studies.settings import Plan, to_json
from linsat_studies.tsp.config import NetworkConfig as TourNetwork
from linsat_studies.tsp.config import TourConfig


def training_result(folder: Path) -> dict[str, Any]:
    """Everything in the checkpoint and the curve but the time it took."""
    (path,) = folder.rglob("last.pt")
    saved = read_checkpoint(path)
    curve = [json.loads(line) for line in path.with_name("curve.jsonl").read_text().splitlines()]
    for line in (*curve, *saved["curve"]):
        line.pop("seconds")
    return {**{name: value for name, value in saved.items() if name != "seconds"}, "file": curve}


def routing(inputs: Path, steps: int) -> Program:
    """Training of the routing study."""
    network = TourNetwork(cities=7, width=16, layers=2, heads=2, hidden=16)
    plan = Plan(steps=steps, every=3, warmup=2, rate=3e-3, average=0.9)
    config = TourConfig(network=network, plan=plan, batch=8, validation=8, beam=4)
    (inputs / "tsp.json").write_text(to_json(config))
    words = ["linsat-studies", "tsp", "train", "--config", str(inputs / "tsp.json"), "--threads", "1", "--folder"]
    modules = ("linsat_studies.cli", "linsat_studies.tsp.train")
    return Program("tsp train", lambda folder: [*words, str(folder)], training_result, modules)


def portfolio(inputs: Path, steps: int) -> Program:
    """Training of the portfolio study, with random numbers in every step (dropout)."""
    days = np.arange(np.datetime64("2020-01-01"), np.datetime64("2021-01-01"))
    dates = days[np.is_busday(days)]
    values = 40 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.01, size=(len(dates), 5)), axis=0))
    lines = [f"{day}," + ",".join(repr(float(value)) for value in row) for day, row in zip(dates, values, strict=True)]
    (inputs / "prices.csv").write_text("\n".join(["date,A,B,C,D,E", *lines]) + "\n")
    config = PortfolioConfig(
        network=PortfolioNetwork("lstm", hidden=8, dropout=0.2),
        periods=Periods("2020-01-01", "2020-09-30", "2020-10-10", "2020-12-31", past=20, future=10),
        rules=Rules(("A", "B"), 0.5),
        plan=Plan(steps=steps, every=3, warmup=2, rate=1e-2, average=0.5),
        batch=8,
    )
    (inputs / "portfolio.json").write_text(to_json(config))
    words = ["linsat-studies", "portfolio", "train", "--predictor", "lstm", "--technique", "layer", "--seeds", "1"]
    words += ["--prices", str(inputs / "prices.csv")]
    words += ["--config", str(inputs / "portfolio.json"), "--out"]
    modules = ("linsat_studies.cli", "linsat_studies.portfolio.train")
    return Program("portfolio train", lambda folder: [*words, str(folder)], training_result, modules)


def matching(inputs: Path, steps: int) -> Program:
    """Training of the matching study on synthetic point sets."""
    network = MatchingNetwork(kind="ngm", width=8, channels=4, layers=1, rounds=1, dropout=0.2)
    plan = Plan(steps=steps, every=3, warmup=1, rate=5e-3, average=0.5)
    config = MatchingConfig(technique="layer", network=network, plan=plan, batch=4, validated=1)
    (inputs / "matching.json").write_text(to_json(config))
    words = ["linsat-studies", "matching", "train", "--network", "ngm", "--technique", "layer", "--seeds", "1"]
    words += ["--config", str(inputs / "matching.json"), "--out"]
    modules = ("linsat_studies.cli", "linsat_studies.matching.train")
    return Program("matching train", lambda folder: [*words, str(folder)], training_result, modules)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill training and start it again.")
    parser.add_argument("--count", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    makers = [partial(make, steps=15) for make in (portfolio, routing, matching)]
    sys.exit(0 if killed("kills_training", makers, parser.parse_args()) else 1)
