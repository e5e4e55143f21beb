"""An estimate, not a measurement: how long a batch would take at best, from the compiled code and data sheets.

    python benchmarks/gpu_roofline.py       # reads docs/assets/gpu/codegen.json, prints a table

Operations and bytes of one Newton step are counted from the loops of the kernel, steps are those of the CPU kernel on
the same scores, and registers and shared memory, which say how many programs run at once, are those recorded. The time
is the largest of three bounds: arithmetic at the peak rate, bytes at the bandwidth of the memory as if no cache helped,
and the chain of steps that wait for each other within a program, at the guessed number of cycles below.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import linsat
from linsat.plan import plan_of
from linsat.triton.layout import Layout, layout_of

CODEGEN = Path(__file__).parent.parent / "docs" / "assets" / "gpu" / "codegen.json"
BATCH = 1024
# Guesses: cycles until a reduction over a program, or a value from the second-level cache, is there.
REDUCTION, CACHE = 200, 400


@dataclass(frozen=True)
class Device:
    """What the data sheet says: processors, clock, float64 operations and bytes a second, registers a processor has."""

    name: str
    processors: int
    gigahertz: float
    teraflops: float
    terabytes: float
    registers: int
    lanes: int  # threads of a warp
    most_warps: int


DEVICES = {
    "sm_80": Device("A100", 108, 1.41, 9.7, 1.555, 65536, 32, 64),
    "sm_90": Device("H100 SXM", 132, 1.83, 34.0, 3.35, 65536, 32, 64),
    "gfx942": Device("MI300X", 304, 2.1, 81.7, 5.3, 131072, 64, 32),
}


def programs_at_once(device: Device, code: dict[str, Any]) -> int:
    """Programs that registers and warps let run on one processor at a time."""
    by_registers = device.registers // (code["registers"] * code["warps"] * device.lanes)
    return max(1, min(by_registers, device.most_warps // code["warps"]))


def step_cost(layout: Layout) -> tuple[float, float, float]:
    """Operations, bytes and cycles of waiting of one Newton step with one trial point."""
    places, others, width = layout.places, layout.others, layout.block * layout.blocks
    lines, tiles = 1 + others, places / (layout.tile[0] * layout.tile[1])
    operations = (
        (4 + 5) * lines * places  # u and r; coupling, diagonal and drift
        + 2 * 60 * places  # exponentials and logarithms
        + 2 * width**2 * (places + layout.slots)  # A D A', and the elimination of leading rows
        + 4 * others * layout.block**2  # factor and inverse
    )
    coefficients = (1 + 1 + 2) * lines * places
    numbers = coefficients + 9 * places + 30 * layout.positions + 3 * layout.slots * width + 3 * width**2
    waits = 4 * others * REDUCTION + (2 * CACHE + 3 * REDUCTION) * 2 * tiles + 2 * CACHE * tiles + 20 * CACHE
    return operations, 8 * numbers, waits


def estimate(device: Device, code: dict[str, Any], layout: Layout, steps: float) -> dict[str, float]:
    """Milliseconds by each bound."""
    operations, size, waits = step_cost(layout)
    total = BATCH * steps
    rounds = -(-BATCH // (device.processors * programs_at_once(device, code)))
    return {
        "arithmetic": 1e3 * total * operations / (1e12 * device.teraflops),
        "memory": 1e3 * total * size / (1e12 * device.terabytes),
        "waiting": 1e3 * rounds * steps * waits / (1e9 * device.gigahertz),
    }


def main() -> None:
    cons = linsat.constraints.doubly_stochastic(20)
    plan = plan_of(cons, linsat.Entropy(0.1), linsat.Newton(), cons.num_variables, torch.device("cpu"))
    layout = layout_of(plan.form(plan.numbers).rows)
    assert isinstance(layout, Layout)
    y = torch.randn(BATCH, cons.num_variables, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = linsat.solve(y, cons, tau=0.1).steps.double()
    slowest, mean = float(steps.max()), float(steps.mean())
    print(f"doubly stochastic 20x20, tau 0.1, batch {BATCH}: {mean:.1f} Newton steps on average, {slowest:.0f} at most")
    print("| device | programs at once | arithmetic | memory | waiting | estimate, forward pass |")
    print("|---|---|---|---|---|---|")
    for code in json.loads(CODEGEN.read_text())["kernels"]:
        wanted = {"objective": "paper", "others": 32, "dtype": "fp64"}
        if wanted.items() <= code.items():
            device = DEVICES[code["target"]]
            found = estimate(device, code, layout, mean)
            at_once = device.processors * programs_at_once(device, code)
            parts = " | ".join(f"{value:.2f} ms" for value in found.values())
            print(f"| {device.name} | {at_once} | {parts} | {max(found.values()):.1f} ms |")


if __name__ == "__main__":
    main()
