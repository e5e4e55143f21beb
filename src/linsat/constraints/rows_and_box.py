"""`RowsAndBox`: what a constraint set holds and answers; `Constraints` makes new sets from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat._forks import one_thread_after_a_fork
from linsat._optional import is_tensor
from linsat._transforms import Kept, has_tangent, mapped
from linsat.constraints import arrays
from linsat.constraints.arrays import Array, Numbers, Shape
from linsat.constraints.checks import check_bounds, check_empty_rows, check_finite_box, check_names, joint_batch_shape
from linsat.constraints.coefficients import Matrix, read_matrix
from linsat.constraints.numbers import Statement, own_tensor, right_sides, sparse_matrix, statement, values_on
from linsat.constraints.rounded import consistent, keep_dependencies, rounding_of
from linsat.constraints.soft import SoftRows, check_price, full_price, learned_price
from linsat.constraints.structure import BLOCKS, SparsityPattern, Values, joint_width, stack_rows
from linsat.constraints.terms import Terms
from linsat.constraints.text import SENSE_TEXT, row_text, summary
from linsat.constraints.variables import read_layout
from linsat.constraints.violations import row_violation, soft_violation, violation
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from linsat.compile.diagnosis import NamedBound

    Tensor = torch.Tensor


_ARGUMENTS = ("A", "b", "C", "d", "E", "f", "lower", "upper", "names", "variables")


class RowsAndBox:
    """Linear rows and a box, validated once and never changed afterwards; see `linsat.Constraints`."""

    def __new__(cls, *unnamed: Any, **given: Any) -> Self:
        """Reject arguments that there are none of, before Python does so in the name of this class."""
        unknown = [name for name in given if name not in (*_ARGUMENTS, "terms")]
        if unnamed or unknown:
            what = f"an argument {unknown[0]!r}" if unknown else f"{type(unnamed[0]).__name__} without a name"
            raise ConstraintError(
                f"Constraints got {what}; expected {', '.join(_ARGUMENTS)}, all by name. "
                f"Fix: A x <= b, C x >= d, E x == f: a matrix and its right-hand side together, "
                f"Constraints(A=A, b=b)."
            )
        return super().__new__(cls)

    @one_thread_after_a_fork
    def __init__(
        self,
        *,
        A: Any = None,
        b: Any = None,
        C: Any = None,
        d: Any = None,
        E: Any = None,
        f: Any = None,
        lower: Any = 0.0,
        upper: Any = 1.0,
        names: Sequence[str] | None = None,
        variables: Any = None,
        terms: Terms | None = None,
    ) -> None:
        given = {"A": A, "b": b, "C": C, "d": d, "E": E, "f": f}
        self._terms = terms
        self._matrices: dict[str, Matrix] = {}
        self._right_sides: dict[str, Numbers] = {}
        for matrix_name, side_name, _ in BLOCKS:
            if (given[matrix_name] is None) != (given[side_name] is None):
                missing, present = (side_name, matrix_name) if given[side_name] is None else (matrix_name, side_name)
                raise ConstraintError(
                    f"{present} was given without {missing}. Fix: pass {matrix_name} and {side_name} together."
                )
            if given[matrix_name] is None:
                continue
            matrix = read_matrix(matrix_name, given[matrix_name])
            self._matrices[matrix_name] = matrix
            self._right_sides[side_name] = arrays.read_right_side(side_name, given[side_name], matrix)
        self._rounding = rounding_of(f)  # of the equalities' sides as given
        self._adjusted: Numbers = np.zeros(())
        self._bounds_on: dict[Any, Any] = {}  # constant bounds as tensors
        self._lower = arrays.read_bound("lower", lower)
        self._upper = arrays.read_bound("upper", upper)
        self._layout = read_layout(variables)
        self._structure = self._stacked()
        self._names = check_names(names, len(self))
        self._named_bounds: tuple[NamedBound, ...] = ()
        self._soft: tuple[SoftRows, ...] = ()
        self._free_constants()
        self._settle()

    def _bounds(self) -> dict[str, Numbers]:
        return {"lower": self._lower, "upper": self._upper}

    def _rows_of(self, side: str) -> int:
        return next(self._matrices[matrix].shape[0] for matrix, name, _ in BLOCKS if name == side)

    def _sides(self) -> dict[str, Numbers]:
        """The right-hand sides (batch..., rows) as they are kept."""
        return {n: arrays.spread(side, (*side.shape[:-1], self._rows_of(n))) for n, side in self._right_sides.items()}

    def _consistent_sides(self) -> dict[str, Numbers]:
        """The right-hand sides (batch..., rows) as they are solved for: learned ones freed of rounding as well."""
        sides = self._sides()
        if "f" in sides and arrays.followed(sides["f"]):
            sides["f"] = self._freed(sides["f"])[0]
        return sides

    def _freed(self, f: Numbers) -> tuple[Numbers, Numbers]:
        """Sides of the equalities without what only rounding makes a contradiction, and their largest change."""
        if self._rounding and not self._matrices["E"].live:
            N = getattr(self._matrices["E"].kept, keep_dependencies(self._matrices["E"]))
            if N.shape[1]:
                return consistent(f, N, self._rounding)
        return f, np.zeros(f.shape[:-1])

    def _free_constants(self) -> None:
        """Sides that are constants are freed of rounding once, when they come in."""
        f = self._right_sides.get("f")
        if self._rounding and f is not None and not arrays.followed(f):
            freed, self._adjusted = self._freed(self._sides()["f"])
            self._right_sides = self._right_sides | {"f": freed}

    def _adjustment(self) -> Numbers:
        """The largest relative change of a right-hand side that was given in less than float64: (batch...), or ().

        Equalities that contradict each other by no more than the rounding of that dtype (row and column sums from two
        softmaxes in float32) get the nearest sides that do not. 0 where sides are taken as given.
        """
        f = self._right_sides.get("f")
        return self._adjusted if f is None or not arrays.followed(f) else self._freed(self._sides()["f"])[1]

    def _stacked(self) -> SparsityPattern:
        return stack_rows(self._matrices, self._width())

    def _width(self) -> int | None:
        return joint_width(self._matrices, self._bounds(), None if self._layout is None else self._layout.size)

    def _settle(self, *, same_bounds: bool = False) -> None:
        """Check what right-hand sides and bounds must agree on; begin without anything compiled."""
        if not same_bounds:
            check_bounds(self._lower, self._upper, self._layout)
        filled = () if self._terms is None else self._terms.row
        check_empty_rows(self._structure, self._matrices, self._right_sides, filled)
        numbers = self._right_sides | self._bounds()
        numbers |= {f"price {i}" if i else "price": block.price for i, block in enumerate(reversed(self._soft))}
        shapes = {name: matrix.batch_shape for name, matrix in self._matrices.items()}
        live = any(matrix.live for matrix in self._matrices.values())
        if self._terms is not None:
            numbers["t"], shapes["T"] = self._terms.side, self._terms.matrix.batch_shape
            live = live or self._terms.matrix.live
        shapes |= {name: tuple(n.shape[:-1]) for name, n in numbers.items() if n.ndim > 1}
        self._batch_shape = joint_batch_shape(shapes)
        # What calls have made ready, by kind (linsat.plan) and by everything but numbers (linsat.projection); plain
        # dicts, because filling them twice is harmless.
        self._plans: dict[Any, Any] = {}
        self._calls: dict[Any, Any] = {}
        self._in_graphs = Kept()
        self._slots: dict[Any, Any] = {}  # constants as solvers read them
        self._fixed = not live and not any(map(arrays.followed, numbers.values()))
        # Kept by reference: their numbers may change.
        self._followed = () if self._fixed else tuple(self._learned_tensors())

    # ------------------------------------------------------------------ what a user asks of it

    def __len__(self) -> int:
        return self._structure.num_rows

    @property
    def num_variables(self) -> int | None:
        """Number of variables; None for a set without rows and with scalar bounds, which fits any number."""
        return self._structure.num_variables

    @property
    def batch_shape(self) -> Shape:
        """Leading dimensions of per-instance numbers (all but scores); empty when all instances share them."""
        return self._batch_shape

    @property
    def senses(self) -> tuple[str, ...]:
        """``"<="``, ``">="`` or ``"=="`` for each row."""
        return tuple(SENSE_TEXT[int(sense)] for sense in self._structure.senses)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per row: rows of A first, then C, then E."""
        return self._structure.default_names if self._names is None else self._names

    def _variable_name(self, index: int) -> str:
        """A variable as messages call it: ``works[3, 0]``, or ``x[15]`` in a set without names."""
        return f"x[{index}]" if self._layout is None else self._layout.entry(index)

    def unstack(self, x: Any) -> Any:
        """A vector (batch..., variables) in the shape of the set's variable, or as a dict of several, differentiably.

        For a network whose last layer gives the scores of all variables at once: ``layer(cons.unstack(scores))``.
        """
        vector = x if is_tensor(x) else np.asarray(x)
        if self._layout is None or not vector.ndim or vector.shape[-1] != self._layout.size:
            raise ConstraintError(
                f"x has shape {tuple(vector.shape)}; expected (..., {self.num_variables}), and a set whose variables "
                f"have names. Fix: subject_to, or Constraints(..., variables=[X, Y])."
            )
        return self._layout.restored(vector, "by name" if self._layout.shape is None else "shaped")

    @property
    def lower(self) -> Tensor:
        """The lower bounds: a scalar, (variables,) or (batch..., variables); a copy unless it is learned."""
        return own_tensor(self._lower)

    @property
    def upper(self) -> Tensor:
        """The upper bounds: a scalar, (variables,) or (batch..., variables); a copy unless it is learned."""
        return own_tensor(self._upper)

    @property
    def rhs(self) -> Tensor:
        """All right-hand sides stacked, (batch..., rows), in float64."""
        return self._numbers().rhs

    @property
    def price(self) -> Tensor:
        """What breaking each row costs per unit, (batch..., rows) in float64; infinite where a row is hard."""
        price = self._numbers().price
        return arrays.to_tensor(np.full(len(self), np.inf)) if price is None else price

    @property
    def right_sides(self) -> dict[str, Tensor]:
        """The right-hand sides (batch..., rows) by name (``b``, ``d``, ``f``), those that the set has."""
        return right_sides(self)

    @property
    def matrix(self) -> Tensor:
        """All coefficients stacked as one sparse COO tensor (batch..., rows, variables), in float64."""
        return sparse_matrix(self._structure, self._numbers().values)

    @property
    def coefficients(self) -> dict[str, Tensor]:
        """The coefficients by name (``A``, ``C``, ``E``), those that the set has, as `with_coefficients` takes them.

        (batch..., rows, variables), or (batch..., non-zeros), row by row, for rows that were stated by their non-zeros:
        sparse matrices, formulas, most ready-made sets.
        """
        return {name: own_tensor(matrix.stated()) for name, matrix in self._matrices.items()}

    def _numbers(self, device: torch.device | str | None = None) -> Values:
        """Coefficients, right-hand sides and bounds in float64 on ``device``, with gradients where asked for."""
        return values_on(self, device)

    def statement(self) -> Statement:
        """All numbers as plain numpy arrays, copies of those of the set.

        Raises:
            ConstraintError: a number is a tensor that requires gradients, or belongs to a graph or transform of torch.
        """
        return statement(self)

    def row_violation(self, x: Any) -> Any:
        """How far each row, hard or soft, is from holding, (batch..., rows), in the units of the row; 0: it holds."""
        return row_violation(self, x)

    def violation(self, x: Any) -> Any:
        """The worst violation of any hard row or bound at ``x`` (in any shape that `project` takes), per instance.

        Soft rows (`soften`) may be broken and do not count; `row_violation` gives every row. A row's violation is
        relative to its size there, ``max(1, sum_j |a_ij x_j|)``, a bound's to ``max(1, |x_j|)``. A measure, without
        gradients; `row_violation` has them.
        """
        return violation(self, x)

    def _soft_violation(self, x: Any, tol: float) -> Any:
        """`row_violation` of the soft rows, 0 for the others and where it is at most ``tol`` times the row's size."""
        return soft_violation(self, x, tol)

    def row_text(self, index: int, *, instance: int | None = None, terms: int = 6) -> str:
        """One row as a user would write it, shortened to ``terms`` terms; with the numbers of one instance."""
        return row_text(self, index, instance, terms)

    def __repr__(self) -> str:
        return summary(self)

    # ------------------------------------------------------------------ compiled once, kept, never copied

    @property
    def _mapped(self) -> bool:
        """Whether a function transform maps over some number of the set, so that its instances may differ."""
        return any(is_tensor(numbers) and mapped(numbers) for numbers in self._sources())

    @property
    def _moving(self) -> bool:
        """Whether some number of the set carries a tangent of forward mode."""
        return any(is_tensor(numbers) and has_tangent(numbers) for numbers in self._sources())

    def _sources(self) -> list[Numbers]:
        matrices = [matrix.source for matrix in self._matrices.values()]
        if self._terms is not None:
            matrices += self._terms.sources().values()
        return [*matrices, *self._right_sides.values(), self._lower, self._upper, *(s.price for s in self._soft)]

    def _check_numbers(self) -> None:
        """Check again what may have changed since the set was made: tensors that were kept by reference."""
        for name, side in self._right_sides.items():
            arrays.check_side(name, side)
        for name, matrix in self._matrices.items():
            arrays.check_finite(name, matrix.values())
        arrays.check_bound("lower", self._lower)
        arrays.check_bound("upper", self._upper)
        check_bounds(self._lower, self._upper, self._layout)
        for block in self._soft:
            check_price(block.price)
        if self._terms is not None:
            arrays.check_finite("t", self._terms.side)
            arrays.check_finite("T", self._terms.matrix.values())

    def _require_finite_box(self, *, lower_only: bool = False) -> None:
        """Reject infinite bounds, or lower ones only, for what works inside a box.

        Raises:
            ConstraintError: names the first variable without a finite bound and the fix.
        """
        check_finite_box(self._lower, self._upper, self._layout, lower_only)

    @property
    def _reach(self) -> float:
        """The largest size of any finite bound."""
        sizes = (np.abs(arrays.as_array(bound)) for bound in self._bounds().values())
        return max(float(size[np.isfinite(size)].max(initial=0.0)) for size in sizes)

    def _learned_tensors(self) -> dict[str, Tensor]:
        """The user's tensors that require gradients, by argument name."""
        sources = {name: m.source for name, m in self._matrices.items()}
        sources |= {} if self._terms is None else self._terms.sources()
        sources |= self._right_sides | self._bounds() | learned_price(self._soft)
        return {name: t for name, t in sources.items() if is_tensor(t) and t.requires_grad}

    def _require_linear(self, what: str) -> None:
        """Reject a set with maxima, for what takes linear rows only."""
        if self._terms is not None:
            name = self.names[int(self._terms.row[0])]
            raise ConstraintError(
                f"{what} takes linear rows, and {name!r} has abs, a maximum or a norm. Fix: cons.lifted(), the same "
                f"set in linear rows over further variables."
            )

    @property
    def soft(self) -> Tensor:
        """(rows,) bool, on the CPU: which rows may be broken."""
        import torch

        return torch.from_numpy(self._soft_mask())

    def _price_of_all(self) -> Numbers | None:
        """The price of every row, (batch..., rows); None: all are hard."""
        return full_price(self._soft, len(self))

    def _soft_mask(self) -> Array:
        """(rows,) bool."""
        soft = np.zeros(len(self), dtype=bool)
        for block in self._soft:
            soft[block.rows] = True
        return soft

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}, "_calls": {}, "_in_graphs": Kept(), "_bounds_on": {}, "_slots": {}}
