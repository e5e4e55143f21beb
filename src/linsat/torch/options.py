"""What the operator `linsat::project` must know besides tensors, as a text that outlives the process."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from linsat._transforms import constant_in_graphs
from linsat.arrays import made_solver, settings_of
from linsat.errors import ConstraintError
from linsat.objectives import Objective
from linsat.objectives.base import Kind, of_kind
from linsat.request import Options


@dataclass(frozen=True)
class Description:
    """Everything about a call but its tensors."""

    objective: str  # the name of its class
    fields: dict[str, Any]  # its fields that are no numbers
    numbers: Sequence[str]  # the names of those that are
    options: dict[str, Any]  # `linsat.request.Options`, its solver as `linsat.arrays.settings_of` has it
    constant: bool  # whether rows and box are the same numbers in every call
    names: Sequence[str] | None  # of the rows, where the user gave any

    def build_objective(self, numbers: list[Any]) -> Objective:
        kind = (_objective_class(self.objective), tuple(self.fields.items()), tuple(self.numbers))
        return of_kind(kind, numbers)

    def build_options(self) -> Options:
        return Options(**self.options)._replace(solver=made_solver(self.options["solver"]))


def describe(objective: Objective, options: Options, *, constant: bool, names: tuple[str, ...] | None) -> str:
    """The text of a call; objective and solver may be made inside the graph."""
    solver, *others = options
    return _written(objective.kind(), settings_of(solver), tuple(others), constant, names)


@constant_in_graphs
def _written(objective: Kind, solver: Any, others: tuple[Any, ...], *rest: Any) -> str:
    made, kept, numbers = objective
    description = Description(made.__name__, dict(kept), numbers, Options(solver, *others)._asdict(), *rest)
    try:
        return json.dumps(asdict(description))
    except TypeError:
        listed = ", ".join(f"{name}={value!r}" for name, value in kept)
        raise ConstraintError(
            f"the objective {made.__name__} has the fields {listed}; a graph keeps plain numbers and texts only. "
            f"Fix: return tensors from `parameters`."
        ) from None


@functools.lru_cache(maxsize=256)
def read(text: str) -> Description:
    return Description(**json.loads(text))


def _objective_class(name: str) -> Any:
    """The objective of that name among those that are imported."""
    known: list[Any] = [Objective]
    for kind in known:
        known += kind.__subclasses__()
    kinds = [kind for kind in known if kind.__name__ == name]
    if not kinds:
        raise ConstraintError(
            f"the graph was made with the objective {name!r}, which this process does not know. "
            f"Fix: import the module that defines it before running the graph."
        )
    return kinds[-1]
