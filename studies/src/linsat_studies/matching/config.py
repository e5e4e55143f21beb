"""What a training run of the study is made of: network, constraint technique, losses and plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linsat_studies.settings import Plan, expect, from_dict, from_file

NETWORKS = ("pca-gm", "bbgm", "ngm")
# What a network can be trained with. The top-phi cut comes after training and needs no separate run. "layer" is the
# paper's; in the two after it a row does nothing until it binds: the same entropy without slacks, and KL.
TRAINED = ("sinkhorn", "black-box", "black-box-partial", "layer", "slack-free", "kl")
BLACK_BOXES = TRAINED[1:3]
LAYERS = TRAINED[3:]
# Runs that go on from the same network trained with Sinkhorn, and what they are trained with then. The layer's is there
# for comparison with the black boxes, which learn little from scratch: the same start, the same steps.
CONTINUED = {"black-box": "black-box", "black-box-partial": "black-box-partial", "sinkhorn-layer": "layer"}
RUNS = (*TRAINED, "sinkhorn-layer")


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of a network; one set for all kinds, each of which reads what it has."""

    kind: str = "ngm"
    width: int = 64  # channels of a keypoint's vector
    dropout: float = 0.2  # share of the image features that training hides
    kernel: int = 3  # grid points of the spline kernel along each direction (bbgm, ngm)
    layers: int = 2  # spline convolutions (bbgm, ngm)
    channels: int = 16  # of a node of the association graph (ngm), of an edge (bbgm)
    edges: float = 1.0  # what pairs of edges count when training begins (bbgm)
    rounds: int = 3  # of messages on the association graph (ngm)

    def __post_init__(self) -> None:
        expect(self.kind in NETWORKS, "kind", self.kind, " or ".join(NETWORKS))
        expect(0 <= self.dropout < 1, "dropout", self.dropout, "a share from 0 to below 1")
        expect(self.kernel >= 2, "kernel", self.kernel, "at least 2")
        for name in ("width", "channels"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("layers", "rounds"):
            expect(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")


@dataclass(frozen=True)
class MatchingConfig:
    """One training run. Pairs are drawn afresh at every step, classes evenly."""

    technique: str = "layer"
    network: NetworkConfig = field(default_factory=NetworkConfig)
    plan: Plan = field(
        default_factory=lambda: Plan(steps=1800, rate=3e-3, warmup=100, decay=0.1, every=500, average=0.995)
    )
    batch: int = 32  # pairs a step, over all processes
    tau: float = 0.3  # temperature of sinkhorn or layer
    iterations: int = 20  # of sinkhorn
    strength: float = 1.0  # of the black box: how far scores are moved for its gradient
    margin: float = 0.3  # of the black box: by how much true pairs must win in training
    scaled: bool = True  # of the black box: scores of deviation 1 in each pair; otherwise as the network gives them
    soft: float = 0.5  # of the black box: share of the permutation loss of its node scores, through Sinkhorn
    validated: int = 20  # pairs of each class that a validation looks at

    def __post_init__(self) -> None:
        expect(self.technique in TRAINED, "technique", self.technique, " or ".join(TRAINED))
        for name in ("batch", "iterations", "validated"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("tau", "strength"):
            expect(getattr(self, name) > 0, name, getattr(self, name), "a positive number")
        expect(self.margin >= 0, "margin", self.margin, "a number of at least 0")
        expect(0 <= self.soft < 1, "soft", self.soft, "a share from 0 to below 1")


def default_config(network: str, technique: str, seed: int = 0) -> MatchingConfig:
    """The settings of the study's runs: the same sizes and plan for every network and technique.

    They come from shorter trials (300 to 1,500 steps, one seed) judged on validation pairs, whose images no run learns
    from. Sinkhorn and layer have the better one of two temperatures (0.1 and 0.3). The black box, most sensitive of
    all, starts from the same network trained with Sinkhorn, edges counting from the beginning, and half of its loss
    stays that of Sinkhorn; docs/matching.md lists the trials.
    """
    plan = Plan(steps=1800, rate=3e-3, warmup=100, decay=0.1, every=500, average=0.995, seed=seed)
    tau = 0.3 if technique in LAYERS else 0.1
    return MatchingConfig(technique=technique, network=NetworkConfig(kind=network), plan=plan, tau=tau)


def read_config(path: str | Path) -> MatchingConfig:
    """The `MatchingConfig` in a JSON file; what it leaves out takes the defaults."""
    return from_file(MatchingConfig, path)


def config_from_checkpoint(saved: dict[str, Any]) -> MatchingConfig:
    """The configuration that a training checkpoint carries."""
    return from_dict(MatchingConfig, saved["config"]["run"])
