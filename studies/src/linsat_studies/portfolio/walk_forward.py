"""Evaluation by expanding walk-forward: several cuts, one daily series for each technique, everything before the test.

At a cut networks learn from the windows that end before it, so that no day held in training is held in evaluation, and
choose weights on every fifth day until the next cut. Weights are held for as many days as in training: a day's return
is the mean over all portfolios held that day, as of one that renews a part of itself every week. Seeds are an ensemble,
whose weights are the mean over its members; linear rows hold for a mean if they hold for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from linsat_studies.files import read_json, write_arrays, write_json
from linsat_studies.portfolio.baselines import BASELINES
from linsat_studies.portfolio.config import PREDICTORS, Periods, PortfolioConfig, Rules, default_config
from linsat_studies.portfolio.data import PriceError, Prices, Windows
from linsat_studies.portfolio.evaluate import predict, two_stage_outcome, violations
from linsat_studies.portfolio.programs import Preference
from linsat_studies.portfolio.sharpe import daily_returns, ladder
from linsat_studies.portfolio.techniques import project_preference, softmax_weights
from linsat_studies.portfolio.train import load_run, rules_universe, train, training_weights
from linsat_studies.progress import Note
from linsat_studies.settings import expect

TECHNIQUES = {
    "softmax": "softmax",
    "softmax + projection": "softmax",
    "two-stage": "two-stage",
    "layer": "layer",
    "layer, slack-free": "slack-free",
    "layer, Euclidean": "euclidean",
}
# Name of a series without a network -> (baseline, with the preference?)
PLAIN = {
    "equal weight": ("equal weight", False),
    "equal weight, preference": ("equal weight", True),
    "layer of equal scores": ("layer of equal scores", True),
}


@dataclass(frozen=True)
class Protocol:
    """How the walk-forward is cut.

    Args:
        cuts: how many.
        first: trading days before the first cut.
        until: last day held; later prices are not read.
        every: days between two choices of weights.
        seeds: networks of an ensemble.
        batch: windows a step of training; None for the study's.
        steps: of training; None for the study's.
        predictor: "stemgnn" or "lstm".
        softmax_weight: of the layers' losses, see `PortfolioConfig`.
    """

    cuts: int = 6
    first: int = 300
    until: str = "2020-12-30"
    every: int = 5
    seeds: int = 2
    batch: int | None = None
    steps: int | None = None
    predictor: str = "stemgnn"
    softmax_weight: float = 0.0

    def __post_init__(self) -> None:
        expect(self.predictor in PREDICTORS, "predictor", self.predictor, " or ".join(PREDICTORS))
        for name in ("cuts", "first", "every", "seeds"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")


@dataclass(frozen=True)
class Job:
    """One network to train."""

    cut: int
    trained: str
    seed: int

    def __str__(self) -> str:
        return f"{self.trained}_{self.cut}_{self.seed}"


class WalkForward:
    """Trains, chooses weights and keeps them in a folder; called again it goes on where it was stopped.

    Args:
        folder: gets ``runs`` and ``weights``.
        prices: days after the protocol's last one are cut off at once.
        rules: the preference.
        protocol: cuts and ensemble.

    Raises:
        PriceError: too few days for the cuts.
    """

    def __init__(self, folder: Path, prices: Prices, rules: Rules, protocol: Protocol) -> None:
        known = prices.dates <= np.datetime64(protocol.until)
        self.prices = Prices(prices.dates[known], prices.tickers, prices.values[known], prices.source)
        self.folder, self.rules, self.protocol = folder, rules, protocol
        self.past, self.future = Periods.past, Periods.future
        self.preference = Preference(self.prices.preferred(rules.prefer), rules.at_least)
        last = len(self.prices.dates) - self.future  # the last day on which weights can be chosen
        if protocol.first < self.past + self.future or protocol.first + protocol.cuts * protocol.every > last:
            raise PriceError(
                f"{prices.source} has {len(self.prices.dates)} days until {protocol.until}; expected at least "
                f"{self.past + self.future} before the first cut and {self.future} after the last choice."
            )
        self.cuts = np.linspace(protocol.first, last + 1, protocol.cuts + 1).astype(int)

    @property
    def scope(self) -> dict[str, Any]:
        """What every record states that it was measured on."""
        return {
            "source": self.prices.source,
            "prices": self.prices.fingerprint,
            "assets": len(self.prices.tickers),
            "preferred": [self.prices.tickers[i] for i in self.preference.preferred],
            "at_least": self.rules.at_least,
            "protocol": asdict(self.protocol),
            "cuts": [str(self.prices.dates[cut]) for cut in self.cuts[:-1]],
            "days": [str(self.prices.dates[self.cuts[0]]), str(self.prices.dates[self.last_day - 1])],
            "windows": len(self.windows),
        }

    @cached_property
    def windows(self) -> Windows:
        """All windows on which weights are chosen, oldest first."""
        starts = np.arange(self.cuts[0], self.cuts[-1], self.protocol.every)
        return Windows(self.prices, starts, self.past, self.future)

    @property
    def last_day(self) -> int:
        """One after the last day held."""
        return int(self.windows.starts[-1]) + self.future

    def block(self, cut: int) -> Windows:
        """The windows on which the networks of a cut choose weights."""
        starts = self.windows.starts
        return self.windows[(starts >= self.cuts[cut]) & (starts < self.cuts[cut + 1])]

    def config(self, job: Job) -> PortfolioConfig:
        """The study's settings, on the days before the cut."""
        made = default_config(self.protocol.predictor, job.trained, job.seed)
        dates, cut = self.prices.dates, self.cuts[job.cut]
        first, last, begin, end = (str(day) for day in (dates[0], dates[cut - 1], dates[cut], dates[-1]))
        plan = made.plan
        if self.protocol.steps is not None:
            plan = replace(plan, steps=self.protocol.steps, every=self.protocol.steps)
        batch = made.batch if self.protocol.batch is None else self.protocol.batch
        made = replace(made, rules=self.rules, plan=plan, batch=batch, softmax_weight=self.protocol.softmax_weight)
        return replace(made, periods=Periods(first, last, begin, end))

    def jobs(self) -> list[Job]:
        """Every network, cut by cut."""
        trained = dict.fromkeys(TECHNIQUES.values())
        seeds = range(self.protocol.seeds)
        return [Job(cut, name, seed) for cut in range(self.protocol.cuts) for seed in seeds for name in trained]

    def run(self, *, note: Note = lambda text: None) -> None:
        """Train every network and keep the weights of its techniques; ``note`` is told how far it is."""
        jobs = self.jobs()
        missing = [job for job in jobs if not self._done(job)]
        began = perf_counter()
        for number, job in enumerate(missing, start=1):
            self._keep(job)
            left = (perf_counter() - began) / number * (len(missing) - number)
            done = len(jobs) - len(missing) + number
            day = self.prices.dates[self.cuts[job.cut]]
            note(f"{done} of {len(jobs)}, {left / 60:.0f} min left: {job.trained}, cut {day}, seed {job.seed}")

    def _stated(self, job: Job) -> dict[str, Any]:
        config = asdict(self.config(job))
        config["rules"]["prefer"] = list(config["rules"]["prefer"])
        return {"prices": self.prices.fingerprint, "every": self.protocol.every, "run": config}

    def _done(self, job: Job) -> bool:
        found = read_json(self.folder / "weights" / f"{job}.json")
        return found is not None and found["scope"] == self._stated(job)

    def _keep(self, job: Job) -> None:
        """Train the network, and write what its techniques choose."""
        config = self.config(job)
        network, _ = load_run(train(config, self.prices, self.folder / "runs" / str(job)), self.prices)
        windows, notes = self.block(job.cut), {}
        if job.trained == "two-stage":
            outcome = two_stage_outcome(network, windows, self.preference)
            made, notes = {"two-stage": outcome.weights}, {"fallbacks": outcome.notes["fallbacks"]}
        else:
            scores = predict(network, windows).scores
            weigh = training_weights(config, rules_universe(config, self.prices))
            (name, *rest) = [name for name, trained in TECHNIQUES.items() if trained == job.trained]
            made = {name: weigh(scores).numpy(), "scores": scores.numpy()}
            if rest:
                soft = softmax_weights(scores)
                projected = project_preference(soft, self.preference.preferred, self.preference.at_least)
                made["softmax + projection"] = projected.numpy()
        path = self.folder / "weights" / f"{job}.npz"
        write_arrays(path, **made)
        write_json(path.with_suffix(".json"), {"scope": self._stated(job), **notes})

    def members(self, name: str, trained: str) -> Iterator[np.ndarray]:
        """What each seed's networks chose, (windows, assets), all cuts one after the other; or their scores."""
        for seed in range(self.protocol.seeds):
            parts = []
            for cut in range(self.protocol.cuts):
                path = self.folder / "weights" / f"{Job(cut, trained, seed)}.npz"
                with np.load(path, allow_pickle=False) as file:
                    parts.append(file[name])
            yield np.concatenate(parts)

    def ensemble(self, name: str) -> np.ndarray:
        """(windows, assets): the mean weights of a technique over its seeds."""
        return np.mean(list(self.members(name, TECHNIQUES[name])), axis=0)

    def plain(self, name: str) -> np.ndarray:
        """(windows, assets): the weights of `PLAIN`, which take nothing from the days seen."""
        baseline, preferred = PLAIN[name]
        one = BASELINES[baseline](self.windows[:1].past_returns()[0], self.preference if preferred else None)
        return np.tile(one, (len(self.windows), 1))

    def worst_violation(self, name: str) -> float:
        """The largest failure of sum, box or preference in any window of any seed; without preference for softmax."""
        found = [violations(weights, self.preference) for weights in self.members(name, TECHNIQUES[name])]
        return max(simplex if name == "softmax" else max(simplex, rule) for simplex, rule in found)

    def fallbacks(self) -> int:
        """Windows in which a two-stage network predicted no excess return, over all seeds."""
        files = [self.folder / "weights" / f"{job}.json" for job in self.jobs() if job.trained == "two-stage"]
        return sum(read_json(path)["fallbacks"] for path in files)

    def series(self, weights: np.ndarray) -> np.ndarray:
        """(days,) returns of weights (windows, assets), each held for its days; see the module."""
        return ladder(daily_returns(weights, self.returns), self.windows.starts)

    @cached_property
    def returns(self) -> np.ndarray:
        """(windows, future, assets)"""
        return self.windows.returns()
