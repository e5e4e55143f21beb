"""Balancing experts: k experts for every token, equal loads, on generated router scores that drift.

    Quantile Balancing   one alternating quantile step a batch on a bias per expert (restated from its description)
    sign rule            the bias of an overloaded expert falls by a constant, that of the others rises (restated)
    linsat               the duals of X in [0, 1], k a token, equal loads, entropic; `drift` adds half their last change

The bias of a batch routes the next one. Inside a batch `equal_loads` decides exactly, by moving the closest calls.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import linsat
from arena.tables import interval, mean, standard_error, table

Tensor = torch.Tensor
HEADING = "Balancing experts"
SIZES = ((4096, 64, 6), (4096, 256, 8))
STREAMS = ("steady", "correlated", "heavy tails", "bursts")
STEPS, TAU = 16, 0.02


def stream(kind: str, tokens: int, experts: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Scores (tokens, experts) of each step: a popularity that walks, and what the kind adds."""
    draw = torch.Generator().manual_seed(seed)
    normal = functools.partial(torch.randn, generator=draw)
    popularity, factors = normal(experts), normal(8, experts) / 8**0.5
    for _ in range(steps):
        popularity = popularity + 0.1 * normal(experts)
        noise = normal(tokens, experts)
        if kind == "correlated":
            noise = 0.5 * noise + normal(tokens, 8) @ factors
        if kind == "heavy tails":
            noise = noise / (normal(tokens, 3).square().mean(-1, keepdim=True)).sqrt()
        extra = 2.0 * (torch.rand(experts, generator=draw) < 0.05) if kind == "bursts" else 0.0
        yield (noise + popularity + extra).double()


def top(scores: Tensor, k: int) -> Tensor:
    """(tokens, experts) bool: the k best of every token."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(k, dim=-1).indices, True)


def max_vio(chosen: Tensor) -> float:
    """The largest load over the mean load, less one."""
    loads = chosen.sum(0).double()
    return float(loads.max() / loads.mean() - 1)


def equal_loads(scores: Tensor, k: int) -> Tensor:
    """(tokens, experts) bool: k experts for every token and the same load for every expert, near the k best.

    An expert above the even load always has a token that one below it lacks, so that moves of the least loss end with
    equal loads. Needs tokens * k to be a multiple of the experts.
    """
    chosen = top(scores, k)
    even, rest = divmod(scores.shape[0] * k, scores.shape[1])
    if rest:
        raise ValueError(f"{scores.shape[0]} tokens with {k} of {scores.shape[1]} experts have no equal loads")
    loads = chosen.sum(0)
    while bool((loads != even).any()):
        full, short = int(loads.argmax()), torch.nonzero(loads < even).squeeze(-1)
        token = torch.nonzero(chosen[:, full]).squeeze(-1)
        loss = scores[token, full, None] - scores[token][:, short].masked_fill(chosen[token][:, short], -torch.inf)
        best, target = loss.min(-1)
        moved = best.argsort()[: int(loads[full] - even)]
        room = even - loads[short]
        for i in moved[best[moved].isfinite()].tolist():
            j = int(target[i])
            if room[j] > 0:
                room[j] -= 1
                chosen[token[i], full], chosen[token[i], short[j]] = False, True
        loads = chosen.sum(0)
    return chosen


def quantile_step(scores: Tensor, bias: Tensor, k: int) -> Tensor:
    """What each token asks for at this bias, and the bias at which each expert takes its even share of it."""
    tokens, experts = scores.shape
    best = (scores + bias).topk(k + 1, dim=-1).values
    above = scores - best[:, k - 1 : k + 1].mean(-1, keepdim=True)
    share = tokens * k // experts
    sides = above.topk(share + 1, dim=0).values
    moved = -(sides[share - 1] + sides[share]) / 2
    return moved - moved.mean()


class Duals:
    """The duals of the even loads, each solve started from those of the last."""

    def __init__(self, tokens: int, experts: int, k: int) -> None:
        X = linsat.Variable(tokens, experts, name="X")
        self.set = linsat.subject_to(X.sum(0) == tokens * k / experts, X.sum(1) == k)
        self.experts, self.k, self.start = experts, k, None

    def __call__(self, scores: Tensor, bias: Tensor) -> Tensor:
        if self.start is not None:
            best = (scores + self.start).topk(self.k + 1, dim=-1).values
            begin = torch.cat([self.start, -best[:, self.k - 1 : self.k + 1].mean(-1)])
        else:
            begin = None
        objective = linsat.Entropy(TAU, slack="none")
        solution = linsat.solve(scores, self.set, objective=objective, start=begin, on_failure="raise")
        self.start = solution.duals[: self.experts]
        return self.start - self.start.mean()


def compare(size: tuple[int, int, int], kind: str, steps: int, seed: int) -> dict[str, dict[str, Any]]:
    """MaxVio of each next batch, inside the batch, and seconds a step, of every rule on one stream."""
    torch.set_num_threads(1)
    tokens, experts, k = size
    duals = Duals(tokens, experts, k)
    even = tokens * k / experts

    def sign(scores: Tensor, bias: Tensor) -> Tensor:
        return bias + 0.01 * torch.sign(even - top(scores + bias, k).sum(0))

    rules = {"Quantile Balancing": lambda s, b: quantile_step(s, b, k), "sign rule": sign, "linsat": duals}
    biases = {name: torch.zeros(experts, dtype=torch.float64) for name in rules}
    result: dict[str, Any] = {name: {"next": [], "inside": [], "seconds": []} for name in [*rules, "linsat, drift"]}
    result["linsat"]["decision"] = []
    last = None
    for step, scores in enumerate(stream(kind, tokens, experts, steps, seed)):
        if step > 1:  # the first batch has no bias, the second no history
            for name in rules:
                result[name]["next"].append(max_vio(top(scores + biases[name], k)))
            guess = biases["linsat"] + 0.5 * (biases["linsat"] - last)
            result["linsat, drift"]["next"].append(max_vio(top(scores + guess, k)))
        last = biases["linsat"]
        for name, rule in rules.items():
            begin = time.perf_counter()
            biases[name] = rule(scores, biases[name])
            result[name]["seconds"].append(time.perf_counter() - begin)
            if name != "linsat":
                result[name]["inside"].append(max_vio(top(scores + biases[name], k)))
        begin = time.perf_counter()
        chosen = equal_loads(scores + biases["linsat"], k)
        result["linsat"]["decision"].append(time.perf_counter() - begin)
        result["linsat"]["inside"].append(max_vio(chosen))
        assert (chosen.sum(1) == k).all()
    return result


def units(quick: bool) -> dict[str, Callable[[], Any]]:
    def all_streams(size: tuple[int, int, int], steps: int) -> dict[str, Any]:
        return {kind: compare(size, kind, steps, seed) for seed, kind in enumerate(STREAMS)}

    if quick:
        return {"experts/256x16x2": functools.partial(all_streams, (256, 16, 2), 4)}
    return {f"experts/{'x'.join(map(str, size))}": functools.partial(all_streams, size, STEPS) for size in SIZES}


def section(results: dict[str, Any]) -> list[str]:
    rows, times = [], []
    for unit, made in results.items():
        if not unit.startswith("experts/") or "error" in made:
            continue
        tokens, experts, k = unit.split("/")[1].split("x")
        label = f"{int(tokens):,} tokens, {k} of {experts}"
        for kind, rules in made.items():
            ours, theirs = rules["linsat"]["next"], rules["Quantile Balancing"]["next"]
            paired = [a - b for a, b in zip(ours, theirs)]
            drift = [a - b for a, b in zip(rules["linsat, drift"]["next"], theirs)]
            rows.append(
                (
                    f"{label}, {kind}",
                    *[f"{mean(rules[name]['next']):.3f}" for name in ("sign rule", "Quantile Balancing", "linsat")],
                    f"{mean(paired):+.3f} ± {1.96 * standard_error(paired):.3f}",
                    f"{mean(drift):+.3f} ± {1.96 * standard_error(drift):.3f}",
                    f"{mean(rules['Quantile Balancing']['inside']):.3f}",
                    f"{max(rules['linsat']['inside']):.3f}",
                )
            )
        spent = {
            name: interval([1e3 * s for rules in made.values() for s in rules[name][what][1:]], 0)
            for name, what in (("Quantile Balancing", "seconds"), ("linsat", "seconds"))
        }
        decision = interval([1e3 * s for rules in made.values() for s in rules["linsat"]["decision"][1:]], 0)
        times.append(
            f"{label}: quantile step {spent['Quantile Balancing']} ms, duals {spent['linsat']} ms, exact decision "
            f"{decision} ms."
        )
    head = (
        "stream",
        "sign rule, next",
        "Quantile, next",
        "linsat, next",
        "linsat less Quantile",
        "with drift, less Quantile",
        "Quantile, inside",
        "linsat, inside (worst)",
    )
    return [
        f"""
## {HEADING}

MaxVio is the largest load over the mean load, less one. *Next*: the batch after the one that made the bias, each token
by itself. *Inside*: the batch that made it; linsat decides there by `equal_loads`, k experts for every token and nobody
dropped. Generated scores, {STEPS} steps; paired differences with their 95 % intervals over the steps of a stream.
""",
        table(head, rows),
        "\n".join(times),
        """
![Loads of a drifting router](assets/arena/experts.png)

`python examples/flagships/experts.py` draws the picture.

**What this shows.** What exact duals are worth one batch late, and that inside the batch equal loads cost no token.

**What it does not show.** A model: scores are generated and do not answer to the routing. 16,384 tokens and more, 896
experts, BIP and Sinkhorn were not run; Quantile Balancing and the sign rule are restated by us. The sign rule moves by
0.01 a step and starts from nothing: in so few steps it cannot arrive, and its column says no more than that. Each kind
of stream is one draw, and its steps are not independent, so that intervals are too narrow. Equal loads cost scores:
what is given up by them is not in the table. Temperature and the half of the drift were set by hand, once.
""",
    ]
