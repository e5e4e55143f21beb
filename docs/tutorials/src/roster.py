# %% [markdown]
# # A roster
#
# Four nurses, seven days. Rules are written as formulas over a variable with labelled axes, a network's scores become
# a roster that keeps them, and where the rules cannot hold, a message says which ones.

# %%
import torch
from matplotlib import pyplot as plt

import linsat

torch.manual_seed(0)
nurses = ["Ann", "Bob", "Cleo", "Dora"]
days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]

# %% [markdown]
# ## State the rules
#
# An expression indexes, slices and sums like an array. `named` gives rows a name that every message will use.

# %%
works = linsat.Variable(nurses, days, name="works")  # works[nurse, day], each in [0, 1]
roster = linsat.subject_to(
    (works.sum(axis=0) == 2).named("staffed"),  # two nurses every day
    (works.sum(axis=1) <= 4).named("most days"),  # at most four days each
    (works[:, "Sat"] + works[:, "Sun"] <= 1).named("half a weekend"),
    (works["Ann", "Sun"] == 0).named("Ann is off on Sunday"),
).check()
print(roster)

# %% [markdown]
# ## Scores become a roster
#
# Scores say how much a nurse likes a day; in an application they come from a network. `Entropy(tau, slack="none")` is
# the right objective for limits: a row does nothing until it binds.

# %%
wishes = torch.randn(4, 7)
objective = linsat.Entropy(tau=0.05, slack="none")
x = linsat.project(wishes, roster, objective=objective)
decided = linsat.decode.greedy_repair(x, roster)

figure, panels = plt.subplots(1, 3, figsize=(9.5, 2.4), layout="constrained")
for axes, shown, title in zip(panels, (wishes, x, decided.x), ("wishes", "x", "decided")):
    axes.imshow(shown.numpy(), cmap="Greys" if title == "wishes" else "Blues")
    axes.set_title(title)
    axes.set_xticks(range(7), days, fontsize=7)
    axes.set_yticks(range(4), nurses, fontsize=7)
print("nurses a day:", decided.x.sum(0).tolist(), "days a nurse:", decided.x.sum(1).tolist())
print(decided)

# %% [markdown]
# How good is it? `linsat.argmax` solves the linear program exactly, so its value bounds that of every roster.

# %%
best = (linsat.argmax(wishes, roster) * wishes).sum().item()
reached = (decided.x * wishes).sum().item()
print(f"wishes met: {reached:.2f}, at most {best:.2f} is possible")

# %% [markdown]
# ## Numbers that change
#
# Right-hand sides and bounds may differ from week to week. Rows go by their name.

# %%
most = torch.tensor([[4.0, 4, 4, 4], [2, 4, 4, 4]])  # in the second week Ann can work two days
here = torch.ones(2, 4, 7)
here[1, 3, 2] = 0  # and Dora is away on Wednesday
weeks = roster.with_rhs({"most days": most}).with_bounds(upper=here)
x = linsat.project(torch.randn(2, 4, 7), weeks, objective=objective)
print(x.sum(2))

# %% [markdown]
# ## When it cannot work
#
# With three days each there are 12 turns, and 14 are needed. The error names the rows in conflict, no more than
# necessary, and says why.

# %%
short = roster.with_rhs({"most days": 3})
try:
    short.check()
except linsat.InfeasibleError as error:
    print(error)

# %% [markdown]
# Softened rows may be broken, at a price per unit in units of the scores. The answer is the best compromise, and
# `broken` says where it falls short.

# %%
relaxed = short.soften("staffed", price=5.0)
solution = linsat.solve(wishes, relaxed, objective=objective)
print(solution)
print(f"turns missing: {solution.broken.sum().item():.2f}")
