"""A safety filter in the loop: unicycles that must not enter a wall of discs, and a policy trained through it."""

import sys

import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"

import linsat

angles = torch.linspace(-0.5, 0.5, 4)
discs = 1.5 * torch.stack([angles.cos(), angles.sin()], -1).double()
radius, ahead, alpha, limit = 0.45, 0.15, 2.0, torch.tensor([1.0, 3.0]).double()  # limits of speed and turn
# C u >= d, one row a disc, both new in every state. A row may give way at a high price instead of failing.
cons = linsat.Constraints(C=torch.ones(4, 2), d=torch.zeros(4), lower=-limit, upper=limit).soften(price=1e3)


def barriers(state):
    """Rows of  dh/dt >= -alpha h  for  h = |point ahead of the axle - disc|^2 - radius^2."""
    cos, sin = state[:, 2].cos(), state[:, 2].sin()
    gap = state[:, None, :2] + ahead * torch.stack([cos, sin], -1)[:, None] - discs
    moves = torch.stack([cos, -ahead * sin, sin, ahead * cos], -1).view(-1, 2, 2)
    return 2 * gap @ moves, -alpha * (gap.square().sum(-1) - radius**2)


def controller(state):
    """Turn to the origin and drive, as if there were no wall."""
    turn = torch.atan2(-state[:, 1], -state[:, 0]) - state[:, 2]
    return torch.stack([state[:, :2].norm(dim=-1) * turn.cos(), 2 * torch.atan2(turn.sin(), turn.cos())], -1)


def rollout(state, policy=None, filtered=True, steps=40):
    places, least = [state[:, :2]], []
    for _ in range(steps):
        u = controller(state)
        if policy is not None:
            u = u + 2 * policy(torch.cat([state[:, :2], state[:, 2:].cos(), state[:, 2:].sin()], -1))
        C, d = barriers(state)
        u = linsat.project(u, cons, objective=linsat.Euclidean(), C=C, d=d) if filtered else u.clamp(-limit, limit)
        forward = torch.stack([state[:, 2].cos(), state[:, 2].sin()], -1)
        state = state + 0.2 * torch.cat([u[:, :1] * forward, u[:, 1:]], -1)
        places.append(state[:, :2])
        least.append((-barriers(state)[1].detach() / alpha).amin(-1))
    return torch.stack(places), torch.stack(least).amin(0)


def starts(count):
    angle, heading = torch.rand(2, count).double()
    return torch.stack([2.6 * (1.6 * angle - 0.8).cos(), 2.6 * (1.6 * angle - 0.8).sin(), 6.28 * heading], -1)


torch.manual_seed(0)
policy = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)).double()
policy[-1].weight.data *= 0.1
policy[-1].bias.data *= 0.1
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for _ in range(60):  # the gradient passes through every filter of the way
    loss = rollout(starts(32), policy)[0].norm(dim=-1).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()

fresh = starts(100)
with torch.no_grad():
    ways = {"no filter": rollout(fresh, filtered=False), "filtered": rollout(fresh)}
    ways["trained through it"] = rollout(fresh, policy)
figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.3), layout="constrained", sharex=True, sharey=True)
for axis, (name, (places, least)) in zip(axes, ways.items()):
    there = (places[-1].norm(dim=-1) < 0.3).double().mean()
    print(f"{name}: {there:.0%} arrive, {(least < -1e-3).double().mean():.0%} enter a disc")
    for disc in discs:
        axis.add_patch(plt.Circle(disc.tolist(), radius, color="lightgrey"))
    axis.plot(places[:, :25, 0], places[:, :25, 1], color="tab:blue", linewidth=0.7)
    axis.plot(*places[0, :25].T, ".", color="black", markersize=3, label="starts")
    axis.plot(0, 0, "o", color="tab:red", label="goal")
    axis.set_title(f"{name}: {there:.0%} arrive", fontsize=10)
    axis.set(aspect="equal", ylim=(-2, 2))
axes[0].legend(fontsize=8, loc="lower left")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "filters.png", dpi=72)
