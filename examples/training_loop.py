"""A plain training loop: a network learns to choose items within a budget, and never leaves it.

python examples/training_loop.py
"""

from __future__ import annotations

import torch
from torch import nn

import linsat


def main(steps: int = 150) -> tuple[float, float, float]:
    """Train; returns the share of the best value reached before and after, and the worst excess over the budget."""
    torch.manual_seed(0)
    items, budget = 12, 10.0
    costs = torch.rand(items) * 4 + 1
    net = nn.Sequential(nn.Linear(items, 64), nn.ReLU(), nn.Linear(64, items))  # noisy values -> a score per item
    layer = linsat.LinSAT(linsat.constraints.budget(costs, at_most=budget), tau=0.1)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def measure() -> tuple[float, float]:
        """Value of the choice against the best fractional one (greedy by value per cost), and the worst excess."""
        values = torch.rand(200, items, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            x = layer(net(values))
        order = (values / costs).argsort(-1, descending=True)
        before = costs[order].cumsum(-1) - costs[order]
        best = ((budget - before) / costs[order]).clamp(0, 1)
        reached = (values * x).sum(-1) / (values.gather(-1, order) * best).sum(-1)
        return float(reached.mean()), float((x @ costs - budget).max())

    start, _ = measure()
    for step in range(steps):
        values = torch.rand(64, items)
        loss = -(values * layer(net(values))).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4}  value chosen {-loss.item():.3f}")
    end, excess = measure()
    print(f"share of the best value: {start:.1%} before, {end:.1%} after; worst excess over the budget {excess:.1e}")
    return start, end, excess


if __name__ == "__main__":
    main()
