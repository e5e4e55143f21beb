"""Training the backbone's upper blocks, once for all techniques: then every network trains on the same features.

A step sees a few crops of two classes and all pairs among the crops of each. The head is the plainest of the study's
networks (spline convolutions and inner products), trained with Sinkhorn; the layer has no part in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linsat_studies.checkpoints import CheckpointError, load_weights, read_run
from linsat_studies.matching.backbones import sample
from linsat_studies.matching.batches import Batch, collate
from linsat_studies.matching.cached_maps import CachedMaps
from linsat_studies.matching.config import NetworkConfig
from linsat_studies.matching.data import CROP, Collection, KeypointObject, pair, validation_pairs
from linsat_studies.matching.decode import hungarian
from linsat_studies.matching.evaluate import over_classes
from linsat_studies.matching.features import Features, FeatureStore, keep_features
from linsat_studies.matching.lite0 import Upper, load_lite0
from linsat_studies.matching.nodes import KeypointMatcher, sides
from linsat_studies.matching.techniques import permutation_loss, sinkhorn
from linsat_studies.matching.train import f1_of
from linsat_studies.progress import Progress
from linsat_studies.settings import Plan, expect, from_dict, to_json
from linsat_studies.training import LAST, fit, keep_freed_memory, share

_SEEDS = 7 << 40  # of the steps; those of other trainings are smaller
_BATCH = 16  # crops at once where no gradient is asked for
_SMALLEST_DEVIATION = 1e-3


@dataclass(frozen=True)
class FinetuneConfig:
    """One tuning of the backbone."""

    plan: Plan = field(
        default_factory=lambda: Plan(steps=1800, rate=2e-3, warmup=200, decay=0.1, every=200, average=0.995)
    )
    relative: float = 3e-3  # the backbone's highest learning rate, as a share of each tensor's root mean square
    classes: int = 2  # of a step
    crops: int = 6  # of each class; all pairs among them are matched
    width: int = 64  # channels of a keypoint's vector in the head
    dropout: float = 0.2  # share of the image features that training hides
    tau: float = 0.1  # of Sinkhorn
    basis: int = 512  # training objects that the features are standardised on
    validated: int = 20  # pairs of each class that a validation looks at

    def __post_init__(self) -> None:
        for name in ("classes", "width", "basis", "validated"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        expect(self.crops >= 2, "crops", self.crops, "at least 2")
        for name in ("relative", "tau"):
            expect(getattr(self, name) > 0, name, getattr(self, name), "a positive number")
        expect(0 <= self.dropout < 1, "dropout", self.dropout, "a share from 0 to below 1")


class TunedMatcher(nn.Module):
    """Upper blocks, standardisation of what they give at keypoints, and the head.

    Args:
        upper: part of the backbone that is trained.
        raw: (rows, F) and (objects, G) features before training, whose means and deviations are kept.
        config: sizes of the head.
    """

    points_mean: Tensor
    points_deviation: Tensor
    image_mean: Tensor
    image_deviation: Tensor

    def __init__(self, upper: Upper, raw: tuple[Tensor, Tensor], config: FinetuneConfig) -> None:
        super().__init__()
        self.upper = upper.train_pointwise()
        for name, values in zip(("points", "image"), raw, strict=True):
            self.register_buffer(f"{name}_mean", values.mean(0))
            self.register_buffer(f"{name}_deviation", values.std(0).clamp_min(_SMALLEST_DEVIATION))
        widths = raw[0].shape[1], raw[1].shape[1]
        self.head = KeypointMatcher(*widths, NetworkConfig(width=config.width, dropout=config.dropout))

    def features(self, maps: Tensor, low: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Standardised features (batch, n, F) at the points and (batch, G) of the images."""
        values, whole = raw_features(self.upper, maps, low, points)
        values = (values - self.points_mean) / self.points_deviation
        return values, (whole - self.image_mean) / self.image_deviation


def raw_features(upper: Upper, maps: Tensor, low: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Features (batch, n, F) at (batch, n, 2) crop coordinates and (batch, G) of whole crops, as `CachedMaps` reads."""
    levels, whole = upper(maps)
    return torch.cat([low, sample(levels, points)], -1), whole


class FinetuneLearner:
    """For `fit`; the crops of a step depend on the plan's seed and the step alone.

    Args:
        config: of the run.
        collection: its training split is learned from, its validation split measures.
        maps: of the objects of both.
        upper: as ImageNet left it.
    """

    def __init__(self, config: FinetuneConfig, collection: Collection, maps: CachedMaps, upper: Upper) -> None:
        self.config, self.collection, self.maps = config, collection, maps
        self.held_out = validation_pairs(collection, per_class=config.validated)
        torch.manual_seed(config.plan.seed)
        self.module = TunedMatcher(upper, self._basis(upper), config)

    @torch.no_grad()
    def _basis(self, upper: Upper) -> tuple[Tensor, Tensor]:
        """Features of some training objects before training."""
        things = [thing for thing in self.collection.objects if thing.split == "train" and thing.names]
        chosen = [things[i] for i in np.linspace(0, len(things) - 1, min(self.config.basis, len(things))).astype(int)]
        found = [raw for part in _parts(chosen) for raw in _raw(upper, self.maps, part)]
        return torch.cat([points for points, _ in found]), torch.stack([image for _, image in found])

    def groups(self) -> list[dict[str, Any]]:
        """Backbone weights learn slowly, each at the scale of its tensor, and are not pulled towards 0.

        Batch normalisation is folded into them, so that their scales differ twentyfold between layers.
        """
        groups: list[dict[str, Any]] = [{"params": list(self.module.head.parameters()), "share": 1.0}]
        for tensor in self.module.upper.parameters():
            if tensor.requires_grad:
                size = float(tensor.detach().square().mean().sqrt())
                rate = self.config.relative * size / self.config.plan.rate
                groups.append({"params": [tensor], "share": rate, "weight_decay": 0.0})
        return groups

    def loss(self, step: int) -> Tensor:
        """Mean over all pairs of the crops of this process's share of the classes."""
        random = np.random.default_rng(_SEEDS + (self.config.plan.seed << 20) + step)
        chosen = random.permutation(len(self.collection.classes))[: self.config.classes]
        groups = []
        for number in chosen:
            things = self.collection.usable("train", self.collection.classes[number])
            groups.append([things[i] for i in random.permutation(len(things))[: self.config.crops]])
        groups = groups[share(len(groups))]
        batch, images = self._pairs(groups)
        left, right = images
        scores = self.module.head.affinity(left[0], right[0], (left[1], right[1]))
        return permutation_loss(sinkhorn(scores, batch, tau=self.config.tau), batch)

    def _pairs(
        self, groups: Sequence[Sequence[KeypointObject]]
    ) -> tuple[Batch, tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """All pairs within the groups that share a keypoint; vectors and images of their left and right objects.

        Each crop goes through backbone and spline convolutions once, however many pairs it is in.
        """
        things = [thing for group in groups for thing in group]
        maps, low, points = self.maps.read(things)
        values, image = self.module.features(maps, low, points)
        alone = collate([pair(thing, thing) for thing in things])
        side = replace(sides(alone)[0], features=values, image=image)
        h = self.module.head.nodes(side)
        i, j, truth = _truth(groups, h.shape[1])
        batch = replace(
            alone,
            mask_l=alone.mask_l[i],
            mask_r=alone.mask_l[j],
            truth=truth,
            phi=truth.sum((1, 2)).long(),
        )
        return batch, ((h[i], image[i]), (h[j], image[j]))

    @torch.no_grad()
    def validate(self) -> float:
        """1 - F1 on validation pairs, decoded by Sinkhorn, Hungarian and the phi highest; mean over classes."""
        things = {thing.id: thing for one in self.held_out for thing in (one.left, one.right)}
        known = _Known(self.module, self.maps, list(things.values()))
        found = []
        for first in range(0, len(self.held_out), 64):
            batch = collate(self.held_out[first : first + 64], known)
            soft = sinkhorn(self.module.head(batch), batch, tau=self.config.tau)
            found.append(f1_of(hungarian(soft, batch, top_phi=True), batch))
        return 1 - over_classes(torch.cat(found).numpy(), [one.left.cls for one in self.held_out])


class _Known:
    """Standardised features of some objects, in memory, as `collate` reads them."""

    def __init__(self, module: TunedMatcher, maps: CachedMaps, things: list[KeypointObject]) -> None:
        self.known: dict[str, Features] = {}
        for part in _parts(things):
            values, image = module.features(*maps.read(part))
            for place, thing in enumerate(part):
                self.known[thing.id] = Features(values[place, : len(thing.names)].numpy(), image[place].numpy())
        first = next(iter(self.known.values()))
        self.width, self.image_width = first.points.shape[1], first.image.shape[0]

    def __getitem__(self, id: str) -> Features:
        return self.known[id]


def _truth(groups: Sequence[Sequence[KeypointObject]], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Left and right places of all pairs within groups that share a name, and which keypoints are the same."""
    names: dict[str, int] = {}
    codes = np.full((sum(len(group) for group in groups), most), -1)
    pairs, first = [], 0
    for group in groups:
        for place, thing in enumerate(group, start=first):
            codes[place, : len(thing.names)] = [names.setdefault(name, len(names)) for name in thing.names]
        pairs += list(combinations(range(first, first + len(group)), 2))
        first += len(group)
    i, j = np.array(pairs).T
    same = (codes[i][:, :, None] == codes[j][:, None, :]) & (codes[i] >= 0)[:, :, None]
    kept = same.any((1, 2))
    left, right = torch.from_numpy(i[kept]), torch.from_numpy(j[kept])
    return left, right, torch.from_numpy(same[kept]).float()


def _parts(things: Sequence[KeypointObject], size: int = _BATCH) -> list[Sequence[KeypointObject]]:
    return [things[first : first + size] for first in range(0, len(things), size)]


def _raw(upper: Upper, maps: CachedMaps, things: Sequence[KeypointObject]) -> list[tuple[Tensor, Tensor]]:
    """Features at the keypoints of each object, and of its image."""
    values, image = raw_features(upper, *maps.read(things))
    return [(values[place, : len(thing.names)], image[place]) for place, thing in enumerate(things)]


def finetune(config: FinetuneConfig, collection: Collection, maps: CachedMaps, folder: str | Path) -> Path:
    """Train the upper blocks; resumes the run in ``folder``. Returns the checkpoint's path.

    Costs 1 s a step of 12 crops on one thread.

    Raises:
        CheckpointError: the folder holds a run with other settings.
    """
    path = Path(folder) / LAST
    if path.exists():
        before = from_dict(FinetuneConfig, read_run(path, "finetune")["config"]["finetune"])
        if replace(before, plan=config.plan) != config:
            raise CheckpointError(f"{path} was trained with other settings. Fix: another folder, or remove that run.")
    torch.set_flush_denormal(True)
    keep_freed_memory()
    _, upper = load_lite0(CROP)
    learner = FinetuneLearner(config, collection, maps, upper)
    return fit(learner, config.plan, folder, config={"finetune": json.loads(to_json(config))})


def extract_tuned(
    collection: Collection, maps: CachedMaps, run: str | Path, folder: str | Path, *, progress: Progress | None = None
) -> FeatureStore:
    """Features of every object from the backbone that `finetune` trained; resumes as `extract` does.

    Costs 0.02 s an object on one thread.

    Raises:
        FeatureError: the folder holds other features, those of the frozen backbone for example.
        CheckpointError: ``run`` is no checkpoint of `finetune`.
    """
    saved = read_run(run, "finetune")

    def load() -> Any:
        upper = tuned_upper(run)

        @torch.inference_mode()
        def compute(things: Sequence[KeypointObject]) -> list[Features]:
            return [Features(p.half().numpy(), i.half().numpy()) for p, i in _raw(upper, maps, things)]

        return compute

    tuned = f"upper blocks trained for {saved['step']} steps, seed {saved['config']['finetune']['plan']['seed']}"
    description = {"backbone": "efficientnet-lite0", "size": CROP, "tuned": tuned}
    return keep_features(collection.objects, folder, load, description, progress=progress)


def tuned_upper(run: str | Path) -> Upper:
    """The upper blocks (averaged weights) of a checkpoint of `finetune`."""
    saved = read_run(run, "finetune")
    config = from_dict(FinetuneConfig, saved["config"]["finetune"])
    weights = saved["averaged"]
    raw = weights["points_mean"].expand(2, -1), weights["image_mean"].expand(2, -1)
    module = TunedMatcher(load_lite0(CROP)[1], raw, config)
    load_weights(module, run)
    return module.upper.eval().requires_grad_(False)
