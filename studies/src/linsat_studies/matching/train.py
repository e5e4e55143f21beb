"""Training: the learner of a network and its technique, and the runs of the study."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from linsat_studies.checkpoints import CheckpointError, load_weights, read_run
from linsat_studies.matching.batches import Batch, FeatureSource, collate
from linsat_studies.matching.bbgm import Bbgm
from linsat_studies.matching.config import (
    BLACK_BOXES,
    LAYERS,
    NETWORKS,
    TRAINED,
    MatchingConfig,
    NetworkConfig,
    config_from_checkpoint,
    default_config,
    read_config,
)
from linsat_studies.matching.data import Collection, Pair, load_collection, random_pairs, validation_pairs
from linsat_studies.matching.decode import best_matchings, hungarian
from linsat_studies.matching.ngm import Ngm
from linsat_studies.matching.pca_gm import PcaGm
from linsat_studies.matching.quadratic import EdgeScores, best_quadratic, black_box_loss
from linsat_studies.matching.techniques import (
    black_box,
    hamming_loss,
    layer,
    permutation_loss,
    sinkhorn,
    with_margin,
)
from linsat_studies.settings import to_json
from linsat_studies.training import LAST, fit, keep_freed_memory, share

_STEPS = 1 << 20  # seeds of the steps of two runs never meet below this many steps
_TOGETHER = 32  # pairs of a step that are padded to a common size
Network = PcaGm | Bbgm | Ngm
Scores = Tensor | EdgeScores
Score = Callable[[Batch], Scores]


def build_network(sizes: NetworkConfig, *, features: int, image: int) -> Network:
    """A fresh network for ``features`` channels at a keypoint and ``image`` channels of the whole image."""
    kinds: dict[str, type[Network]] = {"pca-gm": PcaGm, "bbgm": Bbgm, "ngm": Ngm}
    return kinds[sizes.kind](features, image, sizes)


def scoring(config: MatchingConfig, network: nn.Module) -> Score:
    """From a batch to scores, as the run's technique reads them: of edges, too, where the black box knows them."""
    return network.scores if isinstance(network, Bbgm) and config.technique in BLACK_BOXES else network


def soft_matching(config: MatchingConfig) -> Callable[[Scores, Batch], Tensor]:
    """From scores to a matching, as the run's technique does it; outside training for the black box, too."""
    exact = config.technique == "black-box-partial"

    def relax(scores: Scores, batch: Batch) -> Tensor:
        if isinstance(scores, EdgeScores):
            return best_quadratic(scores, batch, partial=exact)
        if config.technique == "sinkhorn":
            return sinkhorn(scores, batch, tau=config.tau, iterations=config.iterations)
        if config.technique in LAYERS:
            return layer(scores, batch, tau=config.tau, kind=config.technique)
        return best_matchings(scores, batch, partial=exact)

    return relax


class MatchingLearner:
    """A network and its loss, for `fit`; the pairs of a step depend on the plan's seed and the step alone.

    Args:
        config: of the run.
        collection: its training split is learned from, its validation split measures.
        features: of the objects; None for geometry alone.
    """

    def __init__(self, config: MatchingConfig, collection: Collection, features: FeatureSource | None = None) -> None:
        self.config, self.collection, self.features = config, collection, features
        held_out = validation_pairs(collection, per_class=config.validated)
        self.validated = [self._batch(part) for part in _parts(held_out, 2 * config.batch)]
        self.classes = [pair.left.cls for pair in held_out]
        self.sizes = widths(self.validated[0])
        torch.manual_seed(config.plan.seed)
        self.module = build_network(config.network, features=self.sizes[0], image=self.sizes[1])

    def _batch(self, pairs: list[Pair]) -> Batch:
        return collate(pairs, self.features)

    def loss(self, step: int) -> Tensor:
        """Mean over this process's share of the batch."""
        seed = self.config.plan.seed * _STEPS + step
        pairs = random_pairs(self.collection, "train", None, self.config.batch, seed)
        # Pairs of like size go through together: half of a mixed batch would be padding.
        own = sorted(pairs[share(self.config.batch)], key=_size)
        total = torch.zeros(())
        for part in _parts(own, _TOGETHER):
            batch = self._batch(part)
            scores = scoring(self.config, self.module)(batch)
            total = total + len(part) / len(own) * training_loss(self.config, scores, batch)
        return total

    @torch.no_grad()
    def validate(self) -> float:
        """1 - F1 of the run's own decoder on validation pairs, mean over classes."""
        score = scoring(self.config, self.module)
        matched = [decoded(self.config, score(batch), batch) for batch in self.validated]
        scores: dict[str, list[float]] = {}
        f1 = [f1_of(m, batch) for m, batch in zip(matched, self.validated, strict=True)]
        for cls, value in zip(self.classes, torch.cat(f1).tolist(), strict=True):
            scores.setdefault(cls, []).append(value)
        return 1 - sum(sum(values) / len(values) for values in scores.values()) / len(scores)


def training_loss(config: MatchingConfig, scores: Scores, batch: Batch) -> Tensor:
    """Permutation loss of a soft matching, or Hamming loss through the black box, or of both a share."""
    if config.technique not in BLACK_BOXES:
        return permutation_loss(soft_matching(config)(scores, batch), batch)
    exact = config.technique == "black-box-partial"
    if isinstance(scores, EdgeScores):
        nodes, marked = scores.nodes, scores.with_margin(batch, config.margin, scaled=config.scaled)
        loss = black_box_loss(marked, batch, strength=config.strength, partial=exact)
    else:
        nodes, moved = scores, with_margin(scores, batch, config.margin, scaled=config.scaled)
        loss = hamming_loss(black_box(moved, batch, strength=config.strength, partial=exact), batch)
    if config.soft == 0:
        return loss
    relaxed = sinkhorn(nodes, batch, tau=config.tau, iterations=config.iterations)
    return (1 - config.soft) * loss + config.soft * permutation_loss(relaxed, batch)


def decoded(config: MatchingConfig, scores: Scores, batch: Batch) -> Tensor:
    """Matches (B, n1, n2) as the technique decodes them: the phi highest, except where it is bijective."""
    soft = soft_matching(config)(scores, batch)
    if config.technique in BLACK_BOXES:
        return soft > 0.5
    return hungarian(soft.float(), batch, top_phi=True)


def f1_of(matched: Tensor, batch: Batch) -> Tensor:
    """(B,) F1 = 2 hits / (predicted + true)."""
    hits = (matched & (batch.truth > 0.5)).sum((1, 2))
    return 2 * hits / (matched.sum((1, 2)) + batch.phi)


def widths(batch: Batch) -> tuple[int, int]:
    """(channels at a keypoint, channels of the whole image)."""
    return batch.features_l.shape[-1], batch.image_l.shape[-1]


def _size(pair: Pair) -> int:
    return len(pair.left.names) * len(pair.right.names)


def _parts(pairs: list[Pair], size: int) -> list[list[Pair]]:
    return [pairs[first : first + size] for first in range(0, len(pairs), size)]


def run_name(network: str, technique: str, seed: int) -> str:
    """The name of a run's folder."""
    return f"{network}-{technique}-{seed}"


def train(
    config: MatchingConfig,
    collection: Collection,
    folder: str | Path,
    *,
    features: FeatureSource | None = None,
    initial: str | Path | None = None,
) -> Path:
    """Train as configured; resumes or extends the run in ``folder``. Returns the checkpoint's path.

    Args:
        config: of the run.
        collection, features: see `MatchingLearner`.
        folder: of the run.
        initial: a run whose weights a new run starts from.

    Raises:
        CheckpointError: the folder holds a run with other settings.
    """
    path = Path(folder) / LAST
    if path.exists():
        before = config_from_checkpoint(read_run(path, "run", "features", "image"))
        if replace(before, plan=config.plan) != config:  # a larger budget extends a run
            raise CheckpointError(f"{path} was trained with other settings. Fix: another folder, or remove that run.")
    torch.set_flush_denormal(True)  # soft matchings hold entries below 1e-38, on which processors are slow
    keep_freed_memory()
    learner = MatchingLearner(config, collection, features)
    said = {"run": json.loads(to_json(config)), "features": learner.sizes[0], "image": learner.sizes[1]}
    if initial is not None:
        load_weights(learner.module, initial)
        said["initial"] = Path(initial).parent.name
    return fit(learner, config.plan, folder, config=said)


def load_run(path: str | Path) -> tuple[nn.Module, MatchingConfig]:
    """The trained network of a checkpoint, ready for evaluation, and its settings.

    Raises:
        CheckpointError: no such file, or not a run of this study.
    """
    saved = read_run(path, "run", "features", "image")
    config = config_from_checkpoint(saved)
    network = build_network(config.network, features=saved["config"]["features"], image=saved["config"]["image"])
    load_weights(network, path)
    return network.eval(), config


def main() -> None:
    """A training run as a command, which is also what torchrun starts: ``python -m linsat_studies.matching.train``."""
    import argparse

    from linsat_studies.matching.features import load_features
    from linsat_studies.matching.mirror import holds_mirrored, with_mirrored

    parser = argparse.ArgumentParser(prog="python -m linsat_studies.matching.train", description=main.__doc__)
    parser.add_argument("folder", help="of the run: checkpoint and learning curve; an earlier run there is continued")
    parser.add_argument("--data", help="folder with prepared keypoints; by default what LINSAT_DATA names")
    parser.add_argument("--features", help="folder with their features; without it the network sees geometry alone")
    parser.add_argument("--network", choices=NETWORKS, default="ngm")
    parser.add_argument("--technique", choices=TRAINED, default="layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", help="a JSON file with a MatchingConfig, in place of network, technique and seed")
    parser.add_argument("--initial", help="a run whose weights a new run starts from")
    parser.add_argument("--steps", type=int, help="budget, in place of the configuration's")
    arguments = parser.parse_args()
    try:
        if arguments.config is None:
            config = default_config(arguments.network, arguments.technique, arguments.seed)
        else:
            config = read_config(arguments.config)
        if arguments.steps is not None:
            config = replace(config, plan=replace(config.plan, steps=arguments.steps, minutes=None))
        features = None if arguments.features is None else load_features(arguments.features)
        collection = load_collection(arguments.data)
        if features is not None and holds_mirrored(list(features.rows)):
            collection = with_mirrored(collection)
        train(config, collection, arguments.folder, features=features, initial=arguments.initial)
    except (ValueError, OSError, ImportError) as error:
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")


if __name__ == "__main__":
    main()
