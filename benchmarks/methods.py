"""Every method behind one protocol: ours and the published LinSATNet here, the other peers in `peers`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

import linsat
from problems import ENTROPY, EUCLIDEAN, LARGEST_DENSE_GB, Problem

Tensor = torch.Tensor
Forward = Callable[[Tensor], Tensor]


class Applies(NamedTuple):
    """Whether a method can take a problem, and if not, why."""

    ok: bool
    reason: str = ""


YES = Applies(True)


class Method(Protocol):
    """What `worker` measures: a forward that maps scores (batch, l) to x (batch, l), carrying a gradient."""

    name: str
    objectives: tuple[str, ...]  # of the cases it takes
    same_program: bool  # whether its answer is the one that linsat gives for the objective
    package: str  # distribution whose version is recorded
    modules: tuple[str, ...]  # what must be importable; a missing one is reported as "not installed"
    compiles: bool  # whether the first call of a shape compiles, and so says nothing about the next
    in_sweeps: bool

    def applies_to(self, problem: Problem) -> Applies: ...

    def prepare(self, problem: Problem) -> Forward:
        """Everything that a user does once per constraint set."""
        ...


def applies(method: Method, problem: Problem) -> Applies:
    """Whether the method has the objective of the case and can take its rows."""
    if problem.objective not in method.objectives:
        return Applies(False, f"has no {problem.objective} objective")
    return method.applies_to(problem)


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


def dense_rows(problem: Problem) -> Applies:
    """The answer of methods that work with dense rows: no where these are too large."""
    if problem.dense_gigabytes > LARGEST_DENSE_GB:
        return Applies(False, f"dense rows would take {problem.dense_gigabytes:.1f} GB")
    return YES


@dataclass(frozen=True)
class Peer:
    """What most methods answer alike; the others say what differs."""

    name: str
    objectives: tuple[str, ...]
    same_program: bool = True
    package: str = ""
    modules: tuple[str, ...] = ()
    compiles: bool = False
    in_sweeps: bool = False

    def applies_to(self, problem: Problem) -> Applies:
        return dense_rows(problem)


# ------------------------------------------------------------------ ours


@dataclass(frozen=True)
class Linsat(Peer):
    """`linsat.project` with Newton: on the back end it chooses itself, or on plain torch operations."""

    objectives: tuple[str, ...] = (ENTROPY, EUCLIDEAN)
    package: str = "linsat"
    modules: tuple[str, ...] = ("linsat",)
    backend: str = "auto"  # or "arrays"

    def applies_to(self, problem: Problem) -> Applies:
        return YES

    def prepare(self, problem: Problem) -> Forward:
        objective = linsat.Euclidean() if problem.objective == EUCLIDEAN else linsat.Entropy(tau=problem.tau)
        solver, constraints = linsat.Newton(backend=self.backend), problem.constraints
        return lambda y: linsat.project(y, constraints, objective=objective, solver=solver, on_failure="raise")


# ------------------------------------------------------------------ the published package


@dataclass(frozen=True)
class LinSATNet(Peer):
    """LinSATNet, mode v2 grouped, its defaults; constraints initialised once, as its documentation says."""

    objectives: tuple[str, ...] = (ENTROPY,)
    package: str = "LinSATNet"
    modules: tuple[str, ...] = ("LinSATNet",)
    sparse: bool = False

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

OURS = Linsat("linsat")  # not in sweeps: `plan` adds ours itself
TORCH = Linsat("linsat-torch", backend="arrays")
PUBLISHED = LinSATNet("linsatnet-dense")
PUBLISHED_SPARSE = LinSATNet("linsatnet-sparse", sparse=True, in_sweeps=True)  # the faster of the two


def all_methods(adapters: Path | None = None) -> dict[str, Method]:
    """Every method by name; ``adapters`` is a Python file whose list METHODS is added (replacing by name)."""
    import peers

    methods: list[Method] = [OURS, TORCH, PUBLISHED, PUBLISHED_SPARSE, *peers.PEERS]
    if adapters is not None:
        spec = importlib.util.spec_from_file_location("extra_adapters", adapters)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(f"{adapters} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        methods += module.METHODS
    return {method.name: method for method in methods}
