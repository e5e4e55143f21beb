"""Balancing experts: k experts for every token, equal loads, on generated router scores that drift.

    Quantile Balancing   one alternating quantile step a batch on a bias per expert (restated from its description)
    sign rule            the bias of an overloaded expert falls by a constant, that of the others rises (restated)
    BIP                  four alternating steps on prices that are never negative, anew from the last prices (restated)
    Sinkhorn             eight normalisations of exp(scores), whose column factors are the bias
    linsat               the duals of X in [0, 1], k a token, equal loads, entropic, and what their history foretells

The bias of a batch routes the next one. What is looked for in its history, and the temperature, are chosen on streams
of other seeds (`choose`), and are the same for every size and stream. Inside a batch `equal_loads` decides exactly, by
moving the closest calls. Where a batch is too large for the core, duals are those of every n-th token and a quantile
step of the whole batch follows.
"""

from __future__ import annotations

import functools
import math
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import linsat
from arena import records
from arena.tables import bars, interval, mean, paired, table

Tensor = torch.Tensor
HEADING = "Balancing experts"
STREAMS = ("steady", "correlated", "heavy tails", "bursts", "trend")
# (tokens, experts, k): steps and streams, fewer where a step takes seconds
SIZES = {
    (4096, 64, 6): (32, STREAMS),
    (4096, 256, 8): (32, ("steady", "heavy tails", "trend")),
    (16384, 64, 6): (32, ("steady", "heavy tails", "trend")),
    (4096, 896, 16): (32, ("steady", "trend")),
    (16384, 256, 8): (32, ("steady", "trend")),
    (65536, 64, 6): (20, ("steady", "trend")),
    (16384, 896, 16): (32, ("trend",)),
    (65536, 256, 8): (20, ("steady",)),
}
CHOOSING_SEED = 100  # added to those of the streams on which the rule is chosen
TAUS, HARD = (0.1, 0.3, 1.0), 0.02
CHOOSING = (((4096, 64, 6), 10), ((256, 16, 2), 4))  # size and steps, in full and quick
MOST_VARIABLES, MOST_TOKENS = 1 << 20, 1 << 15  # that a solve is given
HARD_VARIABLES = 1 << 18  # up to which the lower temperature is tried too


def stream(kind: str, tokens: int, experts: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Scores (tokens, experts) of each step: a popularity that walks, and what the kind adds."""
    draw = torch.Generator().manual_seed(seed)
    normal = functools.partial(torch.randn, generator=draw)
    popularity, factors, speed = normal(experts), normal(8, experts) / 8**0.5, 0.1 * normal(experts)
    for _ in range(steps):
        step = 0.1 * normal(experts)
        speed = 0.9 * speed + 0.43 * step if kind == "trend" else step  # as long a step on average, but persistent
        popularity = popularity + speed
        noise = normal(tokens, experts)
        if kind == "correlated":
            noise = 0.5 * noise + normal(tokens, 8) @ factors
        if kind == "heavy tails":
            noise = noise / (normal(tokens, 3).square().mean(-1, keepdim=True)).sqrt()
        extra = 2.0 * (torch.rand(experts, generator=draw) < 0.05) if kind == "bursts" else 0.0
        scores = noise + popularity + extra
        yield scores.double() if scores.numel() <= MOST_VARIABLES else scores


def top(scores: Tensor, k: int) -> Tensor:
    """(tokens, experts) bool: the k best of every token."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(k, dim=-1).indices, True)


def max_vio(chosen: Tensor) -> float:
    """The largest load over the mean load, less one."""
    loads = chosen.sum(0).double()
    return float(loads.max() / loads.mean() - 1)


def equal_loads(scores: Tensor, k: int) -> Tensor:
    """(tokens, experts) bool: k experts for every token and the same load for every expert, near the k best.

    Where tokens * k is no multiple of the experts, those most asked for take one more. An expert above its load always
    has a token that one below its own lacks, so that moves of the least loss end with these loads.
    """
    chosen = top(scores, k)
    loads = chosen.sum(0)
    even, rest = divmod(scores.shape[0] * k, scores.shape[1])
    quota = torch.full_like(loads, even)
    quota[loads.argsort(descending=True)[:rest]] += 1
    while bool((loads != quota).any()):
        full, short = int((loads - quota).argmax()), torch.nonzero(loads < quota).squeeze(-1)
        token = torch.nonzero(chosen[:, full]).squeeze(-1)
        loss = scores[token, full, None] - scores[token][:, short].masked_fill(chosen[token][:, short], -torch.inf)
        best, target = loss.min(-1)
        moved = best.argsort()[: int(loads[full] - quota[full])]
        moved = moved[best[moved].isfinite()]
        room, kept = (quota[short] - loads[short]).tolist(), []
        for place, j in enumerate(target[moved].tolist()):
            if room[j] > 0:
                room[j] -= 1
                kept.append(place)
        moved = moved[kept]
        to = short[target[moved]]
        chosen[token[moved], full], chosen[token[moved], to] = False, True
        loads += torch.bincount(to, minlength=len(loads))
        loads[full] -= len(kept)
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


def bip_steps(scores: Tensor, bias: Tensor, k: int, rounds: int = 4) -> Tensor:
    """Prices of tokens and of experts in turn, each the value above which too many would be taken, at least zero."""
    share = scores.shape[0] * k // scores.shape[1]
    price = -bias
    for _ in range(rounds):
        of_token = (scores - price).topk(k + 1, dim=-1).values[:, k].clamp(min=0.0)
        price = (scores - of_token[:, None]).topk(share + 1, dim=0).values[share].clamp(min=0.0)
    return -price


def sinkhorn_steps(scores: Tensor, rounds: int = 8) -> Tensor:
    """The logarithm of the column factors after some normalisations of exp(scores)."""
    bias = torch.zeros(scores.shape[1], dtype=scores.dtype)
    for _ in range(rounds):
        rows = torch.logsumexp(scores + bias, 1, keepdim=True)
        bias = -torch.logsumexp(scores - rows, 0)
    return bias - bias.mean()


@functools.cache
def even_loads(tokens: int, experts: int, k: int) -> linsat.Constraints:
    """k experts for every token, the same load for every expert; its first rows are those of the experts."""
    X = linsat.Variable(tokens, experts, name="X")
    return linsat.subject_to(X.sum(0) == tokens * k / experts, X.sum(1) == k)


class Duals:
    """The duals of the even loads, each solve started from those of the last."""

    def __init__(self, tokens: int, experts: int, k: int, tau: float) -> None:
        self.every = 1
        while tokens // self.every * experts > MOST_VARIABLES or tokens // self.every > MOST_TOKENS:
            self.every *= 2
        self.set = even_loads(tokens // self.every, experts, k)
        self.experts, self.k, self.tau, self.start = experts, k, tau, None

    def __call__(self, scores: Tensor, bias: Tensor) -> Tensor:
        part, begin = scores[:: self.every].double(), None
        if self.start is not None:
            best = (part + self.start).topk(self.k + 1, dim=-1).values
            begin = torch.cat([self.start, -best[:, self.k - 1 : self.k + 1].mean(-1)])
        objective = linsat.Entropy(self.tau, slack="none")
        solution = linsat.solve(part, self.set, objective=objective, start=begin, on_failure="raise")
        self.start = solution.duals[: self.experts]
        if self.every > 1:
            return quantile_step(scores, self.start.to(scores.dtype), self.k)
        return self.start - self.start.mean()


class Ahead:
    """What comes next by the history of a bias: the last change times the slope of changes on those before them.

    A change beyond five times the median one is cut there: a burst is over when its bias comes into force. With
    ``foretell=False`` changes are cut and nothing is added.
    """

    def __init__(self, foretell: bool = True) -> None:
        self.foretell = foretell
        self.last: Tensor | None = None
        self.change: Tensor | None = None
        self.products = self.squares = 0.0

    def __call__(self, bias: Tensor) -> Tensor:
        if self.last is None:
            self.last = bias
            return bias
        change = bias - self.last
        most = 5 * change.abs().median()
        change = change.clamp(-most, most)
        bias = self.last + change
        if self.change is not None:
            self.products += float((change * self.change).sum())
            self.squares += float(self.change.square().sum())
        self.last, self.change = bias, change
        slope = min(max(self.products / self.squares, 0.0), 1.0) if self.squares and self.foretell else 0.0
        return bias + slope * change


LOOKS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "as they are": lambda: lambda bias: bias,
    "changes cut": lambda: Ahead(foretell=False),
    "changes cut, moved ahead": Ahead,
}


def choose(size: tuple[int, int, int], steps: int) -> dict[str, dict[str, list[float]]]:
    """MaxVio of each next batch of every temperature and look, on streams that serve for nothing else."""
    torch.set_num_threads(1)
    tokens, experts, k = size
    found: dict[str, dict[str, list[float]]] = {}
    for i, kind in enumerate(STREAMS):
        duals = {tau: Duals(*size, tau) for tau in TAUS}
        looks = {(tau, name): make() for tau in TAUS for name, make in LOOKS.items()}
        quantile, solved, biases = torch.zeros(experts).double(), dict.fromkeys(TAUS, torch.zeros(experts)), {}
        for step, scores in enumerate(stream(kind, tokens, experts, steps, CHOOSING_SEED + i)):
            if step > 1:
                for name, bias in {"Quantile Balancing": quantile, **biases}.items():
                    vio = max_vio(top(scores + bias, k))
                    found.setdefault(name, {}).setdefault(kind, []).append(vio)
            quantile = quantile_step(scores, quantile, k)
            solved = {tau: duals[tau](scores, solved[tau]) for tau in TAUS}
            biases = {f"{tau:g}, {name}": look(solved[tau]) for (tau, name), look in looks.items()}
    return found


def ratio(rules: dict[str, dict[str, list[float]]], name: str) -> float:
    """MaxVio of a rule over that of Quantile Balancing, the geometric mean over the streams."""
    theirs = rules["Quantile Balancing"]
    return math.exp(mean(math.log(mean(vio) / mean(theirs[kind])) for kind, vio in rules[name].items()))


def worse_on(rules: dict[str, dict[str, list[float]]], name: str) -> int:
    """On how many streams a rule is worse than Quantile Balancing, by an interval without zero."""
    theirs = rules["Quantile Balancing"]
    differences = [paired(vio, theirs[kind]) for kind, vio in rules[name].items()]
    return sum(middle > half for middle, half in differences)


def chosen(rules: dict[str, dict[str, list[float]]]) -> tuple[float, str]:
    """Temperature and look that are worse on the fewest streams, and of those the least ratio."""
    names = [name for name in rules if name != "Quantile Balancing"]
    tau, look = min(names, key=lambda name: (worse_on(rules, name), ratio(rules, name))).split(", ", 1)
    return float(tau), look


def compare(size: tuple[int, int, int], kind: str, steps: int, rule: tuple[float, str]) -> dict[str, dict[str, Any]]:
    """MaxVio of each next batch, inside the batch, and seconds a step, of everybody on one stream."""
    torch.set_num_threads(1)
    tokens, experts, k = size
    tau, look = rule
    even = tokens * k / experts

    def sign(scores: Tensor, bias: Tensor) -> Tensor:
        return bias + 0.01 * torch.sign(even - top(scores + bias, k).sum(0))

    duals = Duals(*size, tau)
    steppers: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "Quantile Balancing": lambda s, b: quantile_step(s, b, k),
        "sign rule": sign,
        "BIP": lambda s, b: bip_steps(s, b, k),
        "Sinkhorn": lambda s, b: sinkhorn_steps(s),
        "duals": duals,
    }
    if tokens * experts <= HARD_VARIABLES:
        steppers["hard duals"] = Duals(*size, HARD)
    looks = {"linsat": ("duals", LOOKS[look]()), "Quantile, the same look": ("Quantile Balancing", LOOKS[look]())}
    biases: dict[str, Tensor] = {}
    result: dict[str, Any] = {name: {"next": [], "inside": [], "seconds": []} for name in [*steppers, *looks]}
    result["linsat"] |= {"decision": [], "lost": [], "every": duals.every}
    for step, scores in enumerate(stream(kind, tokens, experts, steps, STREAMS.index(kind))):
        if step > 1:  # the first batch has no bias, the second no history
            for name, bias in biases.items():
                result[name]["next"].append(max_vio(top(scores + bias, k)))
        for name, stepper in steppers.items():
            bias = biases.get(name, torch.zeros(experts, dtype=scores.dtype))
            before, begin = _peak(), time.perf_counter()
            biases[name] = stepper(scores, bias).to(scores.dtype)
            result[name]["seconds"].append(time.perf_counter() - begin)
            result[name]["memory"] = max(result[name].get("memory", 0.0), _peak() - before)
        for name, (of, see) in looks.items():
            biases[name] = see(biases[of])
        result["Quantile Balancing"]["inside"].append(max_vio(top(scores + biases["Quantile Balancing"], k)))
        begin = time.perf_counter()
        decided = equal_loads(scores + biases["duals"], k)
        result["linsat"]["decision"].append(time.perf_counter() - begin)
        result["linsat"]["inside"].append(max_vio(decided))
        best = scores.topk(k, dim=-1).values.double().sum()
        result["linsat"]["lost"].append(float((best - scores[decided].double().sum()) / (tokens * k)))
        assert (decided.sum(1) == k).all()
    return result


def _peak() -> float:
    """The most memory this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def units(quick: bool) -> dict[str, Callable[[], Any]]:
    def all_streams(size: tuple[int, int, int], steps: int, kinds: tuple[str, ...]) -> dict[str, Any]:
        rule = chosen(records.load(records.file(quick))["experts/choose"]["result"])
        return {kind: compare(size, kind, steps, rule) for kind in kinds}

    sizes = {(256, 16, 2): (4, STREAMS)} if quick else SIZES
    made: dict[str, Callable[[], Any]] = {"experts/choose": functools.partial(choose, *CHOOSING[quick])}
    return made | {
        f"experts/{'x'.join(map(str, size))}": functools.partial(all_streams, size, *how) for size, how in sizes.items()
    }


# ------------------------------------------------------------------ on the page


def section(results: dict[str, Any]) -> list[str]:
    made = {size: results[unit] for size in SIZES if (unit := f"experts/{'x'.join(map(str, size))}") in results}
    rule = results.get("experts/choose")
    head = (
        "stream",
        "sign rule",
        "BIP",
        "Sinkhorn",
        "Quantile",
        "linsat",
        "linsat less Quantile",
        "duals as they are",
        "hard duals",
        "Quantile, the same look",
        "linsat, inside (worst)",
    )
    rows, differences = [], []
    for size, kinds in made.items():
        for kind, rules in kinds.items():
            theirs = rules["Quantile Balancing"]["next"]
            less = {name: paired(r["next"], theirs) for name, r in rules.items()}
            words = {name: f"{middle:+.3f} ± {half:.3f}" for name, (middle, half) in less.items()}
            others = [rules[name]["next"] for name in ("sign rule", "BIP", "Sinkhorn", "Quantile Balancing", "linsat")]
            shown = [words.get(name, "") for name in ("linsat", "duals", "hard duals", "Quantile, the same look")]
            inside = f"{max(rules['linsat']['inside']):.3f}"
            rows.append((f"{_label(size)}, {kind}", *[f"{mean(vio):.3f}" for vio in others], *shown, inside))
            differences.append(less["linsat"])
    return [
        f"""
## {HEADING}

MaxVio is the largest load over the mean load, less one. All columns but the last are of the *next* batch, routed by the
bias of the one before, each token by itself; the last is of the batch that made it, where linsat decides by
`equal_loads`, k experts for every token and nobody dropped. Generated scores; differences are paired, less Quantile
Balancing, with their 95 % intervals over the steps of a stream. *Hard duals*: at a temperature of {HARD:g}, where they
are nearly those of the assignment.
""",
        _choice(rule) if rule else "",
        table(head, rows) if rows else "",
        _bars(results, made, differences) if rows else "",
        _steps(made) if rows else "",
        """
![Loads of a drifting router](assets/arena/experts.png)

`python examples/flagships/experts.py` draws the picture.

**What this shows.** What duals are worth one batch late, and that a temperature smooths them; that what is left is
drift, which their history foretells where it persists, and that inside the batch equal loads cost no token. *Lost*: of
the scores, a choice.

**What it does not show.** A model: scores are generated and do not answer to the routing. That history is a matter of
exact duals: Quantile Balancing gains by it as well. Quantile Balancing, the sign rule and BIP are restated by us. The
sign rule moves by 0.01 a step and starts from nothing: in so few steps it cannot arrive, and its column says no more
than that. Each kind of stream is one draw, and its steps are few and not independent, so that intervals are too narrow.
Where the solve has a part of the tokens, its duals only start a quantile step of them all. 65,536 tokens with 896
experts, 59 million scores, were not run. Memory is what the process needed more when a rule first ran, in this order.
""",
    ]


def _label(size: tuple[int, int, int]) -> str:
    return f"{size[0]:,} tokens, {size[2]} of {size[1]}"


def _choice(rules: dict[str, Any]) -> str:
    tau, look = chosen(rules)
    names = [name for name in rules if name != "Quantile Balancing"]
    tried = "; ".join(f"tau {name}: {worse_on(rules, name)}, {ratio(rules, name):.3f}" for name in names)
    return f"""
**The rule of linsat** is the same at every size and on every stream: duals at tau {tau:g}, {look}. It was chosen on
draws of the five kinds of stream that serve for nothing else: worse than Quantile Balancing on the fewest of them, by
an interval without zero, and of such rules with the least MaxVio relative to that, in the geometric mean.
Both figures of every rule that was tried: {tried}. *Changes cut*: those of the bias from batch to batch, at five times
their median. *Moved ahead*: by the last change times the slope of changes on those before them.
"""


def _bars(results: dict[str, Any], made: dict[Any, Any], differences: list[tuple[float, float]]) -> str:
    uneven = [
        max(rules["linsat"]["inside"]) - (math.ceil(size[0] * size[2] / size[1]) * size[1] / (size[0] * size[2]) - 1)
        for size, kinds in made.items()
        for rules in kinds.values()
    ]
    count = len(differences)
    worse, better = (sum(sign * middle > half for middle, half in differences) for sign in (1, -1))
    below = sum(middle < 0 for middle, _ in differences)
    found = [
        (
            "inside the batch MaxVio 0, or what loads that differ by one leave, and nothing dropped",
            f"{sum(over < 1e-9 for over in uneven)} of {count} streams, k experts for every token",
            max(uneven) < 1e-9,
        ),
        ("next batch: not worse than Quantile Balancing on any stream", f"worse on {worse} of {count}", worse == 0),
        (
            "next batch: better on most streams",
            f"mean below on {below} of {count}, by an interval without zero on {better}",
            2 * better > count,
        ),
    ]
    ours, theirs = results.get("routing/linsat"), results.get("routing/Quantile Balancing")
    if ours and theirs:
        layer, decision = (ours["forward"] + ours["backward"]) / ours["step"], ours["decision"] / ours["step"]
        words = f"layer, a sample of tokens in it, {100 * layer:.1f} %, decision {100 * decision:.1f} %"
        words += f"; quantile step and its decision {100 * theirs['forward'] / theirs['step']:.1f} %"
        if whole := results.get("routing/linsat, all tokens"):
            words += f"; layer, all tokens in it, {100 * (whole['forward'] + whole['backward']) / whole['step']:.1f} %"
        asked = "layer at most 10 % of a training step (the language model below)"
        found.append((asked, words, layer <= 0.1))
    return bars(found)


def _steps(made: dict[Any, Any]) -> str:
    rows = []
    for size, kinds in made.items():
        each = list(kinds.values())
        figures = [
            interval([1e3 * s for rules in each for s in rules[name][what][1:]], 0)
            for name, what in (
                ("Quantile Balancing", "seconds"),
                ("BIP", "seconds"),
                ("Sinkhorn", "seconds"),
                ("duals", "seconds"),
                ("linsat", "decision"),
            )
        ]
        memory = [f"{each[0][name]['memory']:.0f}" for name in ("Quantile Balancing", "duals")]
        inside = f"{mean(v for rules in each for v in rules['Quantile Balancing']['inside']):.3f}"
        lost = f"{mean(v for rules in each for v in rules['linsat']['lost']):.3f}"
        part = each[0]["linsat"]["every"]
        rows.append((_label(size), "all" if part == 1 else f"1 in {part}", *figures, *memory, inside, lost))
    head = (
        "ms a step, MB",
        "tokens in the solve",
        "Quantile",
        "BIP",
        "Sinkhorn",
        "duals",
        "exact decision",
        "MB, Quantile",
        "MB more, duals",
        "Quantile, inside",
        "lost by equal loads",
    )
    return table(head, rows)
