"""Calling the Triton kernels on a batch: tensors in, tensors out, nothing that makes the host wait."""

from __future__ import annotations

import functools
import importlib.util
import os
from dataclasses import dataclass, replace
from typing import Any

import torch

from linsat.arrays.newton import Newton
from linsat.arrays.problem import Problem, Tensor
from linsat.arrays.result import Claim
from linsat.objectives import KL
from linsat.triton.layout import KNOWN, KernelData, Layout, kernel_data, layout_of

_MOST_WORK = 1 << 29  # bytes of work arrays at a time
# Multiplications in float64 are half as fast as in float32 on these NVIDIA architectures, 1/32 or 1/64 on the others.
_FAST_DOUBLE = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
_COARSE_TOL = 1e-4  # error in float32 at which float64 takes over


@dataclass(frozen=True)
class TritonBackend:
    """Newton's method on a GPU: `Entropy`, `Euclidean` and `KL`, one Triton program per instance.

    Args:
        mixed: solve in float32 first and finish in float64 from there; the answer holds to the same tolerance. None:
            where scores are float32 or shorter and the device is slow in float64.

    For up to 256 rows after elimination of the largest group of disjoint ones. Memory: an instance needs O(variables +
    rows^2) numbers while it is solved. The kernels are compiled when first used, once for each class of sizes.
    """

    mixed: bool | None = None
    name = "triton"

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why the kernels cannot take the problem."""
        kind = type(problem.objective)
        if kind not in KNOWN:
            return f"the Triton kernels know {', '.join(k.__name__ for k in KNOWN)}, not {kind.__name__}"
        reason = unavailable(problem.rhs.device)
        if reason is not None:
            return reason
        layout = layout_of(problem.rows)
        return f"the set is too large for the Triton kernels: {layout}" if isinstance(layout, str) else None

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> Claim:
        """Solve every instance; ``start`` are duals (N, k) of an earlier solve."""
        with torch.no_grad():
            if not self._is_mixed(problem):
                return _solve(problem, options, start, torch.float64)
            coarse = self.coarse(problem, options, start)
            # What float32 has not brought near is no worse a start than none: the kernel takes the better one.
            claim = _solve(problem, options, _at_bounds(problem, coarse.mu), torch.float64)
            claim.steps.add_(coarse.steps)
            return claim

    def coarse(self, problem: Problem, options: Newton, start: Tensor | None) -> Claim:
        """Solve in float32 to what float32 can tell; proves nothing."""
        return _solve(problem, replace(options, tol=max(options.tol, _COARSE_TOL)), start, torch.float32)

    def _is_mixed(self, problem: Problem) -> bool:
        if self.mixed is not None:
            return self.mixed
        device = problem.scores.device
        if problem.scores.dtype is torch.float64 or device.type != "cuda" or torch.version.hip:
            return False
        return torch.cuda.get_device_capability(device) not in _FAST_DOUBLE


def _at_bounds(problem: Problem, mu: Tensor) -> Tensor:
    """Duals that float32 cannot tell from their bound, put there: a little off it, they would look free."""
    low, high = problem.dual_bounds()
    mu = torch.where(mu.float() <= low.float(), low, mu)
    return torch.where(mu.float() >= high.float(), high, mu)


def unavailable(device: torch.device) -> str | None:
    """None, or the reason why Triton cannot run on this device."""
    if not _installed():
        return "triton is not installed. Fix: pip install 'linsat[gpu]'"
    if device.type != "cuda" and not (device.type == "cpu" and interpreted()):
        return f"Triton runs on a GPU, not on {device.type}"
    return None


@functools.lru_cache(maxsize=1)
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels on the CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class _Launch:
    """One launch of a kernel, or several where the work arrays of all instances would be too large."""

    def __init__(self, problem: Problem, dtype: torch.dtype) -> None:
        layout = layout_of(problem.rows)
        assert isinstance(layout, Layout)
        self.problem, self.layout, self.dtype = problem, layout, dtype
        data = kernel_data(problem, layout)
        self.data = data if dtype is torch.float64 else data.to(dtype)
        tau = problem.objective.temperature
        self.tau = problem.rhs if tau is None else tau

    def run(self, kernel: Any, tensors: list[Tensor], numbers: list[int], switches: dict[str, Any]) -> None:
        """Run a kernel over all instances: ``tensors`` and ``numbers`` are what it takes besides the problem's."""
        layout, count, device = self.layout, self.problem.size, self.problem.scores.device
        at_once = max(1, min(count, _MOST_WORK // (self.dtype.itemsize * layout.work)))
        work = torch.empty((at_once, layout.work), dtype=self.dtype, device=device)
        data = self.data
        steps = [0 if t.shape[0] == 1 else t.stride(0) for t in (data.coefficients, data.rows, data.variables)]
        steps += [0 if self.tau.shape[0] == 1 else self.tau.stride(0), layout.work]
        sizes = [layout.variables, layout.rows, layout.slots, layout.members, layout.others, *numbers]
        scores = self.problem.scores
        if isinstance(self.problem.objective, KL):  # a prior is a score
            scores = self.problem.objective.linear(scores)
        given = [scores.contiguous(), data.coefficients, data.rows, data.variables, self.tau, *tensors]
        given = [tensor.resolve_neg() for tensor in given]  # memory knows nothing of a sign that torch has yet to apply
        for first in range(0, count, at_once):
            grid = (min(at_once, count - first),)
            kernel[grid](*given, work, first, *steps, *sizes, **switches, **constants_of(self.problem, layout, data))


def constants_of(problem: Problem, layout: Layout, data: KernelData) -> dict[str, Any]:
    """What a kernel is compiled for."""
    import triton.language as tl

    return {
        "OBJECTIVE": KNOWN[type(problem.objective)],
        "SLACKED": problem.objective.entropic_slack,
        "WEIGHTED": data.variables.shape[1] == 5,
        "POSITIONS": layout.positions,
        "TS": layout.tile[0],
        "TM": layout.tile[1],
        "BLOCK": layout.block,
        "BLOCKS": layout.blocks,
        "DTYPE": tl.float64 if data.rows.dtype is torch.float64 else tl.float32,
    } | compiler_options(layout.block * layout.blocks, layout.positions, nvidia=torch.version.hip is None)


def compiler_options(width: int, positions: int, *, nvidia: bool) -> dict[str, Any]:
    """How a kernel is compiled, by the other rows and all positions that it has room for.

    Threads and registers are such that none of the latter spills with up to 32 other rows.
    """
    options = {
        "enable_fp_fusion": True,  # multiply and add at once, whatever the default of a version of Triton
        "num_stages": 1,  # nothing may be read before what the pass before has written
    }
    if not nvidia:
        return options | {"num_warps": 4}  # of 64 threads
    # Without a limit ptxas spills to run more programs at once.
    return options | {"num_warps": 8 if width or positions > 1024 else 4, "maxnreg": 255}


def _solve(problem: Problem, options: Newton, start: Tensor | None, dtype: torch.dtype) -> Claim:
    from linsat.triton.forward import forward

    launch = _Launch(problem, dtype)
    layout = launch.layout
    claim = Claim.empty(problem, "newton")
    claim.mu = claim.mu.to(torch.float64)
    given = claim.mu if start is None else start.nan_to_num().expand(claim.mu.shape).contiguous()
    launch.run(
        forward,
        [
            *(_settings(options.tol, problem.scores.device), given, layout.variable_of, layout.row_of, layout.group_of),
            *(claim.x, claim.mu, claim.stops, claim.steps),
        ],
        [layout.groups, options.max_steps],
        {"HAS_START": start is not None, "COARSE": dtype is torch.float32},
    )
    return claim


@functools.lru_cache(maxsize=64)
def _settings(tol: float, device: torch.device) -> Tensor:
    """The tolerance where the kernel reads it; as an argument it would be rounded to float32."""
    return torch.tensor([tol], dtype=torch.float64, device=device)
