"""The Attention Model of Kool, van Hoof and Welling (ICLR 2019) for paths with given ends and a priority city.

It builds a tour city by city: an encoder reads all cities once; at each step a glimpse over the unvisited cities, asked
by (mean of all cities, end city, present city), is turned into a distribution over the next city. The rules of the
LinSATNet paper (appendix F) hold while decoding:

- the embedding of the end city stands where the original uses the first city of the cycle;
- the end city is visited last and only last;
- a priority city not visited within the first `within - 1` steps is visited in step `within`.

Coordinates come in canonical order: city 0 starts, city n - 1 ends, city 1 has priority where a task has one.

Training is REINFORCE. The baseline of a sampled tour is the mean length of the other tours sampled for the same
instance (Kool et al., "Buy 4 REINFORCE samples, get a baseline for free"), not the greedy rollout of an older copy:
one encoding serves all samples, and no second network has to be run. Tours are sampled without gradients, then scored
in one pass over all steps at once, since the state at every step of a known tour is known.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from linsat_studies.checkpoints import load_weights, read_checkpoint
from linsat_studies.settings import Plan, from_dict
from linsat_studies.training import fit, share
from linsat_studies.tsp.data import PRIORITY_STEPS, Instances, random_instances
from linsat_studies.tsp.shipped import SHIPPED
from linsat_studies.tsp.tours import check_tours, lengths

FILE = "attention.pt"  # one network for both tasks
# Validation instances come from a stream that no training step uses.
_VALIDATION = 77_000_001


@dataclass(frozen=True)
class AttentionConfig:
    """Sizes of the network; the defaults are those of the original paper."""

    width: int = 128
    layers: int = 3
    heads: int = 8
    hidden: int = 512
    clip: float = 10.0


class Cache(NamedTuple):
    """What decoding reads of an encoded batch, computed once: nothing below depends on the tour so far."""

    queries: Tensor  # (N, n, width): the glimpse query when city i is the present one
    keys: Tensor  # (N, heads, n, d)
    values: Tensor  # (N, heads, n, d)
    pointers: Tensor  # (N, n, width): a glimpse times this is the score of a city before clipping


class EncoderLayer(nn.Module):
    """Self-attention and a two-layer network, each with a skip connection and batch normalisation."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, config.hidden), nn.ReLU(), nn.Linear(config.hidden, width))
        self.norms = nn.ModuleList([nn.BatchNorm1d(width), nn.BatchNorm1d(width)])

    def forward(self, x: Tensor) -> Tensor:
        batch, n, width = x.shape
        q, k, v = self.qkv(x).view(batch, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, n, width))
        x = self.norms[0](x.flatten(0, 1)).view_as(x)
        x = x + self.feed(x)
        return self.norms[1](x.flatten(0, 1)).view_as(x)


class AttentionModel(nn.Module):
    """Encoder and pointer decoder; one network serves both tasks, told apart by the mark of the priority city."""

    def __init__(self, config: AttentionConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or AttentionConfig()
        width = config.width
        self.place = nn.Linear(2, width)
        self.marks = nn.Parameter(torch.randn(3, width) / math.sqrt(width))  # start, end, priority
        self.encoder = nn.Sequential(*(EncoderLayer(config) for _ in range(config.layers)))
        self.kvp = nn.Linear(width, 3 * width, bias=False)  # glimpse keys, glimpse values, pointer keys
        self.context = nn.Linear(2 * width, width, bias=False)  # of the mean city and the end city
        self.present = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def encode(self, coords: Tensor, priority: Tensor) -> Cache:
        """Read cities (N, n, 2) in canonical order; `priority` (N,) says which instances have a priority city."""
        x = self.place(coords)
        marks = torch.zeros_like(x)
        marks[:, 0] = self.marks[0]
        marks[:, -1] = self.marks[1]
        marks[:, 1] = self.marks[2] * priority[:, None].to(x.dtype)
        h = self.encoder(x + marks)
        batch, n, width = h.shape
        keys, values, pointers = self.kvp(h).chunk(3, dim=-1)
        context = self.context(torch.cat([h.mean(1), h[:, -1]], dim=-1))
        queries = self.present(h) + context[:, None]

        def split(t: Tensor) -> Tensor:
            return t.view(batch, n, self.config.heads, -1).transpose(1, 2)

        # <out(glimpse), pointer> = <glimpse, out' pointer>: folded here, it costs nothing per step.
        return Cache(queries, split(keys), split(values), pointers @ self.out.weight / math.sqrt(width))

    def logits(self, cache: Cache, present: Tensor, closed: Tensor) -> Tensor:
        """Scores (N, Q, n) of the next city, given the present one (N, Q) and the closed ones (N, Q, n)."""
        batch, n, width = cache.queries.shape
        rows = (present + n * torch.arange(batch)[:, None]).flatten()
        queries = cache.queries.flatten(0, 1).index_select(0, rows)
        queries = queries.view(batch, -1, self.config.heads, width // self.config.heads).transpose(1, 2)
        mask = torch.zeros(closed.shape, dtype=queries.dtype).masked_fill_(closed, -math.inf)
        glimpse = functional.scaled_dot_product_attention(queries, cache.keys, cache.values, attn_mask=mask[:, None])
        glimpse = glimpse.transpose(1, 2).flatten(2)
        return self.config.clip * torch.tanh(glimpse @ cache.pointers.transpose(1, 2)) + mask

    @torch.no_grad()
    def decode(
        self, cache: Cache, priority: Tensor, samples: int = 1, greedy: bool = False, within: int = PRIORITY_STEPS
    ) -> Tensor:
        """Tours (N, samples, n), sampled or greedy, by the rules above; keys and values are not computed again."""
        batch, n, _ = cache.queries.shape
        tours = torch.zeros(batch, samples, n, dtype=torch.long)
        tours[..., -1] = n - 1
        closed = torch.zeros(batch, samples, n, dtype=torch.bool)
        closed[..., 0] = closed[..., -1] = True
        present = tours[..., 0]
        for step in range(1, n - 1):
            scores = self.logits(cache, present, closed)
            if not greedy:  # Gumbel's trick: the largest perturbed score is a sample of the softmax
                scores = scores - torch.empty_like(scores).exponential_().log_()
            present = scores.argmax(-1)
            if step == within:
                late = priority[:, None] & ~closed[..., 1]
                present = torch.where(late, 1, present)
            tours[..., step] = present
            closed.scatter_(2, present[..., None], True)
        return tours

    def log_likelihood(self, cache: Cache, tours: Tensor, priority: Tensor, within: int = PRIORITY_STEPS) -> Tensor:
        """Log-probability (N, S) of tours (N, S, n), all steps scored at once; forced steps are certain."""
        batch, n, _ = cache.queries.shape
        samples, steps = tours.shape[1], n - 2
        position = torch.empty_like(tours).scatter_(2, tours, torch.arange(n).expand_as(tours))
        closed = position[:, :, None, :] < torch.arange(1, n - 1)[:, None]  # (N, S, steps, n)
        closed[..., -1] = True
        scores = self.logits(cache, tours[..., : n - 2].flatten(1), closed.flatten(1, 2)).log_softmax(-1)
        chosen = scores.view(batch, samples, steps, n).gather(3, tours[..., 1 : n - 1, None]).squeeze(-1)
        if within <= steps:
            forced = priority[:, None] & (position[..., 1] == within)
            step = torch.arange(1, n - 1) == within
            chosen = chosen.masked_fill(forced[..., None] & step, 0.0)
        return chosen.sum(-1)


def tour_lengths(coords: Tensor, tours: Tensor) -> Tensor:
    """Lengths (N, S) of tours (N, S, n) through cities (N, n, 2)."""
    batch, samples, n = tours.shape
    places = coords[:, None].expand(batch, samples, n, 2).gather(2, tours[..., None].expand(-1, -1, -1, 2))
    return places.diff(dim=2).norm(dim=-1).sum(-1)


@torch.no_grad()
def attention_tours(
    model: AttentionModel, instances: Instances, samples: int = 1, seed: int = 0, chunk: int = 0
) -> np.ndarray:
    """Tours (N, n) by the Attention Model: the greedy tour, or the best of it and `samples - 1` sampled ones.

    `instances` may have any start, end and priority; `chunk` instances are decoded at once (0: sized to the cache).
    Cost, one thread: about 1 ms an instance for the encoder and the greedy tour, 0.05 ms for each further sample.
    """
    canonical, back = instances.canonical()
    coords = torch.as_tensor(canonical.coords, dtype=torch.float32)
    priority = torch.full((len(canonical),), canonical.task == "pri")
    within = canonical.within or PRIORITY_STEPS
    chunk = chunk or max(1, 8192 // samples)
    training = model.training
    model.eval()
    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for xy, flag in zip(coords.split(chunk), priority.split(chunk)):
            cache = model.encode(xy, flag)
            tours = model.decode(cache, flag, greedy=True, within=within)
            if samples > 1:
                tours = torch.cat([tours, model.decode(cache, flag, samples - 1, within=within)], dim=1)
            best = tour_lengths(xy, tours).argmin(1)
            found.append(tours[torch.arange(len(tours)), best])
    model.train(training)
    tours_canonical = torch.cat(found).numpy()
    tours_out = np.take_along_axis(back, tours_canonical, axis=1)
    check_tours(instances, tours_out)
    return tours_out


@dataclass(frozen=True)
class AttentionRun:
    """A training run: sizes, budget, and what a step sees.

    Args:
        network: sizes.
        plan: budget and optimiser.
        cities: per instance.
        batch: instances a step over all processes, every second one with a priority city.
        samples: tours drawn for each of them.
        validation: instances of each task held out for the learning curve.
    """

    network: AttentionConfig = field(default_factory=AttentionConfig)
    plan: Plan = field(default_factory=lambda: Plan(minutes=45.0, rate=8e-4, decay=0.0, average=0.99))
    cities: int = 20
    batch: int = 128
    samples: int = 16
    validation: int = 500

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError(f"samples is {self.samples}; expected at least 2: the others are the baseline of each.")


class Reinforce:
    """What `fit` trains: the model, its loss on fresh instances, and its greedy tours on instances held out."""

    def __init__(self, run: AttentionRun) -> None:
        self.run = run
        torch.manual_seed(run.plan.seed)
        self.module = AttentionModel(run.network)
        seed = _VALIDATION + run.plan.seed
        self.held_out = [random_instances(task, run.validation, n=run.cities, seed=seed) for task in ("se", "pri")]

    def loss(self, step: int) -> Tensor:
        """REINFORCE's surrogate at this step, whose gradient is an estimate of that of the mean tour length."""
        run = self.run
        seed = run.plan.seed * 1_000_003 + step
        part = share(run.batch)
        coords = torch.rand(run.batch, run.cities, 2, generator=torch.Generator().manual_seed(seed))[part]
        priority = (torch.arange(run.batch) % 2 == 1)[part]
        cache = self.module.encode(coords, priority)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + part.start)
            tours = self.module.decode(Cache(*(t.detach() for t in cache)), priority, run.samples)
        length = tour_lengths(coords, tours)
        others = (length.sum(1, keepdim=True) - length) / (run.samples - 1)
        return ((length - others) * self.module.log_likelihood(cache, tours, priority)).mean()

    def validate(self) -> float:
        """Mean length of the greedy tours, both tasks together."""
        return float(np.mean(list(self.by_task().values())))

    def by_task(self) -> dict[str, float]:
        """Mean length of the greedy tours for each task."""
        return {held.task: _mean_length(held, attention_tours(self.module, held)) for held in self.held_out}


def _mean_length(instances: Instances, tours: np.ndarray) -> float:
    return float(lengths(instances.coords, tours).mean())


def train_attention(run: AttentionRun, folder: str | Path) -> Path:
    """Train the Attention Model, or continue the run in ``folder``; returns the checkpoint's path (see `fit`)."""
    return fit(Reinforce(run), run.plan, folder, config=asdict(run))


def load_attention(path: str | Path | None = None) -> AttentionModel:
    """The trained model of a checkpoint or exported file; None for the one shipped with the package."""
    path = SHIPPED / FILE if path is None else Path(path)
    model = AttentionModel(from_dict(AttentionConfig, read_checkpoint(path)["config"]["network"]))
    load_weights(model, path)
    return model.eval()
