"""The arguments of a call with tensors, read: for the native core, for torch operations, or for an operator."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from linsat._transforms import constant_in_graphs, plain_tensors, tracing
from linsat.call import Call
from linsat.constraints.arrays import given_tensor, to_tensor
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Arrangement, flatten
from linsat.constraints.numbers import slots_of, values_on
from linsat.errors import ConstraintError
from linsat.native.batch import Answer
from linsat.numpy_door import read_scores as numpy_scores
from linsat.objectives import Objective
from linsat.objectives.base import check_spread
from linsat.plan import Numbers, Plan, Solver, plan_of
from linsat.request import Request, check_range, joint_batch, read_start, with_numbers
from linsat.solution import Solution, bound_duals
from linsat.torch.self_check import trusted

Tensor = torch.Tensor
EXPORT = "torch.export.export(model, (y,)), whose programs can be saved and loaded as well"
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Reading:
    """What the scores of a call say: how they came, and the batch they form with the set."""

    scores: Tensor  # (batch..., l) on the device that solves
    request: Request  # with the objective spread over the batch, the solver to use and the start (N, k)
    batch_shape: torch.Size
    width: int
    dtype: torch.dtype  # of the answer
    device: torch.device
    arrangement: Arrangement
    slots: Mapping[str, Any] | None  # the numbers given, as `slots_given` reads them

    @property
    def constraints(self) -> Constraints:
        return self.request.constraints

    @property
    def objective(self) -> Objective:
        return self.request.objective

    @property
    def solver(self) -> Solver:
        return self.request.options.solver

    @classmethod
    def of(cls, y: Any, request: Request, slots: Mapping[str, Any] | None = None) -> Reading:
        """``slots``: the numbers given, as `slots_given` reads them."""
        constraints, given, objective, options, start = request
        request.check()
        _reject_recorders()
        solver = request.solver
        like, arrangement = flatten("y", y, constraints._layout, constraints.num_variables, read_scores)
        if not tracing(like) and like.dtype is not torch.float64:
            check_range(like.dtype, torch.finfo(like.dtype).max, constraints)
        _reject_meta(like, constraints)
        # Metal has no float64: solve on the CPU there and hand the answer back.
        device = _CPU if like.device.type == "mps" else like.device
        batch_shape = _joint_batch(like.shape[:-1], constraints.batch_shape)
        for slot in (slots or {}).values():
            batch_shape = _joint_batch(batch_shape, slot.shape[:-1])
        width = constraints.num_variables or like.shape[-1]  # which a graph may not know
        if not tracing(like):  # a graph reads its arguments again when it runs
            solver = trusted(solver, device)
        objective = objective.read(constraints._layout, batch_shape, width)
        scores = like if like.device == device else like.to(device)
        if batch_shape != scores.shape[:-1]:
            scores = scores.expand(*batch_shape, width)
        start = read_start(
            start,
            tuple(batch_shape),
            constraints,
            lambda value: given_tensor(value).detach().to(device, torch.float64),
            look=not tracing(like),
        )
        objective = spread_objective(objective, batch_shape, width, device)
        return cls(
            scores=scores,
            request=Request(constraints, given, objective, options._replace(solver=solver), start),
            batch_shape=batch_shape,
            width=width,
            dtype=like.dtype,
            device=like.device,
            arrangement=arrangement,
            slots=slots,
        )

    def call(self) -> TensorCall:
        """The call, to be solved here and now."""
        constraints, given, objective, options, start = self.request
        batch, device = self.batch_shape, self.scores.device
        plan = plan_of(constraints, objective, options.solver, self.width, given=self.slots is not None)
        numbers = plan.numbers
        if numbers is None:
            own = batch if constraints.batch_shape or self.slots else ()
            numbers = Numbers(*slots_of(constraints, self.width, own, self.slots))
        return TensorCall.of(
            plan,
            numbers,
            objective,
            device,
            options=options,
            start=start if start is None or device.type != "cpu" else start.contiguous(),
            batch_shape=batch,
            arrangement=self.arrangement,
            owner=plan.owner if plan.constant else functools.partial(with_numbers, constraints, given),
        )

    def answer(self, x: Tensor) -> Any:
        """x (N or batch..., l) in the shape (or dict of shapes), dtype and device of the scores."""
        if x.shape[:-1] != self.batch_shape:
            x = x.reshape(*self.batch_shape, x.shape[-1])
        if x.dtype is not self.dtype or x.device != self.device:
            x = x.to(self.device, self.dtype)
        layout = self.constraints._layout
        return x if layout is None or self.arrangement == "flat" else layout.restored(x, self.arrangement)

    def solution(self, x: Tensor, duals: Tensor, counts: tuple[Tensor, Tensor, Tensor]) -> Solution:
        """Everything, in the shape of the scores; counts are codes, steps and who solved each instance."""
        batch, constraints = self.batch_shape, self.constraints
        codes, steps, solver_codes = (count.reshape(batch) for count in counts)
        duals = duals.reshape(*batch, len(constraints))

        def of_bounds() -> Tensor:
            numbers, count = numbers_in_graphs(self), math.prod(batch)
            row, col, _ = constraints._structure.on(numbers.values.device)
            scores = self.scores.reshape(count, self.width)
            point = x.reshape(count, self.width).to(self.dtype)
            multipliers = bound_duals(self.objective, numbers, (row, col), scores, point, duals.reshape(count, -1))
            return multipliers.reshape(*batch, self.width)

        solution = Solution(self.answer(x), steps, duals, codes, solver_codes, constraints, of_bounds)
        if not constraints._fixed:
            # Now: an optimiser may change the numbers before anyone asks.
            _ = solution.violation, solution.broken, solution.adjusted
            if self.objective.native is not None:
                _ = solution.bound_duals
        return solution


@dataclass(eq=False, kw_only=True)
class TensorCall(Call):
    """A call whose scores are tensors on a device."""

    device: torch.device

    @functools.cached_property
    def others(self) -> list[tuple[int, Tensor]]:
        """What may carry a gradient besides the numbers given, by position: numbers of the set, of the objective."""
        numbers = () if self.plan.constant else self.stated
        every = [*enumerate(numbers), *enumerate(self.objective.parameters().values(), len(Numbers._fields))]
        return [(position, tensor) for position, tensor in every if isinstance(tensor, torch.Tensor)]

    def template(self, constraints: Constraints, given: Mapping[str, Any]) -> Call | None:
        kept = super().template(constraints, given)
        if isinstance(kept, TensorCall):
            _ = kept.others  # once for all calls made from it
        return kept

    @classmethod
    def of(cls, plan: Plan, numbers: Numbers, objective: Objective, device: torch.device, **others: Any) -> TensorCall:
        """For the native core where it takes the call, else with everything as tensors in float64."""
        statement = None
        if plan.native(device.type):
            numbers = Numbers(*map(_on_host, numbers))
            count = math.prod(others["batch_shape"])
            statement = plan.state(numbers, tuple(objective.parameters().values()), count)
        elif numbers is plan.numbers:
            numbers = tensors_of(plan, numbers, device)
        else:
            numbers = Numbers(*(to_tensor(array, device) for array in numbers))
        return cls(plan=plan, stated=numbers, objective=objective, statement=statement, device=device, **others)

    def tensors(self) -> Numbers:
        """The numbers as tensors in float64 on the device, with gradients."""
        return tensors_of(self.plan, self.numbers, self.device)


def tensors_of(plan: Plan, numbers: Numbers, device: torch.device) -> Numbers:
    """Numbers as tensors in float64 on a device; those that a plan has as constants are kept with it."""
    if numbers is not plan.numbers:
        return Numbers(*(to_tensor(array, device) for array in numbers))
    key = "tensors", str(device)
    if key not in plan.kept:
        with plain_tensors():
            plan.kept[key] = Numbers(*(to_tensor(array, device) for array in numbers))
    return plan.kept[key]


def as_tensors(answer: Answer) -> Answer:
    """An answer of the native core with its arrays as tensors, which share their memory."""
    if isinstance(answer.counts, torch.Tensor):
        return answer
    duals, counts, decided = map(torch.from_numpy, (answer.duals, answer.counts, answer.decided))
    return Answer(answer.x, duals, counts, decided, answer.solved, answer.statement)


def _on_host(array: Any) -> Any:
    """Numbers where the native core reads them."""
    return array.cpu() if isinstance(array, torch.Tensor) and array.device.type != "cpu" else array


# ------------------------------------------------------------------ numbers for graphs and function transforms


def numbers_in_graphs(reading: Reading) -> Numbers:
    """The numbers of a set as tensors (1 or N, .) in float64, in terms that torch.compile and transforms follow."""
    constraints, device = reading.constraints, reading.scores.device
    if reading.scores.is_meta:
        device = _CPU
    fixed = constraints._fixed and not constraints.batch_shape
    if fixed and torch.compiler.is_compiling():
        return getattr(constraints._in_graphs, _keep_in_graphs(constraints, reading.width, str(device)))
    if fixed:
        return _constants(constraints, reading.width, device)
    given, pattern = values_on(constraints, device), constraints._structure
    sizes = len(pattern.row), pattern.num_rows, reading.width, reading.width, pattern.num_rows
    batch = reading.batch_shape if constraints.batch_shape else ()
    return Numbers(
        *(
            tensor.expand(1, size) if tensor.dim() <= 1 else tensor.expand(*batch, size).reshape(math.prod(batch), size)
            for tensor, size in zip(given, sizes, strict=True)
        )
    )


def _constants(constraints: Constraints, width: int, device: torch.device) -> Numbers:
    key = "tensors", width, str(device)
    if key not in constraints._plans:
        with plain_tensors():
            slots = slots_of(constraints, width, ())
            constraints._plans[key] = Numbers(*(_whole(to_tensor(slot, device)) for slot in slots))
    return constraints._plans[key]


@constant_in_graphs
def _keep_in_graphs(constraints: Constraints, width: int, device: str) -> str:
    return constraints._in_graphs.put((width, device), _constants(constraints, width, torch.device(device)))


def _whole(tensor: Tensor) -> Tensor:
    """The tensor as all of its memory, as torch.export saves them; a bound for all variables is often one number."""
    if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


# ------------------------------------------------------------------ reading single arguments


@constant_in_graphs
def _reject_recorders() -> None:
    """TorchScript would record the steps of the solver for one input, as if they were those for every input."""
    if torch._C._is_tracing():
        raise ConstraintError(f"torch.jit.trace cannot record a projection. Fix: {EXPORT}.")
    if torch.onnx.is_in_onnx_export():  # the operators of ONNX are fixed
        raise ConstraintError(
            "ONNX has no operator for a projection. Fix: export the network that makes the scores, and call "
            "linsat.project on its output; or torch.export.export(model, (y,)), which keeps the projection."
        )


def _reject_meta(scores: Tensor, constraints: Constraints) -> None:
    """Learned numbers without memory are none to solve with."""
    if not constraints._fixed and not scores.is_meta:
        for name, tensor in constraints._learned_tensors().items():
            if tensor.is_meta:
                raise ConstraintError(
                    f"{name} is on the meta device, which holds no numbers; expected them where y is, on "
                    f"{scores.device}. Fix: model.to_empty(device={str(scores.device)!r}), then load_state_dict."
                )


def spread_objective(
    objective: Objective, batch_shape: torch.Size, num_variables: int, device: torch.device
) -> Objective:
    """The objective with its numbers over the flattened batch."""
    key = objective.constant_key
    if key is not None and not tracing():
        return _spread_constant(key, _Kind(objective), device)
    made = objective.spread(batch_shape, num_variables, device)
    if objective.native is None:
        check_spread(objective, made, math.prod(batch_shape))
    return made


class _Kind:
    """An objective that is equal to any other: beside a key that says what it is."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=64)
def _spread_constant(key: Hashable, kind: _Kind, device: torch.device) -> Objective:
    """Constants for any number of instances; kept, because most programs use a few over and over."""
    with plain_tensors():
        return kind.objective.spread((), 1, device)


def scores_from_numpy(y: Any) -> Any:
    """Scores of numpy, an array or one for each variable by name, as tensors; copies: torch takes few arrays."""

    def tensor(name: str, part: Any) -> Tensor:
        return torch.from_numpy(np.array(numpy_scores(name, part), order="C"))

    if isinstance(y, Mapping):
        return {name: tensor(f"y[{name!r}]", part) for name, part in y.items()}
    return tensor("y", y)


def read_scores(name: str, y: Any) -> Tensor:
    """Scores as a dense, floating tensor."""
    if not isinstance(y, torch.Tensor):
        raise ConstraintError(
            f"{name} is {type(y).__name__}; expected a tensor, as the other scores are. Fix: torch.as_tensor({name})."
        )
    if y.is_nested:
        raise ConstraintError(
            f"{name} is a nested tensor; expected one array. Fix: linsat.project_each, for scores of several lengths."
        )
    tensor = y.resolve_neg()
    if not tensor.is_floating_point():
        raise ConstraintError(f"{name} has dtype {tensor.dtype}; expected floating scores. Fix: {name}.float().")
    if tensor.layout != torch.strided:
        raise ConstraintError(f"{name} has layout {tensor.layout}; expected dense scores. Fix: {name}.to_dense().")
    return tensor


def _joint_batch(scores: torch.Size, constraints: tuple[int, ...]) -> torch.Size:
    if len(constraints) == 0 or scores == constraints:
        return scores
    try:
        return torch.broadcast_shapes(scores, constraints)  # which also takes the symbolic lengths of a graph
    except RuntimeError:
        return torch.Size(joint_batch(tuple(scores), constraints))
