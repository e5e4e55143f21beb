"""Find a path through ten cities with given ends and an early visit, by gradient descent through the layer."""

import itertools
import sys

import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"

import linsat

torch.manual_seed(4)
n, start, end, priority, within, restarts = 10, 0, 9, 6, 3, 48
cities = torch.rand(n, 2)
distance = torch.cdist(cities, cities)
cons = linsat.constraints.tour(n, start, end, priority=priority, within=within)  # X[city, step]

scores = (0.1 * torch.randn(restarts, n, n)).requires_grad_()  # 48 attempts, one batch
optimizer = torch.optim.Adam([scores], lr=0.05)
stages = []
for step in range(150):
    tau = max(0.5 * 0.97**step, 0.02)
    X = linsat.project(scores, cons, tau=tau)
    if step in (0, 40):
        stages.append((f"step {step}, tau {tau:.2g}", X.detach()))
    steps = torch.einsum("bis,bjs,ij->bs", X[..., :-1], X[..., 1:], distance)  # expected length of each step
    loss = steps.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

decided = linsat.decode.hungarian(X, cons)
order = decided.x.argmax(-2)  # (restarts, steps): the city of every step
lengths = distance[order[:, :-1], order[:, 1:]].sum(-1)
winner = int(lengths.argmin())

inner = [city for city in range(n) if city not in (start, end)]
every = torch.tensor([(start, *rest, end) for rest in itertools.permutations(inner)])
early = every[(every[:, : within + 1] == priority).any(-1)]
best = distance[early[:, :-1], early[:, 1:]].sum(-1)
print(f"feasible {int(decided.feasible.sum())} of {restarts}; shortest {lengths[winner]:.4f}")
print(f"shortest of all {len(early)} paths that keep the rules {best.min():.4f}; median attempt {lengths.median():.4f}")

figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.9), layout="constrained")
stages.append((f"decided, length {lengths[winner]:.3f}", decided.x))
for axis, (title, stage) in zip(axes, stages):
    legs = stage[winner, :, :-1] @ stage[winner, :, 1:].T  # how much of the path goes from i to j
    for i, j in itertools.product(range(n), range(n)):
        axis.plot(*cities[[i, j]].T.numpy(), color="tab:blue", alpha=min(1.0, float(legs[i, j])), linewidth=2)
    axis.scatter(*cities.T.numpy(), s=20, color="black", zorder=3)
    for city, name in ((start, "start"), (end, "end"), (priority, "early")):
        axis.annotate(name, cities[city].tolist(), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axis.margins(0.15)
    axis.set(title=title, xticks=[], yticks=[], aspect="equal")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "tours.png", dpi=90)
