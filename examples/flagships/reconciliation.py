"""Sales of 20 products in 4 regions: sample paths of every level made to add up, none below zero, with a gradient."""

import sys

import numpy as np
import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"

import linsat
from linsat.interop.hierarchicalforecast import coherent, metric

rng = np.random.default_rng(2)
regions, products, paths = 4, 20, 200
own = np.arange(products) * regions // products
S = np.vstack([np.ones(products), np.arange(regions)[:, None] == own, np.eye(products)]).astype(float)
level = S @ rng.gamma(0.4, 2.0, products)
base = np.maximum(level + rng.normal(size=(paths, len(S))) * 1.2 * np.sqrt(S.sum(1)), 0)  # each series by itself

cons, objective = coherent(S), metric(S.sum(1))  # MinTrace with weights by structure ("wls_struct")
paths_tensor = torch.tensor(base, requires_grad=True)
x = linsat.project(paths_tensor, cons, objective=objective)
bottom_up = base[:, -products:] @ S.T
plain = base @ np.linalg.lstsq(S / np.sqrt(S.sum(1))[:, None], np.diag(1 / np.sqrt(S.sum(1))), rcond=None)[0].T
after = x.detach().numpy()
print(f"base forecasts miss their sums by up to {np.abs(base[:, :5] - base[:, 5:] @ S[:5].T).max():.1f}")
print(f"reconciled: {np.abs(after[:, :5] - after[:, 5:] @ S[:5].T).max():.0e}, least forecast {after.min():.1f}")
print(f"without non-negativity {(plain < -1e-9).mean():.0%} of the products would be negative")
x[:, 0].mean().backward()  # what the mean total owes to each base forecast
share = paths_tensor.grad.sum(0).numpy()

figure, axes = plt.subplots(1, 3, figsize=(9.6, 2.9), layout="constrained")
bins = np.linspace(0, max(base[:, 0].max(), bottom_up[:, 0].max()), 25)
for name, total in {"base": base, "bottom up": bottom_up, "reconciled": after}.items():
    axes[0].hist(total[:, 0], bins, histtype="step", linewidth=1.6, label=name)
axes[0].axvline(level[0], color="black", linewidth=1, label="truth")
axes[0].set(title="total sales", xlabel="sales", ylabel="paths of 200")
axes[0].legend(fontsize=8, loc="upper left")
axes[1].scatter(base[:, 5:].ravel(), after[:, 5:].ravel(), s=3, alpha=0.4, color="tab:green")
axes[1].axline((0, 0), slope=1, color="grey", linewidth=0.8)
axes[1].set(title="products", xlabel="base", ylabel="reconciled")
axes[2].bar(range(len(S)), share, color=["tab:red"] + ["tab:orange"] * regions + ["tab:green"] * products)
axes[2].set(title="gradient of the mean total", xlabel="series: total, regions, products")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "reconciliation.png", dpi=90)
