"""Row text to tokens: numbers, names, operators and relations, each with its column."""

from __future__ import annotations

import re
from dataclasses import dataclass

from linsat.errors import ConstraintError

_TOKEN = re.compile(
    r"(?P<space>[ \t]+)"
    r"|(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<relation><=|>=|==|=|≤|≥)"
    r"|(?P<operator>[-+*/()])",
    re.ASCII,
)
_SAME = {"=": "==", "≤": "<=", "≥": ">="}
_HINTS = {
    "<": "'<=' (rows are closed: write <= for <)",
    ">": "'>=' (rows are closed: write >= for >)",
    "^": "a linear expression: powers are not",
    "!": "'=', '<=' or '>='",
    "[": "names of letters, digits and _, such as x_1",
    ",": "a decimal point, and one row per line",
    ".": "a number such as 0.5",
}


class RowTextError(ConstraintError):
    """Row text that cannot be read: where (line and column, from 1), what was received and what was expected."""

    def __init__(self, line: int, column: int, problem: str) -> None:
        super().__init__(f"line {line}, column {column}: {problem}")
        self.line = line
        self.column = column
        self.problem = problem

    def __reduce__(self) -> tuple:
        return RowTextError, (self.line, self.column, self.problem)


@dataclass(frozen=True)
class Limits:
    """How much text is read; more is rejected, not cut off."""

    characters: int = 6000
    lines: int = 80
    rows: int = 40
    variables: int = 30
    nesting: int = 20  # brackets inside brackets
    smallest: float = 1e-6  # size of a number other than 0
    largest: float = 1e6
    digits: int = 24  # characters of one number
    name: int = 24  # characters of a variable
    label: int = 40  # characters in front of a colon


LIMITS = Limits()


@dataclass(frozen=True)
class Token:
    """One piece of a line; ``kind`` is number, name, relation, operator or end."""

    kind: str
    text: str
    column: int  # from 1

    @property
    def shown(self) -> str:
        return "the end of the line" if self.kind == "end" else repr(self.text)


def tokenise(text: str, line: int, *, first_column: int = 1, limits: Limits = LIMITS) -> list[Token]:
    """The tokens of one line, an ``end`` token last. Cost: linear in its length.

    Raises:
        RowTextError: a character that begins nothing, or a number or name beyond the limits.
    """
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        column = first_column + position
        if match is None:
            character = text[position]
            expected = _HINTS.get(character, "a number, a variable, + - * / ( ) or one of = <= >=")
            raise RowTextError(line, column, f"found {character!r}; expected {expected}.")
        kind, piece = str(match.lastgroup), match.group()
        if kind == "number":
            _check_number(piece, line, column, limits)
        if kind == "name" and len(piece) > limits.name:
            raise RowTextError(
                line, column, f"the name {piece[:10]}... has {len(piece)} characters; expected at most {limits.name}."
            )
        if kind != "space":
            found.append(Token(kind, _SAME.get(piece, piece), column))
        position = match.end()
    found.append(Token("end", "", first_column + len(text)))
    return found


def _check_number(piece: str, line: int, column: int, limits: Limits) -> None:
    if len(piece) > limits.digits:
        raise RowTextError(
            line, column, f"a number of {len(piece)} characters; expected at most {limits.digits}. Fix: round it."
        )
    check_size(float(piece), line, column, limits)


def check_size(value: float, line: int, column: int, limits: Limits = LIMITS) -> None:
    """Reject numbers whose size is outside the limits; 0 is allowed."""
    if value != 0 and not limits.smallest <= abs(value) <= limits.largest:
        raise RowTextError(
            line,
            column,
            f"the number {value:.3g} is out of range; expected 0 or a size from {limits.smallest:g} to "
            f"{limits.largest:g}. Fix: change the units.",
        )
