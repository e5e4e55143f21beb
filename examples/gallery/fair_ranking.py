"""Rank ten items so that group b gets a share of the attention; what each share costs in relevance."""

import sys

import numpy as np
import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"
from scipy.optimize import linprog

import linsat

n, groups = 10, "aaaaabbbbb"
relevance = torch.tensor([0.95, 0.9, 0.85, 0.8, 0.7, 0.75, 0.6, 0.5, 0.45, 0.3], dtype=torch.float64)
exposure = 1 / torch.log2(2 + torch.arange(n, dtype=torch.float64))  # attention that each position gets, as in DCG
gain = torch.outer(relevance, exposure)  # what X[item, position] = 1 is worth
in_b = torch.tensor([label == "b" for label in groups], dtype=torch.float64)
share_of_b = torch.outer(in_b, exposure) / exposure.sum()

natural = linsat.project(gain, linsat.constraints.ranking(n), tau=2e-4)
print(f"without a quota b gets {(share_of_b * natural).sum():.1%} of the attention, DCG {(gain * natural).sum():.4f}")

shares = np.linspace(0.36, 0.56, 11)
reached, possible = [], []
for share in shares:
    cons = linsat.constraints.ranking(n, groups=groups, at_least={"b": float(share)})
    X = linsat.project(gain, cons, tau=2e-4)
    assert (share_of_b * X).sum() >= share - 1e-9
    reached.append(float((gain * X).sum()))
    rows, sides = cons.matrix.to_dense().numpy(), cons.rhs.numpy()  # the quota, then the equalities
    best = linprog(-gain.numpy().ravel(), A_ub=-rows[:1], b_ub=-sides[:1], A_eq=rows[1:], b_eq=sides[1:], bounds=(0, 1))
    possible.append(-best.fun)
worst = max(1 - a / b for a, b in zip(reached, possible))
print(f"at b >= {shares[-1]:.0%}: DCG {reached[-1]:.4f}; over all quotas at most {worst:.1e} below the linear program")

figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.7), layout="constrained")
for axis, shown, title in zip(axes, (natural, X), ("no quota", f"b gets at least {shares[-1]:.0%}")):
    axis.imshow(shown.numpy(), cmap="Blues", vmin=0, vmax=1)
    axis.set(title=title, xlabel="position", xticks=range(0, n, 3), yticks=range(n), yticklabels=groups)
    axis.axhline(4.5, color="grey", linewidth=1)
axes[2].plot(shares, possible, color="black", linewidth=1, label="linear program")
axes[2].plot(shares, reached, "o", color="tab:blue", markersize=4, label="layer")
axes[2].set(title="price of the quota", xlabel="attention for b", ylabel="DCG")
axes[2].legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "fair_ranking.png", dpi=90)
