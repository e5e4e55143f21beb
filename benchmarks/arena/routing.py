"""Mixture-of-experts routing: four routers in one small language model, trained on text that ships with Python.

A byte-level model with one causal attention block (width 256, sequences of 256) and one mixture of 64 experts
(256 -> 1,024 -> 256), top-1, on batches of 4,096 tokens. All that differs is who sends which token where:

    top-1, auxiliary loss   softmax, argmax, a balancing loss; tokens beyond 1.25 times the even share are dropped
    (Switch) Sinkhorn                argmax of a Sinkhorn-normalised matrix, sigmoid gates; the same capacity (S-BASE)
    expert choice           every expert takes its best tokens; a token may be taken by several or by none
    linsat                  a projection with hard capacities, no slack; the decision from its duals; nobody is dropped

The duals of the capacities are a bias per expert that outlives the batch: the start of the next solve, and the router
for causal inference, where a token must not wait for those after it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import linsat

Tensor = torch.Tensor


@dataclass(frozen=True)
class Size:
    """The model and the run."""

    width: int = 256
    hidden: int = 1024
    experts: int = 64
    sequence: int = 256
    sequences: int = 16
    steps: int = 150
    rate: float = 1e-3

    @property
    def tokens(self) -> int:
        return self.sequence * self.sequences


@dataclass
class Routed:
    """Which token goes to which expert: one entry per pair, with its gate; what else the router has to say."""

    token: Tensor  # (pairs,)
    expert: Tensor  # (pairs,)
    gate: Tensor  # (pairs,) differentiable
    extra_loss: Tensor | float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)


def within_capacity(expert: Tensor, experts: int, capacity: int) -> Tensor:
    """Which tokens fit, first come first served, (tokens,) bool."""
    order = torch.argsort(expert, stable=True)
    counts = torch.bincount(expert, minlength=experts)
    place = torch.empty_like(expert)
    place[order] = torch.arange(len(expert)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return place < capacity


def assign(scores: Tensor, capacity: int) -> Tensor:
    """One expert for every token, at most ``capacity`` tokens each: the best with room, closest calls moved first."""
    tokens, experts = scores.shape
    chosen = torch.full((tokens,), -1, dtype=torch.int64)
    room = torch.full((experts,), capacity, dtype=torch.int64)
    waiting = torch.arange(tokens)
    while len(waiting):
        open_scores = scores[waiting].masked_fill(room == 0, -torch.inf)
        best = open_scores.topk(min(2, experts), dim=-1)
        margin = best.values[:, 0] - best.values[:, -1]
        order = torch.argsort(margin, descending=True, stable=True)  # who loses most by waiting goes first
        wanted = best.indices[order, 0]
        counts = torch.bincount(wanted, minlength=experts)
        by_expert = torch.argsort(wanted, stable=True)
        place = torch.empty_like(wanted)
        place[by_expert] = torch.arange(len(wanted)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        fits = place < room[wanted]
        chosen[waiting[order[fits]]] = wanted[fits]
        room = room - torch.bincount(wanted[fits], minlength=experts)
        waiting = waiting[order[~fits]]
    return chosen


class TopOne(nn.Module):
    """Switch: argmax of a softmax, and a loss that balances."""

    capacity_factor = 1.25

    def forward(self, scores: Tensor) -> Routed:
        tokens, experts = scores.shape
        p = scores.softmax(-1)
        expert = scores.argmax(-1)
        share = torch.bincount(expert, minlength=experts) / tokens
        fits = within_capacity(expert, experts, int(self.capacity_factor * tokens / experts)) if self.training else ...
        token = torch.arange(tokens)[fits]
        balance = 0.01 * experts * (share * p.mean(0)).sum()
        return Routed(token, expert[fits], p[token, expert[fits]], balance)


class SinkhornRouter(nn.Module):
    """S-BASE: argmax of scores balanced by Sinkhorn's algorithm, gates without a softmax."""

    capacity_factor = 1.25

    def forward(self, scores: Tensor) -> Routed:
        tokens, experts = scores.shape
        with torch.no_grad():
            balanced = torch.exp(scores - scores.amax())
            for _ in range(8):
                balanced = balanced / balanced.sum(0, keepdim=True) * (tokens / experts)
                balanced = balanced / balanced.sum(1, keepdim=True)
            expert = (balanced if self.training else scores).argmax(-1)
            fits = (
                within_capacity(expert, experts, int(self.capacity_factor * tokens / experts)) if self.training else ...
            )
        token = torch.arange(tokens)[fits]
        return Routed(token, expert[fits], torch.sigmoid(scores[token, expert[fits]]))


class ExpertChoice(nn.Module):
    """Every expert takes the tokens that want it most; needs the whole batch, in training and later."""

    def forward(self, scores: Tensor) -> Routed:
        tokens, experts = scores.shape
        p = scores.softmax(-1)
        gate, token = p.topk(tokens // experts, dim=0)
        expert = torch.arange(experts).expand_as(token)
        return Routed(token.reshape(-1), expert.reshape(-1), gate.reshape(-1))


class Projected(nn.Module):
    """linsat: X = project(scores) with hard capacities; gates from X, decisions and the next start from its duals."""

    def __init__(self, tokens: int, experts: int, tau: float = 1.0) -> None:
        super().__init__()
        self.capacity = -(-tokens // experts)
        self.constraints = linsat.constraints.capacity_assignment(tokens, experts, capacity=self.capacity)
        self.objective = linsat.Entropy(tau, slack="none")
        self.tau = tau
        self.register_buffer("bias", torch.zeros(experts, dtype=torch.float64))

    def start(self, scores: Tensor) -> Tensor:
        """Duals to begin with: the kept bias, and for each token what makes its shares sum to about one."""
        biased = scores.detach().double() + self.bias
        return torch.cat([self.bias, -self.tau * torch.logsumexp(biased / self.tau, -1)])

    def forward(self, scores: Tensor) -> Routed:
        if not self.training:
            return self.causal(scores)
        seconds: dict[str, float] = {}
        begin = time.perf_counter()
        found = linsat.solve(
            scores, self.constraints, objective=self.objective, on_failure="raise", start=self.start(scores)
        )
        X = found.x
        seconds["forward"] = time.perf_counter() - begin
        if X.requires_grad:
            _time_backward(X, scores, seconds)
        begin = time.perf_counter()
        with torch.no_grad():
            self.bias.lerp_(found.duals[: len(self.bias)], 0.5)
            expert = assign(scores + found.duals[: len(self.bias)], self.capacity)
        seconds["decision"] = time.perf_counter() - begin
        token = torch.arange(len(scores))
        return Routed(token, expert, X[token, expert], seconds=seconds)

    def causal(self, scores: Tensor) -> Routed:
        """By the kept bias alone: what a token gets does not depend on any other token."""
        biased = scores + self.bias.to(scores.dtype)
        expert = biased.argmax(-1)
        token = torch.arange(len(scores))
        simplex = linsat.constraints.simplex(scores.shape[1])
        shares = linsat.project(biased, simplex, objective=self.objective)
        return Routed(token, expert, shares[token, expert])


def _time_backward(X: Tensor, scores: Tensor, seconds: dict[str, float]) -> None:
    """Note how long the gradient takes from X to the scores."""
    if scores.requires_grad:
        X.register_hook(lambda _: seconds.__setitem__("began", time.perf_counter()))
        scores.register_hook(
            lambda _: seconds.__setitem__("backward", time.perf_counter() - seconds.pop("began", time.perf_counter()))
        )


class Experts(nn.Module):
    """All experts as two batched products over a table (experts, places)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(size.experts, size.width, size.hidden) * size.width**-0.5)
        self.down = nn.Parameter(torch.randn(size.experts, size.hidden, size.width) * size.hidden**-0.5)

    def forward(self, h: Tensor, routed: Routed) -> Tensor:
        experts = self.up.shape[0]
        order = torch.argsort(routed.expert, stable=True)
        counts = torch.bincount(routed.expert, minlength=experts)
        places = int(counts.max())
        first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        slot = routed.expert[order] * places + torch.arange(len(order)) - first
        token = routed.token[order]
        table = h.new_zeros(experts * places, h.shape[1]).index_copy(0, slot, h[token])
        made = torch.bmm(F.gelu(torch.bmm(table.view(experts, places, -1), self.up)), self.down)
        weighted = made.view(experts * places, -1)[slot] * routed.gate[order, None].to(h.dtype)
        return torch.zeros_like(h).index_add(0, token, weighted)


class Model(nn.Module):
    """Embedding, one causal attention block, one mixture of experts, the next byte."""

    def __init__(self, size: Size, router: nn.Module) -> None:
        super().__init__()
        self.size = size
        self.embed = nn.Embedding(256, size.width)
        self.place = nn.Parameter(torch.randn(size.sequence, size.width) * 0.02)
        self.norms = nn.ModuleList([nn.LayerNorm(size.width) for _ in range(3)])
        self.mix, self.out = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.gate = nn.Linear(size.width, size.experts, bias=False)
        self.router, self.experts = router, Experts(size)
        self.head = nn.Linear(size.width, 256)

    def forward(self, text: Tensor) -> tuple[Tensor, Routed]:
        size = self.size
        h = self.embed(text) + self.place
        parts = self.mix(self.norms[0](h)).view(*h.shape[:2], 3, 4, size.width // 4).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts, is_causal=True)
        h = (h + self.out(attended.transpose(1, 2).reshape(h.shape))).reshape(-1, size.width)
        normed = self.norms[1](h)
        routed = self.router(self.gate(normed))
        h = h + self.experts(normed, routed)
        return self.head(self.norms[2](h)), routed


ROUTERS = ("linsat", "top-1, auxiliary loss", "Sinkhorn", "expert choice")


def make_router(name: str, size: Size) -> nn.Module:
    if name == "linsat":
        return Projected(size.tokens, size.experts)
    return {"top-1, auxiliary loss": TopOne, "Sinkhorn": SinkhornRouter, "expert choice": ExpertChoice}[name]()


def corpus() -> Tensor:
    """The language reference that ships with Python, as bytes."""
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def batch_of(text: Tensor, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    first = torch.randint(len(text) - size.sequence - 1, (size.sequences, 1), generator=generator)
    whole = text[first + torch.arange(size.sequence + 1)]
    return whole[:, :-1], whole[:, 1:].reshape(-1)


def load(routed: Routed, size: Size) -> dict[str, float]:
    """How uneven the experts are used, and how many tokens get none."""
    counts = torch.bincount(routed.expert, minlength=size.experts).float()
    reached = torch.bincount(routed.token, minlength=size.tokens) > 0
    return {
        "largest load": float(counts.max() / (size.tokens / size.experts)),
        "dropped": float((~reached).float().mean()),
    }


def run(name: str, size: Size, *, seed: int = 0) -> dict[str, Any]:
    """Train with one router; losses on the last tenth of the text, loads, and where the time of a step goes."""
    torch.manual_seed(seed)
    text = corpus()
    cut = int(0.9 * len(text))
    model = Model(size, make_router(name, size))
    optimizer = torch.optim.Adam(model.parameters(), lr=size.rate)
    draws = torch.Generator().manual_seed(seed + 1)
    steps: list[dict[str, float]] = []
    losses: list[float] = []
    for _ in range(size.steps):
        x, target = batch_of(text[:cut], size, draws)
        begin = time.perf_counter()
        optimizer.zero_grad()
        logits, routed = model(x)
        loss = F.cross_entropy(logits, target)
        (loss + routed.extra_loss).backward()
        optimizer.step()
        seconds = time.perf_counter() - begin
        steps.append({"step": seconds, **routed.seconds, **load(routed, size)})
        losses.append(float(loss.detach()))
    kept = steps[len(steps) // 5 :]  # the first steps warm caches and the bias up
    mean = {key: sum(s[key] for s in kept) / len(kept) for key in kept[0]}
    worst = {f"worst {key}": max(s[key] for s in steps) for key in ("largest load", "dropped")}
    result = {"train loss": sum(losses[-10:]) / len(losses[-10:]), **mean, **worst}
    result |= {f"{when}": value for when, value in _judge(model, text[cut:], size, seed).items()}
    return result | {"parameters": sum(p.numel() for p in model.parameters())}


def _judge(model: Model, text: Tensor, size: Size, seed: int) -> dict[str, float]:
    """Held-out loss routed as in training, and as at inference: each token by itself where the router can."""
    found: dict[str, float] = {}
    for when in ("batch", "inference"):
        model.train(when == "batch")
        draws, losses, loads = torch.Generator().manual_seed(seed + 2), [], []
        kept = {name: buffer.clone() for name, buffer in model.router.named_buffers()}
        with torch.no_grad():
            for _ in range(4):
                x, target = batch_of(text, size, draws)
                logits, routed = model(x)
                losses.append(float(F.cross_entropy(logits, target)))
                loads.append(load(routed, size))
                for name, buffer in model.router.named_buffers():
                    buffer.copy_(kept[name])  # nothing is learned from the test
        found[f"{when} loss"] = sum(losses) / len(losses)
        found[f"{when} largest load"] = max(one["largest load"] for one in loads)
        found[f"{when} dropped"] = sum(one["dropped"] for one in loads) / len(loads)
    return found
