"""Choosing rate and length of training for each predictor and technique, inside the training period alone.

Every technique of a predictor gets the same candidates, seeds and windows. A candidate is trained on the windows that
end before a day, and judged on windows that begin on that day or later, still inside the training period: by the mean
Sharpe ratio of the weights that its own technique makes. No day of the test period is read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linsat_studies.files import read_json, write_json
from linsat_studies.portfolio.config import Periods, PortfolioConfig, Rules, default_config
from linsat_studies.portfolio.data import Prices, Windows
from linsat_studies.portfolio.evaluate import predict
from linsat_studies.portfolio.programs import Preference, two_stage
from linsat_studies.portfolio.sharpe import annual_sharpe, daily_returns
from linsat_studies.portfolio.train import PortfolioLearner, load_run, spread, train
from linsat_studies.progress import Note

# Days that part learning from validation. After the last one the training period holds 71 windows; before it, 326.
FOLDS = ("2019-10-01", "2020-01-02", "2020-04-01")
SEEDS = 3
_JUDGED = 24  # windows of a validation, evenly spread; each costs two-stage a program


@dataclass(frozen=True)
class Candidate:
    """A rate and a number of steps."""

    rate: float
    steps: int

    def __str__(self) -> str:
        return f"{self.steps} steps at rate {self.rate:g}"


CANDIDATES = {
    "lstm": (Candidate(1e-3, 120), Candidate(1e-3, 240), Candidate(1e-3, 480)),
    "stemgnn": (Candidate(3e-3, 60), Candidate(3e-3, 160), Candidate(1e-2, 80)),
}


def candidate_config(predictor: str, technique: str, candidate: Candidate, fold: str, seed: int) -> PortfolioConfig:
    """The study's settings with the candidate's rate and steps, learned before the day ``fold``."""
    config = default_config(predictor, technique, seed)
    plan = replace(config.plan, rate=candidate.rate, steps=candidate.steps, every=candidate.steps)
    return replace(config, plan=plan, held_out_from=fold)


def own_weights(network: torch.nn.Module, learner: PortfolioLearner, windows: Windows) -> np.ndarray:
    """Weights (windows, assets) that the learner's technique makes of a network's answer."""
    said = predict(network, windows)
    config = learner.config
    if config.technique == "two-stage":
        preference = Preference(learner.about.preferred, config.rules.at_least)
        return np.stack([two_stage(growth, preference)[0] for growth in said.growth.numpy()])
    with torch.no_grad():
        return learner.weigh(said.scores).numpy()


def validation_sharpe(config: PortfolioConfig, prices: Prices, folder: Path) -> float:
    """Train as configured in ``folder``, then the mean Sharpe ratio on the windows held out."""
    network, _ = load_run(train(config, prices, folder), prices)
    learner = PortfolioLearner(config, prices)
    windows = spread(learner.validated, _JUDGED)
    weights = own_weights(network, learner, windows)
    return float(annual_sharpe(daily_returns(weights, windows.returns())).mean())


def search(
    prices: Prices,
    folder: Path,
    *,
    predictor: str,
    technique: str,
    rules: Rules | None = None,
    periods: Periods | None = None,
    candidates: tuple[Candidate, ...] | None = None,
    folds: tuple[str, ...] = FOLDS,
    seeds: int = SEEDS,
    note: Note = lambda text: None,
) -> dict[str, Any]:
    """Every candidate on every fold with every seed.

    Writes ``search.json`` after each run; an interrupted search continues.

    Returns:
        For each candidate its ratios by fold and seed and their mean, under its text; ``chosen`` is the one with the
        largest mean, the first of equals.
    """
    path = folder / f"{predictor}_{technique}" / "search.json"
    found: dict[str, Any] = read_json(path) or {"prices": prices.fingerprint, "candidates": {}}
    if found["prices"] != prices.fingerprint:
        raise ValueError(f"{path} was made with other prices. Fix: another folder, or remove it.")
    for candidate in candidates or CANDIDATES[predictor]:
        tried = found["candidates"].setdefault(str(candidate), {**asdict(candidate), "ratios": {}})
        ratios: dict[str, float] = tried["ratios"]
        for fold, seed in product(folds, range(seeds)):
            label = f"from {fold}, seed {seed}"
            if label in ratios:
                continue
            config = candidate_config(predictor, technique, candidate, fold, seed)
            config = replace(config, rules=rules or config.rules, periods=periods or config.periods)
            run = path.parent / f"{candidate.steps}_{candidate.rate:g}_{fold}_{seed}"
            ratios[label] = validation_sharpe(config, prices, run)
            write_json(path, found)
            note(f"{predictor} {technique}, {candidate}, {label}: {ratios[label]:.3f}")
    for tried in found["candidates"].values():
        tried["mean"] = float(np.mean(list(tried["ratios"].values())))
    found["chosen"] = max(found["candidates"], key=lambda name: found["candidates"][name]["mean"])
    write_json(path, found)
    return found
