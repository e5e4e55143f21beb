"""Mixture-of-experts routing: seven routers in one small language model, trained on text that ships with Python.

A byte-level model with one causal attention block (width 256, sequences of 256) and one mixture of 64 experts
(256 -> 1,024 -> 256), top-2, on batches of 4,096 tokens. All that differs is who sends which token where:

    top-2, auxiliary loss   softmax, the best two, a balancing loss; what exceeds 1.25 even shares is dropped (Switch)
    Sinkhorn                the best two of a Sinkhorn-normalised matrix, sigmoid gates; the same capacity (S-BASE)
    expert choice           every expert takes its best tokens; a token may be taken by several or by none
    Quantile Balancing      the best two of scores and a bias, moved by a quantile step a batch; no capacity (restated)
    sign rule               the same, the bias moved by 0.01 a batch (restated)
    linsat                  a projection with equal loads of one token in four, whose duals give every token its shares
                            and the decision: equal loads, no slack, nobody is dropped
    linsat, all tokens      the same with the whole batch in the projection

A bias per expert (linsat: the duals of the loads) outlives the batch: the start of the next solve, and the router for
causal inference, where a token must not wait for those after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import linsat
from arena import experts as balancing

Tensor = torch.Tensor
SAMPLED = 4  # one token in so many is in linsat's projection


@dataclass(frozen=True)
class Size:
    """The model and the run."""

    width: int = 256
    hidden: int = 1024
    experts: int = 64
    sequence: int = 256
    sequences: int = 16
    steps: int = 45
    rate: float = 1e-3
    k: int = 2

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
    biased: Tensor | None = None  # (tokens, experts) scores and bias, where the decision is more than the best of them


def within_capacity(expert: Tensor, experts: int, capacity: int) -> Tensor:
    """Which tokens fit, first come first served, (tokens,) bool."""
    order = torch.argsort(expert, stable=True)
    counts = torch.bincount(expert, minlength=experts)
    place = torch.empty_like(expert)
    place[order] = torch.arange(len(expert)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return place < capacity


class TopK(nn.Module):
    """Switch: the best of a softmax, and a loss that balances."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.k, self.capacity = size.k, int(1.25 * size.tokens * size.k / size.experts)

    def forward(self, scores: Tensor) -> Routed:
        p = scores.softmax(-1)
        token, expert = _pairs(balancing.top(scores, self.k))
        share = torch.bincount(expert, minlength=scores.shape[1]) / len(expert)
        if self.training:
            fits = within_capacity(expert, scores.shape[1], self.capacity)
            token, expert = token[fits], expert[fits]
        balance = 0.01 * scores.shape[1] * (share * p.mean(0)).sum()
        return Routed(token, expert, p[token, expert], balance)


class SinkhornRouter(nn.Module):
    """S-BASE: the best of scores balanced by Sinkhorn's algorithm, gates without a softmax."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.k, self.capacity = size.k, int(1.25 * size.tokens * size.k / size.experts)

    def forward(self, scores: Tensor) -> Routed:
        wanted = scores.detach()
        if self.training:
            wanted = wanted + balancing.sinkhorn_steps(wanted)
        token, expert = _pairs(balancing.top(wanted, self.k))
        if self.training:
            fits = within_capacity(expert, scores.shape[1], self.capacity)
            token, expert = token[fits], expert[fits]
        return Routed(token, expert, torch.sigmoid(scores[token, expert]))


class ExpertChoice(nn.Module):
    """Every expert takes the tokens that want it most; needs the whole batch, in training and later."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.places = size.tokens * size.k // size.experts

    def forward(self, scores: Tensor) -> Routed:
        gate, token = scores.softmax(-1).topk(self.places, dim=0)
        expert = torch.arange(scores.shape[1]).expand_as(token)
        return Routed(token.reshape(-1), expert.reshape(-1), gate.reshape(-1))


class Biased(nn.Module):
    """The best of scores and a bias that each batch moves by a rule; gates from the scores alone."""

    bias: Tensor

    def __init__(self, size: Size, rule: str) -> None:
        super().__init__()
        self.k, self.rule = size.k, rule
        self.register_buffer("bias", torch.zeros(size.experts))

    def forward(self, scores: Tensor) -> Routed:
        begin = time.perf_counter()
        token, expert = _pairs(balancing.top(scores.detach() + self.bias, self.k))
        if self.training:
            self.follow(scores.detach())
        seconds = {"forward": time.perf_counter() - begin}
        return Routed(token, expert, torch.sigmoid(scores[token, expert]), seconds=seconds)

    def follow(self, scores: Tensor) -> None:
        """Move the bias by what this batch wants."""
        if self.rule == "Quantile Balancing":
            self.bias.copy_(balancing.quantile_step(scores, self.bias, self.k))
        else:
            loads = balancing.top(scores + self.bias, self.k).sum(0)
            self.bias += 0.01 * torch.sign(loads.float().mean() - loads)


class Projected(nn.Module):
    """linsat: X = project(scores) with equal loads; gates from X, decisions and the next start from its duals.

    With ``every`` only each so manieth token is in that projection; its duals shift the scores of all, and X is made of
    these, each token by itself: for the tokens that were in it the same X.
    """

    bias: Tensor

    def __init__(self, size: Size, tau: float = 0.1, every: int = 1) -> None:
        super().__init__()
        self.constraints = balancing.even_loads(size.tokens // every, size.experts, size.k)
        self.every = every
        self.alone = linsat.constraints.top_k(size.experts, size.k)
        self.objective = linsat.Entropy(tau, slack="none")
        self.k = size.k
        self.register_buffer("bias", torch.zeros(size.experts, dtype=torch.float64))

    def solve(self, scores: Tensor) -> linsat.Solution:
        """Started from the kept bias, and for each token from what parts its k best from the others."""
        best = (scores.detach().double() + self.bias).topk(self.k + 1, dim=-1).values
        start = torch.cat([self.bias, -best[:, self.k - 1 :].mean(-1)])
        return linsat.solve(scores, self.constraints, objective=self.objective, on_failure="raise", start=start)

    def follow(self, scores: Tensor) -> None:
        """The bias that this batch would have wanted."""
        self.bias.copy_(self.solve(scores[:: self.every]).duals[: len(self.bias)])

    def forward(self, scores: Tensor) -> Routed:
        if not self.training:
            return self.causal(scores)
        seconds: dict[str, float] = {}
        begin = time.perf_counter()
        found = self.solve(scores[:: self.every])
        duals = found.duals[: len(self.bias)]
        X = found.x if self.every == 1 else self.shares(scores + duals.to(scores.dtype))
        seconds["forward"] = time.perf_counter() - begin
        if X.requires_grad:
            _time_backward(X, scores, seconds)
        begin = time.perf_counter()
        with torch.no_grad():
            self.bias.copy_(duals)
            biased = scores + self.bias
            token, expert = _pairs(balancing.equal_loads(biased, self.k))
        seconds["decision"] = time.perf_counter() - begin
        return Routed(token, expert, X[token, expert], seconds=seconds, biased=biased)

    def shares(self, biased: Tensor) -> Tensor:
        """X of tokens each by itself."""
        return linsat.project(biased, self.alone, objective=self.objective)

    def causal(self, scores: Tensor) -> Routed:
        """By the kept bias alone: what a token gets does not depend on any other token."""
        biased = scores + self.bias.to(scores.dtype)
        token, expert = _pairs(balancing.top(biased, self.k))
        return Routed(token, expert, self.shares(biased)[token, expert])


def _pairs(chosen: Tensor) -> tuple[Tensor, Tensor]:
    token, expert = chosen.nonzero(as_tuple=True)
    return token, expert


def _time_backward(X: Tensor, scores: Tensor, seconds: dict[str, float]) -> None:
    """Note how long the gradient takes from X to the scores."""
    if scores.requires_grad:
        X.register_hook(lambda _: seconds.__setitem__("began", time.perf_counter()))
        scores.register_hook(
            lambda _: seconds.__setitem__("backward", time.perf_counter() - seconds.pop("began", time.perf_counter()))
        )


class Experts(nn.Module):
    """Each expert on the tokens sent to it, however many they are."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(size.experts, size.width, size.hidden) * size.width**-0.5)
        self.down = nn.Parameter(torch.randn(size.experts, size.hidden, size.width) * size.hidden**-0.5)

    def forward(self, h: Tensor, routed: Routed) -> Tensor:
        order = torch.argsort(routed.expert, stable=True)
        counts = torch.bincount(routed.expert, minlength=len(self.up)).tolist()
        token = routed.token[order]
        parts = zip(h[token].split(counts), self.up.unbind(), self.down.unbind())
        made = torch.cat([F.gelu(part @ up) @ down for part, up, down in parts])
        return torch.zeros_like(h).index_add(0, token, made * routed.gate[order, None].to(h.dtype))


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


MAKERS: dict[str, Callable[[Size], nn.Module]] = {
    "linsat": lambda size: Projected(size, every=SAMPLED),
    "linsat, all tokens": Projected,
    "Quantile Balancing": lambda size: Biased(size, "Quantile Balancing"),
    "sign rule": lambda size: Biased(size, "sign rule"),
    "top-2, auxiliary loss": TopK,
    "Sinkhorn": SinkhornRouter,
    "expert choice": ExpertChoice,
}
ROUTERS = tuple(MAKERS)


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
    """How uneven the experts are used, and the share of the k places of every token that stays empty."""
    counts = torch.bincount(routed.expert, minlength=size.experts).float()
    reached = torch.bincount(routed.token, minlength=size.tokens).clamp(max=size.k)
    return {
        "largest load": float(counts.max() / (size.tokens * size.k / size.experts)),
        "dropped": float(1 - reached.sum() / (size.tokens * size.k)),
    }


def run(name: str, size: Size, *, seed: int = 0) -> dict[str, Any]:
    """Train with one router; losses on the last tenth of the text, loads, and where the time of a step goes."""
    torch.manual_seed(seed)
    text = corpus()
    cut = int(0.9 * len(text))
    model = Model(size, MAKERS[name](size))
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
        if routed.biased is not None:
            steps[-1]["largest load by the bias"] = 1 + balancing.max_vio(balancing.top(routed.biased, size.k))
        losses.append(float(loss.detach()))
    kept = steps[len(steps) // 5 :]  # the first steps warm caches and the bias up
    mean = {key: sum(s[key] for s in kept) / len(kept) for key in kept[0]}
    worst = {f"worst {key}": max(s[key] for s in steps) for key in ("largest load", "dropped")}
    result = {"train loss": sum(losses[-10:]) / len(losses[-10:]), **mean, **worst}
    result |= {f"{when}": value for when, value in _judge(model, text[cut:], size, seed).items()}
    return result | {"parameters": sum(p.numel() for p in model.parameters())}


def _judge(model: Model, text: Tensor, size: Size, seed: int) -> dict[str, float]:
    """Held-out loss routed as in training, as at inference by what was kept (each token by itself where the router
    can), and by a bias that follows: the one that the batch before would have wanted."""
    found: dict[str, float] = {}
    follows = hasattr(model.router, "follow")
    for when in ("batch", "inference", *["following"] * follows):
        model.train(when == "batch")
        draws, losses, loads, scores = torch.Generator().manual_seed(seed + 2), [], [], []
        kept = {name: buffer.clone() for name, buffer in model.router.named_buffers()}
        hook = model.gate.register_forward_hook(lambda _, __, out, to=scores: to.append(out))
        with torch.no_grad():
            for _ in range(5):
                x, target = batch_of(text, size, draws)
                logits, routed = model(x)
                losses.append(float(F.cross_entropy(logits, target)))
                loads.append(load(routed, size))
                if when == "following":
                    model.router.follow(scores[-1])
                else:
                    _restore(model.router, kept)
        hook.remove()
        _restore(model.router, kept)
        later = slice(1, None) if when == "following" else slice(None)  # the first has nothing to follow
        found[f"{when} loss"] = sum(losses) / len(losses)
        found[f"{when} largest load"] = max(one["largest load"] for one in loads[later])
        found[f"{when} dropped"] = sum(one["dropped"] for one in loads) / len(loads)
    return found | (_floors(scores, size) if follows else {})


def _restore(router: nn.Module, kept: dict[str, Tensor]) -> None:
    """Nothing is learned from the test."""
    for name, buffer in router.named_buffers():
        buffer.copy_(kept[name])


def _floors(scores: list[Tensor], size: Size) -> dict[str, float]:
    """The largest load of any batch by one bias made of these batches themselves, and by one for each of them."""

    def wanted(some: Tensor) -> Tensor:
        bias = torch.zeros(size.experts, dtype=some.dtype)
        for _ in range(40):
            bias = balancing.quantile_step(some, bias, size.k)
        return bias

    def largest(one: Tensor, bias: Tensor) -> float:
        return 1 + balancing.max_vio(balancing.top(one + bias, size.k))

    one_for_all = wanted(torch.cat(scores))
    return {
        "text largest load": max(largest(one, one_for_all) for one in scores),
        "own largest load": max(largest(one, wanted(one)) for one in scores),
    }
