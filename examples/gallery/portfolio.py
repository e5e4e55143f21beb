"""The best Sharpe ratio of 12 assets under an investor's rules, by gradient ascent through the layer."""

import sys

import numpy as np
import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"
from scipy.optimize import LinearConstraint, minimize

import linsat

rng = np.random.default_rng(3)
n, days = 12, 500
sector = np.repeat(["tech", "energy", "health", "bonds"], 3)
mean = np.repeat([9e-4, 6e-4, 5e-4, 2e-4], 3) + 2e-4 * rng.standard_normal(n)
market, own = 0.008 * rng.standard_normal((days, 1)), 0.01 * rng.standard_normal((days, n))
returns = mean + market * np.repeat([1.4, 1.0, 0.7, 0.1], 3) + own * np.repeat([1.5, 1.2, 0.8, 0.2], 3)

w = linsat.Variable(n, name="w", upper=0.25)  # no asset above a quarter
cons = linsat.subject_to(
    (w.sum() == 1).named("fully invested"),
    (w[sector == "bonds"].sum() <= 0.3).named("at most 30% bonds"),
    (w[sector == "tech"].sum() >= 0.25).named("at least 25% tech"),
    (w[sector == "energy"].sum() <= w[sector == "health"].sum()).named("no more energy than health"),
)


def sharpe(weights: np.ndarray) -> float:
    """Yearly, without a riskless rate."""
    return float(np.sqrt(252) * (returns @ weights).mean() / (returns @ weights).std(ddof=1))


scores = torch.zeros(n, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.Adam([scores], lr=0.03)
data, history = torch.tensor(returns), []
for _ in range(400):
    weights = linsat.project(scores, cons, tau=0.1)  # keeps every rule at every step
    history.append(weights.detach().numpy())
    optimizer.zero_grad()
    (-(data @ weights).mean() / (data @ weights).std()).backward()
    optimizer.step()

A, b = cons.matrix.to_dense().numpy(), cons.rhs.numpy()  # two rows <=, one >=, one ==
rules = [LinearConstraint(A[:3], [-np.inf, -np.inf, b[2]], [b[0], b[1], np.inf]), LinearConstraint(A[3:], b[3:], b[3:])]
options = {"bounds": [(0, 0.25)] * n, "constraints": rules, "tol": 1e-12}
best = sharpe(minimize(lambda weights: -sharpe(weights), history[0], method="SLSQP", **options).x)
print(f"Sharpe ratio: start {sharpe(history[0]):.3f}, learned {sharpe(history[-1]):.3f}, best by SLSQP {best:.3f}")
print(f"worst violation over all {len(history)} steps {max(map(cons.violation, history)):.0e}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.7), layout="constrained")
left.stackplot(range(400), np.array(history).T, colors=plt.colormaps["tab20c"](np.arange(n) + np.arange(n) // 3))
left.set(title="weights during training", xlabel="step", xlim=(0, 399), ylim=(0, 1))
for name, top in zip(sector[::3], history[-1].reshape(4, 3).sum(-1).cumsum()):
    left.text(395, top - 0.05, name, ha="right", va="top", fontsize=8)
right.plot([sharpe(weights) for weights in history], label="layer")
right.axhline(best, color="black", linewidth=1, linestyle="--", label="best under the rules")
right.set(title="Sharpe ratio", xlabel="step")
right.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "portfolio.png", dpi=90)
