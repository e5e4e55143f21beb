"""A market of 600 users and 40 items: budgets, parity between two groups of users, from a smooth plan to the best."""

import sys

import numpy as np
import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"

import linsat

rng = np.random.default_rng(3)
users, items, kinds = 600, 40, 4
group = rng.random(users) < 0.3  # the smaller of two groups, whose tastes differ
kind = np.arange(items) % kinds
popularity = -0.9 * np.log(np.arange(1, items + 1))  # falls as a power of the rank
traits = rng.normal(size=(items, 6)) + rng.normal(size=(kinds, 6))[kind]
tastes = rng.normal(size=(users, 6)) + np.outer(group, rng.normal(size=6))
scores = torch.tensor(1 / (1 + np.exp(-(tastes @ traits.T) / 6**0.5 - 0.3 * popularity)))

X = linsat.Variable(users, items, name="X")
share = torch.tensor(np.where(group, 1 / group.sum(), -1 / (~group).sum()))
market = [X.sum(1) == 1, X.sum(0) <= 1.5 * users / items]
apart = [(share[:, None] * X[:, kind == k]).sum() for k in range(kinds)]  # difference of the groups' shares, by kind
parity = [row for k in range(kinds) for row in (apart[k] <= 0.01, apart[k] >= -0.01)]
sets = {"free": market[:1], "budgets": market, "budgets and parity": market + parity}

plans = {}
for name, rows in sets.items():
    plans[name] = linsat.project(scores, linsat.subject_to(*rows), objective=linsat.KL(1e-3))
    by_kind = (share @ plans[name]).numpy()
    most = max(abs(by_kind[kind == k].sum()) for k in range(kinds))
    value, load = float((scores * plans[name]).sum()), float(plans[name].sum(0).max() * items / users)
    print(f"{name}: value {value:.1f}, largest load {load:.2f} even shares, groups {100 * most:.1f} points apart")

# The same rows at falling temperatures, each solve from the duals of the last, down to the linear program's value.
fair = linsat.subject_to(*sets["budgets and parity"])
best = float((scores * linsat.argmax(scores, fair)).sum())
temperatures, values, duals = np.logspace(-0.5, -5, 19), [], None
for tau in temperatures:
    solution = linsat.solve(scores, fair, objective=linsat.KL(tau), start=duals)
    duals = solution.duals
    values.append(float((scores * solution.x).sum()) / best)
print(f"at tau {temperatures[-1]:.0e} the value is {1 - values[-1]:.0e} below the linear program's, relative")

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.0), layout="constrained")
for (name, plan), colour in zip(plans.items(), ("tab:orange", "tab:green", "tab:blue")):
    left.plot(plan.sum(0).sort(descending=True).values * items / users, color=colour, label=name)
left.axhline(1.5, color="grey", linewidth=0.8)
left.set(title="loads of items", xlabel="items, fullest first", ylabel="even shares", ylim=(0, None))
left.legend(fontsize=8)
place = np.arange(kinds)
for i, (name, colour) in enumerate((("budgets", "tab:green"), ("budgets and parity", "tab:blue"))):
    for j, members in enumerate((group, ~group)):
        shown = plans[name][members].sum(0).numpy() / members.sum()
        heights = [shown[kind == k].sum() for k in range(kinds)]
        label = f"{name}, {('smaller', 'larger')[j]} group"
        middle.bar(place + 0.2 * (2 * i + j) - 0.3, heights, 0.18, color=colour, alpha=1 - 0.5 * j, label=label)
middle.set(title="share of each kind", xlabel="kind of item", xticks=place, ylim=(0, 0.75))
middle.legend(fontsize=7, loc="upper right")
right.loglog(temperatures, np.maximum(1 - np.array(values), 1e-12), "o-", color="tab:blue", markersize=3)
right.set(title="below the best value, relative", xlabel="temperature")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "matching.png", dpi=90)
