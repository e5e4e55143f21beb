"""`Call`: the arguments of one call, read; and the answer, in the shape they came in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from linsat._transforms import constant_in_graphs, tracing
from linsat.compile.problem import Tensor
from linsat.constraints.arrays import given_tensor
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Arrangement, flatten, holds_tensors
from linsat.constraints.modelling import not_a_set
from linsat.errors import ConstraintError
from linsat.failures import check_usable, settle
from linsat.objectives import Entropy, Objective
from linsat.objectives.base import check_spread, native_code
from linsat.plan import Answer, Numbers, Plan, Solver, numbers_of, plan_of
from linsat.solution import Solution
from linsat.solvers import Newton, Sinkhorn
from linsat.status import Status

DEFAULT = Newton()
DEFAULT_TAU = 0.1
OnFailure = Literal["raise", "warn", "nan", "ignore"]
ON_FAILURE: tuple[str, ...] = get_args(OnFailure)
# Dtypes of scores whose range an answer cannot leave unseen.
_SEEN_BY_ARRAYS, _SEEN_BY_CORE = (torch.float64,), (torch.float64, torch.float32)


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


@dataclass(frozen=True, eq=False)
class Call:
    """A call without its scores: plan, numbers and objective over one flattened batch, and the shape of the answer.

    One whose plan is constant serves every later call with scores of the same shape.
    """

    plan: Plan
    numbers: Numbers
    objective: Objective  # its numbers spread over the batch
    on_failure: str
    start: Tensor | None  # (N, k)
    batch_shape: torch.Size
    own_shape: tuple[int, ...]  # batch dimensions of the set
    dtype: torch.dtype  # of the answer
    device: torch.device
    as_numpy: bool
    arrangement: Arrangement  # of the scores, and so of the answer
    traced: bool  # recorded into a graph, where values are unknown
    constraints: Constraints | None  # kept alive where its numbers are those of this call alone

    @classmethod
    def read(
        cls,
        y: Any,
        constraints: Constraints,
        objective: Objective,
        solver: Solver | None,
        on_failure: str,
        start: Any,
    ) -> tuple[Call, Tensor]:
        """The call, and the scores (batch..., l)."""
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
        elif like.dtype is not torch.float64:
            _check_range(like.dtype, constraints)
        # Metal has no float64: solve on the CPU there and hand the answer back.
        device = torch.device("cpu") if like.device.type == "mps" else like.device
        batch_shape = _joint_batch(like.shape[:-1], constraints.batch_shape)
        width = constraints.num_variables or like.shape[-1]  # which a graph may not know
        scores = like if like.device == device else like.to(device)
        if batch_shape != scores.shape[:-1]:
            scores = scores.expand(*batch_shape, width)
        where = torch.device("cpu") if scores.is_meta else device  # presolve needs numbers
        plan = plan_of(constraints, objective, solver, width, where)
        numbers = plan.numbers
        if numbers is None:
            numbers = numbers_of(constraints, width, batch_shape if constraints.batch_shape else (), where)
        call = cls(
            plan=plan,
            numbers=numbers,
            objective=_spread(objective, batch_shape, width, device),
            on_failure=on_failure,
            start=_read_start(start, (*batch_shape, len(constraints)), device),
            batch_shape=batch_shape,
            own_shape=constraints.batch_shape,
            dtype=like.dtype,
            device=like.device,
            as_numpy=not holds_tensors(y),
            arrangement=arrangement,
            traced=traced,
            constraints=None if plan.constant else constraints,
        )
        return call, scores

    def solve(self, scores: Tensor) -> Answer:
        """Scores (N, l) solved; failures become what the caller asked for."""
        plan, numbers, objective = self.plan, self.numbers, self.objective
        return solve_or_settle(plan, numbers, scores, objective, self.start, self.on_failure, self.own_instance)

    def own_instance(self, instance: int) -> int:
        """Which of the constraint set's instances an instance of the batch has its numbers from."""
        own = self.own_shape
        if not own:
            return 0
        place = np.unravel_index(instance % max(1, self.batch_shape.numel()), self.batch_shape)[-len(own) :]
        return int(np.ravel_multi_index([0 if n == 1 else int(i) for i, n in zip(place, own, strict=True)], own))

    def answer(self, x: Tensor) -> Any:
        """x (N, l) in the shape (or dict of shapes), dtype and device of the scores."""
        if x.shape[:-1] != self.batch_shape:
            x = x.reshape(*self.batch_shape, x.shape[-1])
        if x.dtype is not self.dtype or x.device != self.device:
            x = x.to(self.device, self.dtype)
        answer = x.detach().cpu().numpy() if self.as_numpy else x
        layout = None if self.arrangement == "flat" else self.plan.constraints.layout
        return answer if layout is None else layout.restored(answer, self.arrangement)

    def solution(self, answer: Answer) -> Solution:
        """Everything, in the shape of the scores."""
        batch, constraints = self.batch_shape, self.plan.constraints
        fields: dict[str, Any] = {
            "steps": answer.counts[1].reshape(batch),
            "duals": answer.duals.reshape(*batch, len(constraints)),
            "codes": answer.counts[0].reshape(batch),
            "solver_codes": answer.counts[2].reshape(batch),
        }
        if self.as_numpy:
            fields = {name: value.detach().cpu().numpy() for name, value in fields.items()}
        solution = Solution(**fields, x=self.answer(answer.x), constraints=constraints)
        if not constraints.fixed:
            # Now: an optimiser may change the numbers before anyone asks.
            _ = solution.violation, solution.broken, solution.adjusted
        return solution


def solve_or_settle(
    plan: Plan,
    numbers: Numbers,
    scores: Tensor,
    objective: Objective,
    start: Tensor | None,
    on_failure: str,
    own_instance: Callable[[int], int],
) -> Answer:
    """Scores (N, l) solved; what is not solved is explained, and becomes what the caller asked for."""
    unusable, core = None, plan.native(objective, scores)
    if core is None:  # which looks at the numbers as it reads them
        unusable = check_usable(plan, numbers, scores, objective, on_failure)
        if unusable is not None:  # zeros solve, and do not get into the way of the others
            scores = scores.masked_fill(unusable[:, None], 0.0)
    answer = plan.solve(numbers, scores, objective, start)
    if unusable is not None:
        answer.counts[0, unusable], answer.known_solved = Status.NOT_FINITE.code, False
    if not objective.finite_box and scores.dtype not in (_SEEN_BY_ARRAYS if core is None else _SEEN_BY_CORE):
        _check_reach(answer, scores.dtype)
    if not answer.solved:
        settle(plan, numbers, scores, objective, answer, on_failure, own_instance)
    return answer


def _check_reach(answer: Answer, dtype: torch.dtype) -> None:
    """An x beyond the range of its dtype is no answer; what finite bounds allow is checked before."""
    beyond = ~torch.isfinite(answer.x.to(dtype)).all(-1) & (answer.codes == Status.CONVERGED.code)
    if bool(beyond.any()):
        answer.counts[0, beyond], answer.known_solved = Status.NOT_FINITE.code, False


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
    if native_code(objective) is None:
        check_spread(objective, made, math.prod(batch_shape))
    return made


def _check_range(dtype: torch.dtype, constraints: Constraints) -> None:
    """Reject bounds that the answer, which has the dtype of the scores, could not hold."""
    largest, reach = torch.finfo(dtype).max, constraints.reach
    if reach > largest:
        raise ConstraintError(
            f"The bounds reach {reach:g} but y has dtype {dtype}, which ends at {largest:g}. "
            f"Fix: y.double(), or a smaller box."
        )


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
    if len(constraints) == 0 or scores == constraints:
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
