"""Single pairs: their matching by a trained network, and which ones a report shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from linsat_studies.matching.batches import FeatureSource, collate
from linsat_studies.matching.data import Collection, KeypointError, Pair, pair, test_pairs
from linsat_studies.matching.evaluate import Method, figures
from linsat_studies.matching.measurements import OURS, ROWS, Row, Run, Study, find_runs, row_method, trained
from linsat_studies.matching.pictures import Drawn
from linsat_studies.matching.train import load_run

SHOWN = ("NGMv2, Sinkhorn", "NGMv2, Sinkhorn + top-phi", OURS)
PANELS = 5  # classes of which a pair is shown


@torch.no_grad()
def matches_of(method: Method, pair: Pair, features: FeatureSource | None) -> np.ndarray:
    """(m, 2) indices of the keypoints that a method matches, left and right."""
    batch = collate([pair], features)
    matches = method.decode(method.relax(method.score(batch), batch), batch)
    return matches[0].nonzero().cpu().numpy()


def caption(pair: Pair, matches: np.ndarray) -> str:
    """What a picture of a matching says above it."""
    truth = {(int(i), int(j)) for i, j in pair.truth}
    right = sum((int(i), int(j)) in truth for i, j in matches)
    return f"{pair.left.cls}: {right} of {len(matches)} matches right, phi = {pair.phi}"


def drawn(image: Callable[[str], np.ndarray] | None, pair: Pair, matches: np.ndarray) -> Drawn:
    """A pair with its matches, over its images where there are any."""
    images = None if image is None else (image(pair.left.id), image(pair.right.id))
    return Drawn(pair, matches, images, caption(pair, matches))


def chosen_pair(collection: Collection, left: str | None, right: str | None) -> Pair:
    """The objects of two ids, or the first test pair where none is named.

    Raises:
        KeypointError: one id alone, an unknown one, objects of different classes, or nothing in common.
    """
    if left is None:
        return test_pairs(collection, per_class=1)[0]
    if right is None:
        raise KeypointError(f"only one object is named, {left}; expected two ids. Fix: name another of its class.")
    found = pair(collection[left], collection[right])
    if found.left.cls != found.right.cls:
        raise KeypointError(
            f"{left} is a {found.left.cls} and {right} a {found.right.cls}; expected two objects of one class."
        )
    if not found.phi:
        raise KeypointError(f"{left} and {right} have no keypoint in common. Fix: another pair.")
    return found


def loaded_method(folder: Path, path: Path | None, *, synthetic: bool) -> Method:
    """The trained network of a file, or of the folder's first run with the layer.

    Raises:
        ValueError: there is none.
    """
    if path is None:
        runs = [run for run in find_runs(folder, synthetic=synthetic) if OURS in run.rows]
        if not runs:
            raise ValueError(f"{folder / 'runs'} holds no run with the layer. Fix: train one, or pass --run.")
        path = runs[0].path
    network, config = load_run(path)
    kept = "all" if config.technique == "black-box" else "phi"
    return row_method(Row(config.network.kind, config.technique, kept), network, config)


def example_rows(study: Study) -> list[dict[str, Drawn]]:
    """For a few classes the pair in the middle by the layer's F1, matched by each shown row; none without the layer.

    Classes are spread evenly over their order by the layer's F1, so that neither successes nor failures are picked.
    """
    runs = [run for run in study.runs if run.network == "ngm"]
    first: dict[str, Run] = {}
    for run in runs:
        for name in run.rows:
            first.setdefault(name, run)
    if OURS not in first:
        return []
    methods = {name: row_method(ROWS[name], *trained(first[name].path)[:2]) for name in SHOWN if name in first}
    return [
        {name: drawn(study.image, pair, matches_of(method, pair, study.features)) for name, method in methods.items()}
        for pair in middle_pairs(study, study.counts(f"{OURS} {first[OURS].seed}"))
    ]


def middle_pairs(study: Study, counts: dict[str, np.ndarray]) -> list[Pair]:
    """The pair of the middle F1 in each of `PANELS` classes."""
    f1 = figures(counts["hits"], counts["predicted"], counts["phi"])[2]
    labels = np.array(study.classes)
    order = sorted(set(study.classes), key=lambda name: (f1[labels == name].mean(), name))
    places = np.unique(np.linspace(0, len(order) - 1, min(PANELS, len(order))).round().astype(int))
    chosen = []
    for name in (order[place] for place in places):
        members = np.flatnonzero(labels == name)
        chosen.append(study.pairs[members[np.argsort(f1[members], kind="stable")[len(members) // 2]]])
    return chosen
