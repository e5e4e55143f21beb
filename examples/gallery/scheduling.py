"""Schedule eight jobs on five machines: every job once and in time, no hour with more machines than there are."""

import sys

import numpy as np
from matplotlib import pyplot as plt  # pip install "linsat[demo]"
from scipy.optimize import Bounds, LinearConstraint, milp

import linsat

hours, machines = 16, 5
length = np.array([4, 3, 5, 2, 6, 3, 4, 2])  # hours that each job takes
needs = np.array([2, 3, 1, 4, 2, 2, 3, 1])  # machines that it occupies meanwhile
weight = np.array([3, 5, 2, 6, 2, 4, 3, 1])  # what an hour of waiting costs
due = np.array([16, 16, 16, 9, 16, 16, 12, 16])  # hour at which it must be finished
jobs = len(length)

start = np.arange(hours)
allowed = start + length[:, None] <= due[:, None]  # (jobs, hours)
X = linsat.Variable(jobs, hours, name="X", upper=allowed)  # X[j, t] = 1: job j starts at hour t
busy = []
for hour in range(hours):
    running = (start <= hour) & (start > hour - length[:, None])  # starts that are still running then
    busy.append((X * (running * needs[:, None])).sum() <= machines)
cons = linsat.subject_to((X.sum(1) == 1).named("job starts once"), *[r.named(f"hour {h}") for h, r in enumerate(busy)])

cost = weight[:, None] * start  # (jobs, hours)
x = linsat.project(-cost / cost.max(), cons, tau=0.002)  # numpy in, numpy out
begin, load = np.zeros(jobs, dtype=int), np.zeros(hours)
for job in np.argsort(x @ start):  # by expected start, each as early as machines are free
    while (load[begin[job] : begin[job] + length[job]] + needs[job] > machines).any():
        begin[job] += 1
    load[begin[job] : begin[job] + length[job]] += needs[job]
decided = np.eye(hours)[begin]
rows, kind = cons.matrix.to_dense().numpy(), np.array(cons.senses)
low = np.where(kind == "==", cons.rhs, -np.inf)
limits = Bounds(0, allowed.ravel())
best = milp(cost.ravel(), constraints=LinearConstraint(rows, low, cons.rhs), integrality=1, bounds=limits)
print(f"worst violation: relaxed {cons.violation(x):.0e}, decided {cons.violation(decided):g}")
waiting = [float((plan * cost).sum()) for plan in (x, decided)]
print(f"cost of waiting: relaxed {waiting[0]:.1f}, decided {waiting[1]:.0f}, the best schedule {best.fun:.0f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.7), layout="constrained")
left.imshow(x, aspect="auto", cmap="Blues", vmin=0, vmax=1)
left.set(title="X[job, start] relaxed", xlabel="hour", ylabel="job")
base = np.zeros(hours)
for job in np.argsort(begin, kind="stable"):
    span = (start >= begin[job]) & (start < begin[job] + length[job])
    right.bar(start[span], needs[job], 1, bottom=base[span], align="edge", label=f"{job}")
    base += span * needs[job]
right.axhline(machines, color="black", linewidth=1, linestyle="--")
right.set(title="machines busy", xlabel="hour", ylim=(0, machines + 2))
right.legend(ncols=8, fontsize=7, title="job", title_fontsize=7, handlelength=0.8, columnspacing=0.8)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "scheduling.png", dpi=90)
