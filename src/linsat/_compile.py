"""Constraints -> System: the rows as equalities and what presolve found, once per constraint set."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from linsat._equalities import to_equalities
from linsat._equations import Equalities, Reduction, Tensor
from linsat._presolve import no_reduction, propagate, propagate_each, row_sides
from linsat._transforms import plain_tensors
from linsat.compile.implied import LARGEST_PROGRAM, Rows, implied
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.diagnosis import conflict_error, nearest_instance
from linsat.constraints.structure import GREATER
from linsat.errors import InfeasibleError
from linsat.solvers.newton import Newton
from linsat.status import Status

# A set whose every share lies this far inside (0, 1) at scores 0 has an interior: nothing is forced.
_WELL_INSIDE = 1e-5


@dataclass(frozen=True)
class System:
    """A compiled constraint set: equalities, and what presolve decided where that is settled once and for all."""

    owner: weakref.ref[Constraints]  # keeps the system: a cycle would leave both to the garbage collector
    equalities: Equalities
    senses: Tensor  # (k,) on the device of the equalities
    reduction: Reduction | None  # None: presolve runs with each solve (numbers that differ per instance or are learned)

    memory: dict[str, Any] = field(default_factory=dict)  # the kernel's tables, made on demand

    @property
    def constraints(self) -> Constraints:
        """The set that was compiled."""
        found = self.owner()
        if found is None:
            raise ReferenceError("the constraint set of a compiled system is gone; keep it while the system is used.")
        return found

    @property
    def shared(self) -> bool:
        """Whether all instances have the same right sides and bounds."""
        return not self.constraints.batch_shape

    def reduce(self, equalities: Equalities) -> Reduction:
        """What presolve decides for these numbers: (1, .) where they are shared, else (instances, .)."""
        if self.reduction is not None:
            return self.reduction
        with torch.no_grad():
            if self.shared:
                return _shared_reduction(self.constraints, equalities, self.senses)
            return propagate_each(equalities, self.senses)


def compile_constraints(
    constraints: Constraints,
    *,
    num_variables: int | None = None,
    device: torch.device | str = "cpu",
    gamma_shift: float = 0.0,
    presolve: bool = True,
) -> System:
    """Compile, or return the compiled set.

    ``gamma_shift`` and ``presolve=False`` are there to reproduce the published package (`linsat.compat`). Sets with
    tensors that require gradients are compiled anew each time: an optimiser changes their numbers in place.

    Raises:
        InfeasibleError: the rows (shared by all instances) contradict each other; names a minimal conflicting set.
    """
    width = constraints.num_variables if num_variables is None else num_variables
    if width is None:
        width = 1  # no rows and scalar bounds: any number of variables will do
    if not constraints.fixed:
        return _compile(constraints, width, device, gamma_shift, presolve)
    key = (str(device), width, gamma_shift, presolve)
    system = constraints._compiled.get(key)
    if system is None:
        # What is kept must be plain tensors, also when the first call comes from inside vmap or jacrev.
        with plain_tensors():
            system = _compile(constraints, width, device, gamma_shift, presolve)
        constraints._compiled[key] = system
    return system


def _compile(
    constraints: Constraints,
    num_variables: int,
    device: torch.device | str,
    gamma_shift: float,
    presolve: bool,
) -> System:
    if not constraints.fixed:
        constraints.check_numbers()
    constraints.require_finite_box()
    equalities = to_equalities(
        constraints.structure,
        constraints.numbers(device),
        num_variables,
        constraints.batch_shape,
        gamma_shift=gamma_shift,
        memory=constraints.box_memory if constraints.fixed else None,
    )
    _, _, senses = constraints.structure.on(device)
    system = System(weakref.ref(constraints), equalities, senses, None if presolve else no_reduction(equalities))
    if not presolve or not system.shared or not constraints.fixed:
        return system
    return replace(system, reduction=system.reduce(equalities))


def _shared_reduction(constraints: Constraints, equalities: Equalities, senses: Tensor) -> Reduction:
    reduction = propagate(equalities, senses)
    if bool(reduction.infeasible.any()):
        raise infeasible_error(constraints, equalities, senses)
    if not bool(reduction.active.any()) or _has_interior(equalities, reduction):
        return reduction
    reduced = implied_reduction(equalities, senses, reduction, 0)
    if bool(reduced.infeasible.any()):
        raise infeasible_error(constraints, equalities, senses)
    return reduced


def _has_interior(equalities: Equalities, reduction: Reduction) -> bool:
    """Whether the point at scores 0, temperature 1 exists and lies well inside: then nothing else is forced."""
    scores = torch.zeros_like(reduction.pinned)
    program = equalities.program(scores, reduction)
    tau = torch.ones(1, dtype=scores.dtype, device=scores.device)
    outcome = Newton(max_steps=60).run(program, tau)
    if int(outcome.codes[0]) != Status.CONVERGED.code:
        return False
    p, z = program.shares(outcome.mu, tau[:, None])
    has_slack = reduction.active & (equalities.slack > 0)
    inside_p = (p * (1 - p) > _WELL_INSIDE) | ~reduction.free
    inside_z = (z * (1 - z) > _WELL_INSIDE) | ~has_slack
    return bool(inside_p.all()) and bool(inside_z.all())


def unit_rows(equalities: Equalities, senses: Tensor, instance: int) -> Rows:
    """One instance's rows over the unit box, as the linear programmes want them."""

    def of(tensor: Tensor) -> np.ndarray:
        picked = tensor[min(instance, tensor.shape[0] - 1)]
        return picked.detach().cpu().numpy()

    rows = equalities.rows
    row, col = rows.row.cpu().numpy(), rows.col.cpu().numpy()
    values = rows.values.detach().cpu().numpy()
    lower, width, scale = of(equalities.lower), of(equalities.width), of(equalities.scale)
    base = np.bincount(row, values * lower[col], minlength=rows.shape[0])
    matrix = sp.csr_array((values * width[col] / scale[row], (row, col)), shape=rows.shape)
    side = (of(row_sides(equalities, senses)) - base) / scale
    return Rows(matrix, side, senses.cpu().numpy())


def implied_reduction(equalities: Equalities, senses: Tensor, reduction: Reduction, instance: int) -> Reduction:
    """The reduction (1, .) of one instance after a linear programme has looked for everything that is forced.

    Unchanged where the programme would be too large.
    """
    here = reduction.select(torch.tensor([min(instance, reduction.free.shape[0] - 1)]))
    rows = unit_rows(equalities, senses, instance)
    if rows.size > LARGEST_PROGRAM:
        return here
    found = implied(rows)
    if found is None:
        return replace(here, infeasible=torch.ones_like(here.infeasible))
    device = here.free.device
    at_lower = torch.from_numpy(found.at_lower).to(device) & here.free
    at_upper = torch.from_numpy(found.at_upper & ~found.at_lower).to(device) & here.free
    free = here.free & ~(at_lower | at_upper)
    left = rows.matrix.astype(bool).astype(float) @ free[0].cpu().numpy().astype(float) > 0
    tight = torch.from_numpy(found.tight).to(device)[None] & here.active
    return replace(
        here,
        free=free,
        pinned=torch.where(at_upper, 1.0, here.pinned),
        active=here.active & torch.from_numpy(left).to(device),
        tight=tight,
        tight_share=torch.where(tight & (senses == GREATER), 1.0, 0.0),
    )


def infeasible_error(
    constraints: Constraints, equalities: Equalities, senses: Tensor, instance: int | None = None
) -> InfeasibleError:
    """An error that names conflicting rows in the user's words and numbers, of one instance where they differ."""
    position = min(instance or 0, equalities.rhs.shape[0] - 1)

    def of(tensor: Tensor) -> np.ndarray:
        return tensor[min(position, tensor.shape[0] - 1)].detach().cpu().numpy()

    lower = of(equalities.lower)
    sides = of(row_sides(equalities, senses))
    own = nearest_instance(constraints, sides, lower, lower + of(equalities.width))
    return conflict_error(constraints, own, where="" if instance is None else f" for instance {instance}")
