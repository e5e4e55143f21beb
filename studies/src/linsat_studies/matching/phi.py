"""The number of inliers phi, estimated rather than given: a small head beside a trained matching network.

The head reads what the network's scores say (how sure the best matches are), how many keypoints each side has, and both
images. It is trained in one of two ways, the network frozen:

- ``"regression"``: phi itself is the target;
- ``"bound"``: its answer is the right-hand side of the layer's row ``total <= phi``, and the permutation loss of the
  layer's output trains it, the gradient reaching phi through the layer. No number of inliers is ever shown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from linsat_studies.checkpoints import CheckpointError, load_weights, read_checkpoint
from linsat_studies.matching.batches import Batch, FeatureSource, collate
from linsat_studies.matching.config import MatchingConfig
from linsat_studies.matching.data import Collection, random_pairs, validation_pairs
from linsat_studies.matching.techniques import layer, permutation_loss, sinkhorn
from linsat_studies.matching.train import load_run
from linsat_studies.settings import Plan, expect, from_dict, to_json
from linsat_studies.training import fit, share

SIGNALS = ("regression", "bound")
_LISTED = 16  # most certain matches that the head reads
_SEEDS = 1 << 40  # first seed of pairs: none that the networks were trained on in the same order


@dataclass(frozen=True)
class PhiConfig:
    """One training run of a `PhiHead`."""

    signal: str = "regression"
    width: int = 32
    dropout: float = 0.1  # share of the image features that training hides
    plan: Plan = field(default_factory=lambda: Plan(steps=400, rate=2e-3, warmup=20, every=200, average=0.98))
    batch: int = 32  # pairs a step, over all processes
    validated: int = 20  # pairs of each class that a validation looks at

    def __post_init__(self) -> None:
        expect(self.signal in SIGNALS, "signal", self.signal, " or ".join(SIGNALS))
        expect(0 <= self.dropout < 1, "dropout", self.dropout, "a share from 0 to below 1")
        for name in ("width", "batch", "validated"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")


class PhiHead(nn.Module):
    """The number of inliers of each pair, a real number from 0 to the keypoints of the smaller side.

    Args:
        image: G, channels of the whole image; 0 where there is none.
        width: channels inside.
        dropout: share of the image features that training hides.
    """

    def __init__(self, image: int, *, width: int, dropout: float) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Dropout(dropout), nn.LayerNorm(image), nn.Linear(image, width)) if image else None
        self.head = nn.Sequential(
            nn.Linear(_LISTED + 3 + (2 * width if image else 0), width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, scores: Tensor, batch: Batch, *, tau: float) -> Tensor:
        """(B,) from a network's scores (B, n1, n2) at the temperature it was trained with."""
        counts = torch.stack([batch.mask_l.sum(1), batch.mask_r.sum(1)], 1).to(scores.dtype)
        fewest = counts.amin(1)
        soft = sinkhorn(scores, batch, tau=tau, iterations=10).flatten(1)
        sure = soft.topk(min(_LISTED, soft.shape[1])).values
        listed = nn.functional.pad(sure, (0, _LISTED - sure.shape[1]))
        sizes = torch.stack([fewest, counts.amax(1)], 1) / 10
        read = [listed, sizes, (listed.sum(1) / fewest).unsqueeze(1)]
        if self.image is not None:
            left, right = self.image(batch.image_l.to(scores.dtype)), self.image(batch.image_r.to(scores.dtype))
            read += [left + right, left * right]
        return fewest * torch.sigmoid(self.head(torch.cat(read, 1)).squeeze(1))


def with_phi(batch: Batch, phi: Tensor) -> Batch:
    """The batch with an estimate in place of its number of inliers, rounded and at least 1: for decoders."""
    fewest = torch.minimum(batch.mask_l.sum(1), batch.mask_r.sum(1))
    return replace(batch, phi=torch.minimum(phi.detach().round().long().clamp_min(1), fewest))


class PhiLearner:
    """A `PhiHead` and its loss beside a frozen network, for `fit`.

    Args:
        config: of the run.
        network: trained, frozen here.
        trained: its settings.
        collection, features: as for `MatchingLearner`.
    """

    def __init__(
        self,
        config: PhiConfig,
        network: nn.Module,
        trained: MatchingConfig,
        collection: Collection,
        features: FeatureSource | None = None,
    ) -> None:
        self.config, self.network, self.tau = config, network.eval().requires_grad_(False), trained.tau
        self.collection, self.features = collection, features
        held_out = validation_pairs(collection, per_class=config.validated)
        self.validated = [
            collate(held_out[first : first + config.batch], features) for first in range(0, len(held_out), config.batch)
        ]
        torch.manual_seed(config.plan.seed)
        image = self.validated[0].image_l.shape[-1]
        self.module = PhiHead(image, width=config.width, dropout=config.dropout)

    def loss(self, step: int) -> Tensor:
        """Mean over this process's share of the batch."""
        seed = _SEEDS + (self.config.plan.seed << 20) + step
        pairs = random_pairs(self.collection, "train", None, self.config.batch, seed)
        return self._loss(collate(pairs[share(self.config.batch)], self.features))

    def _loss(self, batch: Batch) -> Tensor:
        scores = self.network(batch)
        phi = self.module(scores, batch, tau=self.tau)
        if self.config.signal == "regression":
            return nn.functional.smooth_l1_loss(phi, batch.phi.to(phi.dtype))
        return permutation_loss(layer(scores, batch, tau=self.tau, phi=phi), batch)

    @torch.no_grad()
    def validate(self) -> float:
        """Mean absolute error of phi on validation pairs, whatever the signal."""
        errors = [(self.module(self.network(batch), batch, tau=self.tau) - batch.phi).abs() for batch in self.validated]
        return float(torch.cat(errors).mean())


def train_phi(
    config: PhiConfig,
    run: str | Path,
    collection: Collection,
    folder: str | Path,
    *,
    features: FeatureSource | None = None,
) -> Path:
    """Train a head beside the network of the checkpoint ``run``; resumes the run in ``folder``. Returns its checkpoint.

    Raises:
        CheckpointError: ``run`` is no run of this study.
    """
    network, trained = load_run(run)
    learner = PhiLearner(config, network, trained, collection, features)
    said = {"phi": json.loads(to_json(config)), "image": learner.validated[0].image_l.shape[-1]}
    return fit(learner, config.plan, folder, config=said)


def load_phi(path: str | Path) -> tuple[PhiHead, PhiConfig]:
    """The trained head of a checkpoint, ready for evaluation, and its settings.

    Raises:
        CheckpointError: no such file, or not one of `train_phi`.
    """
    saved = read_checkpoint(path)
    if "phi" not in saved["config"]:
        raise CheckpointError(f"{path} holds no estimate of phi; expected a checkpoint that train_phi wrote.")
    config = from_dict(PhiConfig, saved["config"]["phi"])
    head = PhiHead(saved["config"]["image"], width=config.width, dropout=config.dropout)
    load_weights(head, path)
    return head.eval(), config
