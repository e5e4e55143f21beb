"""A router of 2 experts a token with equal loads: exact inside the batch, by its duals one batch late."""

import sys

import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"

import linsat

torch.manual_seed(0)
tokens, experts, k, batches = 256, 16, 2, 30
even = tokens * k // experts
X = linsat.Variable(tokens, experts, name="X")
cons = linsat.subject_to((X.sum(0) == even).named("load"), (X.sum(1) == k).named("experts of a token"))
objective = linsat.Entropy(0.02, slack="none")


def top(scores: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, scores.topk(k).indices, True)


def equal_loads(scores: torch.Tensor) -> torch.Tensor:
    """The k best, then the cheapest move from the fullest expert to one with room, until all loads are equal."""
    chosen = top(scores)
    while (chosen.sum(0) != even).any():
        loads = chosen.sum(0)
        full, short = loads.argmax(), torch.nonzero(loads < even).squeeze(-1)
        loss = scores[:, full, None] - scores[:, short]
        loss[chosen[:, short] | ~chosen[:, full, None]] = torch.inf
        token, j = divmod(int(loss.argmin()), len(short))
        chosen[token, full], chosen[token, short[j]] = False, True
    return chosen


popularity, bias, loads = torch.randn(experts).double(), torch.zeros(experts).double(), []
for _ in range(batches):
    popularity = popularity + 0.1 * torch.randn(experts)
    scores = torch.randn(tokens, experts) + popularity
    late = top(scores + bias)  # causal: this bias has seen earlier batches only
    bias = linsat.solve(scores, cons, objective=objective).duals[:experts]  # loads are the first rows
    exact = equal_loads(scores + bias)
    loads.append(torch.stack([top(scores).sum(0), late.sum(0), exact.sum(0)]) / even)

loads = torch.stack(loads)  # (batches, 3, experts)
worst = loads.amax(-1)
best, kept = (float(scores[chosen].sum()) for chosen in (top(scores), exact))
print("largest load, even shares: top-k {:.2f}, by the last bias {:.2f}, exact {:.2f}".format(*worst[1:].mean(0)))
print(f"what the last batch gives up of its scores for equal loads: {1 - kept / best:.1%}; tokens dropped: 0")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.0), layout="constrained")
names = ("top-k", "bias of the last batch", "exact, inside the batch")
for i, (name, colour) in enumerate(zip(names, ("tab:orange", "tab:green", "tab:blue"))):
    left.plot(range(1, batches), worst[1:, i], color=colour, label=name)
    right.plot(loads[-1, i].sort(descending=True).values, "o-", color=colour, markersize=3)
left.set(title="largest load of an expert", xlabel="batch", ylabel="even shares", ylim=(0, 6.4))
left.legend(fontsize=8, loc="upper right")
right.set(title="loads in the last batch, sorted", xlabel="experts, fullest first", ylim=(0, None))
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "experts.png", dpi=90)
