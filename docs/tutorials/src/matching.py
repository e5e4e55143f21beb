# %% [markdown]
# # Matching points with outliers
#
# Two sets of points show the same shape, turned and moved a little, and each has points that the other lacks. Which
# belong together? A small network describes points; the layer makes a *partial* matching of the similarities: every
# point at most once, and at most a given number of pairs.

# %%
import math

import torch
from matplotlib import pyplot as plt
from torch import nn

import linsat

torch.manual_seed(0)
inliers, outliers = 8, 4
n = inliers + outliers

# %% [markdown]
# ## The rules
#
# `matching(n1, n2, at_most)` has a row `<= 1` for each point on either side, and one on the number of pairs.

# %%
rules = linsat.constraints.matching(n, n, at_most=inliers)
print(rules.num_variables, "variables,", len(rules.names), "rows")

# %% [markdown]
# ## Data
#
# The second set is the first, rotated by up to 10 degrees and blurred, in another order. Outliers are anywhere.


# %%
def pairs(count):
    first = torch.rand(count, n, 2) * 2 - 1
    angle = (torch.rand(count) * 2 - 1) * math.pi / 18
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).reshape(count, 2, 2)
    second = first @ turn + 0.03 * torch.randn(count, n, 2)
    second[:, inliers:] = torch.rand(count, outliers, 2) * 2 - 1  # no partner in the first set
    order = torch.rand(count, n).argsort(-1)
    truth = nn.functional.one_hot(order, n).mT.float()  # truth[i, j]: point i of the first is point j of the second
    truth[:, inliers:] = 0
    return first, second.gather(1, order[..., None].expand(-1, -1, 2)), truth


# %% [markdown]
# ## A network that describes points
#
# A point is described by where it is, and by the sorted distances to the others in its set, which turning does not
# change. Pairs are worth a margin, which is learned, less the distance of their descriptions: worth a negative
# amount, two points had better stay alone.


# %%
def described(points):
    return torch.cat([points, torch.cdist(points, points).sort(-1).values], -1)


encoder = nn.Sequential(nn.Linear(2 + n, 64), nn.ReLU(), nn.Linear(64, 32))
margin = nn.Parameter(torch.tensor(1.0))
layer = linsat.LinSAT(rules, tau=0.1)


def similarity(first, second):
    return margin - torch.cdist(encoder(described(first)), encoder(described(second)))


# %% [markdown]
# ## Training
#
# The target of a matched pair is 1, of every other 0. Points without a partner have a row of zeros, which a softmax
# could not say.

# %%
optimizer = torch.optim.Adam([*encoder.parameters(), margin], lr=0.005)
losses = []
for _ in range(150):
    first, second, truth = pairs(32)
    x = layer(similarity(first, second))
    loss = nn.functional.binary_cross_entropy(x.clamp(1e-6, 1 - 1e-6), truth) * n
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss at first {losses[0]:.2f}, at last {losses[-1]:.2f}")


# %% [markdown]
# ## How well does it find pairs?
#
# `linsat.argmax` decides: it is the best partial matching, with 0/1 entries, because all vertices of this set are. F1
# counts wrong and missing pairs alike. Beside it the best *full* matching, which must give every outlier a partner.


# %%
def f1(decided, truth):
    return (2 * (decided * truth).sum() / (decided.sum() + truth.sum())).item()


first, second, truth = pairs(300)
with torch.no_grad():
    scores = similarity(first, second)
    partial = linsat.argmax(scores, rules)
    full = linsat.argmax(scores, linsat.constraints.permutation(n))
score = {"partial": f1(partial, truth), "full": f1(full, truth)}
print(f"F1: {score['partial']:.2f} with at most {inliers} pairs, {score['full']:.2f} when all are matched")

# %% [markdown]
# One example: lines are pairs found, orange where wrong.

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
left, right, found = first[0], second[0] + torch.tensor([2.8, 0.0]), partial[0]
for i, j in found.nonzero().tolist():
    good = truth[0, i, j] > 0
    axes.plot(*torch.stack([left[i], right[j]]).T.numpy(), color="tab:green" if good else "tab:orange", linewidth=1)
axes.plot(*left.T.numpy(), "o", color="black", markersize=4)
axes.plot(*right.T.numpy(), "o", color="tab:blue", markersize=4)
axes.set(xticks=[], yticks=[], aspect="equal")

# %% [markdown]
# The number of pairs need not be known. It is a right-hand side, so it may differ for each instance, and be learned:

# %%
pairs_row = rules.names[-1]
counts = torch.tensor([2.0, 4.0, 6.0])
x = linsat.project(scores[:3], rules.with_rhs({pairs_row: counts}), tau=0.1)
print(pairs_row, "->", [round(value, 3) for value in x.sum((1, 2)).tolist()])
