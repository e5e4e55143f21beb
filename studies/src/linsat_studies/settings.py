"""Settings of training runs as dataclasses: checked when made, written and read as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from linsat_studies.files import read_text

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting is malformed; the message names it, what came and what was expected."""


def expect(held: bool, name: str, value: object, expected: str) -> None:
    """Raise `ConfigError` unless a setting is as expected."""
    if not held:
        raise ConfigError(f"{name} is {value!r}; expected {expected}.")


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
        expect((self.minutes is None) != (self.steps is None), "(minutes, steps)", (self.minutes, self.steps), "one")
        expect(self.minutes is None or self.minutes > 0, "minutes", self.minutes, "a positive number")
        expect(self.steps is None or self.steps >= 1, "steps", self.steps, "at least 1")
        expect(self.rate > 0, "rate", self.rate, "a positive number")
        expect(self.clip > 0, "clip", self.clip, "a positive number")
        expect(0 <= self.average < 1, "average", self.average, "a number from 0 to below 1")
        expect(self.every >= 1, "every", self.every, "at least 1")


def to_json(config: Any) -> str:
    """A configuration as text; `from_json` reads it back unchanged."""
    return json.dumps(asdict(config), indent=2)


def from_json(kind: type[T], text: str) -> T:
    """The configuration of the given kind that ``text`` (or a part of it, with defaults for the rest) describes."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the configuration is not JSON ({error}); expected what to_json wrote.") from error
    return from_dict(kind, values)


def from_file(kind: type[T], path: str | Path) -> T:
    """Like `from_json`, from a file, which errors name."""
    try:
        return from_json(kind, read_text(Path(path)))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def from_dict(kind: type[T], values: Any) -> T:
    """Like `from_json`, from the parsed dictionary."""
    if not isinstance(values, dict):
        raise ConfigError(f"{kind.__name__} is {values!r}; expected a JSON object.")
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        expect(name in known, "a setting", name, f"one of {', '.join(sorted(known))}")
    hints = get_type_hints(kind)
    parsed = {
        name: from_dict(hints[name], value) if is_dataclass(hints[name]) else _plain(name, value, hints[name])
        for name, value in values.items()
    }
    return kind(**parsed)


def _plain(name: str, value: Any, hint: Any) -> Any:
    """``value`` if it has the type that the field says: numbers are not read from strings, nor 1 from true."""
    if isinstance(value, list):
        value = tuple(value)
    kinds = get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,)
    given = {int, float} if type(value) is int else {type(value)}
    expect(not given.isdisjoint(kinds), name, value, " or ".join(kind.__name__ for kind in kinds))
    return value
