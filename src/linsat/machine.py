"""What this machine offers: versions, back ends, and whether they agree (``python -m linsat info``, ``check``)."""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from linsat._optional import torch_installed
from linsat.arrays import Newton
from linsat.constraints import doubly_stochastic, simplex
from linsat.errors import ConstraintError, LinSATWarning
from linsat.native.binding import load
from linsat.objectives import KL, Euclidean
from linsat.plan import plan_of
from linsat.projection import project

if TYPE_CHECKING:
    import torch

_PACKAGES = ("numpy", "scipy", "torch", "jax", "highspy", "cvxpy", "linsat-tools")


def describe() -> list[tuple[str, str]]:
    """Versions, as pairs of a name and a value."""
    return [("linsat", _version("linsat")), ("python", sys.version.split()[0]), *((n, _version(n)) for n in _PACKAGES)]


def describe_backends() -> list[tuple[str, str]]:
    """Each back end, and whether it can be used or the reason why not."""
    core = load()
    kernel = ("kernel", f"not available: {core}" if isinstance(core, str) else f"available ({core.instructions})")
    return [kernel, *(_torch_backends() if torch_installed() else []), ("xla", _within_jax())]


def _torch_backends() -> list[tuple[str, str]]:
    """The answer of each to a problem that all can take."""
    import torch

    from linsat.backends import every_backend
    from linsat.torch.call import tensors_of
    from linsat.triton.backend import unavailable

    objective, scores, rows = Euclidean(), torch.zeros((1, 2), dtype=torch.float64), simplex(2)
    plan = plan_of(rows, objective, Newton(), 2)
    assert plan.numbers is not None
    problem = plan.problem(tensors_of(plan, plan.numbers, scores.device), scores, objective, plan.decided())
    gpus = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    details = {"arrays": f" on {', '.join(['cpu', *gpus])}; {torch.get_num_threads()} threads"}
    answers = []
    for backend in every_backend():
        on_gpu = backend.name == "triton" and torch.cuda.is_available()  # the problem is on the CPU
        reason = unavailable(torch.device("cuda")) if on_gpu else backend.supports(problem)
        answers.append((backend.name, reason or f"available{details.get(backend.name, '')}"))
    return answers


def _within_jax() -> str:
    """Whether XLA runs the kernel, as a custom call."""
    try:
        from linsat.jax.core import unavailable
    except ImportError as error:
        return f"not available: {error}"
    reason = unavailable()
    return "available: JAX runs the kernel" if reason is None else f"not available, JAX runs lax operations: {reason}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def print_info() -> None:
    """Versions, and which back ends can be used here."""
    for name, value in describe():
        print(f"{name:12} {value}")
    print("back ends")
    for name, value in describe_backends():
        print(f"  {name:14} {value}")


def check_machine() -> bool:
    """Print versions, and of every back end that runs here whether it is right, and its time."""
    for name, value in describe():
        print(f"{name:12} {value}")
    fault = _numpy_fault()
    print(f"numpy: {fault or 'agrees with closed forms'}")
    return (not torch_installed() or _torch_backends_agree()) and fault is None


def _numpy_fault() -> str | None:
    """How arrays projected on the simplex differ from softmax and from the nearest point by sorting."""
    y = np.sin(np.arange(64.0)).reshape(8, 8) * 3
    weights = np.exp(y)
    ordered = -np.sort(-y, axis=-1)
    thresholds = (ordered.cumsum(axis=-1) - 1) / np.arange(1, 9)  # of the first 1, 2, ... entries
    nearest = np.maximum(y - thresholds.max(axis=-1, keepdims=True), 0)
    softmax = weights / weights.sum(axis=-1, keepdims=True)
    for objective, expected in ((KL(tau=1.0), softmax), (Euclidean(), nearest)):
        difference = np.abs(project(y, simplex(8), objective=objective) - expected).max()
        if not difference < 1e-9:
            return f"{objective} differs by {difference:.1e} from its closed form"
    return None


def _torch_backends_agree() -> bool:
    import torch

    from linsat.torch.self_check import fault_of

    agree = True
    for device in map(torch.device, ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]):
        for name in ("kernel", "triton", "interior_point", "arrays"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", LinSATWarning)
                    fault = fault_of(name, device)
            except ConstraintError as error:
                print(f"{device} {name}: {str(error).removesuffix(' Fix: leave backend out.')}")
                continue
            agree = agree and fault is None
            time = "" if fault else f", {1e3 * _seconds(name, device):.2f} ms for 256 matrices of 10 x 10, both ways"
            print(f"{device} {name}: {fault or 'agrees with torch operations'}{time}")
    return agree


def _seconds(backend: str, device: torch.device) -> float:
    """The best of a few projections of 256 doubly stochastic matrices with their gradient."""
    import torch

    cons, solver = doubly_stochastic(10), Newton(backend=backend)  # type: ignore[arg-type]
    y = torch.randn((256 if backend != "interior_point" else 2, 100), device=device, requires_grad=True)
    times = []
    for _ in range(4):
        start = perf_counter()
        project(y, cons, solver=solver).square().sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(perf_counter() - start)
    return min(times) * 256 / len(y)
