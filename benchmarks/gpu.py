"""`make bench-gpu`: the Triton kernels beside torch operations on the GPU of this machine.

For every case the forward and the backward pass, the violation that the answer leaves and how far the two are apart.
Says so, and measures nothing, where there is no GPU. Results go to out/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import linsat
from linsat import constraints as families
from machine import commit, versions

DEVICE = "cuda"
OUTPUT = Path(__file__).parent.parent / "out" / "gpu.json"
# What an answer may be off at most; float32 scores are answered in float32.
BAR = {torch.float64: 1e-9, torch.float32: 1e-5}
OBJECTIVES = {
    "entropy": linsat.Entropy(0.1),
    "entropy, no slack": linsat.Entropy(0.1, slack="none"),
    "Euclidean": linsat.Euclidean(),
    "KL": linsat.KL(0.1),
}
CASES = {
    "doubly stochastic 20x20": lambda: families.doubly_stochastic(20),
    "matching 23x23": lambda: families.matching(23, 23, at_most=15),
    "portfolio 493": lambda: families.portfolio(493, range(20), 0.5),
    "simplex 1,000": lambda: families.simplex(1000),
    "4,096 tokens x 64 experts": lambda: families.capacity_assignment(4096, 64, [80] * 64),
}


@dataclass(frozen=True)
class Measured:
    """One case by one back end; milliseconds are medians."""

    case: str
    objective: str
    dtype: str
    batch: int
    backend: str
    forward_ms: float
    backward_ms: float
    violation: float
    apart: float  # largest difference of x and of the gradient from those of torch operations


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """Of ``repeats`` runs after three to warm up; the device is waited for each time."""
    times = []
    for number in range(repeats + 3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if number >= 3:
            times.append(1e3 * (time.perf_counter() - began))
    return sorted(times)[len(times) // 2]


def measure(case: str, objective: str, dtype: torch.dtype, batch: int, repeats: int) -> list[Measured]:
    """Both back ends on the same scores."""
    cons = CASES[case]()
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(batch, cons.num_variables, generator=generator).to(DEVICE, dtype).requires_grad_(True)
    weights = torch.randn(y.shape, generator=generator).to(DEVICE, dtype)
    answers: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    found = []
    for backend in ("arrays", "triton"):
        solver = linsat.Newton(backend=backend)

        def forward(solver: linsat.Newton = solver) -> torch.Tensor:
            return linsat.project(y, cons, objective=OBJECTIVES[objective], solver=solver)

        x = forward()
        gradient = torch.autograd.grad(x, y, weights, retain_graph=True)[0]
        answers[backend] = x.detach(), gradient
        apart = max(float((ours - theirs).abs().max()) for ours, theirs in zip(answers[backend], answers["arrays"]))
        backward_ms = median_ms(lambda x=x: torch.autograd.grad(x, y, weights, retain_graph=True), repeats)
        violation = float(cons.violation(x.detach().double().cpu()).max())
        forward_ms = median_ms(forward, repeats)
        dtype_name = str(dtype).removeprefix("torch.")
        found.append(
            Measured(case, objective, dtype_name, batch, backend, forward_ms, backward_ms, violation, apart)
        )  # fmt: skip
    return found


def show(first: Measured, second: Measured) -> str:
    ratio = (first.forward_ms + first.backward_ms) / (second.forward_ms + second.backward_ms)
    return (
        f"{second.case:26} {second.objective:18} {second.dtype:8} {second.batch:6} "
        f"{first.forward_ms:9.2f} {first.backward_ms:9.2f} {second.forward_ms:9.2f} {second.backward_ms:9.2f} "
        f"{ratio:7.1f} {second.violation:10.1e} {second.apart:9.1e}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here (torch.cuda.is_available() is false): nothing was measured.")
        return 0
    print(f"{torch.cuda.get_device_name()}, milliseconds: torch operations, then the Triton kernels, then the ratio")
    found: list[Measured] = []
    for case in CASES:
        batch = options.batch if "experts" not in case else max(1, options.batch // 256)
        for objective in OBJECTIVES:
            for dtype in (torch.float64, torch.float32):
                found += measure(case, objective, dtype, batch, options.repeats)
                print(show(*found[-2:]), flush=True)
    OUTPUT.parent.mkdir(exist_ok=True)
    result = {"gpu": torch.cuda.get_device_name(), "commit": commit(), "versions": versions()}
    OUTPUT.write_text(json.dumps(result | {"measured": [asdict(m) for m in found]}, indent=1) + "\n")
    wrong = [m for m in found if not m.violation <= BAR[getattr(torch, m.dtype)]]
    for m in wrong:
        print(f"{m.case}, {m.objective}, {m.dtype}, {m.backend}: violation {m.violation:.1e} is above the bar")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
