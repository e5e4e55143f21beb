"""Every method behind one protocol: ours and the published LinSATNet here, the other peers in `peers`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

import linsat
from problems import LARGEST_DENSE_GB, Problem

Tensor = torch.Tensor
Forward = Callable[[Tensor], Tensor]
# Which point a method returns; answers are only comparable within one program.
ENTROPIC, PLAN_ENTROPIC, EUCLIDEAN = "x and 1-x entropies", "x entropy", "Euclidean"


class Applies(NamedTuple):
    """Whether a method can take a problem, and if not, why."""

    ok: bool
    reason: str = ""


YES = Applies(True)


class NotApplicableError(Exception):
    """Raised by a method that finds out only when it is called that it cannot take the problem."""


class Method(Protocol):
    """What `worker` measures: a forward that maps scores (batch, l) to x (batch, l), carrying a gradient."""

    name: str
    program: str
    package: str  # distribution whose version is recorded
    modules: tuple[str, ...]  # what must be importable; a missing one is reported as "not installed"
    in_sweeps: bool

    def applies_to(self, problem: Problem) -> Applies: ...

    def prepare(self, problem: Problem) -> Forward:
        """Everything that a user does once per constraint set."""
        ...


def missing_module(method: Method) -> str | None:
    """The first module of the method that is not installed."""
    for module in method.modules:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:  # the parent package is missing
            found = None
        if found is None:
            return module
    return None


def peers_may_try(problem: Problem) -> Applies:
    """The answer of every peer: no to cases of our own and to rows too large to be dense."""
    if problem.ours_only:
        return Applies(False, problem.ours_only)
    if problem.dense_gigabytes > LARGEST_DENSE_GB:
        return Applies(False, f"dense rows would take {problem.dense_gigabytes:.1f} GB")
    return YES


# ------------------------------------------------------------------ ours


@dataclass(frozen=True)
class Linsat:
    """`linsat.project` with Newton, on the fused kernel or on plain torch operations."""

    name: str
    backend: str  # "kernel" or "torch"
    program: str = ENTROPIC
    package: str = "linsat"
    modules: tuple[str, ...] = ("linsat",)
    in_sweeps: bool = True

    def applies_to(self, problem: Problem) -> Applies:
        if self.backend != "torch" and not _has_backends():
            return Applies(False, f"this version of linsat has no {self.backend} backend")
        return YES

    def prepare(self, problem: Problem) -> Forward:
        solver = linsat.Newton(backend=self.backend) if _has_backends() else linsat.Newton()
        layer = linsat.LinSAT(problem.constraints, tau=problem.tau, solver=solver, on_failure="raise")

        def forward(y: Tensor) -> Tensor:
            try:
                return layer(y)
            except linsat.ConstraintError as error:
                # The problems are sound, so the only argument it can object to is a kernel that is too small for them.
                raise NotApplicableError(str(error)) from error

        return forward


def _has_backends() -> bool:
    return "backend" in {field.name for field in fields(linsat.Newton)}


# ------------------------------------------------------------------ the published package


@dataclass(frozen=True)
class LinSATNet:
    """LinSATNet, mode v2 grouped, its defaults; constraints initialised once, as its documentation says."""

    name: str
    sparse: bool
    program: str = ENTROPIC
    package: str = "LinSATNet"
    modules: tuple[str, ...] = ("LinSATNet",)
    in_sweeps: bool = True

    def applies_to(self, problem: Problem) -> Applies:
        return peers_may_try(problem)

    def prepare(self, problem: Problem) -> Forward:
        from LinSATNet import init_constraints, linsat_layer

        given = {key: torch.from_numpy(array).float() for key, array in problem.rows.dense().items()}
        if self.sparse:
            given |= {key: given[key].to_sparse() for key in ("A", "C", "E") if key in given}
        ready = init_constraints(problem.l, **given)

        def forward(y: Tensor) -> Tensor:
            return linsat_layer(y, constr_dict=ready, tau=problem.tau, max_iter=problem.iterations, no_warning=True)

        return forward


# ------------------------------------------------------------------ registry

KERNEL = Linsat("linsat-kernel", "kernel")
TORCH = Linsat("linsat-torch", "torch")
PUBLISHED = LinSATNet("linsatnet-dense", sparse=False)
PUBLISHED_SPARSE = LinSATNet("linsatnet-sparse", sparse=True)


def all_methods(adapters: Path | None = None) -> dict[str, Method]:
    """Every method by name; ``adapters`` is a Python file whose list METHODS is added (replacing by name)."""
    import peers

    methods: list[Method] = [KERNEL, TORCH, PUBLISHED, PUBLISHED_SPARSE, *peers.PEERS]
    if adapters is not None:
        spec = importlib.util.spec_from_file_location("extra_adapters", adapters)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(f"{adapters} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        methods += module.METHODS
    return {method.name: method for method in methods}
