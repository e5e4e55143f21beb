"""What a training run is made of: the network's sizes, what it learns from, and the plan of the run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting is malformed; the message names it, what came and what was expected."""


def _expect(held: bool, name: str, value: object, expected: str) -> None:
    if not held:
        raise ConfigError(f"{name} is {value!r}; expected {expected}.")


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of `TourNet`; the paper's shape (3 layers, 8 heads, 3-layer head) is the default."""

    cities: int = 20  # n, also the number of steps
    width: int = 128
    layers: int = 3
    heads: int = 8
    hidden: int = 256  # inner width of each layer's feed-forward part
    refine: bool = True  # project after every layer and let the next one read the soft tour

    def __post_init__(self) -> None:
        _expect(self.cities >= 4, "cities", self.cities, "at least 4 (start, priority, another, end)")
        _expect(self.layers >= 1, "layers", self.layers, "at least 1")
        _expect(self.hidden >= 1, "hidden", self.hidden, "at least 1")
        _expect(self.heads >= 1 and self.width % self.heads == 0, "width", self.width, f"a multiple of {self.heads}")


@dataclass(frozen=True)
class Plan:
    """How long and how fast any learner is trained; `minutes` or `steps`, exactly one of them.

    The learning rate rises over `warmup` steps and then falls to 1 % on a cosine over the whole run. Minutes count time
    spent in training steps only, so a run that is stopped and continued keeps its budget.
    """

    minutes: float | None = None
    steps: int | None = None
    rate: float = 1e-3  # AdamW's highest learning rate
    warmup: int = 200
    decay: float = 0.01  # AdamW's weight decay
    clip: float = 1.0  # largest norm of the gradient
    average: float = 0.998  # decay of the running mean of the weights, which is what is validated and shipped
    every: int = 250  # steps between validations; each also writes a checkpoint
    seed: int = 0

    def __post_init__(self) -> None:
        _expect((self.minutes is None) != (self.steps is None), "(minutes, steps)", (self.minutes, self.steps), "one")
        _expect(self.minutes is None or self.minutes > 0, "minutes", self.minutes, "a positive number")
        _expect(self.steps is None or self.steps >= 1, "steps", self.steps, "at least 1")
        _expect(self.rate > 0, "rate", self.rate, "a positive number")
        _expect(self.clip > 0, "clip", self.clip, "a positive number")
        _expect(0 <= self.average < 1, "average", self.average, "a number from 0 to below 1")
        _expect(self.every >= 1, "every", self.every, "at least 1")


@dataclass(frozen=True)
class TourConfig:
    """A run of `train`: one network for the given tasks, on instances drawn afresh at every step.

    Two signals can be weighted against each other:

    - the expected length of the soft tour, the paper's unsupervised loss (alone with ``teacher_weight=0`` and
      ``length_weight=1``). It is loose while the soft tour is undecided, and learns slowly;
    - the cross-entropy to a tour that a local search found for the fresh instance in about 0.1 ms: supervised, though
      without any stored solutions, and a far stronger signal per instance.

    The shipped networks come from two runs, whose settings are beside them: ``learn.json``, the defaults here, one
    network for both tasks from the teacher alone; then ``sharpen_se.json`` and ``sharpen_pri.json``, one network each
    from its weights, on the expected length with a little of the teacher. The second run is at a higher temperature
    (0.3) than tours are decoded at, so the network learns scores that are decided even there, and rounding at 0.01
    gives whole tours.
    """

    network: NetworkConfig = field(default_factory=NetworkConfig)
    plan: Plan = field(default_factory=lambda: Plan(minutes=40.0))
    tasks: tuple[str, ...] = ("se", "pri")
    batch: int = 128  # instances a step over all processes, shared equally by the tasks
    tau: float = 0.1  # temperature of the layer at the start of the run ...
    tau_end: float = 0.1  # ... and at its end, with a geometric path between them
    teacher_weight: float = 1.0  # of the cross-entropy to a local search's tour
    teacher_starts: int = 6  # random starts of that local search
    length_weight: float = 0.0  # of the expected length of the soft tour
    validation: int = 256  # instances of each task, decoded with `beam` beams
    beam: int = 64

    def __post_init__(self) -> None:
        tasks = tuple(self.tasks)
        object.__setattr__(self, "tasks", tasks)
        _expect(bool(tasks) and set(tasks) <= {"se", "pri"}, "tasks", tasks, "'se', 'pri' or both")
        _expect(self.batch >= len(tasks), "batch", self.batch, "at least one instance a task")
        _expect(self.tau > 0 and self.tau_end > 0, "(tau, tau_end)", (self.tau, self.tau_end), "positive numbers")
        _expect(self.teacher_weight >= 0, "teacher_weight", self.teacher_weight, "a number of at least 0")
        _expect(self.length_weight >= 0, "length_weight", self.length_weight, "a number of at least 0")
        _expect(self.teacher_weight + self.length_weight > 0, "teacher_weight + length_weight", 0, "something to learn")
        _expect(self.teacher_starts >= 1, "teacher_starts", self.teacher_starts, "at least 1")


def to_json(config: Any) -> str:
    """A configuration as text; `from_json` reads it back unchanged."""
    return json.dumps(asdict(config), indent=2)


def from_json(kind: type[T], text: str) -> T:
    """The configuration of the given kind that ``text`` (or a part of it, with defaults for the rest) describes."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the configuration is not JSON ({error}); expected what to_json wrote.") from error
    return from_dict(kind, values)


def from_dict(kind: type[T], values: Any) -> T:
    """Like `from_json`, from the parsed dictionary."""
    if not isinstance(values, dict):
        raise ConfigError(f"{kind.__name__} is {values!r}; expected a JSON object.")
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        _expect(name in known, "a setting", name, f"one of {', '.join(sorted(known))}")
    hints = get_type_hints(kind)
    parsed = {
        name: from_dict(hints[name], value) if is_dataclass(hints[name]) else _plain(name, value, hints[name])
        for name, value in values.items()
    }
    return kind(**parsed)


def read_config(path: str | Path) -> TourConfig:
    """The `TourConfig` in a JSON file."""
    return from_json(TourConfig, Path(path).read_text(encoding="utf-8"))


def _plain(name: str, value: Any, hint: Any) -> Any:
    """``value`` if it has the type that the field says: numbers are not read from strings, nor 1 from true."""
    if isinstance(value, list):
        value = tuple(value)
    kinds = get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,)
    given = {int, float} if type(value) is int else {type(value)}
    _expect(not given.isdisjoint(kinds), name, value, " or ".join(kind.__name__ for kind in kinds))
    return value
