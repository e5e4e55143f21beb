"""Route 96 tokens to 6 experts that take 20 each, although the router prefers two of them."""

import sys

import numpy as np
import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"
from scipy.optimize import linear_sum_assignment

import linsat

torch.manual_seed(1)
tokens, experts, room = 96, 6, 20
popularity = torch.tensor([2.0, 1.2, 0.4, 0.0, -0.2, -0.5])
scores = (torch.randn(tokens, experts) + popularity).requires_grad_()  # what a router would say

cons = linsat.constraints.capacity_assignment(tokens, experts, capacity=room)
X = linsat.project(scores, cons, tau=0.3)  # X[token, expert]
(X * torch.randn(tokens, experts)).sum().backward()  # a loss on the routed outputs reaches every score

decided = linsat.decode.greedy_repair(linsat.project(scores, cons, tau=0.01), cons)  # small tau: decisions
favourite = torch.nn.functional.one_hot(scores.argmax(-1), experts)  # top-1 routing without the layer
dropped = int((favourite.sum(0) - room).clamp_min(0).sum())

seats = np.repeat(np.arange(experts), room)  # the best routing there is: one token per seat
places = linear_sum_assignment(scores.detach().numpy()[:, seats], maximize=True)
best = float(scores.detach()[places[0], seats[places[1]]].sum())
reached = float((decided.x * scores.detach()).sum())
print(f"top-1: loads {favourite.sum(0).tolist()}, {dropped} of {tokens} tokens beyond the {room} an expert takes")
print(f"layer: loads {[round(load, 1) for load in X.sum(0).tolist()]}, worst violation {cons.violation(X):.0e}")
print(f"decided: feasible {bool(decided.feasible)}, {reached / best:.1%} of the best possible score")
print(f"smallest gradient of a token's scores {scores.grad.abs().amax(-1).min():.1e}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.6), layout="constrained", width_ratios=(3, 2))
order = X.argmax(-1).argsort()
left.imshow(X.detach()[order].T.numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1)
left.set(title="X[token, expert]", xlabel="token, sorted", ylabel="expert")
place = np.arange(experts)
right.bar(place - 0.2, favourite.sum(0).numpy(), 0.4, color="tab:orange", label="top-1")
right.bar(place + 0.2, X.detach().sum(0).numpy(), 0.4, color="tab:blue", label="layer")
right.axhline(room, color="black", linewidth=1, linestyle="--", label="capacity")
right.set(title="tokens per expert", xlabel="expert")
right.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "expert_routing.png", dpi=90)
