"""The studies' results with the networks that come with the package: tours, matched keypoints, portfolios."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guided_tour.sections import Picture, Section

if TYPE_CHECKING:
    from linsat_studies.tsp.data import Instances

TOURS = 200  # instances a task that are solved
_SEED = 7  # of the cities; the first instances are drawn, whatever they look like
_PAIRS, _MATCHED = 10, 3  # pairs a class that are matched, and pairs that are drawn


# ---------------------------------------------------------------------- tours


def tours() -> Section:
    """Routing: the shipped networks on fresh random cities, beside the shortest tours."""
    from linsat_studies.tsp.data import random_instances

    shown, rows, facts = [], [], []
    seconds = 0.0
    for task, rule in (("se", "given start and end"), ("pri", "also a priority city within 5 steps")):
        instances = random_instances(task, TOURS, seed=_SEED)
        found = _solved_tours(instances)
        shown.append((instances, found, rule))
        mean, best, nearest = (float(found[name].mean()) for name in ("length", "shortest", "nearest"))
        optimal = float((found["length"] <= found["shortest"] * (1 + 1e-9)).mean())
        seconds += found["seconds"]
        rows.append(
            [rule, f"{mean:.3f}", f"{best:.3f}", f"{100 * (mean / best - 1):.2f} %", f"{optimal:.0%}", f"{nearest:.3f}"]
        )
        facts.append((f"{100 * (mean / best - 1):.2f} %", f"longer than the optimum: {rule}"))
    facts += [
        ("0", f"of {2 * TOURS} tours break a rule"),
        (f"{1e3 * seconds / (2 * TOURS):.1f} ms", "an instance: network, layer and beam search"),
    ]
    return Section(
        "tours",
        "Tours with rules, found by a network",
        words=[
            "A network scores every city for every step of a path through 20 cities; the layer turns the scores into a "
            "soft tour that already keeps the rules (one city a step, one step a city, start, end, priority); a beam "
            "search reads the tour off it. The networks come with the package; the cities are drawn anew here."
        ],
        facts=facts,
        pictures=[
            Picture(
                _tours_figure(shown),
                "Soft tours as heat maps and the tours read off them, beside nearest neighbour and the shortest tours",
                f"The first instance of each task (seed {_SEED}), not a picked one. Heat map: what the layer returns, "
                "a row for each city, sorted by its place in the tour, a column for each step. Red legs are not in the "
                "shortest tour. Black: start, orange: end, red: the priority city.",
            )
        ],
        header=["rules", "network and layer", "shortest", "gap", "optimal", "nearest neighbour"],
        rows=rows,
        code="linsat-studies tsp solve my_cities.csv --start A --end B",
    )


def _solved_tours(instances: Instances) -> dict[str, Any]:
    from linsat_studies.tsp.baselines import nearest_neighbour
    from linsat_studies.tsp.evaluate import Clock, Settings, evaluate_network, soft_matrices
    from linsat_studies.tsp.exact import optimal_tours
    from linsat_studies.tsp.shipped import load_network
    from linsat_studies.tsp.tours import lengths

    network = load_network(instances.task)
    settings = Settings.default("beam")
    result = evaluate_network(network, instances, settings)  # checks every tour against its rules
    best, nearest = optimal_tours(instances), nearest_neighbour(instances)
    canonical, _ = instances[:1].canonical()
    return {
        "soft": soft_matrices(network, canonical, settings, Clock())[0, 0],
        "tours": result.tours,
        "best": best,
        "near": nearest,
        "length": lengths(instances.coords, result.tours),
        "shortest": lengths(instances.coords, best),
        "nearest": lengths(instances.coords, nearest),
        "seconds": sum(result.seconds.values()),
    }


def _tours_figure(shown: list[tuple[Instances, dict[str, Any], str]]) -> Any:
    from linsat_studies.figures import new_figure
    from linsat_studies.tsp.pictures import draw_tour

    figure = new_figure(13, 7.2)
    grid = figure.subplots(len(shown), 4)
    for line, (instances, found, rule) in zip(grid, shown, strict=True):
        one, tour = instances[:1], found["tours"][0]
        line[0].imshow(found["soft"][tour], cmap="Blues", vmin=0, vmax=1)
        line[0].set(ylabel="city, by its place in the tour", xticks=[], yticks=[])
        line[0].set_title(f"the layer's soft tour:\n{rule}", fontsize=12)
        columns = (
            ("read off it", "tours", "length"),
            ("shortest", "best", "shortest"),
            ("nearest neighbour", "near", "nearest"),
        )
        for axes, (name, tours, length) in zip(line[1:], columns, strict=True):
            draw_tour(axes, one, found[tours][0], compare=None if tours == "best" else found["best"][0])
            axes.set_title(f"{name}\n{found[length][0]:.3f}", fontsize=12)
    return figure


# ---------------------------------------------------------------------- portfolios


def portfolios() -> Section:
    """Portfolios: the shipped networks on the embedded prices of twenty stocks."""
    from linsat_studies.portfolio.shipped import shipped_curves

    curves = shipped_curves()
    found = {name: outcome.summary() for name, outcome in curves.outcomes.items()}
    preferred = [curves.windows.prices.tickers[i] for i in curves.preference.preferred]
    least = curves.preference.at_least
    rows = [
        [
            name,
            f"{summary['mean_sharpe']:.2f}",
            f"{summary['value'][-1]:.2f}",
            f"{summary['preferred_share']:.0%}",
            "holds" if summary["violation"] < 1e-6 else f"missed by up to {summary['violation']:.2f}",
        ]
        for name, summary in found.items()
    ]
    layer = found["layer"]
    return Section(
        "portfolios",
        "Portfolios that keep a preference",
        words=[
            f"An LSTM reads 120 days of prices of {len(curves.windows.prices.tickers)} stocks and scores each of them. "
            f"The layer turns scores into weights that sum to 1 with at least {least:.0%} in "
            f"{', '.join(preferred)}: the preference is part of what the network learns with. The prices are public "
            "and come with skfolio; the test period follows the training period.",
        ],
        facts=[
            (f"{layer['mean_sharpe']:.2f}", "mean Sharpe ratio with the layer"),
            (f"{found['softmax']['mean_sharpe']:.2f}", "with softmax, which knows no preference"),
            (f"{layer['violation']:.0e}", "largest miss of any rule with the layer"),
            (str(len(curves.windows)), "overlapping test windows"),
        ],
        pictures=[
            Picture(
                curves.value_figure(),
                "Value of one unit invested over the test period",
                "Value of 1 invested over the test period. One period of one market says little about the next. The "
                "lines of equal weights tell what the preference does by itself, and what is left for the network.",
                wide=False,
            ),
            Picture(
                curves.weights_figure(),
                "The layer's weights over time",
                f"The layer's weights over time. Blue: the preferred stocks, never below the dashed line at "
                f"{least:.0%}.",
                wide=False,
            ),
        ],
        header=["weights by", "mean Sharpe", "value of 1", "preferred share", "all rules"],
        rows=rows,
        ours=[list(found).index("layer")],
        code="linsat-studies portfolio --help",
    )


# ---------------------------------------------------------------------- matching


def matching() -> Section:
    """Matching: the shipped network on synthetic point sets with outliers on both sides."""
    from linsat_studies.matching.data import test_pairs
    from linsat_studies.matching.examples import loaded_method, matches_of
    from linsat_studies.matching.source import SHIPPED, open_source

    source = open_source(None, Path("."))
    method = loaded_method(SHIPPED, None, synthetic=source.synthetic)
    pairs = test_pairs(source.collection, per_class=_PAIRS)
    found = [matches_of(method, pair, source.features) for pair in pairs]
    forced = [_everything_matched(method, pair, source.features) for pair in pairs]
    right, of_truth = _shares(pairs, found)
    return Section(
        "matching",
        "Keypoints matched, outliers left alone",
        words=[
            "Two sets of keypoints, each with points the other has not. A network scores every pair; the layer allows "
            "each point at most one partner and phi pairs in all, so that outliers stay unmatched instead of being "
            f"forced. Shown on {source.name} and a small network that comes with the package; the study itself runs "
            "on photographs, with your copy of the data.",
        ],
        facts=[
            (f"{right:.0%}", "of the matches are right with the layer"),
            (f"{_shares(pairs, forced)[0]:.0%}", "if every point must have a partner, same scores"),
            (f"{of_truth:.0%}", "of the true pairs are found with the layer"),
            (str(len(pairs)), "test pairs"),
        ],
        pictures=[
            Picture(
                _matching_figure(source.image, pairs, {"layer": found, "all matched": forced}),
                "Matched keypoints of pairs of objects, side by side, with the layer and with every point matched",
                "Green: right matches. Red: wrong ones. Full grey: outliers that were left alone. Hollow: partners "
                "that were missed. Pairs are taken at even distances from the list, not picked.",
            )
        ],
        code="linsat-studies matching --help",
    )


def _everything_matched(method: Any, pair: Any, features: Any) -> np.ndarray:
    """The best assignment of the same scores that matches every point of the smaller side, (m, 2)."""
    import torch
    from scipy.optimize import linear_sum_assignment

    from linsat_studies.matching.batches import collate

    with torch.no_grad():
        scores = method.score(collate([pair], features))[0]
    return np.stack(linear_sum_assignment(scores.tolist(), maximize=True), axis=1)


def _shares(pairs: list[Any], found: list[np.ndarray]) -> tuple[float, float]:
    """Right matches as a share of all matches, and of all true pairs."""
    hits = predicted = truth = 0
    for pair, matches in zip(pairs, found, strict=True):
        right = {(int(i), int(j)) for i, j in pair.truth}
        hits += sum((int(i), int(j)) in right for i, j in matches)
        predicted, truth = predicted + len(matches), truth + pair.phi
    return hits / max(predicted, 1), hits / max(truth, 1)


def _matching_figure(image: Any, pairs: list[Any], found: dict[str, list[np.ndarray]]) -> Any:
    from linsat_studies.figures import new_figure
    from linsat_studies.matching.examples import drawn
    from linsat_studies.matching.pictures import draw_matching

    chosen = range(0, len(pairs), max(1, len(pairs) // _MATCHED))[:_MATCHED]
    figure = new_figure(13, 2.9 * len(found))
    grid = figure.subplots(len(found), len(chosen), squeeze=False)
    for line, (name, matches) in zip(grid, found.items(), strict=True):
        for axes, number in zip(line, chosen, strict=True):
            panel = drawn(image, pairs[number], matches[number])
            draw_matching(axes, panel)
            said = panel.title.partition(": ")[2].partition(", phi")[0]  # "6 of 7 matches right"
            axes.set_title(f"{name}: {said}", fontsize=12)
    return figure
