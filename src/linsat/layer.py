"""`LinSAT`: the projection as a layer of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from linsat._optional import is_tensor
from linsat._transforms import tracing, transforming
from linsat.constraints import Constraints
from linsat.constraints.fingerprint import fingerprint
from linsat.constraints.modelling import not_a_set
from linsat.errors import ConstraintError
from linsat.objectives import Objective
from linsat.plan import Solver
from linsat.projection import project, solve
from linsat.request import GivenNumbers, OnFailure, Options, check_options, read_objective
from linsat.solution import Scores
from linsat.torch.call import EXPORT

if TYPE_CHECKING:
    from typing_extensions import Never

_RULES = "linsat_rules"  # in the metadata that torch keeps beside the tensors of a state


class LinSAT(nn.Module):
    """Projects scores onto a constraint set; see `linsat.project`.

    Args:
        constraints: rows and box, made ready here (so contradictory rows are rejected here).
        tau: short for ``objective=linsat.Entropy(tau=tau)``; an ``nn.Parameter`` is learned with the model.
        objective: what is optimised, as in `linsat.project`; its ``nn.Parameter`` fields are learned with the model.
        solver, on_failure: as in `linsat.project`.
        warm_start: whether a call starts from the duals of the last one with scores of the same shape. It saves steps
            where scores change little from call to call, as in training on the same instances or in a control loop, and
            where some rows stay what they were, as a router's experts do while its tokens are fresh; the answers are
            the same to the tolerance. Not in graphs and function transforms, which keep nothing.

    The layer adds no parameters. ``nn.Parameter`` right-hand sides, coefficients or bounds inside the constraint set,
    and those of the objective (``tau``, ``weights``), are registered under their names, so optimisers, ``state_dict``
    and ``.to(device)`` see them. A ``state_dict`` knows the rules of its layer: a layer with other rules rejects it and
    names what differs. A plain dictionary, such as ``dict(state)``, knows of no rules and is taken.

    Example::

        model = nn.Sequential(nn.Linear(64, 9), LinSAT(linsat.constraints.doubly_stochastic(3), tau=0.1))
    """

    def __init__(
        self,
        constraints: Constraints,
        *,
        tau: Any = None,
        objective: Objective | None = None,
        solver: Solver | None = None,
        on_failure: OnFailure = "raise",
        warm_start: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(constraints, Constraints):
            raise not_a_set(constraints)
        objective = read_objective(objective, tau)
        numbers = objective.parameters()
        tau = numbers.get("tau", 1.0)
        if not isinstance(tau, torch.Tensor) and not (isinstance(tau, (int, float)) and 0 < tau < math.inf):
            raise ConstraintError(f"tau is {tau!r}; expected a positive number or tensor. Fix: for example tau=0.1.")
        check_options(Options(solver, on_failure))
        objective.check_bounds(constraints)
        _make_ready(constraints, objective)
        self._constraints = constraints
        self._objective = objective
        self.solver = solver
        self.on_failure: OnFailure = on_failure
        self.warm_start = warm_start
        self._last: tuple[Any, torch.Tensor] | None = None  # the shapes of the last scores, and the duals of their x
        parameters = {n: t for n, t in constraints._learned_tensors().items() if isinstance(t, nn.Parameter)}
        self._learned = tuple(parameters)
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)
        self._numbers = tuple(numbers)
        for name, value in numbers.items():
            setattr(self, name, value)

    @property
    def constraints(self) -> Constraints:
        """Rows and box, with the present numbers of the layer."""
        constraints = self._constraints
        kept = constraints._learned_tensors() if self._learned else {}
        # Parameters may be swapped: load_state_dict(assign=True), torch.func.functional_call, parametrizations.
        present = {name: getattr(self, name) for name in self._learned}
        swapped = {name: tensor for name, tensor in present.items() if tensor is not kept.get(name)}
        return constraints._with_numbers(**swapped) if swapped else constraints

    @property
    def objective(self) -> Objective:
        """What is optimised, with the present numbers of the layer."""
        numbers = {name: getattr(self, name) for name in self._numbers}
        return replace(self._objective, **numbers) if numbers else self._objective  # type: ignore[type-var]

    def forward(
        self,
        y: Scores,
        *,
        rhs: Mapping[str, Any] | None = None,
        A: Any = None,
        C: Any = None,
        E: Any = None,
        b: Any = None,
        d: Any = None,
        f: Any = None,
        lower: Any = None,
        upper: Any = None,
        price: Any = None,
        tau: Any = None,
        on_failure: OnFailure | None = None,
        start: Any = None,
        **unknown: Never,
    ) -> Scores:
        """x like y: flat, in the shape of the set's variable, or a dict of several, as in `linsat.project`.

        Whatever `linsat.project` takes, a call takes: ``tau``, ``start``, ``on_failure`` and the numbers of rows and
        bounds (``A``, ``b``, ..., ``rhs``) replace the layer's for this call.
        """
        constraints = self.constraints
        objective = self.objective
        if tau is not None:
            if objective.temperature is None:
                raise ConstraintError(
                    f"tau was given, but {type(objective).__name__} has no temperature. Fix: leave it out."
                )
            objective = objective.at(tau)
        options: dict[str, Any] = {
            "objective": objective,
            "solver": self.solver,
            "on_failure": self.on_failure if on_failure is None else on_failure,
        }
        # By name, and not as GivenNumbers: torch.export wants the dynamic shapes of each by its name.
        numbers: GivenNumbers = {"A": A, "C": C, "E": E, "b": b, "d": d, "f": f, "lower": lower, "upper": upper}
        numbers |= {"price": price, "rhs": rhs, **unknown}  # type: ignore[typeddict-item]  # `project` rejects these
        parts = [*y.values()] if isinstance(y, Mapping) else [y]
        plain = all(isinstance(part, torch.Tensor) and not tracing(part) for part in parts) and not transforming()
        if not self.warm_start or start is not None or not plain:
            return project(y, constraints, start=start, **options, **numbers)
        shapes = [part.shape for part in parts]
        start = self._last[1] if self._last is not None and self._last[0] == shapes else None
        solution = solve(y, constraints, start=start, **options, **numbers)
        duals = solution.duals.detach()
        self._last = (shapes, duals) if bool(torch.isfinite(duals).all()) else None
        return solution.x

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script asks a module for."""
        raise ConstraintError(f"torch.jit.script cannot compile a projection. Fix: {EXPORT}.")

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]][_RULES] = fingerprint(self._constraints)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: Any, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        """Reject the state of a layer with other rules: its numbers, learned or of layers before, are for those."""
        own = fingerprint(self._constraints)
        saved = local_metadata.get(_RULES, own)
        differ = ", ".join(name for name in own | saved if own.get(name) != saved.get(name))
        if differ:
            errors.append(
                f"the state{f' of {prefix[:-1]!r}' if prefix else ''} was saved by a layer with other rules (what "
                f"differs: {differ}); expected those of {repr(self._constraints).splitlines()[0]}. Fix: build the "
                f"layer with the rules it was saved with, or load_state_dict(dict(state)) to take the numbers to other "
                f"rules."
            )
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)

    if TYPE_CHECKING:  # nn.Module declares that a call may return anything

        def __call__(self, y: Scores, **replaced: Any) -> Scores: ...

    def extra_repr(self) -> str:
        def shown(value: Any) -> str:
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                value = float(value.detach())
            return f"{value:g}" if isinstance(value, (int, float)) else "learned or per instance"

        name = type(self._objective).__name__
        numbers = ", ".join(f"{n}={shown(getattr(self, n))}" for n in self._numbers)
        text = numbers if name == "Entropy" and self._objective.entropic_slack else f"objective={name}({numbers})"
        return f"{repr(self._constraints).splitlines()[0]}, {text}"


def _make_ready(constraints: Constraints, objective: Objective) -> None:
    """Have a set whose numbers all instances share, and that has numbers by now, decided: solved once at scores 0.

    Raises:
        InfeasibleError: the rows contradict each other.
    """
    learned = [*constraints._learned_tensors().values(), *objective.parameters().values()]
    if constraints.batch_shape or constraints.num_variables is None or any(map(tracing, filter(is_tensor, learned))):
        return
    with torch.no_grad():
        scores = torch.zeros(constraints.num_variables, dtype=torch.float64, device="cpu")
        shared = objective.probe(scores).changed(lambda number: number.reshape(()))
        solve(scores, constraints, objective=shared, on_failure="ignore")
