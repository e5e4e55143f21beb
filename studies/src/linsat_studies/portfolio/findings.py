"""What a walk-forward shows: Sharpe ratios of the techniques, paired differences and the placebo, with intervals.

The placebo takes the preferred assets at random, many times, with the same networks, which know no names: what a
technique earns on average over such sets is its own, and where the study's set lies among them is its names'.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import torch

import linsat
from linsat_studies.portfolio.baselines import equal_scores, equal_weight
from linsat_studies.portfolio.bootstrap import (
    BLOCK,
    DRAWS,
    mean_paired_interval,
    paired_interval,
    sharpe_interval,
    stationary_days,
)
from linsat_studies.portfolio.config import default_config
from linsat_studies.portfolio.measurements import Study, find_runs
from linsat_studies.portfolio.programs import Preference
from linsat_studies.portfolio.sharpe import annual_sharpe, daily_returns, ladder
from linsat_studies.portfolio.techniques import LayerWeights, project_preference, softmax_weights
from linsat_studies.portfolio.walk_forward import PLAIN, TECHNIQUES, WalkForward
from linsat_studies.progress import Progress

# (technique, what it is compared with): first what learning adds, then one technique against another.
COMPARISONS = (
    ("softmax", "equal weight"),
    ("layer", "layer of equal scores"),
    ("layer, slack-free", "equal weight, preference"),
    ("layer, Euclidean", "equal weight, preference"),
    ("layer", "two-stage"),
    ("layer", "softmax + projection"),
    ("layer, slack-free", "softmax + projection"),
    ("layer, Euclidean", "softmax + projection"),
    ("layer, slack-free", "layer"),
    ("layer, Euclidean", "layer"),
)
SETS = 200
_PLACEBO_DRAWS = 1000  # every one costs as many Sharpe ratios as there are sets
Series = dict[str, np.ndarray]


def differences(series: Series, drawn: np.ndarray) -> list[dict[str, Any]]:
    """`COMPARISONS` of daily series, as far as both are there."""
    pairs = [(one, other) for one, other in COMPARISONS if one in series and other in series]
    return [
        {"of": one, "less": other, **paired_interval(series[one], series[other], drawn).as_json()}
        for one, other in pairs
    ]


def findings(walk: WalkForward, *, sets: int = SETS, progress: Progress | None = None) -> dict[str, Any]:
    """The record of a walk-forward whose networks are trained.

    Args:
        walk: after ``run``.
        sets: of the placebo; all there are where these are fewer.
        progress: called as ``progress(done, sets)``.
    """
    weights = {name: walk.ensemble(name) for name in TECHNIQUES} | {name: walk.plain(name) for name in PLAIN}
    series = {name: walk.series(chosen) for name, chosen in weights.items()}
    drawn = stationary_days(len(series["softmax"]), DRAWS)
    rows = {name: _row(walk, name, weights[name], series[name], drawn) for name in weights}
    return {
        "scope": walk.scope,
        "bootstrap": {"block": BLOCK, "draws": DRAWS, "days": drawn.shape[1]},
        "rows": rows,
        "differences": differences(series, drawn),
        "placebo": placebo(walk, series, sets=sets, progress=progress),
    }


def _row(walk: WalkForward, name: str, weights: np.ndarray, series: np.ndarray, drawn: np.ndarray) -> dict[str, Any]:
    row = {
        "sharpe": sharpe_interval(series, drawn).as_json(),
        "preferred_share": round(float(weights[:, list(walk.preference.preferred)].sum(1).mean()), 4),
        "assets": round(float((1 / (weights**2).sum(1)).mean()), 2),
    }
    if name in TECHNIQUES:
        row["violation"] = walk.worst_violation(name)
    if name == "two-stage":
        row["fallbacks"], row["programs"] = walk.fallbacks(), walk.protocol.seeds * len(walk.windows)
    return row


def year_findings(study: Study) -> dict[str, Any]:
    """The same figures of the trained networks of a study in its test period, by predictor.

    An ensemble is the mean of the weights of all seeds. ``sharpe`` is that of one daily series, `ladder`; the mean over
    windows, which the paper states, has no interval, because the windows overlap.
    """
    runs = find_runs(study.folder)
    plain = {name: study.weights(study.baseline_name(*PLAIN[name])) for name in PLAIN}
    found: dict[str, Any] = {}
    for predictor in dict.fromkeys(run.predictor for run in runs):
        members: dict[str, list[np.ndarray]] = {}
        for run in runs:
            for name in run.techniques if run.predictor == predictor else ():
                members.setdefault(name, []).append(study.weights(f"{predictor} {name} {run.seed}"))
        weights = {name: np.mean(several, axis=0) for name, several in members.items()} | plain
        returns, starts = study.windows.returns(), study.windows.starts
        series = {name: ladder(daily_returns(chosen, returns), starts) for name, chosen in weights.items()}
        drawn = stationary_days(len(series["equal weight"]), DRAWS)
        ratios = {name: sharpe_interval(daily, drawn).as_json() for name, daily in series.items()}
        found[predictor] = {"days": drawn.shape[1], "rows": ratios, "differences": differences(series, drawn)}
    return found


def random_sets(assets: int, size: int, count: int, *, seed: int = 0) -> list[list[int]]:
    """``count`` different sets of ``size`` assets; all of them where there are no more."""
    if comb(assets, size) <= count:
        return [list(chosen) for chosen in combinations(range(assets), size)]
    rng = np.random.default_rng(seed)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < count:
        found[tuple(sorted(rng.choice(assets, size, replace=False).tolist()))] = None
    return [list(chosen) for chosen in found]


def placebo(walk: WalkForward, series: Series, *, sets: int, progress: Progress | None = None) -> dict[str, Any]:
    """The comparisons over random preferred sets.

    ``value`` is the mean difference over sets, with the interval over days drawn; ``ahead`` is the share of sets with a
    positive difference and ``names`` the share whose difference is below that of the study's set. ``luck`` is the share
    of sets on which the layer of equal scores earned less than on the study's set: how well the names did by
    themselves. Two-stage is left out: it would take a program for every window of every set.
    """
    chosen = random_sets(len(walk.prices.tickers), len(walk.preference.preferred), sets)
    scores = {name: list(walk.members("scores", name)) for name in ("softmax", "layer", "slack-free", "euclidean")}
    found: dict[str, list[np.ndarray]] = {}
    for number, preferred in enumerate(chosen, start=1):
        for name, weights in _with_preference(walk, scores, Preference(preferred, walk.preference.at_least)).items():
            found.setdefault(name, []).append(walk.series(weights))
        if progress is not None:
            progress(number, len(chosen))
    stacked = {name: np.stack(several) for name, several in found.items()}
    drawn = stationary_days(len(series["softmax"]), _PLACEBO_DRAWS)
    rows = []
    for one, other in COMPARISONS:
        if one in stacked and other in stacked:
            each = annual_sharpe(stacked[one]) - annual_sharpe(stacked[other])
            own = float(annual_sharpe(series[one]) - annual_sharpe(series[other]))
            spread = {"ahead": float((each > 0).mean()), "names": float((each < own).mean())}
            rows.append({"of": one, "less": other, **_mean(stacked, one, other, drawn), **spread})
    plain = annual_sharpe(stacked["layer of equal scores"])
    luck = float((plain < annual_sharpe(series["layer of equal scores"])).mean())
    return {"sets": len(chosen), "differences": rows, "luck": luck}


def _mean(stacked: Series, one: str, other: str, drawn: np.ndarray) -> dict[str, Any]:
    return mean_paired_interval(stacked[one], stacked[other], drawn).as_json()


@torch.no_grad()
def _with_preference(
    walk: WalkForward, scores: dict[str, list[np.ndarray]], preference: Preference
) -> dict[str, np.ndarray]:
    """Ensemble weights (windows, assets) of every technique but two-stage, under another preference."""
    rows = linsat.constraints.portfolio(len(walk.prices.tickers), preference.preferred, preference.at_least)
    tau, count = default_config("stemgnn", "layer").tau, len(walk.windows)
    made = {}
    for name, trained in TECHNIQUES.items():
        if trained in ("two-stage", "softmax"):
            continue
        layer = LayerWeights(rows, tau, trained)
        made[name] = layer(torch.from_numpy(np.stack(scores[trained]))).mean(0).numpy()
    soft = softmax_weights(torch.from_numpy(np.stack(scores["softmax"])))
    projected = project_preference(soft, preference.preferred, preference.at_least)
    made["softmax + projection"] = projected.mean(0).numpy()
    nothing_seen = np.zeros((1, len(walk.prices.tickers)))
    for name, baseline in (("equal weight, preference", equal_weight), ("layer of equal scores", equal_scores)):
        made[name] = np.tile(baseline(nothing_seen, preference), (count, 1))
    return made
