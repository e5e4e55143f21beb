"""Pack 30 items of unequal weight and volume for 15 pairs of limits at once, against the exact optimum of each."""

import sys

import numpy as np
import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"

import linsat

torch.manual_seed(0)
items, instances = 30, 15
weight, volume = torch.randint(1, 20, (2, items)).double()
value = 0.4 * (weight + volume) + 6 * torch.rand(items)  # heavy things are worth more: no easy choice
share = torch.linspace(0.15, 0.85, instances, dtype=torch.float64)
limits = torch.stack([share * weight.sum(), 0.8 * share * volume.sum()], -1).round()  # (instances, 2)

sack = linsat.Constraints(A=torch.stack([weight, volume]), b=limits, names=["weight", "volume"])
x = linsat.project(value.expand(instances, items), sack, tau=0.1)
print(f"{instances} instances in one call, worst violation {sack.violation(x).max():.0e}")


def packed(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """0/1: items in the order of x, each if it still fits."""
    chosen = torch.zeros(items, dtype=torch.float64)
    for item in x.argsort(descending=True).tolist():
        chosen[item] = 1.0
        if (torch.stack([weight, volume]) @ chosen > limit).any():
            chosen[item] = 0.0
    return chosen


chosen = torch.stack([packed(row, limit) for row, limit in zip(x, limits)])
by_value = torch.stack([packed(value / (weight + volume), limit) for limit in limits])  # the usual rule of thumb
table = np.zeros((int(weight.sum()) + 1, int(volume.sum()) + 1))  # best value for every pair of whole limits
for w, v, worth in zip(weight.int().tolist(), volume.int().tolist(), value.tolist()):
    table[w:, v:] = np.maximum(table[w:, v:], table[:-w, :-v] + worth)
best = table[tuple(limits.int().numpy().T)]
ours, rule = (chosen @ value).numpy() / best, (by_value @ value).numpy() / best
print(f"of the optimum: layer and packing {ours.mean():.2%} (worst {ours.min():.1%})")
print(f"value per size and packing {rule.mean():.2%} (worst {rule.min():.1%})")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.6), layout="constrained")
left.imshow(x.numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1)
left.set(title="x of every instance", xlabel="item", ylabel="instance: limits grow", yticks=range(0, instances, 4))
right.plot(share.numpy(), 100 * ours, "o-", markersize=3, label="layer and packing")
right.plot(share.numpy(), 100 * rule, "o-", markersize=3, color="tab:orange", label="value per size and packing")
right.axhline(100, color="black", linewidth=1)
right.set(title="value, % of the optimum", xlabel="limit / total")
right.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "knapsack.png", dpi=90)
