"""Everything the report states, measured part by part; each part is a JSON file that says what it was measured on.

An interrupted measurement continues where it stopped; other pairs, settings or networks are measured again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linsat_studies.checkpoints import read_checkpoint
from linsat_studies.files import read_json, write_arrays, write_json
from linsat_studies.matching.batches import Batch, collate
from linsat_studies.matching.config import BLACK_BOXES, NETWORKS, RUNS, MatchingConfig
from linsat_studies.matching.data import Pair
from linsat_studies.matching.decode import best_matchings, hungarian, rounding
from linsat_studies.matching.evaluate import Method, Outcome, evaluate_method, figures, over_classes
from linsat_studies.matching.features import FeatureStore, fingerprint
from linsat_studies.matching.intervals import paired_difference
from linsat_studies.matching.phi import load_phi, with_phi
from linsat_studies.matching.source import SHIPPED
from linsat_studies.matching.techniques import layer
from linsat_studies.matching.train import load_run, scoring, soft_matching
from linsat_studies.progress import Progress
from linsat_studies.seeds import spread_over_seeds
from linsat_studies.training import LAST

BATCH = 64  # pairs the network sees at once
TAUS = (0.1, 0.05, 0.02, 0.01)
_NAME = re.compile(rf"({'|'.join(NETWORKS)})-({'|'.join(sorted(RUNS, key=len, reverse=True))})-(\d+)")


@dataclass(frozen=True)
class Row:
    """A row of table 2: whose network, what makes its scores a matching, and how many pairs are kept.

    Args:
        network, trained: of the training run.
        technique: "own" for what the run was trained with, or a layer (`LAYERS`) on another run's scores.
        kept: "all" for as many pairs as the smaller side has keypoints, "phi" for the phi highest.
    """

    network: str
    trained: str
    kept: str
    technique: str = "own"

    @property
    def kind(self) -> str:
        """As the paper's table names it."""
        return "bijective" if self.kept == "all" else "partial"


ROWS = {
    "PCA-GM, Sinkhorn": Row("pca-gm", "sinkhorn", "all"),
    "BBGM, black box": Row("bbgm", "black-box", "all"),
    "NGMv2, Sinkhorn": Row("ngm", "sinkhorn", "all"),
    "BBGM, black box, partial": Row("bbgm", "black-box-partial", "phi"),
    "NGMv2, Sinkhorn + top-phi": Row("ngm", "sinkhorn", "phi"),
    "NGMv2, layer": Row("ngm", "layer", "phi"),
    # Not in the paper.
    "PCA-GM, Sinkhorn + top-phi": Row("pca-gm", "sinkhorn", "phi"),
    "BBGM without edges, Sinkhorn + top-phi": Row("bbgm", "sinkhorn", "phi"),
    "NGMv2, layer, slack-free": Row("ngm", "slack-free", "phi"),
    "NGMv2, layer, KL": Row("ngm", "kl", "phi"),
    "NGMv2, Sinkhorn, then layer": Row("ngm", "sinkhorn-layer", "phi"),
    "NGMv2, trained with Sinkhorn, used with layer": Row("ngm", "sinkhorn", "phi", technique="layer"),
    "NGMv2, trained with Sinkhorn, used with layer, slack-free": Row("ngm", "sinkhorn", "phi", technique="slack-free"),
    "NGMv2, trained with Sinkhorn, used with layer, KL": Row("ngm", "sinkhorn", "phi", technique="kl"),
}
OURS = "NGMv2, layer"
LONGER = "NGMv2, Sinkhorn, then layer"
RIVAL = "BBGM, black box, partial"
BASELINES = ("position alone", "features alone")


@dataclass(frozen=True)
class Run:
    """A trained network in the folder of a study."""

    network: str
    trained: str
    seed: int
    path: Path

    @property
    def rows(self) -> list[str]:
        """The rows that are evaluated with it."""
        return [name for name, row in ROWS.items() if (row.network, row.trained) == (self.network, self.trained)]


def find_runs(folder: Path, *, synthetic: bool = False) -> list[Run]:
    """The runs that training left in ``folder/runs``, sorted; none where there is no such folder.

    Args:
        folder: of the study.
        synthetic: take the networks that come with the package where the folder has none.
    """
    named = {path: path.parent.name for path in (folder / "runs").glob(f"*/{LAST}")}
    if not named and synthetic:
        named = {path: path.stem for path in SHIPPED.glob("*.pt")}
    runs = []
    for path, name in named.items():
        found = _NAME.fullmatch(name)
        if found:
            runs.append(Run(found[1], found[2], int(found[3]), path))
    return sorted(runs, key=lambda run: (run.network, RUNS.index(run.trained), run.seed))


@dataclass(eq=False)
class Study:
    """Test pairs, their features, and the folder of the results.

    Args:
        folder: holds ``runs``, gets ``results``.
        pairs: that everything is measured on.
        features: of their objects; None for geometry alone.
        source: where the pairs come from, in words.
        image: crop of an object by its id; None where there are none.
        synthetic: whether the pairs are synthetic, for which networks come with the package.
    """

    folder: Path
    pairs: list[Pair]
    features: FeatureStore | None
    source: str
    image: Callable[[str], np.ndarray] | None = None
    synthetic: bool = False

    @property
    def runs(self) -> list[Run]:
        """The trained networks."""
        return find_runs(self.folder, synthetic=self.synthetic)

    @cached_property
    def classes(self) -> list[str]:
        """Of each pair."""
        return [pair.left.cls for pair in self.pairs]

    @cached_property
    def scope(self) -> dict[str, Any]:
        """What every result states that it was measured on."""
        return {
            "pairs": len(self.pairs),
            "classes": len(set(self.classes)),
            "objects": fingerprint([thing for pair in self.pairs for thing in (pair.left, pair.right)]),
            "features": None if self.features is None else self.features.name,
        }

    def batches(self, size: int = BATCH) -> Iterator[Batch]:
        """The pairs in order; a network need not hold all of them at once."""
        for first in range(0, len(self.pairs), size):
            yield collate(self.pairs[first : first + size], self.features)

    def part(self, name: str, more: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result called ``name`` from disk if it is of this scope, else measured now and written."""
        path = self.file(name, ".json")
        wanted = json.loads(json.dumps({**self.scope, **more}))  # as it comes back from a file: tuples are lists
        found = read_json(path)
        if found is not None and found.get("scope") == wanted:
            return found
        result = {"scope": wanted, **measure()}
        write_json(path, result)
        return result

    def file(self, name: str, ending: str) -> Path:
        """Where the result called ``name`` lies."""
        return self.folder / "results" / (re.sub(r"[^a-z0-9.]+", "_", name.lower()) + ending)

    def counts(self, name: str) -> dict[str, np.ndarray]:
        """``hits``, ``predicted`` and ``phi`` of every pair behind a result."""
        with np.load(self.file(name, ".npz"), allow_pickle=False) as file:
            return {key: file[key] for key in file.files}

    def f1(self, name: str) -> np.ndarray:
        """(seeds, pairs) F1 of a row of table 2 that was measured, with every trained network it has."""
        runs = [run for run in self.runs if name in run.rows]
        counts = [self.counts(f"{name} {run.seed}") for run in runs]
        return np.stack([figures(one["hits"], one["predicted"], one["phi"])[2] for one in counts])

    def lead(self, ours: str, name: str) -> dict[str, float]:
        """By how much one row exceeds another one on the same pairs, with its interval."""
        return paired_difference(self.f1(ours), self.f1(name), self.classes)

    def row(self, run: Run, name: str, progress: Progress | None = None) -> dict[str, Any]:
        """One row of table 2 with one trained network on all pairs."""
        return self._judged(
            f"{name} {run.seed}", run, lambda network, config: row_method(ROWS[name], network, config), progress
        )

    def rounded(self, run: Run, tau: float, progress: Progress | None = None) -> dict[str, Any]:
        """Plain rounding of the layer's output at a temperature: how often it is a matching, and the F1 of these."""

        def method(network: nn.Module, config: MatchingConfig) -> Method:
            return Method(network, partial(layer, tau=tau), lambda soft, batch: rounding(soft, batch)[0])

        def feasible(outcome: Outcome) -> dict[str, Any]:
            held = outcome.valid
            f1 = figures(outcome.hits, outcome.predicted, outcome.phi)[2]
            kept = [cls for cls, one in zip(outcome.classes, held) if one]
            return {"feasible": float(held.mean()), "feasible_f1": over_classes(f1[held], kept)}

        return self._judged(f"rounded {tau:g} {run.network} {run.trained} {run.seed}", run, method, progress, feasible)

    def lowered(self, run: Run, tau: float, progress: Progress | None = None) -> dict[str, Any]:
        """The layer at another temperature than in training, with the Hungarian decoder."""

        def method(network: nn.Module, config: MatchingConfig) -> Method:
            return Method(network, partial(layer, tau=tau), partial(hungarian, top_phi=True))

        return self._judged(f"hungarian {tau:g} {run.network} {run.trained} {run.seed}", run, method, progress)

    def estimated(self, run: Run, signal: str, progress: Progress | None = None) -> dict[str, Any]:
        """The layer's row with phi estimated by a head that was trained beside the network, on the given signal."""
        network, config, step = trained(run.path)
        path = phi_folder(self.folder, signal, run.seed) / LAST
        head, phi_config = load_phi(path)
        name = f"phi by {signal} {run.seed}"

        def measure() -> dict[str, Any]:
            guesses: list[Tensor] = []

            @torch.no_grad()
            def told() -> Iterator[Batch]:
                for batch in self.batches():
                    guess = head(network(batch), batch, tau=config.tau)
                    guesses.append(guess)
                    yield with_phi(batch, guess)

            outcome = evaluate_method(row_method(ROWS[OURS], network, config), told(), self.classes, progress=progress)
            guess = torch.cat(guesses).cpu().numpy()
            counts = {"hits": outcome.hits, "predicted": outcome.predicted, "phi": outcome.phi, "estimated": guess}
            write_arrays(self.file(name, ".npz"), **counts)
            off = np.abs(guess - outcome.phi)
            rounded = float((np.rint(guess) == outcome.phi).mean())
            return {**outcome.summary(), "phi_error": float(off.mean()), "phi_exact": rounded}

        stated = {
            "run": asdict(config),
            "phi_run": asdict(phi_config),
            "step": step,
            "phi_step": read_checkpoint(path).get("step"),
        }
        return self.part(name, stated, measure)

    def baseline(self, name: str, progress: Progress | None = None) -> dict[str, Any]:
        """A score without training, and the exact matching of phi pairs with the largest total."""

        def measure() -> dict[str, Any]:
            method = Method(_SCORES[name], lambda scores, batch: scores, partial(best_matchings, partial=True))
            outcome = evaluate_method(method, self.batches(), self.classes, progress=progress)
            return _without(outcome.summary(), "violation", "excess")  # scores are no soft matching

        return self.part(name, {"baseline": name}, measure)

    def _judged(
        self,
        name: str,
        run: Run,
        method: Callable[[nn.Module, MatchingConfig], Method],
        progress: Progress | None,
        more: Callable[[Outcome], dict[str, Any]] = lambda outcome: {},
    ) -> dict[str, Any]:
        network, config, step = trained(run.path)

        def measure() -> dict[str, Any]:
            outcome = evaluate_method(method(network, config), self.batches(), self.classes, progress=progress)
            arrays = {"hits": outcome.hits, "predicted": outcome.predicted, "phi": outcome.phi}
            write_arrays(self.file(name, ".npz"), **arrays)
            return {**outcome.summary(), **more(outcome)}

        stated = {"run": asdict(config), "step": step}
        return self.part(name, stated, measure)

    def times(self, run: Run, *, pairs: int = 256, alone: int = 64) -> dict[str, Any]:
        """Processor time a pair takes in backbone, network, layer and decoder: in batches, and one pair at a time.

        Args:
            run: of the layer.
            pairs: how many of the study's pairs, evenly spread.
            alone: how many of these one at a time.
        """
        network, config, step = trained(run.path)
        chosen = [self.pairs[i] for i in np.linspace(0, len(self.pairs) - 1, min(pairs, len(self.pairs))).astype(int)]
        method = row_method(ROWS[OURS], network, config)

        def measure() -> dict[str, Any]:
            result: dict[str, Any] = {}
            for label, some, size in (("batch", chosen, BATCH), ("alone", chosen[:alone], 1)):
                batches = [collate(some[first : first + size], self.features) for first in range(0, len(some), size)]
                for _ in range(2):  # rows of a new size are compiled once; the second pass has them all
                    spent = evaluate_method(method, batches, [one.left.cls for one in some]).seconds
                result[label] = {name: seconds / len(some) for name, seconds in spent.items()}
            if self.features is not None and self.image is not None:
                result["backbone"] = 2 * backbone_seconds(self.features.backbone, chosen[:16], self.image)
            return result

        stated = {"run": asdict(config), "step": step, "threads": torch.get_num_threads()}
        return self.part("times", stated, measure)


def phi_folder(folder: Path, signal: str, seed: int) -> Path:
    """Where the head that estimates phi beside the layer's run of that seed lies."""
    return folder / "phi" / f"{signal}-{seed}"


def trained(path: Path) -> tuple[nn.Module, MatchingConfig, int | None]:
    """Network, settings and number of steps of a run; a run that went on meanwhile is read again."""
    return _trained(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=4)  # a run serves several rows in a row
def _trained(path: Path, changed: int) -> tuple[nn.Module, MatchingConfig, int | None]:
    return *load_run(path), read_checkpoint(path).get("step")


def backbone_seconds(name: str, pairs: list[Pair], image: Callable[[str], np.ndarray]) -> float:
    """Seconds of processor time of the backbone for one object, in batches of 16, after one that warms up."""
    from linsat_studies.matching.backbones import load_backbone
    from linsat_studies.matching.features import features_at

    things = [pair.left for pair in pairs]
    backbone = load_backbone(name)
    images, points = np.stack([image(thing.id) for thing in things]), [thing.points for thing in things]
    features_at(backbone, images, points)
    start = process_time()
    features_at(backbone, images, points)
    return (process_time() - start) / len(things)


def row_method(row: Row, network: nn.Module, config: MatchingConfig) -> Method:
    """Network, technique and decoder of a row."""
    relax = soft_matching(config) if row.technique == "own" else partial(layer, tau=config.tau, kind=row.technique)
    if row.trained in BLACK_BOXES:  # the solver's answer is a matching already
        return Method(scoring(config, network), relax, lambda soft, batch: soft > 0.5)
    return Method(network, relax, partial(hungarian, top_phi=row.kept == "phi"))


def position_scores(batch: Batch) -> Tensor:
    """Minus the squared distance of two keypoints, each in its own crop."""
    return -(batch.points_l.unsqueeze(2) - batch.points_r.unsqueeze(1)).square().sum(-1)


def feature_scores(batch: Batch) -> Tensor:
    """Cosine of the angle between two keypoints' features."""
    left = torch.nn.functional.normalize(batch.features_l.float(), dim=-1)
    right = torch.nn.functional.normalize(batch.features_r.float(), dim=-1)
    return left @ right.transpose(1, 2)


_SCORES: dict[str, Callable[[Batch], Tensor]] = {"position alone": position_scores, "features alone": feature_scores}


def _without(content: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


def over_seeds(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, spread (standard deviation) and standard error of F1 over runs; means of the rest, worst violations."""
    each = [float(result["f1"]) for result in results]
    classes = results[0]["by_class"]
    return {
        **spread_over_seeds(each),
        "f1": float(np.mean(each)),
        "each": each,
        "precision": float(np.mean([result["precision"] for result in results])),
        "recall": float(np.mean([result["recall"] for result in results])),
        "by_class": {name: float(np.mean([result["by_class"][name] for result in results])) for name in classes},
        "violation": max((result.get("violation", 0.0) for result in results), default=0.0),
        "excess": max((result.get("excess", 0.0) for result in results), default=0.0),
    }
