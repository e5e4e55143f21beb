"""What works with the dependencies alone, and what is said where an extra is missing; run by ``test_matrix.py core``.

Warnings are errors. Exit code 0: everything as it should be; otherwise an assertion says what is not.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import linsat

# package -> (extra that brings it, a call that needs it)
MISSING: dict[str, tuple[str, Callable[[], object]]] = {}


def missing(package: str, extra: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Register a call that needs a package."""

    def register(call: Callable[[], object]) -> Callable[[], object]:
        MISSING[package] = (extra, call)
        return call

    return register


@missing("highspy", "highs")
def _highs() -> object:
    with tempfile.TemporaryDirectory() as folder:
        linsat.constraints.simplex(2).save(Path(folder) / "set.lp")
    return None


@missing("jax", "jax")
def _jax() -> object:
    import linsat.jax

    return linsat.jax.project(np.zeros(2), linsat.constraints.simplex(2))


def project() -> None:
    """Forward, backward, the torch path, a file, a layer."""
    cons = linsat.constraints.doubly_stochastic(3)
    y = torch.zeros(2, 9, dtype=torch.float64, requires_grad=True)
    x = linsat.project(y, cons)
    assert torch.allclose(x, torch.full_like(x, 1 / 3)), "equal scores give equal entries"
    (x[:, 0].sum()).backward()
    assert y.grad is not None
    assert abs(float(y.grad.sum())) < 1e-9, "adding a constant to all scores changes nothing"
    slow = linsat.project(y.detach(), cons, solver=linsat.Newton(backend="arrays"))
    assert torch.allclose(x.detach(), slow, atol=1e-8)
    layer = linsat.LinSAT(linsat.constraints.top_k(4, 2))
    assert abs(float(layer(torch.zeros(4)).sum()) - 2) < 1e-5
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("json", "npz"):
            cons.save(Path(folder) / f"set.{ending}")
            assert len(linsat.Constraints.load(Path(folder) / f"set.{ending}")) == 6


def messages() -> int:
    """Every missing package is named with its extra; returns how many are missing here."""
    count = 0
    for package, (extra, call) in MISSING.items():
        if importlib.util.find_spec(package) is not None:
            continue
        count += 1
        said = _said(call)
        assert f'pip install "linsat[{extra}]"' in said, f"{package} is missing; said: {said}"
    return count


def _said(call: Callable[[], object]) -> str:
    try:
        call()
    except ImportError as error:
        return str(error)
    return "nothing"


def commands() -> None:
    """The machine is described and checked without any extra, and a file is for linsat-tools."""
    for command in ("info", "check"):
        subprocess.run([sys.executable, "-m", "linsat", command], check=True)
    done = subprocess.run([sys.executable, "-m", "linsat", "--help"], capture_output=True, text=True, check=True)
    assert "pip install linsat-tools" in done.stdout, done.stdout


if __name__ == "__main__":
    project()
    commands()
    print(f"core: projections, gradients, files; {messages()} missing packages named with their extra")
