# %% [markdown]
# # A router for a mixture of experts
#
# A router sends each token to one of several experts, and an expert has limited room. Top-1 routing sends too
# many to the popular ones and drops the rest. Here the capacities are rows of a layer: no expert gets more than it
# takes, and the loss reaches every score.

# %%
import torch
from matplotlib import pyplot as plt
from torch import nn

import linsat

torch.manual_seed(0)
tokens, experts, room, width = 64, 4, 20, 8

# %% [markdown]
# ## A task with four kinds of token
#
# Each kind needs another linear map, and the kinds differ in frequency. Four linear experts could learn one kind
# each, if they had room for it; with 20 places each and 26 tokens of the first kind on average, experts must share
# it.

# %%
centres = 3 * torch.randn(experts, width)
maps = torch.randn(experts, width, width) / width**0.5
frequency = torch.tensor([0.4, 0.3, 0.2, 0.1])


def batch(count):
    kind = torch.multinomial(frequency, count * tokens, replacement=True).reshape(count, tokens)
    x = centres[kind] + torch.randn(count, tokens, width)
    return x, torch.einsum("bti,btij->btj", x, maps[kind])


# %% [markdown]
# ## The layer
#
# `capacity_assignment` has one row per token (it goes to one expert) and one per expert (at most `room` tokens).

# %%
routing = linsat.constraints.capacity_assignment(tokens, experts, capacity=room)
layer = linsat.LinSAT(routing, tau=0.3)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.Parameter(torch.randn(experts, width, width) / width**0.5)

    def forward(self, x):
        share = layer(self.router(x))  # (batch, tokens, experts): rows sum to 1, columns to at most 20
        return torch.einsum("bte,bti,eij->btj", share, x, self.experts)


model = Mixture()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
losses = []
for _ in range(200):
    x, target = batch(8)
    loss = (model(x) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss at first {losses[0]:.2f}, at last {losses[-1]:.2f}")

# %% [markdown]
# ## Loads
#
# `linsat.argmax` is the best routing of a batch, the limit of the layer as `tau` goes to 0: every token has one
# expert, and no expert has too many. The same scores under top-1 routing:

# %%
with torch.no_grad():
    x, target = batch(32)
    scores = model.router(x)
    decided = linsat.argmax(scores, routing)
    top = nn.functional.one_hot(scores.argmax(-1), experts).double()
dropped = (top.sum(1) - room).clamp_min(0).sum().item()
print(f"largest load of an expert: {decided.sum(1).max():.0f}")
print(f"top-1 would drop {dropped / (32 * tokens):.0%} of the tokens; the layer drops none")

figure, axes = plt.subplots(figsize=(5, 2.4), layout="constrained")
place = torch.arange(experts).numpy()
axes.bar(place - 0.2, top.sum(1).mean(0).numpy(), 0.4, color="tab:orange", label="top-1")
axes.bar(place + 0.2, decided.sum(1).mean(0).numpy(), 0.4, color="tab:blue", label="layer")
axes.axhline(room, color="black", linestyle="--", linewidth=1, label="room")
axes.set(xlabel="expert", ylabel="tokens, mean of 32 batches", xticks=range(experts))
axes.legend(loc="upper left", fontsize=8)

# %% [markdown]
# ## Token by token
#
# A model that writes text cannot look at a whole batch. But the duals of the capacity rows are one number per expert,
# the price of a place there. Averaged over training batches and kept, they route each token alone: they correct the
# scores, and nothing else is needed. That balances the loads on average and guarantees nothing for a single batch.

# %%
with torch.no_grad():
    training, _ = batch(64)
    solution = linsat.solve(model.router(training), routing, tau=0.3)
    bias = solution.duals[:, :experts].mean(0)  # rows are in the order <=, >=, ==: the capacities come first
    alone = nn.functional.one_hot((scores + bias).argmax(-1), experts).double()
over = (alone.sum(1) - room).clamp_min(0).sum().item() / (32 * tokens)
print("prices of the experts:", [round(value, 2) for value in (-bias).tolist()])
print(f"beyond the room of an expert: {dropped / (32 * tokens):.0%} by top-1, {over:.0%} with the kept prices")
