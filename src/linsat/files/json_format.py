"""Constraint files in JSON: written by hand or by a program, read strictly. docs/files.md has the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp

from linsat.constraints.arrays import as_array
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Layout
from linsat.constraints.numbers import present
from linsat.errors import ConstraintError
from linsat.files.model import (
    MATRICES,
    VERSION,
    Model,
    check_variable_count,
    described,
    read_described,
    read_terms,
    read_text,
    with_prices,
)

_KEYS = ("version", "variables", *MATRICES, *MATRICES.values(), "lower", "upper", "names", "price", "maxima", "comment")
_MAXIMA = ("T", "t", "names", "pieces", "rows")
_DEEPEST = 6  # of right-hand sides: batch dimensions and rows


def read_json(path: Path) -> Model:
    """Read a JSON constraint file; every error names the place in the file."""
    content = _parse(read_text(path))
    if not isinstance(content, dict):
        raise ConstraintError(
            f'the file holds {_kind(content)}; expected an object {{"version": {VERSION}, "variables": ..., ...}}.'
        )
    for key in content:
        if key not in _KEYS:
            raise ConstraintError(f"unknown key {key!r}; expected some of {', '.join(_KEYS)}.")
    version = content.get("version")
    if type(version) is not int or version != VERSION:
        raise ConstraintError(f'version is {_kind(version)}; expected {VERSION}. Fix: "version": {VERSION}.')
    layout, count = _variables(content.get("variables"))
    positions = {name: i for i, name in enumerate(map(str, range(count)) if layout is None else layout.entries())}
    if len(positions) < count:
        raise ConstraintError("two entries of variables have the same name. Fix: other names, or other labels.")
    arguments: dict[str, Any] = {
        "lower": _bound("lower", content.get("lower", 0.0), positions, 0.0),
        "upper": _bound("upper", content.get("upper", 1.0), positions, 1.0),
    }
    for matrix, side in MATRICES.items():
        if matrix in content:
            arguments[matrix] = _matrix(matrix, content[matrix], positions)
        if side in content:
            arguments[side] = _numbers(side, content[side], {"b": np.inf, "d": -np.inf}.get(side))
    names = content.get("names")
    if names is not None and not isinstance(names, list):
        raise ConstraintError(f"names is {_kind(names)}; expected a list of strings, one per row.")
    if "maxima" in content:
        arguments["terms"] = _maxima(content["maxima"], positions, arguments)
    constraints = Constraints(**arguments, names=names, variables=layout)
    if "price" in content:
        constraints = with_prices(constraints, _numbers("price", content["price"], np.inf))
    return Model(constraints)


def write_json(path: Path, constraints: Constraints) -> None:
    """Write a set as JSON, rows as objects {variable: coefficient}.

    Raises:
        ConstraintError: coefficients differ per instance, for which the format has no place; or names do, which are not
            unique.
    """
    terms = constraints._terms
    blocks = dict(constraints._matrices) | ({} if terms is None else {"T": terms.matrix})
    differ = [name for name, block in blocks.items() if block.batch_shape]
    if differ:
        raise ConstraintError(
            f"{', '.join(differ)} differ per instance; a JSON file holds coefficients that all instances share. "
            f"Fix: save as .npz."
        )
    layout, count = constraints._layout, constraints.num_variables or 1
    keys = [str(i) for i in range(count)] if layout is None else layout.entries()
    if len(set(keys)) < count:
        raise ConstraintError("two variables have the same name. Fix: other names or labels, or save as .npz.")
    content: dict[str, Any] = {"version": VERSION, "variables": count if layout is None else described(layout)}
    numbers = present(constraints)
    rows = _as_objects(numbers.row, numbers.col, numbers.values, len(constraints), keys)
    for block, sense in (("A", "<="), ("C", ">="), ("E", "==")):
        here = [row for row, own in zip(rows, constraints.senses, strict=True) if own == sense]
        if here:
            content[block] = here
            content[MATRICES[block]] = _without_infinity(as_array(constraints._sides()[MATRICES[block]]))
    content |= {"lower": _without_infinity(numbers.lower), "upper": _without_infinity(numbers.upper)}
    content["names"] = list(constraints.names)
    if numbers.price is not None:
        content["price"] = _without_infinity(numbers.price)
    if terms is not None:
        T = terms.matrix
        pieces = zip(terms.base.tolist(), terms.sign.tolist(), terms.of.tolist(), strict=True)
        content["maxima"] = {
            "T": _as_objects(T.row, T.col, as_array(T.values()), T.shape[0], keys),
            "t": as_array(terms.sides()).tolist(),
            "names": list(terms.names),
            "pieces": [list(piece) for piece in pieces],
            "rows": [list(pair) for pair in zip(terms.row.tolist(), terms.weight.tolist(), strict=True)],
        }
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _as_objects(
    row: np.ndarray, col: np.ndarray, values: np.ndarray, count: int, keys: list[str]
) -> list[dict[str, float]]:
    """Coefficients as an object {variable: coefficient} for each of ``count`` rows."""
    rows: list[dict[str, float]] = [{} for _ in range(count)]
    for i, column, value in zip(row.tolist(), col.tolist(), values.tolist(), strict=True):
        rows[i][keys[column]] = value
    return rows


def _maxima(value: Any, positions: dict[str, int], arguments: dict[str, Any]) -> Any:
    """The maxima in the rows of a set."""
    if not isinstance(value, dict) or sorted(value) != sorted(_MAXIMA) or not isinstance(value["names"], list):
        raise ConstraintError(f"maxima is {_kind(value)}; expected an object with {', '.join(_MAXIMA)}.")
    return read_terms(
        _matrix("maxima.T", value["T"], positions),
        _numbers("maxima.t", value["t"]),
        value["names"],
        _numbers("maxima.pieces", value["pieces"]),
        _numbers("maxima.rows", value["rows"]),
        arguments,
    )


def _without_infinity(bound: Any) -> Any:
    """A side, bound or price as numbers and lists, with None where it is infinite."""

    def plain(part: Any) -> Any:
        if isinstance(part, list):
            return [plain(item) for item in part]
        return part if np.isfinite(part) else None

    return plain(bound.tolist())


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise ConstraintError(
            f"line {error.lineno}, column {error.colno}: {error.msg}; expected JSON. "
            f"Fix: complete or correct the file at this place."
        ) from None
    except RecursionError:
        raise ConstraintError("lists are nested too deeply; expected rows as lists or objects of numbers.") from None
    except ValueError as error:
        if isinstance(error, ConstraintError):
            raise
        raise ConstraintError(f"a number cannot be read ({error}); expected numbers that fit a float.") from None


def _no_constant(text: str) -> NoReturn:
    raise ConstraintError(f"the file holds {text}; expected finite numbers. Fix: leave out what is not meant to bind.")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ConstraintError(f"key {again!r} occurs twice in one object. Fix: add the two up or remove one.")
    return entries


def _variables(value: Any) -> tuple[Layout | None, int]:
    if type(value) is int:
        check_variable_count(value)
        return None, value
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        if len(set(value)) < len(value):
            again = next(name for i, name in enumerate(value) if name in value[:i])
            raise ConstraintError(f"variables names {again!r} twice. Fix: one name per variable.")
        check_variable_count(len(value))
        return Layout.of_names(value), len(value)
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        layout = read_described(value)
        return layout, layout.size
    raise ConstraintError(
        f"variables is {_kind(value)}; expected how many there are, or a list of their names. "
        f'Fix: "variables": 3, or "variables": ["a", "b", "c"].'
    )


def _matrix(name: str, value: Any, positions: dict[str, int]) -> sp.csr_array:
    if not isinstance(value, list):
        raise ConstraintError(f"{name} is {_kind(value)}; expected a list of rows.")
    starts = [0]
    columns: list[int] = []
    values: list[float] = []
    for i, row in enumerate(value):
        place = f"{name}[{i}]"
        if isinstance(row, list):
            if len(row) != len(positions):
                raise ConstraintError(
                    f"{place} has {len(row)} numbers; expected {len(positions)}, one per variable. "
                    f"Fix: complete the row, or give it as an object {{variable: coefficient}}."
                )
            columns.extend(range(len(row)))
            values.extend(_number(f"{place}[{j}]", number) for j, number in enumerate(row))
        elif isinstance(row, dict):
            for key, number in row.items():
                columns.append(_position(place, key, positions))
                values.append(_number(f"{place}[{key!r}]", number))
        else:
            raise ConstraintError(
                f"{place} is {_kind(row)}; expected a list of {len(positions)} numbers or an object "
                f"{{variable: coefficient}}."
            )
        starts.append(len(columns))
    shape = (len(value), len(positions))
    return sp.csr_array((np.array(values, dtype=np.float64), np.array(columns, dtype=np.int64), starts), shape=shape)


def _position(place: str, key: str, positions: dict[str, int]) -> int:
    if key not in positions:
        known = list(positions)
        shown = ", ".join(known[:4]) + (f", ..., {known[-1]}" if len(known) > 4 else "")
        raise ConstraintError(f"{place} names variable {key!r}; expected one of {shown}.")
    return positions[key]


def _bound(name: str, value: Any, positions: dict[str, int], otherwise: float) -> np.ndarray:
    """One end of the box: a number, one per variable, a batch of these, or an object with those that differ.

    null stands for no bound.
    """
    missing = -np.inf if name == "lower" else np.inf
    if not isinstance(value, dict):
        numbers = _numbers(name, value, missing)
        return np.broadcast_to(numbers, (*numbers.shape[:-1], len(positions))) if numbers.ndim == 0 else numbers
    numbers = np.full(len(positions), otherwise)
    for key, number in value.items():
        numbers[_position(name, key, positions)] = missing if number is None else _number(f"{name}[{key!r}]", number)
    return numbers


def _numbers(name: str, value: Any, missing: float | None = None) -> np.ndarray:
    """A number or nested lists of numbers, all of the same shape; ``missing`` is what null stands for, if anything."""

    def read(place: str, part: Any, depth: int) -> Any:
        if not isinstance(part, list):
            return missing if part is None and missing is not None else _number(place, part)
        if depth == _DEEPEST:
            raise ConstraintError(f"{place} is nested more than {_DEEPEST} deep; expected one right-hand side per row.")
        return [read(f"{place}[{i}]", item, depth + 1) for i, item in enumerate(part)]

    numbers = read(name, value, 0)
    try:
        return np.array(numbers, dtype=np.float64)
    except ValueError:
        raise ConstraintError(f"{name} is a ragged list; expected lists of one length.") from None


def _number(place: str, value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise ConstraintError(f"{place} is too large for a float; expected at most 1.8e308.") from None
    raise ConstraintError(f"{place} is {_kind(value)}; expected a number. Fix: write it without quotes.")


_DESCRIPTIONS: dict[type, Callable[[Any], str]] = {
    dict: lambda value: f"an object with {len(value)} keys",
    list: lambda value: f"a list of {len(value)}",
    str: lambda value: f"the text {value[:40]!r}",
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "missing or null",
}


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    return _DESCRIPTIONS.get(type(value), lambda value: f"{value!s:.40}")(value)
