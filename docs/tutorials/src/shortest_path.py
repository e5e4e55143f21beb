# %% [markdown]
# # Shortest paths: learning to decide
#
# Travel times on a grid depend on features that we see; we must choose a path before we see the times. A network that
# predicts times well is not always one that leads to good paths. Trained through the decision, it is.
#
# You will see flow constraints, `linsat.fenchel_young_loss`, and `linsat.exact.regret`.

# %%
import torch
from matplotlib import pyplot as plt
from torch import nn

import linsat

torch.manual_seed(0)
size = 5

# %% [markdown]
# ## The rules: a unit of flow
#
# Streets lead right and down. One unit leaves the first crossing, arrives at the last, and is conserved in between.
# The vertices of this set are the paths.

# %%
crossings = [(i, j) for i in range(size) for j in range(size)]
streets = [(a, b) for a in crossings for b in ((a[0], a[1] + 1), (a[0] + 1, a[1])) if b in set(crossings)]
E = torch.zeros(size * size, len(streets), dtype=torch.float64)
for k, (a, b) in enumerate(streets):
    E[crossings.index(a), k], E[crossings.index(b), k] = 1, -1
f = torch.zeros(size * size, dtype=torch.float64)
f[0], f[-1] = 1, -1
paths = linsat.Constraints(E=E, f=f, names=[f"conserved at {c}" for c in crossings])
print(len(streets), "streets,", len(crossings), "crossings")

# %% [markdown]
# ## Data
#
# True times are a nonlinear function of five features; the model is linear, so it cannot predict them all. What it
# should get right is what matters for paths.

# %%
mixing = torch.bernoulli(torch.full((5, len(streets)), 0.5))


def data(count):
    features = torch.randn(count, 5)
    times = ((features @ mixing / 5**0.5 + 3) ** 6 / 3.5**6 + 0.1) * (0.75 + 0.5 * torch.rand(count, len(streets)))
    return features, times.double()


features, times = data(200)
new_features, new_times = data(500)
best = linsat.argmax(-times, paths)  # scores are gains: minus the times

# %% [markdown]
# ## Two ways to train the same model
#
# *Prediction*: least squares on the times. *Decision*: the Fenchel-Young loss between scores and the best path. It is
# convex in the scores, and one solve gives value and gradient.


# %%
def train(loss_of, steps=100):
    model = nn.Linear(5, len(streets)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model(features.double())).backward()
        optimizer.step()
    return model


models = {
    "prediction": train(lambda predicted: (predicted - times).square().mean()),
    "decision": train(lambda predicted: linsat.fenchel_young_loss(-(2 * predicted - times), best, paths, tau=0.5)),
}

# %% [markdown]
# The decision loss is taken at twice the prediction less the truth, as SPO+ does, because the times are known here,
# not only the paths. ([Learning from decisions](../losses.md) says more.)
#
# ## Regret
#
# How much longer than the best path is the chosen one, on days not seen before?

# %%
regrets = {}
for name, model in models.items():
    with torch.no_grad():
        predicted = model(new_features.double())
    regrets[name] = float(linsat.exact.regret(-predicted, -new_times, paths, reduction="relative"))
    error = (predicted - new_times).square().mean().sqrt().item()
    print(f"{name:10}: regret {regrets[name]:.1%}, error of the times {error:.2f}")

# %% [markdown]
# ## One day
#
# Left: the relaxed path at a temperature at which gradients flow. Right: the decision.

# %%
with torch.no_grad():
    y = -models["decision"](new_features[:1].double())[0]
flow, path = linsat.project(y, paths, tau=0.3), linsat.argmax(y, paths)
figure, panels = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
for axes, weight, title in zip(panels, (flow, path), ("relaxed, tau = 0.3", "decided")):
    for (a, b), w in zip(streets, weight.tolist()):
        axes.plot([a[1], b[1]], [-a[0], -b[0]], color="tab:blue", linewidth=0.5 + 5 * w, alpha=0.15 + 0.85 * w)
    axes.set(title=title, xticks=[], yticks=[], aspect="equal")
print("paths are whole:", bool(((path < 1e-9) | (path > 1 - 1e-9)).all()))
