"""Row text to a `Problem`: a recursive-descent parser, one relation per line, nothing is ever evaluated.

    line      :=  [label ":"] relation ["," "price" number]  |  "#" comment  |  empty
    relation  :=  sum rel sum [rel sum]          rel: <= >= =     the second only in the direction of the first
    sum       :=  product { (+|-) product }
    product   :=  factor { [*] factor | / factor }               at most one factor may contain variables
    factor    :=  { + | - } ( number | name | "(" sum ")" )

``low <= name <= high`` without a label is the box of that variable (default 0 <= name <= 1); all else is a row. A row
with a price is soft: it may be broken at that price per unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from linsat_tools.explorer.problem import Problem, Row
from linsat_tools.explorer.tokens import LIMITS, Limits, RowTextError, Token, check_size, tokenise

_PRICE = re.compile(r",[ \t]*price\b")
_OVERFLOW = 1e12  # size at which intermediate results are rejected; far above any number a row may have


@dataclass
class _Linear:
    """An affine expression: coefficients by variable, in order of appearance, and a constant."""

    terms: dict[str, float] = field(default_factory=dict)
    constant: float = 0.0
    bare: bool = False  # a variable and nothing else

    def plus(self, other: _Linear, sign: float) -> _Linear:
        terms = dict(self.terms)
        for name, value in other.terms.items():
            terms[name] = terms.get(name, 0.0) + sign * value
        return _Linear(terms, self.constant + sign * other.constant)

    def times(self, factor: float) -> _Linear:
        return _Linear({name: factor * value for name, value in self.terms.items()}, factor * self.constant)

    def largest(self) -> float:
        return max([abs(self.constant), *(abs(value) for value in self.terms.values())])


def parse(text: str, *, limits: Limits = LIMITS) -> Problem:
    """Read rows and bounds.

    Args:
        text: one row or bound per line; ``#`` starts a comment.
        limits: how much is read.

    Returns:
        the problem, variables in order of appearance. Cost: linear in the text.

    Raises:
        RowTextError: names line, column, what was received and what was expected.
    """
    if len(text) > limits.characters:
        raise RowTextError(1, 1, f"the text has {len(text)} characters; expected at most {limits.characters}.")
    lines = text.split("\n")
    if len(lines) > limits.lines:
        raise RowTextError(limits.lines + 1, 1, f"{len(lines)} lines; expected at most {limits.lines}.")
    reader = _Reader(limits)
    for number, line in enumerate(lines, start=1):
        reader.read(line.rstrip("\r"), number)
    return reader.problem()


class _Reader:
    """Collects what the lines say, and rejects what goes beyond the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.variables: dict[str, None] = {}  # an ordered set
        self.rows: list[Row] = []
        self.boxes: dict[str, tuple[float, float]] = {}

    def read(self, line: str, number: int) -> None:
        code = line.partition("#")[0]
        if not code.strip():
            return
        label, start = self._label(code, number)
        code, price = self._price(code, start, number)
        parser = _LineParser(tokenise(code[start:], number, first_column=start + 1, limits=self.limits), number)
        sides, relations = parser.relation(self.limits.nesting)
        for side, _ in sides:
            self._remember(side, number, start + 1)
        if len(sides) == 3 and sides[1][0].bare and not sides[0][0].terms and not sides[2][0].terms:
            if label is not None:
                raise RowTextError(number, 1, "bounds have no name; expected e.g. 0 <= a <= 2. Fix: drop the name.")
            if price is not None:
                at = len(code) + 1
                raise RowTextError(number, at, "bounds have no price. Fix: two rows, such as a >= 0 and a <= 2.")
            self._box(sides, relations[0], number)
            return
        text = code[start:].strip()
        for which, relation in enumerate(relations):
            (left, _), (right, column) = sides[which], sides[which + 1]
            part = "" if len(relations) == 1 else (" (left)", " (right)")[which]
            name = f"{label or f'line {number}'}{part}"
            self._row(left.plus(right, -1.0), Row(number, name, {}, relation, 0.0, text, price), column)

    def _price(self, code: str, start: int, number: int) -> tuple[str, float | None]:
        """The line without the price at its end, and the price; ``start`` is where its name ends."""
        found = _PRICE.search(code, start)
        if found is None:
            return code, None
        value, *rest = tokenise(code[found.end() :], number, first_column=found.end() + 1, limits=self.limits)
        if value.kind != "number" or len(rest) != 1 or float(value.text) == 0:
            raise RowTextError(number, value.column, "expected one positive number after 'price', such as price 2.")
        return code[: found.start()], float(value.text)

    def _label(self, code: str, number: int) -> tuple[str | None, int]:
        before, colon, _ = code.partition(":")
        if not colon:
            return None, 0
        label = before.strip()
        if not label or len(label) > self.limits.label or not label.isprintable():
            raise RowTextError(
                number, 1, f"found ':' after {len(label)} characters; expected a name of 1 to {self.limits.label}."
            )
        return label, len(before) + 1

    def _remember(self, side: _Linear, number: int, column: int) -> None:
        self.variables.update(dict.fromkeys(side.terms))
        if len(self.variables) > self.limits.variables:
            raise RowTextError(
                number, column, f"{len(self.variables)} variables; expected at most {self.limits.variables}."
            )

    def _box(self, sides: list[tuple[_Linear, int]], relation: str, number: int) -> None:
        (low, low_column), (middle, column), (high, _) = sides
        lower, upper = (low.constant, high.constant) if relation == "<=" else (high.constant, low.constant)
        (name,) = middle.terms
        if name in self.boxes:
            raise RowTextError(number, column, f"{name} has bounds already. Fix: remove one of the two lines.")
        for value in (lower, upper):
            check_size(value, number, low_column, self.limits)
        if lower > upper:
            raise RowTextError(number, low_column, f"the lower bound {lower:g} is above the upper bound {upper:g}.")
        self.boxes[name] = (lower, upper)

    def _row(self, difference: _Linear, row: Row, column: int) -> None:
        coefficients = {name: value for name, value in difference.terms.items() if value != 0}
        if not coefficients:
            raise RowTextError(row.line, column, "no variable is left in this row; expected at least one.")
        if len(self.rows) == self.limits.rows:
            raise RowTextError(row.line, column, f"more than {self.limits.rows} rows; expected no more.")
        for value in (*coefficients.values(), difference.constant):
            check_size(value, row.line, column, self.limits)
        self.rows.append(replace(row, coefficients=coefficients, rhs=0.0 - difference.constant))

    def problem(self) -> Problem:
        boxes = [self.boxes.get(name, (0.0, 1.0)) for name in self.variables]
        return Problem(
            tuple(self.variables),
            tuple(self.rows),
            tuple(lower for lower, _ in boxes),
            tuple(upper for _, upper in boxes),
        )


class _LineParser:
    """Recursive descent over the tokens of one line."""

    def __init__(self, tokens: list[Token], line: int) -> None:
        self.tokens = tokens
        self.line = line
        self.position = 0

    @property
    def now(self) -> Token:
        return self.tokens[self.position]

    def error(self, expected: str) -> RowTextError:
        return RowTextError(self.line, self.now.column, f"found {self.now.shown}; expected {expected}.")

    def relation(self, nesting: int) -> tuple[list[tuple[_Linear, int]], list[str]]:
        """Two or three sides with the column where each begins, and the relations between them."""
        sides = [(self.sum(nesting), self.tokens[0].column)]
        relations: list[str] = []
        while self.now.kind == "relation":
            if relations and (len(relations) == 2 or self.now.text == "==" or self.now.text != relations[0]):
                raise self.error("at most two of <= or >= in a line, in the same direction")
            relations.append(self.now.text)
            self.position += 1
            column = self.now.column
            sides.append((self.sum(nesting), column))
        if self.now.kind != "end" or not relations:
            raise self.error("+ - * / or one of = <= >=")
        return sides, relations

    def sum(self, nesting: int) -> _Linear:
        total = self.product(nesting)
        while self.now.kind == "operator" and self.now.text in "+-":
            sign = 1.0 if self.now.text == "+" else -1.0
            self.position += 1
            total = self._checked(total.plus(self.product(nesting), sign))
        return total

    def product(self, nesting: int) -> _Linear:
        total = self.factor(nesting)
        while True:
            before, column = self.tokens[self.position - 1], self.now.column
            if self.now.kind == "operator" and self.now.text in "*/":
                divides = self.now.text == "/"
                self.position += 1
                total = self._combine(total, self.factor(nesting), divides, column)
            elif (self.now.kind == "name" or self.now.text == "(") and (before.kind == "number" or before.text == ")"):
                total = self._combine(total, self.factor(nesting), False, column)  # 3 b, 2 (a + b)
            else:
                return total

    def _combine(self, left: _Linear, right: _Linear, divides: bool, column: int) -> _Linear:
        if divides:
            if right.terms:
                raise RowTextError(self.line, column, "division by a variable; expected a number after '/'.")
            if right.constant == 0:
                raise RowTextError(self.line, column, "division by 0; expected another number after '/'.")
            return self._checked(left.times(1.0 / right.constant))
        if left.terms and right.terms:
            raise RowTextError(self.line, column, "variables are multiplied; expected a linear row, such as 2 a + b.")
        return self._checked(right.times(left.constant) if right.terms else left.times(right.constant))

    def _checked(self, value: _Linear) -> _Linear:
        if not value.largest() <= _OVERFLOW:
            raise RowTextError(self.line, self.now.column, f"numbers beyond {_OVERFLOW:g}; expected smaller ones.")
        return value

    def factor(self, nesting: int) -> _Linear:
        sign = 1.0
        signed = False
        while self.now.kind == "operator" and self.now.text in "+-":
            sign, signed = (-sign if self.now.text == "-" else sign), True
            self.position += 1
        token = self.now
        if token.kind == "number":
            self.position += 1
            return _Linear(constant=sign * float(token.text))
        if token.kind == "name":
            self.position += 1
            return _Linear({token.text: sign}, bare=not signed)
        if token.text != "(":
            raise self.error("a number, a variable or '('")
        if nesting == 0:
            raise self.error("fewer brackets inside brackets")
        self.position += 1
        inside = self.sum(nesting - 1)
        if self.now.text != ")":
            raise self.error("')'")
        self.position += 1
        return inside.times(sign)
