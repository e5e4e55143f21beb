"""A router that keeps its duals: the prices of the experts' capacities balance later tokens, one by one."""

import sys

import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"

import linsat

torch.manual_seed(3)
tokens, experts, batches, tau = 256, 8, 40, 0.2
fair = tokens // experts
popularity = torch.tensor([1.5, 1.0, 0.8, 0.2, 0.0, -0.3, -0.8, -1.2])  # a router that has come to like some experts
drift = torch.randn(experts) * 0.02  # and changes its mind slowly

cons = linsat.constraints.capacity_assignment(tokens, experts, capacity=fair)
objective = linsat.Entropy(tau, slack="none")
bias = torch.zeros(experts, dtype=torch.float64)  # one number per expert: all that outlives a batch
loads, biases = [], []
for batch in range(batches):
    scores = torch.randn(tokens, experts) + popularity + batch * drift
    # Causal: a token takes the best expert by score and bias, and the bias knows earlier batches only.
    top, causal = (torch.bincount((scores + b).argmax(-1), minlength=experts) for b in (0.0, bias))
    # The whole batch, with hard capacities; it starts from the bias, and from the token duals that go with it.
    token_duals = -tau * torch.logsumexp((scores + bias) / tau, -1)
    solution = linsat.solve(scores, cons, objective=objective, start=torch.cat([bias, token_duals]))
    projected = solution.x.sum(0)
    loads.append(torch.stack([top, causal, projected]).double() / fair)
    bias = bias.lerp(solution.duals[:experts], 0.3 if batch else 1.0)  # capacities are the first rows
    biases.append(bias)

largest = torch.stack(loads).amax(-1)  # (batches, 3)
late = largest[batches // 2 :].mean(0)
print(f"largest load, in fair shares: top-1 {late[0]:.2f}, causal with bias {late[1]:.2f}, layer {late[2]:.2f}")
print(f"bias after the last batch: {[round(b, 2) for b in bias.tolist()]}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.8), layout="constrained")
for column, name, colour in (
    (0, "top-1", "tab:orange"),
    (1, "causal, kept bias", "tab:green"),
    (2, "layer", "tab:blue"),
):
    left.plot(largest[:, column], color=colour, label=name)
left.set(title="largest load of an expert", xlabel="batch", ylabel="fair shares", ylim=(0, None))
left.legend()
right.plot(torch.stack(biases))
right.set(title="bias of each expert", xlabel="batch")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "router_bias.png", dpi=90)
