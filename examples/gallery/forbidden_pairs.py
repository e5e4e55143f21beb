"""Assign ten people to twelve jobs that not everybody can do; and what is said when it cannot be done."""

import sys

import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"
from scipy.optimize import linear_sum_assignment

import linsat

torch.manual_seed(2)
people, jobs = 10, 12
skill = torch.rand(people, jobs)
able = torch.rand(people, jobs) < 0.5
able[:2] = False
able[:2, 3:5] = True  # workers 0 and 1 can only do jobs 3 and 4: nobody else can have these

X = linsat.Variable(people, jobs, name="X")
rows = ((X.sum(1) == 1).named("one job for worker"), (X.sum(0) <= 1).named("one worker for job"))
cons = linsat.subject_to(*rows).with_bounds(upper=able.double())  # upper bound 0: forbidden

x = linsat.project(skill, cons, tau=0.005)
print(f"forbidden entries: largest {x[~able].max():g}; jobs 3 and 4 for the others: largest {x[2:, 3:5].max():g}")
decided = linsat.decode.hungarian(x, cons)
worker, job = linear_sum_assignment(torch.where(able, skill, -1e3).numpy(), maximize=True)
reached, best = float((decided.x * skill).sum()), float(skill[worker, job].sum())
print(f"decided: feasible {bool(decided.feasible)}, total skill {reached:.4f}, the optimum {best:.4f}")

fewer = able.clone()
fewer[2] = fewer[0]  # now three workers share two jobs
conflict: tuple[str, ...] = ()
try:
    cons.with_bounds(upper=fewer.double()).check()
except linsat.InfeasibleError as error:
    conflict = error.rows
print("three workers for two jobs:", ", ".join(conflict))

figure, axes = plt.subplots(1, 3, figsize=(8.4, 3), layout="constrained")
axes[0].imshow(torch.where(able, skill, torch.nan).numpy(), cmap="Greens")
axes[0].set(
    title="skill (white: forbidden)",
    xlabel="job",
    ylabel="worker",
    xticks=range(0, jobs, 3),
    yticks=range(0, people, 3),
)
for axis, tau in zip(axes[1:], (0.2, 0.005)):
    shown = linsat.project(skill, cons, tau=tau)
    axis.imshow(shown.numpy(), cmap="Blues", vmin=0, vmax=1)
    axis.set(title=f"X at tau {tau}", xlabel="job", xticks=range(0, jobs, 3), yticks=range(0, people, 3))
axes[2].scatter(job, worker, s=14, color="tab:orange", label="optimum")
axes[2].legend(loc="lower left", fontsize=7)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "forbidden_pairs.png", dpi=90)
