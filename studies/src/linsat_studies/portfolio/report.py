"""The report: table 3 with ours beside the paper's, rows, times, baselines, further rules and charts, on one page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from linsat_studies.files import write_json
from linsat_studies.page import Page, machine
from linsat_studies.portfolio import paper
from linsat_studies.portfolio.baselines import BASELINES
from linsat_studies.portfolio.charts import NAMES, seeds_chart, value_chart, weights_chart
from linsat_studies.portfolio.config import PREDICTORS
from linsat_studies.portfolio.document import RULES_HEADER, TIMES_HEADER, rule_rows, time_rows
from linsat_studies.portfolio.measurements import (
    SHOWN_RULES,
    TECHNIQUES,
    Study,
    find_runs,
    over_seeds,
    shown_rules,
)
from linsat_studies.progress import Bar, Note, no_bar
from linsat_studies.seeds import add_leads

Results = dict[tuple[str, str], list[dict[str, Any]]]  # (predictor, technique) -> one result for each seed


def measure_runs(study: Study, *, bar: Bar = no_bar) -> Results:
    """Every technique with every trained network of the study's folder; from disk where measured before.

    Raises:
        ValueError: there is no trained network.
    """
    runs = find_runs(study.folder)
    if not runs:
        raise ValueError(
            f"{study.folder / 'runs'} holds no trained network. Fix: linsat-studies portfolio train first."
        )
    results: Results = {}
    for run in runs:
        for technique in run.techniques:
            with bar(f"{NAMES[run.predictor]} {technique}, seed {run.seed}") as progress:
                results.setdefault((run.predictor, technique), []).append(study.technique(run, technique, progress))
    return results


def summary(results: Results) -> dict[str, Any]:
    """Table 3 as numbers: for each predictor and technique `over_seeds`, and the layer's leads (`add_leads`)."""
    table: dict[str, Any] = {}
    for (predictor, technique), found in results.items():
        table.setdefault(predictor, {})[technique] = over_seeds(found)
    for rows in table.values():
        add_leads(rows, "layer")
    return table


def layer_times(results: Results) -> dict[str, dict[str, float]]:
    """Seconds that network and layer take, for each predictor: medians over its networks."""
    found = {name: results[name, "layer"] for name in PREDICTORS if (name, "layer") in results}
    return {
        name: {part: float(np.median([one["seconds"][part] for one in runs])) for part in runs[0]["seconds"]}
        for name, runs in found.items()
    }


def write_report(
    study: Study, *, record: Path | None = None, bar: Bar = no_bar, note: Note = lambda text: None
) -> Path:
    """Measure what is missing, then write ``index.html`` and ``summary.json`` to the study's folder.

    Args:
        study: with trained networks in its folder.
        record: also gets further rules and times, for the tables of ``docs/portfolio.md``.
        bar: opens a progress bar of that label.
        note: told what is left out and why.
    """
    notes: list[str] = []
    results = measure_runs(study, bar=bar)
    baselines: dict[tuple[str, bool], dict[str, Any]] = {}
    for name in BASELINES:
        for preferred in (False, True):
            try:
                with bar(f"{name}{', preference' if preferred else ''}") as progress:
                    baselines[name, preferred] = study.baseline(name, preferred, progress)
            except (ImportError, ValueError) as error:
                notes.append(f"{name} left out: {error}")
    ruled = measure_rules(study, bar=bar, note=notes.append)
    for text in notes:
        note(text)
    table = summary(results)
    write_json(study.folder / "summary.json", {"scope": study.scope, "table": table})
    if record is not None:
        long = ("scope", "sharpe", "value", "seconds")  # by window and day, or another each time
        kept = {name: {key: value for key, value in row.items() if key not in long} for name, row in ruled.items()}
        run = next(iter(ruled.values()))["scope"]["run"] if ruled else None
        write_json(record, {"scope": study.scope, "run": run, "rules": kept, "times": layer_times(results)})
    path = study.folder / "index.html"
    build_page(study, results, baselines, ruled, notes).write(path)
    return path


def measure_rules(study: Study, *, bar: Bar = no_bar, note: Note = lambda text: None) -> dict[str, dict[str, Any]]:
    """The scores of the first run with the layer under every rule set; none where there is no such run."""
    shown = next((run for run in find_runs(study.folder) if run.trained == "layer"), None)
    ruled = {}
    for name in SHOWN_RULES if shown is not None else ():
        assert shown is not None
        try:
            with bar(f"rules: {name}") as progress:
                ruled[name] = study.ruled(name, shown, progress)
        except ValueError as error:  # linsat.InfeasibleError among them: few assets may leave no room for a rule
            note(f"rules {name} left out: {error}")
    return ruled


def build_page(
    study: Study,
    results: Results,
    baselines: dict[tuple[str, bool], dict[str, Any]],
    ruled: dict[str, dict[str, Any]],
    notes: list[str],
) -> Page:
    """The page of what was measured; what is missing leaves its section out."""
    page = Page("Portfolio allocation with preferences")
    _about(page, study)
    _table_3(page, results)
    _verdict(page, summary(results))
    _baseline_table(page, baselines)
    _times(page, layer_times(results))
    _rules(page, study, ruled)
    _pictures(page, study, results, baselines)
    page.left_out(notes)
    return page


def _about(page: Page, study: Study) -> None:
    periods, windows = study.periods, study.windows
    names = ", ".join(study.prices.tickers[i] for i in study.preference.preferred)
    page.text(
        f"{len(study.prices.tickers)} assets ({study.prices.source}). From the last {periods.past} trading days a "
        f"network chooses weights for the next {periods.future}. Weights sum to 1; {names} hold at least "
        f"{study.rules.at_least:.0%} of them."
    )
    page.text(
        f"Windows: training windows lie in {periods.train_from} to {periods.train_to}, input and future. A test window "
        f"is any whose {periods.future} days held lie in {periods.test_from} to {periods.test_to}: {len(windows)} "
        f"windows, first held {windows.first_held()[0]} to {windows.first_held()[-1]}. Their inputs are the days "
        f"before (from {study.prices.dates[windows.starts[0] - periods.past]} on), as the test period has fewer days "
        "than an input and a future together. Weights are chosen at the close before the first day held."
    )
    page.text(
        "Sharpe ratio of a window: (252 mean(r) - 0.03) / (sqrt(252) std(r)) of the daily returns r of the portfolio, "
        "kept at its weights by rebalancing every day; a column gives the same weights bought once and left alone. "
        "No costs. A run's figure is the mean over the test windows. Windows overlap, so they are not independent: "
        "spread and standard error are over seeds, and say nothing about another year."
    )
    page.text(f"Measured on {machine()}.", note=True)


def _table_3(page: Page, results: Results) -> None:
    page.heading("Table 3: mean Sharpe ratio in the test period")
    rows: list[list[str]] = []
    ours: list[int] = []
    for predictor in PREDICTORS:
        if not any(key[0] == predictor for key in results):
            continue
        rows.append([NAMES[predictor]])
        for technique in TECHNIQUES:
            found = results.get((predictor, technique))
            if not found:
                continue
            row = over_seeds(found)
            stated = paper.TABLE_3.get((predictor, technique))
            if technique == "layer":
                ours.append(len(rows))
            asked = technique != "softmax"
            rows.append(
                [
                    technique,
                    "yes" if asked else "no",
                    "" if stated is None else f"{stated:.2f}",
                    f"{row['mean']:.3f}",
                    f"{row['error']:.3f}",
                    f"{row['spread']:.3f}",
                    f"{row['seeds']:.0f}",
                    f"{row['held']:.3f}",
                    f"{row['violation' if asked else 'simplex_violation']:.1e}",
                    f"{row['preferred_share']:.1%}",
                    f"{row['assets']:.1f}",
                ]
            )
    header = ["technique", "preference", "paper", "ours", "standard error", "spread", "seeds", "left alone"]
    page.table([*header, "worst violation", "preferred share", "effective assets"], rows, ours=ours)
    fallbacks = {
        f"{NAMES[predictor]}, {technique}": sum(one["fallbacks"] for one in found)
        for (predictor, technique), found in results.items()
        if "fallbacks" in found[0]
    }
    said = "; ".join(f"{name}: {count}" for name, count in fallbacks.items())
    page.text(
        "Two-stage learns prices alone and maximises the Sharpe ratio of its prediction by a convex program: mean and"
        " covariance of the predicted daily returns, the covariance shrunk by 10 % to a multiple of the identity; with "
        "past covariance, that of the days seen, shrunk alike. Minimum variance where no positive excess return was "
        f"predicted (windows over all seeds, {said or 'none'}). Softmax + projection: the softmax network's weights, "
        "moved to the nearest ones with the preference. The paper's figures are for its own 494 assets. Worst "
        "violation: of the sum, the box and (where asked for) the preference, in any window of any seed. Effective "
        "assets: 1 / sum of squared weights.",
        note=True,
    )


def _verdict(page: Page, table: dict[str, Any]) -> None:
    for predictor, rows in table.items():
        if "layer" not in rows:
            continue
        layer = rows["layer"]
        said = [
            f"{name}: {lead:+.3f} ({'more' if layer['passes'][name] else 'not more'} than one standard error of it)"
            for name, lead in layer["leads"].items()
        ]
        page.text(f"{NAMES[predictor]}: the layer's mean less that of {'; '.join(said)}.")


def _baseline_table(page: Page, baselines: dict[tuple[str, bool], dict[str, Any]]) -> None:
    if not baselines:
        return
    page.heading("Without a network")
    rows = []
    for name in BASELINES:
        cells = [name]
        for preferred in (False, True):
            row = baselines.get((name, preferred))
            cells += (
                ["", "", ""]
                if row is None
                else [
                    f"{row['mean_sharpe']:.3f}",
                    f"{row['held_sharpe']:.3f}",
                    f"{row['assets']:.1f}",
                ]
            )
        rows.append(cells)
    header = ["method", "Sharpe, no preference", "left alone", "effective assets"]
    page.table([*header, "Sharpe, preference", "left alone", "effective assets"], rows)
    page.text(
        "Layer of equal scores: what the layer makes of scores that are all alike, so that what a trained network adds "
        "can be told from what the preference does by itself. A row that asks for at least a share settles a little "
        "above it, because the layer keeps some slack.",
        note=True,
    )


def _times(page: Page, times: dict[str, dict[str, float]]) -> None:
    if times:
        page.heading("Table 9: where the time of inference goes")
        page.table(TIMES_HEADER, time_rows(times))


def _rules(page: Page, study: Study, ruled: dict[str, dict[str, Any]]) -> None:
    if not ruled:
        return
    cap = shown_rules("caps", study.rules, len(study.preference.preferred)).cap
    page.heading("Further rules")
    page.text(
        "The same network's scores (first seed, not trained again) under more rules at once with the preference: caps "
        f"of {cap:.0%} an asset; at most 60 % in a sector (clusters by correlation where no sectors are given); market "
        "and volatility tilts within 0.2 either way, which are signed rows; at most 2 % of the portfolio changing "
        "hands from one day to the next; and all of these. Nearest: the weights nearest to the scores times 2 / "
        "assets; with risk, the yearly variance of the days seen counts as much as half the squared distance."
    )
    page.table(RULES_HEADER, rule_rows(ruled))
    page.text("Worst violation: of any row in any window. Largest: read off the weights, over all windows.", note=True)


def _pictures(page: Page, study: Study, results: Results, baselines: dict[tuple[str, bool], dict[str, Any]]) -> None:
    windows, prices = study.windows, study.prices
    predictors = [name for name in PREDICTORS if any(key[0] == name for key in results)]

    def by_predictor(read: Callable[[dict[str, Any]], Any]) -> dict[str, dict[str, np.ndarray]]:
        return {
            predictor: {
                technique: np.array([read(one) for one in results[predictor, technique]])
                for technique in TECHNIQUES
                if (predictor, technique) in results
            }
            for predictor in predictors
        }

    page.heading("Value over the test period")
    page.text(
        "Money is spread evenly over the portfolios of all windows, each held for its own days; lines are means over "
        "seeds, bands the range. Without costs."
    )
    first = windows.starts[0]
    dates = prices.dates[first - 1 : windows.starts[-1] + windows.future]
    plain = {
        f"{n}{', preference' if p else ''}": np.array(r["value"])
        for (n, p), r in baselines.items()
        if n == "equal weight"
    }
    page.picture(value_chart(dates, by_predictor(lambda one: one["value"]), plain), "value of each method over time")
    page.heading("Sharpe ratio by seed")
    ratios = by_predictor(lambda one: one["mean_sharpe"])
    page.picture(seeds_chart(ratios, paper.TABLE_3), "mean Sharpe ratio of every run")
    page.heading("Weights over time")
    page.text("Of the layer, first seed: the preferred assets one by one (blue), the four largest others, the rest.")
    seeds = {run.predictor: run for run in reversed(find_runs(study.folder)) if run.trained == "layer"}
    shown = {NAMES[name]: study.weights(f"{name} layer {run.seed}") for name, run in sorted(seeds.items())}
    if shown:
        chosen = prices.dates[windows.starts - 1]
        page.picture(weights_chart(chosen, shown, prices.tickers, study.preference), "weights over time")
