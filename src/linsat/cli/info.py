"""``linsat info``: versions, threads, and which back ends can be used here."""

from __future__ import annotations

import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter

import torch

from linsat.backends.run import every_backend
from linsat.backends.triton.backend import unavailable
from linsat.cli.console import one_line_errors, say
from linsat.constraints import doubly_stochastic, simplex
from linsat.errors import ConstraintError, LinSATWarning
from linsat.native.binding import load
from linsat.objectives import Euclidean
from linsat.plan import plan_of
from linsat.projection import project
from linsat.solvers import Newton
from linsat.torch.call import tensors_of
from linsat.torch.self_check import fault_of

_PACKAGES = ("numpy", "scipy", "highspy", "pyarrow", "cvxpy", "jax")


def describe() -> list[tuple[str, str]]:
    """Versions and threads, as pairs of a name and a value."""
    found = [("linsat", _version("linsat")), ("python", sys.version.split()[0]), ("torch", torch.__version__)]
    found += [(name, _version(name)) for name in _PACKAGES]
    found.append(("threads", str(torch.get_num_threads())))
    return found


def describe_backends() -> list[tuple[str, str]]:
    """Each back end, and whether it can be used or the reason why not: its answer to a problem that all can take."""
    objective, scores, rows = Euclidean(), torch.zeros((1, 2), dtype=torch.float64), simplex(2)
    plan = plan_of(rows, objective, Newton(), 2)
    assert plan.numbers is not None
    problem = plan.problem(tensors_of(plan, plan.numbers, scores.device), scores, objective, plan.decided())
    details = {"arrays": f" on {', '.join(_devices())}"}
    core = load()
    found = [("kernel", f"not available: {core}" if isinstance(core, str) else f"available ({core.instructions})")]
    for backend in every_backend():
        on_gpu = backend.name == "triton" and torch.cuda.is_available()  # the problem is on the CPU
        reason = unavailable(torch.device("cuda")) if on_gpu else backend.supports(problem)
        found.append((backend.name, reason or f"available{details.get(backend.name, '')}"))
    return [*found, ("xla", _within_jax())]


def _within_jax() -> str:
    """Whether XLA runs the kernel, as a custom call."""
    try:
        from linsat.jax.core import unavailable
    except ImportError as error:
        return f"not available: {error}"
    reason = unavailable()
    return "available: JAX runs the kernel" if reason is None else f"not available, JAX runs lax operations: {reason}"


def _devices() -> list[str]:
    others = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    return ["cpu", *others]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@one_line_errors
def info() -> None:
    """Versions, threads, and which back ends can be used here."""
    for name, value in describe():
        say(f"{name:8} {value}")
    say("back ends")
    for name, value in describe_backends():
        say(f"  {name:14} {value}")


def check_machine() -> bool:
    """Print versions, and of every back end that runs here whether it agrees with torch operations, and its time."""
    for name, value in describe():
        say(f"{name:8} {value}")
    agree = True
    for device in map(torch.device, ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]):
        for name in ("kernel", "triton", "interior_point", "arrays"):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", LinSATWarning)
                    fault = fault_of(name, device)
            except ConstraintError as error:
                say(f"{device} {name}: {str(error).removesuffix(' Fix: leave backend out.')}")
                continue
            agree = agree and fault is None
            time = "" if fault else f", {1e3 * _seconds(name, device):.2f} ms for 256 matrices of 10 x 10, both ways"
            say(f"{device} {name}: {fault or 'agrees with torch operations'}{time}")
    return agree


def _seconds(backend: str, device: torch.device) -> float:
    """The best of a few projections of 256 doubly stochastic matrices with their gradient."""
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
