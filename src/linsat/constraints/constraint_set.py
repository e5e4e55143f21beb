"""`Constraints`: linear rows and a box, validated once and never changed afterwards."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat._forks import one_thread_after_a_fork
from linsat._optional import is_tensor
from linsat._transforms import Kept, mapped, tracing
from linsat.constraints.arrays import (
    Array,
    Numbers,
    Shape,
    check_bound,
    check_finite,
    followed,
    read_bound,
    read_right_side,
    spread,
    to_tensor,
)
from linsat.constraints.by_name import read_bound_of, right_sides_by_name
from linsat.constraints.checks import (
    check_bounds,
    check_empty_rows,
    check_finite_box,
    check_names,
    joint_batch_shape,
)
from linsat.constraints.coefficients import Matrix, read_matrix
from linsat.constraints.joining import joined
from linsat.constraints.layout import Layout
from linsat.constraints.numbers import own_tensor, right_sides, sparse_matrix, statement, values_on
from linsat.constraints.soft import SoftRows, check_price, from_full_price, learned_price, repriced, softened
from linsat.constraints.statement import Statement
from linsat.constraints.structure import BLOCKS, SparsityPattern, Values, joint_width, stack_rows
from linsat.constraints.text import SENSE_TEXT, row_text, summary
from linsat.constraints.variables import read_layout
from linsat.constraints.violations import row_violation, soft_violation, violation
from linsat.errors import ConstraintError, LinSATWarning

if TYPE_CHECKING:
    import torch

    from linsat.compile.diagnosis import NamedBound

    Tensor = torch.Tensor


class Constraints:
    """Linear rows ``A x <= b``, ``C x >= d``, ``E x = f`` and a box ``lower <= x <= upper``.

    Args:
        A, C, E: coefficient matrices (rows, variables); any of them may be left out. numpy, scipy.sparse, torch (dense,
            COO, CSR), JAX or nested lists; any sign. ``(batch..., rows, variables)`` for instances that differ: dense,
            or CSR with one pattern for all.
        b, d, f: right-hand sides, a scalar, ``(rows,)`` or ``(batch..., rows)`` for instances that differ.
        lower, upper: the box, a scalar, ``(variables,)`` or ``(batch..., variables)``. ``-inf`` for lower and ``inf``
            for upper stand for no bound; the entropic objective needs finite bounds when it projects.
        names: one name per row (rows of A, then C, then E), used in every message; default ``A[0]``, ``C[2]``, ...
            Rows called ``capacity[0]``, ``capacity[1]`` and so on are found by ``"capacity"`` too.
        variables: names for messages, files and dicts of scores: a list of `Variable`, whose shapes scores may then
            have, or one text per variable; default ``x[0]``, ``x[1]``, ...

    A set is immutable. Tensors that require gradients are kept by reference, everything else is copied; so a learned
    ``b`` may be an ``nn.Parameter`` that an optimiser updates. The first projection compiles the set (presolve, check
    for contradictions) and keeps the result; `check` looks for contradictions at once.

    Raises:
        ConstraintError: malformed input; the message names argument, index, value and fix.
    """

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
    ) -> None:
        given = {"A": A, "b": b, "C": C, "d": d, "E": E, "f": f}
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
            self._right_sides[side_name] = read_right_side(side_name, given[side_name], matrix)
        self._lower = read_bound("lower", lower)
        self._upper = read_bound("upper", upper)
        self._layout = read_layout(variables)
        self._structure = self._stacked()
        self._names = check_names(names, len(self))
        self._named_bounds: tuple[NamedBound, ...] = ()
        self._soft: tuple[SoftRows, ...] = ()
        self._settle()

    def _bounds(self) -> dict[str, Numbers]:
        return {"lower": self._lower, "upper": self._upper}

    def _rows_of(self, side: str) -> int:
        return next(self._matrices[matrix].shape[0] for matrix, name, _ in BLOCKS if name == side)

    def _sides(self) -> dict[str, Numbers]:
        """The right-hand sides (batch..., rows) as they are kept."""
        return {n: spread(side, (*side.shape[:-1], self._rows_of(n))) for n, side in self._right_sides.items()}

    def _stacked(self) -> SparsityPattern:
        return stack_rows(self._matrices, self._width())

    def _width(self) -> int | None:
        return joint_width(self._matrices, self._bounds(), None if self._layout is None else self._layout.size)

    def _settle(self, *, same_bounds: bool = False) -> None:
        """Check what right-hand sides and bounds must agree on; begin without anything compiled."""
        if not same_bounds:
            check_bounds(self._lower, self._upper, self._layout)
        check_empty_rows(self._structure, self._matrices, self._right_sides)
        numbers = self._right_sides | self._bounds()
        numbers |= {f"price {i}" if i else "price": block.price for i, block in enumerate(reversed(self._soft))}
        own = {name: matrix.batch_shape for name, matrix in self._matrices.items()}
        self._batch_shape = joint_batch_shape(own | {name: tuple(n.shape[:-1]) for name, n in numbers.items()})
        # (device, versions) -> compiled system; a plain dict because filling it twice is harmless.
        self._compiled: dict[Any, Any] = {}
        self.in_graphs = Kept()
        live = any(matrix.live for matrix in self._matrices.values())
        self._followed = tuple(self.learned_tensors())  # kept by reference: their numbers may change
        self._fixed = not live and not any(map(followed, numbers.values()))
        self.fixed_bounds = not followed(self._lower) and not followed(self._upper)
        self.fixed_box = not live and self.fixed_bounds
        self.box_cache: dict[Any, Any] = {}  # what follows from coefficients and bounds alone

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

    @property
    def layout(self) -> Layout | None:
        """Names, shapes and labels of the variables; None where none were given."""
        return self._layout

    def variable_name(self, index: int) -> str:
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
    def given_names(self) -> tuple[str, ...] | None:
        """The names of the rows where the user gave any."""
        return self._names

    @property
    def lower(self) -> Tensor:
        """The lower bounds: a scalar, (variables,) or (batch..., variables)."""
        return own_tensor(self._lower)

    @property
    def upper(self) -> Tensor:
        """The upper bounds: a scalar, (variables,) or (batch..., variables)."""
        return own_tensor(self._upper)

    @property
    def rhs(self) -> Tensor:
        """All right-hand sides stacked, (batch..., rows), in float64."""
        return self.numbers().rhs

    @property
    def price(self) -> Tensor:
        """What breaking each row costs per unit, (batch..., rows) in float64; infinite where a row is hard."""
        found = self.numbers().price
        return to_tensor(np.full(len(self), np.inf)) if found is None else found

    @property
    def right_sides(self) -> dict[str, Tensor]:
        """The right-hand sides (batch..., rows) by name (``b``, ``d``, ``f``), those that the set has."""
        return right_sides(self)

    @property
    def matrix(self) -> Tensor:
        """All coefficients stacked as one sparse COO tensor (batch..., rows, variables), in float64."""
        return sparse_matrix(self._structure, self.numbers().values)

    @property
    def coefficients(self) -> dict[str, Tensor]:
        """The coefficients by name (``A``, ``C``, ``E``), those that the set has, as `with_coefficients` takes them.

        (batch..., rows, variables), or (batch..., non-zeros), row by row, for rows that were stated by their non-zeros:
        sparse matrices, formulas, most ready-made sets.
        """
        return {name: own_tensor(matrix.stated()) for name, matrix in self._matrices.items()}

    @property
    def blocks(self) -> Mapping[str, Matrix]:
        """Coefficients by name, with their pattern and how they were stated."""
        return MappingProxyType(self._matrices)

    def numbers(self, device: torch.device | str | None = None) -> Values:
        """Coefficients, right-hand sides and bounds in float64 on ``device``, with gradients where asked for."""
        return values_on(self, device)

    def statement(self) -> Statement:
        """All numbers as plain numpy arrays, which may share memory with the set: do not write to them.

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

    def soft_violation(self, x: Tensor, tol: float) -> Tensor:
        """`row_violation` of the soft rows, 0 for the others and where it is at most ``tol`` times the row's size."""
        return soft_violation(self, x, tol)

    def row_text(self, index: int, *, instance: int | None = None, terms: int = 6) -> str:
        """One row as a user would write it, shortened to ``terms`` terms; with the numbers of one instance."""
        return row_text(self, index, instance, terms)

    def __repr__(self) -> str:
        return summary(self)

    # ------------------------------------------------------------------ making new sets from old ones

    def _arguments(self) -> dict[str, Any]:
        own = self._bounds() | self._matrices | self._right_sides
        return {**own, "names": self._names, "variables": self._layout}

    def with_rhs(
        self, by_name: Mapping[str, Any] | None = None, /, *, b: Any = None, d: Any = None, f: Any = None
    ) -> Constraints:
        """The same rows with other right-hand sides, which may have leading batch dimensions and require gradients.

        Args:
            by_name: for rows of that name, or of that family (``"capacity"`` for ``capacity[0]`` and so on): a number,
                (batch..., rows), or the array that the rows form, (batch..., *shape). Other rows keep theirs. The
                numbers are put together now: a parameter that a layer learns goes to each call, ``layer(y, rhs=...)``.
            b, d, f: for all ``<=``, ``>=``, ``==`` rows, (batch..., rows). A parameter is followed.

        Instances are then checked one by one when they are solved: an infeasible one is reported by its status and
        leaves the others untouched.
        """
        sides = {}
        for (matrix_name, name, _), value in zip(BLOCKS, (b, d, f), strict=True):
            if value is None:
                continue
            if matrix_name not in self._matrices:
                raise ConstraintError(f"{name} was given but the set has no {matrix_name} rows. Fix: leave {name} out.")
            sides[name] = read_right_side(name, value, self._matrices[matrix_name])
        made = self._derived(sides=sides)
        return made if by_name is None else made._derived(sides=right_sides_by_name(made, by_name))

    def with_coefficients(self, *, A: Any = None, C: Any = None, E: Any = None) -> Constraints:
        """The same rows with other coefficients, which may have leading batch dimensions and require gradients.

        Args:
            A, C, E: (batch..., rows, variables), in the shape of the coefficients they replace; for rows that were
                stated by their non-zeros (sparse matrices, formulas, most ready-made sets) their values
                (batch..., non-zeros) in the order of `coefficients`, or a sparse matrix of the same pattern.

        Cost: that of reading them, as long as no coefficient appears where the set had none. Instances are then checked
        one by one when they are solved, as with `with_rhs`.
        """
        matrices = {}
        for name, value in {"A": A, "C": C, "E": E}.items():
            if value is None:
                continue
            if name not in self._matrices:
                raise ConstraintError(f"{name} was given but the set has no {name} rows. Fix: leave {name} out.")
            matrices[name] = self._matrices[name].with_coefficients(value)
        return self._derived(matrices=matrices)

    def with_bounds(self, *, lower: Any = None, upper: Any = None) -> Constraints:
        """The same rows in another box.

        Args:
            lower, upper: a number; one per variable, (batch..., variables), or in the shape of the set's variable; or a
                dict from variables' names to numbers or arrays, where those left out keep their bounds.
        """
        given = {"lower": lower, "upper": upper}
        bounds = {name: read_bound_of(self, name, value) for name, value in given.items() if value is not None}
        return self._derived(bounds=bounds)

    def soften(self, rows: Any = None, price: Any = 10.0) -> Constraints:
        """The same set with some rows soft: x may break them, and pays the price for every unit.

        The objective becomes ``<y, x> - Omega(x) - sum_i price_i * violation_i(x)``, an exact penalty: a row whose
        multiplier stays below its price holds as if it were hard, so a high price changes nothing where the rows can
        hold. No instance is infeasible through soft rows. `Solution.broken` says what was broken.

        Args:
            rows: which rows: a position, a name, a list of them, None for all. A name stands for its whole family:
                ``"staffed"`` for ``staffed[0]``, ``staffed[1]``, ...
            price: positive, per unit of the row as written: a number, one per row of ``rows``, or (batch..., rows) for
                instances that differ. A tensor that requires gradients is learned. Rows that are soft already get the
                new price.

        Raises:
            ConstraintError: no such row, or a price that is not positive and finite.
        """
        return self._derived(soft=softened(self, self._soft, rows, price))

    def with_full_price(self, price: Numbers) -> Constraints:
        """The same rows, soft at prices (batch..., rows) where these are finite and hard elsewhere."""
        return self._derived(soft=from_full_price(price))

    def instances(self, start: int, stop: int) -> Constraints:
        """The set of some instances of a single batch dimension; what they share stays shared."""

        def cut(numbers: Numbers) -> Numbers:
            return numbers[start:stop] if numbers.ndim > 1 else numbers

        return self._derived(
            sides={name: cut(side) for name, side in self._right_sides.items()},
            bounds={name: cut(bound) for name, bound in self._bounds().items() if bound.ndim > 1},
            matrices={
                name: matrix.with_coefficients(matrix.stated()[start:stop])
                for name, matrix in self._matrices.items()
                if matrix.batch_shape
            },
            soft=tuple(SoftRows(block.rows, cut(block.price)) for block in self._soft),
        )

    def _derived(
        self,
        *,
        sides: dict[str, Numbers] | None = None,
        bounds: dict[str, Numbers] | None = None,
        matrices: dict[str, Matrix] | None = None,
        soft: tuple[SoftRows, ...] | None = None,
    ) -> Constraints:
        """A set with the same rows: it shares the pattern, and with it everything derived from the pattern alone."""
        sides, bounds, matrices = sides or {}, bounds or {}, matrices or {}
        soft = self._soft if soft is None else soft
        if not self.learned_tensors().keys() >= set(self._followed):  # some were frozen since: from now on copies
            arguments = self._arguments() | sides | bounds | matrices
            return Constraints(**arguments)._derived(soft=repriced(soft, None))
        made = copy.copy(self)
        made._soft = soft
        made._named_bounds = tuple(bound for bound in self._named_bounds if bound.side not in bounds)
        made._matrices = self._matrices | matrices
        made._right_sides = self._right_sides | sides
        made._lower, made._upper = (self._bounds() | bounds).values()
        moved = any(matrix.row is not self._matrices[name].row for name, matrix in made._matrices.items())
        if moved or (bounds and made._width() != self.num_variables):
            made._structure = made._stacked()
        made._settle(same_bounds=not bounds)
        if not bounds and not matrices and self.fixed_box:
            made.box_cache = self.box_cache
        return made

    def __and__(self, other: Constraints) -> Constraints:
        """Both sets at once: all rows of both, in the intersection of the boxes.

        Names and shapes of variables are those of the left set, or of the right one where the left has none.
        """
        if not isinstance(other, Constraints):
            return NotImplemented
        return joined(self, other)

    # ------------------------------------------------------------------ from and to other libraries

    @staticmethod
    def from_cvxpy(constraints: Any, variable: Any, *, box: tuple[float, float] | None = None) -> Constraints:
        """The affine constraints of a cvxpy problem over one variable (extra ``cvxpy``).

        Args:
            constraints: a cvxpy constraint or a list of them: ``==``, ``<=``, ``>=``, Zero, NonPos or NonNeg of affine
                expressions in ``variable``; parameters count with their present values. A two-sided row becomes two.
            variable: the ``cvxpy.Variable``; the set has its name and shape. Its ``nonneg``, ``bounds`` and the like
                become the box; so do constraints on one entry, with ``box`` or where every entry then is bounded.
            box: bounds (lower, upper) for entries that have none; without it they stay infinite.

        Warns:
            LinSATWarning: a boolean or integer variable is relaxed.

        Raises:
            ConstraintError: a constraint that is not affine (named), or other variables.
        """
        from linsat.interop.models import from_cvxpy

        return from_cvxpy(constraints, variable, box=box)

    @staticmethod
    def from_scipy(constraints: Any, bounds: Any = None, *, box: tuple[float, float] | None = None) -> Constraints:
        """Rows of ``scipy.optimize.LinearConstraint`` (one or a list) within ``scipy.optimize.Bounds``.

        ``lb <= A x <= ub`` becomes one row where an end is infinite or both are equal, else two. ``box`` gives
        (lower, upper) for variables without finite bounds, which stay infinite otherwise.

        Raises:
            ConstraintError: another kind of constraint (named), or shapes that disagree.
        """
        from linsat.interop.models import from_scipy

        return from_scipy(constraints, bounds, box=box)

    def to_highs(self, *, scores: Any = None) -> Any:
        """A ``highspy.Highs`` model with these rows, names and box (extra ``cli``); ``scores`` are what it maximises.

        For one instance: a set with right-hand sides or bounds per instance is rejected.
        """
        from linsat.interop.models import to_highs

        return to_highs(self, scores=scores)

    # ------------------------------------------------------------------ compiled once, kept, never copied

    @property
    def mapped(self) -> bool:
        """Whether a function transform maps over some number of the set, so that its instances may differ."""
        return any(is_tensor(numbers) and mapped(numbers) for numbers in self._sources())

    def _sources(self) -> list[Numbers]:
        matrices = (matrix.source for matrix in self._matrices.values())
        return [*matrices, *self._right_sides.values(), self._lower, self._upper, *(s.price for s in self._soft)]

    def check_numbers(self) -> None:
        """Check again what may have changed since the set was made: tensors that were kept by reference."""
        for name, side in self._right_sides.items():
            check_finite(name, side)
        for name, matrix in self._matrices.items():
            check_finite(name, matrix.values())
        check_bound("lower", self._lower)
        check_bound("upper", self._upper)
        check_bounds(self._lower, self._upper, self._layout)
        for block in self._soft:
            check_price(block.price)

    def with_tensors(self, tensors: dict[str, Tensor]) -> Constraints:
        """The same set with some of its arguments (``A``, ``b``, ..., ``upper``) or its learned price replaced."""
        blocks = {n: block.with_coefficients(tensors[n]) for n, block in self._matrices.items() if n in tensors}
        soft = repriced(self._soft, tensors.get("price"))
        given = {name: t for name, t in tensors.items() if name != "price"}
        if not tracing():
            return Constraints(**(self._arguments() | given | blocks))._derived(soft=soft)
        sides = {name: t for name, t in given.items() if name in self._right_sides}
        bounds = {name: t for name, t in given.items() if name in ("lower", "upper")}
        return self._derived(sides=sides, bounds=bounds, matrices=blocks, soft=soft)

    def check(self, *, seconds: float | None = 60.0) -> Constraints:
        """Decide whether the rows can hold within the bounds, which may be infinite; returns the set itself.

        Nothing is compiled. Sets with per-instance numbers are not judged here but instance by instance when they are
        solved. Cost: one linear program (HiGHS); a conflict costs one more for each of its rows.

        Args:
            seconds: time limit; None for no limit.

        Warns:
            LinSATWarning: neither a point that satisfies the rows nor a proof that there is none was found.

        Raises:
            InfeasibleError: the rows contradict each other, proved in exact arithmetic; names a minimal conflict.
        """
        from linsat.compile.diagnosis import diagnose, error_from

        if self.batch_shape:
            return self
        found = diagnose(self, seconds=seconds)
        if found.verdict.kind == "infeasible":
            raise error_from(self, found)
        if found.verdict.kind == "unknown":
            warnings.warn(
                f"Whether the rows can hold is not known: {found.verdict.reason}. Fix: more seconds, or rescale rows "
                f"whose coefficients span many orders of magnitude.",
                LinSATWarning,
                stacklevel=2,
            )
        return self

    def require_finite_box(self) -> None:
        """Reject infinite bounds, for what works inside a box.

        Raises:
            ConstraintError: names the first variable without a finite bound and the fix.
        """
        check_finite_box(self._lower, self._upper, self._layout)

    def learned_tensors(self) -> dict[str, Tensor]:
        """The user's tensors that require gradients, by argument name."""
        sources = {name: m.source for name, m in self._matrices.items()}
        sources |= self._right_sides | self._bounds() | learned_price(self._soft)
        return {name: t for name, t in sources.items() if is_tensor(t) and t.requires_grad}

    @property
    def fixed(self) -> bool:
        """Whether no number of the set was given as a tensor that requires gradients."""
        return self._fixed

    @property
    def structure(self) -> SparsityPattern:
        return self._structure

    @property
    def soft(self) -> Tensor:
        """(rows,) bool, on the CPU: which rows may be broken."""
        import torch

        return torch.from_numpy(self._soft_mask())

    def _soft_mask(self) -> Array:
        """(rows,) bool."""
        found = np.zeros(len(self), dtype=bool)
        for block in self._soft:
            found[block.rows] = True
        return found

    @property
    def named_bounds(self) -> tuple[NamedBound, ...]:
        """Bounds that were not given as bounds but come from rows with one coefficient or from a box."""
        return self._named_bounds

    def with_named_bounds(self, named: Sequence[NamedBound]) -> Constraints:
        """The same set, which knows where some of its bounds come from."""
        made = copy.copy(self)
        made._named_bounds = tuple(named)
        made._settle()
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": {}, "in_graphs": Kept(), "box_cache": {}}
