"""Choose 3 of 14 features for a regression by gradient descent through a top-k layer, against all 364 choices."""

import itertools
import sys

import numpy as np
import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"

import linsat

torch.manual_seed(0)
n, k, samples = 14, 3, 400
truth = [2, 7, 11]
common = torch.randn(samples, 1)
data = torch.randn(samples, n) + 2 * common  # every feature correlates with every other
target = data[:, truth] @ torch.tensor([1.0, -0.8, 0.7]) + 0.5 * torch.randn(samples)

cons = linsat.constraints.top_k(n, k)
scores = torch.zeros(n, requires_grad=True)
weights = torch.zeros(n, requires_grad=True)
optimizer = torch.optim.Adam([scores, weights], lr=0.05)
history = []
for step in range(200):
    gates = linsat.project(scores, cons, tau=max(0.5 * 0.97**step, 0.02))  # sums to k at every step
    loss = (data @ (gates * weights) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(gates.detach().numpy())

chosen = sorted(linsat.decode.top_k(gates, k).x.nonzero().flatten().tolist())


def error(features: list[int]) -> float:
    """Mean squared error of least squares on these features alone."""
    columns, right = data[:, features].double().numpy(), target.double().numpy()
    return float(np.square(columns @ np.linalg.lstsq(columns, right)[0] - right).mean())


every = [error(list(choice)) for choice in itertools.combinations(range(n), k)]
correlated = sorted((data.T @ target).abs().topk(k).indices.tolist())
print(f"layer chose {chosen}, error {error(chosen):.3f}; best of all {len(every)} choices {min(every):.3f}")
print(f"most correlated {correlated}, error {error(correlated):.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.6), layout="constrained")
left.imshow(np.array(history).T, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
left.set(title="gates during training", xlabel="step", ylabel="feature", yticks=range(0, n, 3))
right.hist(every, bins=40, color="lightgrey")
right.axvline(error(correlated), color="tab:orange", label="most correlated")
right.axvline(error(chosen), color="tab:blue", label="layer")
right.set(title=f"error of all {len(every)} choices", xlabel="mean squared error", ylabel="choices")
right.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "top_k.png", dpi=90)
