"""Mixing matrices of hyper-connections: what n Sinkhorn iterations leave of the row sums, and what the limit costs."""

import sys
import time

import torch
from matplotlib import pyplot as plt  # pip install "linsat[demo]"

import linsat

torch.manual_seed(0)
torch.set_num_threads(1)
tokens, scales, counts = 2048, (1.0, 3.0, 10.0, 30.0), (1, 2, 5, 10, 20, 40)
mixing = linsat.LinSAT(linsat.constraints.doubly_stochastic(4), objective=linsat.KL(1.0))


def sinkhorn(logits: torch.Tensor, iterations: int) -> torch.Tensor:
    for _ in range(iterations):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits.exp()


def measure(project, logits: torch.Tensor) -> tuple[float, float]:
    """The worst row error, and microseconds a matrix forward and backward."""
    spent = []
    for _ in range(3):
        y = logits.clone().requires_grad_()
        begin = time.perf_counter()
        H = project(y)
        H.backward(weights)
        spent.append(time.perf_counter() - begin)
    return float((H.detach().double().sum(-1) - 1).abs().max()), 1e6 * min(spent) / tokens


weights = torch.randn(tokens, 4, 4)
iterated, exact = {}, {}
for scale in scales:
    logits = scale * torch.randn(tokens, 4, 4)
    iterated[scale] = [measure(lambda y, n=n: sinkhorn(y, n), logits) for n in counts]
    exact[scale] = measure(mixing, logits)
    (error, time_20), (ours, time_ours) = iterated[scale][counts.index(20)], exact[scale]
    print(
        f"logits N(0, {scale:g}^2): 20 iterations {error:.0e} in {time_20:.1f} us, linsat {ours:.0e} in {time_ours:.1f}"
    )

figure, axis = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
for scale, colour, above in zip(scales, ("tab:blue", "tab:green", "tab:orange", "tab:red"), (-3, -12, 4, -3)):
    errors, times = zip(*iterated[scale])
    axis.loglog(times, errors, "o-", color=colour, markersize=4, label=f"{', '.join(map(str, counts))} iterations")
    axis.loglog(exact[scale][1], max(exact[scale][0], 1e-8), "*", color=colour, markersize=13)
    axis.annotate(
        f"logits x {scale:g}", (times[-1], errors[-1]), xytext=(5, above), textcoords="offset points", color=colour
    )
axis.annotate("linsat.KL (stars)", (exact[1.0][1], exact[1.0][0]), xytext=(8, 10), textcoords="offset points")
axis.set(
    title=f"stars: the limit; circles: {', '.join(map(str, counts))} Sinkhorn iterations",
    xlabel="microseconds a matrix, forward and backward",
    ylabel="worst row error",
    xlim=(None, 3 * max(time for runs in iterated.values() for _, time in runs)),
)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "hyper_connections.png", dpi=90)
