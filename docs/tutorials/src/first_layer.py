# %% [markdown]
# # A first layer
#
# A small network learns to sort five numbers. It scores every item for every position; a layer turns the scores into
# a *relaxed permutation*, a matrix whose rows and columns sum to 1, and gradients flow through it.
#
# You will see how a constraint set is made, how the layer is used in a model, and how its output becomes a decision.

# %%
import torch
from matplotlib import pyplot as plt
from torch import nn

import linsat

torch.manual_seed(0)
n = 5

# %% [markdown]
# ## The rules
#
# `permutation(n)` is a ready-made set: n x n numbers in [0, 1], n rows that sum to 1 and n columns that sum to 1. It
# prints as you would write it.

# %%
rules = linsat.constraints.permutation(n)
print(rules)

# %% [markdown]
# ## From scores to a relaxed permutation
#
# `tau` is the temperature, in units of the scores. The rules hold at every `tau`; a small one gives nearly 0 or 1.

# %%
y = torch.randn(n, n)
figure, panels = plt.subplots(1, 4, figsize=(9, 2.4), layout="constrained")
panels[0].imshow(y.numpy(), cmap="Greys")
panels[0].set_title("scores")
for axes, tau in zip(panels[1:], (1.0, 0.3, 0.05)):
    x = linsat.project(y, rules, tau=tau)
    axes.imshow(x.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set_title(f"x, tau = {tau}")
    print(f"tau {tau}: worst violation {rules.violation(x).item():.0e}, largest entry {x.max().item():.3f}")

# %% [markdown]
# ## A model with the layer in it
#
# `linsat.LinSAT` is an `nn.Module` without parameters. The network sees one number at a time, so it cannot sort by
# itself; it only learns where a number of that size usually ends up. The layer settles who gets which position.

# %%
net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, n))
layer = linsat.LinSAT(rules, tau=0.1)
optimizer = torch.optim.Adam(net.parameters(), lr=0.02)

losses = []
for _ in range(150):
    values = torch.rand(64, n)
    target = nn.functional.one_hot(values.argsort(-1).argsort(-1), n)  # target[item, position]
    x = layer(net(values[..., None]))  # (64, n, n)
    loss = (x - target).square().sum((1, 2)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss at first {losses[0]:.2f}, at last {losses[-1]:.2f}")

# %% [markdown]
# ## Decide
#
# x is relaxed. `linsat.decode.hungarian` makes a permutation of it and says for each instance whether the rules hold.
# Without the layer, each item takes its favourite position, and several may take the same.

# %%
values = torch.rand(1000, n)
truth = values.argsort(-1).argsort(-1)
with torch.no_grad():
    scores = net(values[..., None])
    decided = linsat.decode.hungarian(layer(scores, tau=0.01), rules)
sorted_right = (decided.x.argmax(-1) == truth).all(-1).float().mean().item()
favourites = (scores.argmax(-1) == truth).all(-1).float().mean().item()
print(decided)
print(f"sorted correctly: {sorted_right:.0%} with the layer, {favourites:.0%} with each item's favourite position")

# %% [markdown]
# ## Next
#
# The [roster](roster.ipynb) states rules as formulas, with names.
