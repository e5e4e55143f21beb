"""Everything the report states, measured part by part; each part is a JSON file that says what it was measured on.

An interrupted measurement continues where it stopped; changed prices, settings or networks are measured again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from torch import nn

from linsat_studies.files import read_json, write_arrays, write_json
from linsat_studies.portfolio import evaluate
from linsat_studies.portfolio.baselines import BASELINES
from linsat_studies.portfolio.config import LAYERS, PREDICTORS, TRAINED, Periods, PortfolioConfig, Rules
from linsat_studies.portfolio.constraints import Universe, universe, weight_rules
from linsat_studies.portfolio.data import Prices, Windows, test_windows, training_windows
from linsat_studies.portfolio.evaluate import Outcome
from linsat_studies.portfolio.programs import Preference
from linsat_studies.portfolio.techniques import LayerWeights
from linsat_studies.portfolio.train import load_run, rules_universe
from linsat_studies.progress import Progress
from linsat_studies.seeds import spread_over_seeds
from linsat_studies.training import LAST

# Technique -> the training run whose network it uses. The first three are the paper's.
TECHNIQUES = {
    "softmax": "softmax",
    "two-stage": "two-stage",
    "layer": "layer",
    "layer, slack-free": "slack-free",
    "layer, Euclidean": "euclidean",
    "softmax + projection": "softmax",
    "two-stage, past covariance": "two-stage",
}

# Rule sets beyond the paper's, each with the preference too; "all" is all of them at once. Those without "nearest" are
# the layer's.
SHOWN_RULES = {
    "caps": Rules(cap=0.1),
    "sectors": Rules(sector_limit=0.6),
    "factor bands": Rules(exposure=0.2),
    "turnover": Rules(turnover=0.02),
    "all": Rules(cap=0.1, sector_limit=0.6, exposure=0.2, turnover=0.02),
    "nearest": Rules(risk=0.0),
    "nearest, risk": Rules(risk=1.0),
    "nearest, risk, all": Rules(cap=0.1, sector_limit=0.6, exposure=0.2, turnover=0.02, risk=1.0),
}


def shown_rules(name: str, rules: Rules, preferred: int) -> Rules:
    """Those of `SHOWN_RULES` with the preference of ``rules``, for ``preferred`` assets.

    The cap is wider where so few preferred assets could not reach their share.
    """
    shown = replace(SHOWN_RULES[name], prefer=rules.prefer, at_least=rules.at_least)
    if shown.cap is None:
        return shown
    return replace(shown, cap=min(1.0, max(shown.cap, 1.2 * rules.at_least / preferred)))


@dataclass(frozen=True)
class Run:
    """A trained network in the folder of a study."""

    predictor: str
    trained: str
    seed: int
    path: Path

    @property
    def techniques(self) -> list[str]:
        """What is evaluated with it."""
        return [name for name, trained in TECHNIQUES.items() if trained == self.trained]


def find_runs(folder: Path) -> list[Run]:
    """The runs that training left in ``folder/runs``, sorted; none where there is no such folder."""
    runs = []
    for path in (folder / "runs").glob(f"*/{LAST}"):
        predictor, _, rest = path.parent.name.partition("_")
        trained, _, seed = rest.rpartition("_")
        if predictor in PREDICTORS and trained in TRAINED and seed.isdigit():
            runs.append(Run(predictor, trained, int(seed), path))
    return sorted(runs, key=lambda run: (run.predictor, TRAINED.index(run.trained), run.seed))


@dataclass(eq=False)
class Study:
    """Prices, rules, and the folder of the results.

    Args:
        folder: holds ``runs``, gets ``results``.
        prices: of the study.
        rules: preference.
        periods: which days train and test.
        sectors: one for each asset, or None for clusters.
    """

    folder: Path
    prices: Prices
    rules: Rules
    periods: Periods
    sectors: list[str] | None = None

    @cached_property
    def windows(self) -> Windows:
        """The test windows."""
        return test_windows(self.prices, self.periods)

    @cached_property
    def preference(self) -> Preference:
        """The preference as indices."""
        return Preference(self.prices.preferred(self.rules.prefer), self.rules.at_least)

    @cached_property
    def about(self) -> Universe:
        """Sectors and factors from the training period."""
        return universe(training_windows(self.prices, self.periods), self.preference.preferred, self.sectors)

    @property
    def scope(self) -> dict[str, Any]:
        """What every result states that it was measured on."""
        return {
            "prices": self.prices.fingerprint,
            "periods": asdict(self.periods),
            "preferred": [self.prices.tickers[i] for i in self.preference.preferred],
            "at_least": self.rules.at_least,
            "windows": len(self.windows),
        }

    def part(
        self, name: str, more: dict[str, Any], measure: Callable[[], tuple[dict[str, Any], Any]]
    ) -> dict[str, Any]:
        """The result called ``name`` from disk if it is of this scope, else measured now and written."""
        path = self.folder / "results" / f"{name.replace(' ', '_').replace(',', '')}.json"
        wanted = {**self.scope, **more}
        found = read_json(path)
        if found is not None and found.get("scope") == wanted:
            return found
        result, weights = measure()
        if weights is not None:
            write_arrays(path.with_suffix(".npz"), weights=weights)
        write_json(path, {"scope": wanted, **result})
        return {"scope": wanted, **result}

    def weights(self, name: str) -> np.ndarray:
        """The weights (windows, assets) behind a result."""
        path = self.folder / "results" / f"{name.replace(' ', '_').replace(',', '')}.npz"
        with np.load(path, allow_pickle=False) as file:
            return file["weights"]

    def technique(self, run: Run, name: str, progress: Progress | None = None) -> dict[str, Any]:
        """One technique with one trained network on all test windows."""
        network, config = load_run(run.path, self.prices)
        self._check_rules(run, config)
        stated = {"run": asdict(config), "technique": name}

        def measure() -> tuple[dict[str, Any], np.ndarray]:
            outcome = self._outcome(name, network, config, progress)
            return outcome.summary(), outcome.weights

        return self.part(f"{run.predictor} {name} {run.seed}", _as_json(stated), measure)

    def _check_rules(self, run: Run, config: PortfolioConfig) -> None:
        """Only a layer is trained with a preference; it must be the one that is evaluated."""
        trained = Preference(self.prices.preferred(config.rules.prefer), config.rules.at_least)
        if run.trained in LAYERS and trained != self.preference:
            raise ValueError(
                f"{run.path} was trained for another preference. Fix: pass the same --prefer and --at-least."
            )

    def _outcome(self, name: str, network: nn.Module, config: PortfolioConfig, progress: Progress | None) -> Outcome:
        windows, preference = self.windows, self.preference
        if name == "softmax":
            return evaluate.softmax_outcome(network, windows, preference)
        if name == "softmax + projection":
            return evaluate.projected_outcome(network, windows, preference)
        if config.technique in LAYERS:
            rules = weight_rules(config.rules, rules_universe(config, self.prices, self.sectors))
            layer = LayerWeights(rules, config.tau, config.technique)
            return evaluate.layer_outcome(network, windows, preference, layer)
        past = name == "two-stage, past covariance"
        return evaluate.two_stage_outcome(network, windows, preference, past_covariance=past, progress=progress)

    def baseline(self, name: str, preferred: bool, progress: Progress | None = None) -> dict[str, Any]:
        """One baseline on all test windows, with the preference or without."""

        def measure() -> tuple[dict[str, Any], np.ndarray]:
            start = perf_counter()
            weights = []
            for k in range(len(self.windows)):
                past = self.windows[k : k + 1].past_returns()[0]
                weights.append(BASELINES[name](past, self.preference if preferred else None))
                if progress is not None:
                    progress(k + 1, len(self.windows))
            seconds = {"layer": perf_counter() - start}
            outcome = Outcome(self.windows, np.array(weights), self.preference, {"seconds": seconds})
            return outcome.summary(), outcome.weights

        return self.part(self.baseline_name(name, preferred), {"preference": preferred}, measure)

    @staticmethod
    def baseline_name(name: str, preferred: bool) -> str:
        """Under which the result of a baseline is kept."""
        return f"baseline {name} {'preferred' if preferred else 'plain'}"

    def ruled(self, name: str, run: Run, progress: Progress | None = None) -> dict[str, Any]:
        """The scores of a run's network under a rule set of `SHOWN_RULES`: what they earn, and the worst row."""
        network, config = load_run(run.path, self.prices)
        rules = shown_rules(name, self.rules, len(self.preference.preferred))

        def measure() -> tuple[dict[str, Any], np.ndarray]:
            start = perf_counter()
            scores = evaluate.predict(network, self.windows).scores
            past = None if rules.risk is None else self.windows.past_returns()
            weights, worst = evaluate.ruled_weights(scores, rules, self.about, config.tau, past=past, progress=progress)
            notes = {"row_violation": worst, "seconds": {"layer": perf_counter() - start}} | self._kept(weights)
            outcome = Outcome(self.windows, weights, self.preference, notes)
            return outcome.summary(), weights

        stated = {"rules": asdict(rules), "run": asdict(config)}
        return self.part(f"rules {name}", _as_json(stated), measure)

    def _kept(self, weights: np.ndarray) -> dict[str, float]:
        """What the rules are about, read off the weights themselves: largest over all windows."""
        sectors = {
            label: [i for i, other in enumerate(self.about.sectors) if other == label] for label in self.about.sectors
        }
        moved = np.abs(np.diff(weights, axis=0)).sum(1) / 2
        assert self.about.loadings is not None
        return {
            "largest_weight": float(weights.max()),
            "largest_sector": max(float(weights[:, members].sum(1).max()) for members in sectors.values()),
            "largest_exposure": float(np.abs(weights @ self.about.loadings.T).max()),
            "largest_turnover": float(moved.max()) if len(moved) else 0.0,
        }


def _as_json(content: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a JSON file: tuples become lists."""
    import json

    return json.loads(json.dumps(content))


def over_seeds(results: list[dict[str, Any]]) -> dict[str, float]:
    """Mean, spread (standard deviation) and standard error over runs of the mean Sharpe ratio; worst violations."""
    return {
        **spread_over_seeds([result["mean_sharpe"] for result in results]),
        "held": float(np.mean([result["held_sharpe"] for result in results])),
        "violation": max(result["violation"] for result in results),
        "simplex_violation": max(result["simplex_violation"] for result in results),
        "preferred_share": float(np.mean([result["preferred_share"] for result in results])),
        "assets": float(np.mean([result["assets"] for result in results])),
    }
