"""The arguments of one call, read and flattened to one batch; the answer, in the shape they came in."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch

from linsat._transforms import constant_in_graphs, plain, tracing
from linsat.compile.compiled import CompiledConstraints, compile_constraints
from linsat.compile.problem import StandardForm, Tensor
from linsat.constraints.arrays import given_tensor
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Arrangement, flatten, holds_tensors
from linsat.constraints.modelling import not_a_set
from linsat.errors import ConstraintError
from linsat.objectives import Entropy, Euclidean, Objective
from linsat.objectives.base import check_spread
from linsat.solution import Solution
from linsat.solvers import Newton, Sinkhorn
from linsat.solvers.result import SolverResult
from linsat.solving import check_lower

Solver = Newton | Sinkhorn
DEFAULT = Newton()
DEFAULT_TAU = 0.1
OnFailure = Literal["raise", "warn", "nan", "ignore"]
ON_FAILURE: tuple[str, ...] = get_args(OnFailure)


def check_options(solver: Any, on_failure: Any) -> None:
    """Reject what is no solver, and unknown ways to handle failure."""
    if solver is not None and not isinstance(solver, (Newton, Sinkhorn)):
        raise ConstraintError(f"solver is {solver!r}; expected linsat.Newton(...) or linsat.Sinkhorn(...).")
    if on_failure not in ON_FAILURE:
        raise ConstraintError(f"on_failure is {on_failure!r}; expected one of {', '.join(ON_FAILURE)}.")


def read_objective(objective: Any, tau: Any) -> Objective:
    """The objective of a call: ``tau=`` is short for the paper's entropy at that temperature."""
    if objective is None:
        return Entropy(tau=DEFAULT_TAU if tau is None else tau)
    if not isinstance(objective, Objective):
        raise ConstraintError(
            f"objective is {objective!r}; expected an instance of linsat.Objective. "
            f"Fix: linsat.Entropy(tau=0.1), with parentheses, or linsat.Euclidean()."
        )
    if tau is not None:
        raise ConstraintError(
            "tau and objective were both given; tau belongs to the entropic objective. "
            "Fix: objective=linsat.Entropy(tau=...), or leave objective out."
        )
    return objective


@dataclass(frozen=True)
class Request:
    """The arguments of one call, read; numbers of the objective and the start flattened to one batch dimension."""

    constraints: Constraints
    objective: Objective  # its numbers spread over the batch
    solver: Solver
    on_failure: str
    scores: Tensor  # (batch..., l) of the dtype of y
    start: Tensor | None  # (N, k)
    batch_shape: torch.Size
    like: Tensor  # the scores as given, flat: dtype and device of the answer
    as_numpy: bool
    arrangement: Arrangement  # of the scores, and so of the answer
    traced: bool  # recorded into a graph, where values are unknown

    @classmethod
    def read(
        cls,
        y: Any,
        constraints: Constraints,
        objective: Objective,
        solver: Solver | None,
        on_failure: str,
        start: Any,
    ) -> Request:
        if not isinstance(constraints, Constraints):
            raise not_a_set(constraints)
        check_options(solver, on_failure)
        _reject_scripts()
        solver = DEFAULT if solver is None else solver
        objective = objective if constraints.layout is None else objective.flat(constraints.layout)
        like, arrangement = flatten("y", y, constraints.layout, constraints.num_variables, read_scores)
        traced = tracing(like)
        if traced:
            _reject_onnx()
        else:
            _check_bounds(like.dtype, constraints, objective)
        # Metal has no float64: solve on the CPU there and hand the answer back.
        device = torch.device("cpu") if like.device.type == "mps" else like.device
        batch_shape = _joint_batch(like.shape[:-1], constraints.batch_shape)
        scores = like if like.device == device else like.to(device)
        if batch_shape != scores.shape[:-1]:
            scores = scores.expand(*batch_shape, like.shape[-1])
        return cls(
            constraints=constraints,
            objective=_spread(objective, batch_shape, like.shape[-1], device),
            solver=solver,
            on_failure=on_failure,
            scores=scores,
            start=_read_start(start, (*batch_shape, len(constraints)), device),
            batch_shape=batch_shape,
            like=like,
            as_numpy=not holds_tensors(y),
            arrangement=arrangement,
            traced=traced,
        )

    def own_instance(self, instance: int) -> int:
        """Which of the constraint set's instances an instance of the batch has its numbers from."""
        own = self.constraints.batch_shape
        if not own:
            return 0
        place = np.unravel_index(instance % max(1, self.batch_shape.numel()), self.batch_shape)[-len(own) :]
        return int(np.ravel_multi_index([0 if n == 1 else int(i) for i, n in zip(place, own, strict=True)], own))

    def compiled(self) -> CompiledConstraints:
        """The constraint set, compiled for this call's objective, solver and device."""
        return compile_constraints(
            self.constraints,
            self.objective,
            num_variables=self.scores.shape[-1],
            device=torch.device("cpu") if self.scores.is_meta else self.scores.device,  # presolve needs numbers
            gamma_shift=self.solver.gamma_shift,
            presolve=self.solver.presolves,
        )

    def form(self, compiled: CompiledConstraints) -> StandardForm:
        """The rows, with per-instance numbers spread over the flattened batch."""
        own, form = self.constraints.batch_shape, compiled.form
        if len(own) == 0:
            return form

        def spread(tensor: Tensor) -> Tensor:
            if tensor.shape[0] == 1 and math.prod(own) != 1:
                return tensor
            unflat = tensor.reshape(*own, tensor.shape[-1])
            return unflat.expand(*self.batch_shape, -1).reshape(math.prod(self.batch_shape), tensor.shape[-1])

        return form.with_tensors(tuple(spread(t) for t in form.tensors()))

    def forbidding(self) -> Request:
        """The same call for scores of which some are -inf: those variables have no room above their lower bounds.

        A batch of at least one dimension, whose instances have bounds of their own, and so their own verdicts.

        Raises:
            ConstraintError: such a variable has no lower bound.
        """
        constraints, scores = self.constraints, self.scores
        forbidden = torch.isneginf(scores.detach())
        lower, upper = (bound.to(scores.device) for bound in (constraints.lower, constraints.upper))
        check_lower((forbidden & torch.isneginf(lower)).reshape(-1, scores.shape[-1]), constraints)
        batch = self.batch_shape or torch.Size([1])
        own = torch.where(forbidden, lower, upper).reshape(*batch, scores.shape[-1])
        return replace(
            self,
            constraints=constraints.with_bounds(upper=own),
            scores=scores.masked_fill(forbidden, 0.0).reshape(own.shape),
            batch_shape=batch,
        )

    def answer(self, x: Tensor) -> Any:
        """x (N, l) in the shape (or dict of shapes), dtype and device of the scores."""
        if x.shape[:-1] != self.batch_shape:
            x = x.reshape(*self.batch_shape, x.shape[-1])
        if x.dtype is not self.like.dtype or x.device != self.like.device:
            x = x.to(self.like.device, self.like.dtype)
        answer = x.detach().cpu().numpy() if self.as_numpy else x
        layout = None if self.arrangement == "flat" else self.constraints.layout
        return answer if layout is None else layout.restored(answer, self.arrangement)

    def solution(self, result: SolverResult, form: StandardForm) -> Solution:
        """Everything, in the shape of the scores."""
        batch = self.batch_shape
        fields: dict[str, Any] = {
            "steps": result.steps.reshape(batch),
            "duals": (result.mu / form.scale).reshape(*batch, len(self.constraints)),
            "codes": result.codes.reshape(batch),
            "solver_codes": result.solved_by.reshape(batch),
        }
        if self.as_numpy:
            fields = {name: value.detach().cpu().numpy() for name, value in fields.items()}
        solution = Solution(**fields, x=self.answer(result.x), constraints=self.constraints)
        if not self.constraints.fixed:
            # Now: an optimiser may change the numbers before anyone asks.
            _ = solution.violation, solution.broken, solution.adjusted
        return solution


@constant_in_graphs
def _reject_scripts() -> None:
    """TorchScript would record the steps of the solver for one input, as if they were those for every input."""
    if torch._C._is_tracing():
        raise ConstraintError(
            "torch.jit.trace cannot record a projection. Fix: torch.export.export(model, (y,)), whose programs can be "
            "saved and loaded as well."
        )


@constant_in_graphs
def _reject_onnx() -> None:
    """The operators of ONNX are fixed."""
    if torch.onnx.is_in_onnx_export():
        raise ConstraintError(
            "ONNX has no operator for a projection. Fix: export the network that makes the scores, and call "
            "linsat.project on its output; or torch.export.export(model, (y,)), which keeps the projection."
        )


def _spread(objective: Objective, batch_shape: torch.Size, num_variables: int, device: torch.device) -> Objective:
    """The objective with its numbers over the flattened batch."""
    made = objective.spread(batch_shape, num_variables, device)
    if type(objective) is not Entropy and type(objective) is not Euclidean:
        check_spread(objective, made, math.prod(batch_shape))
    return made


def _check_bounds(dtype: torch.dtype, constraints: Constraints, objective: Objective) -> None:
    """Reject bounds that the objective or the answer cannot have; looked at once where they are constants."""
    key = ("bounds", dtype, objective.finite_box)
    if constraints.fixed_bounds and key in constraints.box_cache:
        return
    if objective.finite_box:
        constraints.require_finite_box()
    check_range(dtype, constraints)
    constraints.box_cache[key] = True


def check_range(dtype: torch.dtype, constraints: Constraints) -> None:
    """Reject bounds that the answer, which has the dtype of the scores, could not hold."""
    largest, reach = torch.finfo(dtype).max, largest_bound(constraints)
    if reach > largest:
        raise ConstraintError(
            f"The bounds reach {reach:g} but y has dtype {dtype}, which ends at {largest:g}. "
            f"Fix: y.double(), or a smaller box."
        )


def largest_bound(constraints: Constraints) -> float:
    """The largest size of any bound."""
    return max(_largest(bound) for bound in (constraints.lower, constraints.upper))


def _largest(bound: Tensor) -> float:
    bound = plain(bound)
    finite = bound[torch.isfinite(bound)].abs()
    return float(finite.max()) if finite.numel() else 0.0


def read_scores(name: str, y: Any) -> Tensor:
    """Scores as a dense, floating tensor."""
    if isinstance(y, torch.Tensor):
        tensor = y.resolve_neg()
    else:
        array = np.asarray(y)
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise ConstraintError(
                f"{name} has dtype {array.dtype}; expected floating scores. Fix: {name}.astype(float)."
            )
        # A native, contiguous, writable copy: torch takes no other.
        tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C", copy=True))
    if not tensor.is_floating_point():
        raise ConstraintError(f"{name} has dtype {tensor.dtype}; expected floating scores. Fix: {name}.float().")
    if tensor.layout != torch.strided:
        raise ConstraintError(f"{name} has layout {tensor.layout}; expected dense scores. Fix: {name}.to_dense().")
    return tensor


def _joint_batch(scores: torch.Size, constraints: tuple[int, ...]) -> torch.Size:
    if len(constraints) == 0:
        return scores
    try:
        return torch.broadcast_shapes(scores, constraints)
    except RuntimeError:
        raise ConstraintError(
            f"y has batch dimensions {tuple(scores)} but the constraints have {tuple(constraints)}; they do not "
            f"broadcast. Fix: numbers for each instance, or shared ones."
        ) from None


def _read_start(start: Any, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
    if start is None:
        return None
    try:
        tensor = given_tensor(start).detach().to(device, torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ConstraintError(
            f"start is {type(start).__name__}; expected duals of shape {shape}. Fix: pass Solution.duals."
        ) from None
    if tuple(tensor.shape) != shape:
        raise ConstraintError(
            f"start has shape {tuple(tensor.shape)}; expected duals of shape {shape}. "
            f"Fix: pass Solution.duals of a solve with the same rows and batch shape."
        )
    if not (tracing(tensor) or bool(torch.isfinite(tensor).all())):
        index = tuple(int(i) for i in (~torch.isfinite(tensor)).nonzero()[0])
        raise ConstraintError(
            f"start[{', '.join(map(str, index))}] is {float(tensor[index])}; expected finite duals. "
            f"Fix: 0 in its place, which starts that row afresh; or leave start out."
        )
    return tensor.reshape(math.prod(shape[:-1]), shape[-1])
