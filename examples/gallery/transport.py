"""Ship goods from 4 plants to 6 towns at least cost, with road capacities and a cap on emissions."""

import sys

import numpy as np
from matplotlib import pyplot as plt  # pip install "linsat[demo]"
from scipy.optimize import linprog

import linsat

rng = np.random.default_rng(4)
plants, towns = rng.random((4, 2)), rng.random((6, 2))
supply, demand = np.array([40.0, 35, 40, 30]), np.array([20.0, 15, 15, 20, 10, 20])
distance = np.linalg.norm(plants[:, None] - towns, axis=-1)
dirty = np.array([1.0, 1.0, 4.0, 1.5])  # emissions per kilometre; plant 2 ships cheaply and dirtily
cost, emission = distance * [[1.0], [1.0], [0.4], [1.0]], distance * dirty[:, None]


def network(cap: float | None) -> linsat.Constraints:
    """No plant ships more than it has, all demand is met, no road carries more than 12."""
    X = linsat.Variable(4, 6, name="X", upper=12.0)
    rows = [(X.sum(1) <= supply).named("supply of plant"), (X.sum(0) == demand).named("demand of town")]
    if cap is not None:
        rows.append(((X * emission).sum() <= cap).named("emissions"))
    return linsat.subject_to(*rows)


free = linsat.project(-cost, network(None), tau=1e-3)
cap = 0.85 * float((free * emission).sum())
print(f"without a cap: cost {(free * cost).sum():.2f}, emissions {(free * emission).sum():.1f}")
capped_network = network(cap)
A, b = capped_network.matrix.to_dense().numpy(), capped_network.rhs.numpy()  # four plants, emissions, six towns
best = linprog(cost.ravel(), A[:5], b[:5], A[5:], b[5:], bounds=(0, 12)).fun
taus = np.logspace(0, -3, 7)
plans = [linsat.project(-cost, capped_network, tau=tau) for tau in taus]
gaps = [(plan * cost).sum() / best - 1 for plan in plans]
capped = plans[-1]
print(f"capped at {cap:.1f}: cost {(capped * cost).sum():.2f}, emissions {(capped * emission).sum():.1f}")
print(f"linear program {best:.2f}; worst violation at any tau {max(map(capped_network.violation, plans)):.0e}")

figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.7), layout="constrained")
for axis, plan, title in zip(axes, (free, capped), ("no cap", "emissions capped")):
    for (i, j), amount in np.ndenumerate(plan):
        color = "tab:red" if i == 2 else "tab:blue"
        axis.plot(*zip(plants[i], towns[j]), color=color, linewidth=amount / 3, alpha=0.7, solid_capstyle="round")
    axis.scatter(*plants.T, marker="s", s=45, color=["black", "black", "tab:red", "black"], zorder=3)
    axis.scatter(*towns.T, s=30, color="grey", zorder=3)
    axis.set(title=title, xticks=[], yticks=[])
axes[2].loglog(taus, np.maximum(gaps, 1e-12), "o-", markersize=4)
axes[2].set(title="cost above the optimum", xlabel="tau", ylabel="share")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "transport.png", dpi=90)
