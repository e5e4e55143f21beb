"""Constraints -> CompiledConstraints: standard form and what presolve found, once per constraint set and objective."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from linsat._senses import GREATER, LESS
from linsat._transforms import constant_in_graphs, plain_tensors
from linsat.compile.presolve import everything_free, propagate
from linsat.compile.problem import Presolved, Problem, StandardForm, Tensor
from linsat.compile.standard_form import standard_form
from linsat.compile.system import LinearSystem
from linsat.constraints.constraint_set import Constraints
from linsat.objectives import Objective
from linsat.objectives.base import Kind, of_kind

ROUNDING = 64 * float(np.finfo(np.float64).eps)  # of a row, relative to the sum of its terms
_RUNS_OFF = 1e6  # times the largest score or right-hand side


@dataclass(frozen=True)
class CompiledConstraints:
    """A constraint set in standard form, and what presolve decided where that is settled once and for all."""

    # Weak: the set keeps what is compiled, and a cycle would leave both to the garbage collector.
    owner: Callable[[], Constraints | None]
    form: StandardForm
    senses: Tensor  # (k,) on the device of the form
    objective: Objective  # one of the kind it was compiled for, without the numbers of a call
    presolved: Presolved | None  # None: decided with each solve (numbers that differ per instance or are learned)
    cache: dict[str, Any] = field(default_factory=dict)  # what back ends derive from it

    @property
    def constraints(self) -> Constraints:
        """The set that was compiled."""
        found = self.owner()
        if found is None:
            raise ReferenceError("the constraint set of a compiled system is gone; keep it while the system is used.")
        return found

    @property
    def shared(self) -> bool:
        """Whether all instances have the same numbers."""
        return not self.constraints.batch_shape and not self.constraints.mapped

    def presolve(self, form: StandardForm) -> Presolved:
        """What presolve decides for these numbers: (1, .) where they are shared, else (instances, .)."""
        if self.presolved is not None:
            return self.presolved
        with torch.no_grad():
            return propagate(form, self.senses) if self.objective.interior else everything_free(form)


def compile_constraints(
    constraints: Constraints,
    objective: Objective,
    *,
    num_variables: int | None = None,
    device: torch.device | str = "cpu",
    gamma_shift: float = 0.0,
    presolve: bool = True,
) -> CompiledConstraints:
    """Compile, or return the compiled set.

    ``gamma_shift`` and ``presolve=False`` reproduce the published package (`linsat.interop.linsatnet`). Sets with
    tensors that require gradients are recompiled each time: an optimiser changes their numbers in place.
    """
    # Without rows and with scalar bounds any number of variables will do.
    width = constraints.num_variables or num_variables or 1
    if not constraints.fixed:
        constraints.check_numbers()
        return _compile(constraints, objective, width, device, gamma_shift, presolve)
    if torch.compiler.is_compiling():
        how = (width, device, gamma_shift, presolve)
        return getattr(constraints.in_graphs, _keep_in_graphs(constraints, objective.kind(), how))
    return _keep(constraints, objective, width, device, gamma_shift, presolve)


def _keep(constraints: Constraints, objective: Objective, width: int, *how: Any) -> CompiledConstraints:
    key = _key(objective, width, *how)
    compiled = constraints._compiled.get(key)
    if compiled is None:
        # What is kept must be plain tensors, also when the first call comes from inside vmap, jacrev or a trace.
        with plain_tensors():
            compiled = _compile(constraints, objective, width, *how)
        constraints._compiled[key] = compiled
    return compiled


def _key(objective: Objective, width: int, device: Any, gamma_shift: float, presolve: bool) -> tuple[Any, ...]:
    kind = (objective.entropic_slack, objective.finite_box, objective.interior)
    return (str(device), width, gamma_shift, presolve, kind)


@constant_in_graphs
def _keep_in_graphs(constraints: Constraints, kind: Kind, how: Any) -> str:
    """The same while torch.compile traces, which may itself have made the objective."""
    objective = of_kind(kind, [1.0] * len(kind[2]))
    compiled = _keep(constraints, objective, *how)
    with plain_tensors():
        form = compiled.form.with_tensors(tuple(map(_whole, compiled.form.tensors())))
    return constraints.in_graphs.put(_key(objective, *how), replace(compiled, form=form))


def _whole(tensor: Tensor) -> Tensor:
    """The tensor as all of its memory, as torch.export saves them; a bound for all variables is often one number."""
    if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _compile(
    constraints: Constraints,
    objective: Objective,
    num_variables: int,
    device: torch.device | str,
    gamma_shift: float,
    presolve: bool,
) -> CompiledConstraints:
    form = standard_form(
        constraints.structure,
        constraints.numbers(device),
        num_variables,
        constraints.batch_shape,
        objective,
        gamma_shift=gamma_shift,
        cache=constraints.box_cache if constraints.fixed_box else None,
    )
    _, _, senses = constraints.structure.on(device)
    compiled = CompiledConstraints(
        weakref.ref(constraints), form, senses, objective.probe(form.lower), None if presolve else everything_free(form)
    )
    if not presolve or not constraints.fixed or not compiled.shared:
        return compiled
    return replace(compiled, presolved=compiled.presolve(form))


def linear_system(problem: Problem, instance: int) -> LinearSystem:
    """The rows and the box of one instance as plain arrays, in the user's units."""

    def of(tensor: Tensor) -> np.ndarray:
        return tensor[min(instance, tensor.shape[0] - 1)].detach().cpu().numpy()

    rows = problem.rows
    matrix = sp.csr_array((of(rows.values), (rows.row.cpu().numpy(), rows.col.cpu().numpy())), shape=rows.shape)
    matrix.sum_duplicates()
    rhs, slack = of(problem.rhs), of(problem.slack)
    low, high = of(problem.dual_lower), of(problem.dual_upper)
    # A dual that may be negative belongs to a cap, one that may be positive to a floor; entropic slack is one way only.
    entropic = problem.objective.entropic_slack & ~of(problem.soft)
    row_lower = np.where(entropic, rhs - slack, np.where(high > 0, rhs, -np.inf))
    row_upper = np.where(entropic | (low < 0), rhs, np.inf)
    return LinearSystem(matrix, row_lower, row_upper, of(problem.lower), of(problem.upper))


def hard_rows(problem: Problem, instance: int, x: np.ndarray | None = None) -> LinearSystem:
    """The hard rows of one instance, for a verdict, loosened by what rounding may account for.

    The paper's slack states ``c x >= d`` as ``c x + S z = d + S``, and taking S away again does not give d back. Terms
    of fixed variables, and all terms at a point ``x`` where one is given, cannot be added up any better either; but for
    an x that has run off, far beyond what scores and right-hand sides ask for, because nothing else would do.
    """

    def of(tensor: Tensor) -> np.ndarray:
        return tensor[min(instance, tensor.shape[0] - 1)].detach().cpu().numpy()

    system, rhs, slack = linear_system(problem, instance), np.abs(of(problem.rhs)), np.abs(of(problem.slack))
    low, high = system.row_lower, system.row_upper
    if problem.objective.entropic_slack and problem.senses is not None:
        senses = problem.senses.cpu().numpy()
        low, high = np.where(senses == LESS, -np.inf, low), np.where(senses == GREATER, np.inf, high)
    at = np.where(system.lower == system.upper, system.lower, 0.0) if x is None else np.abs(x)
    if x is not None:
        asked = max(1.0, np.abs(of(problem.scores)).max(initial=0.0), (rhs / of(problem.scale)).max(initial=0.0))
        at = np.minimum(at, _RUNS_OFF * asked)
    lost = ROUNDING * (np.where(slack > 0, rhs + slack, 0.0) + abs(system.matrix) @ np.abs(at))
    return replace(system, row_lower=low - lost, row_upper=high + lost).take(np.flatnonzero(~of(problem.soft)))
