"""`Constraints`: linear rows and a box, validated once and never changed afterwards."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from linsat._forks import one_thread_after_a_fork
from linsat._optional import is_tensor
from linsat._transforms import Kept, has_tangent, mapped
from linsat.constraints import arrays
from linsat.constraints.arrays import Array, Numbers, Shape
from linsat.constraints.by_name import read_bound_of, right_sides_by_name
from linsat.constraints.checks import check_bounds, check_empty_rows, check_finite_box, check_names, joint_batch_shape
from linsat.constraints.coefficients import Matrix, read_matrix
from linsat.constraints.joining import joined
from linsat.constraints.names import position
from linsat.constraints.numbers import Statement, own_tensor, sparse_matrix, statement, values_on
from linsat.constraints.rounded import consistent, keep_dependencies, rounding_of
from linsat.constraints.soft import (
    SoftRows,
    check_price,
    from_full_price,
    learned_price,
    repriced,
    softened,
)
from linsat.constraints.structure import BLOCKS, SparsityPattern, joint_width, stack_rows
from linsat.constraints.terms import Terms, lifted
from linsat.constraints.text import SENSE_TEXT, row_text, summary
from linsat.constraints.variables import read_layout
from linsat.constraints.violations import row_violation, soft_violation, violation
from linsat.errors import ConstraintError, LinSATWarning

if TYPE_CHECKING:
    import torch
    from typing_extensions import Never, Self

    from linsat.verdict.diagnosis import NamedBound

    Tensor = torch.Tensor

_ARGUMENTS = ("A", "b", "C", "d", "E", "f", "lower", "upper", "names", "variables")


class Constraints:
    """Linear rows ``A x <= b``, ``C x >= d``, ``E x = f`` and a box ``lower <= x <= upper``.

    Args:
        A, C, E: coefficient matrices (rows, variables); any of them may be left out. numpy, scipy.sparse, torch (dense,
            COO, CSR), JAX or nested lists; any sign. ``(batch..., rows, variables)`` for instances that differ: dense,
            or CSR with one pattern for all.
        b, d, f: right-hand sides, a scalar, ``(rows,)`` or ``(batch..., rows)`` for instances that differ. ``b = inf``
            and ``d = -inf`` take a row out, for one instance or for all.
        lower, upper: the box, a scalar, ``(variables,)`` or ``(batch..., variables)``. ``-inf`` for lower and ``inf``
            for upper stand for no bound; the entropic objective needs finite bounds when it projects.
        names: one name per row (rows of A, then C, then E), used in every message; default ``A[0]``, ``C[2]``, ...
            Rows called ``capacity[0]``, ``capacity[1]`` and so on are found by ``"capacity"`` too.
        variables: names for messages, files and dicts of scores: a list of `Variable`, whose shapes scores may then
            have, or one text per variable; default ``x[0]``, ``x[1]``, ...

    A set is immutable. Tensors that require gradients are kept by reference, everything else is copied; so a learned
    ``b`` may be an ``nn.Parameter`` that an optimiser updates. The first projection decides what constants decide
    (presolve, check for contradictions) and keeps the result; `check` looks for contradictions at once.

    Raises:
        ConstraintError: malformed input; the message names argument, index, value and fix.
    """

    def __new__(cls, *unnamed: Any, **given: Any) -> Self:
        """Reject unnamed and unknown arguments, and say which there are."""
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

    def __len__(self) -> int:
        return self._structure.num_rows

    def __bool__(self) -> NoReturn:
        raise ConstraintError(
            "A set of constraints is neither true nor false. Fix: cons1 & cons2 joins two sets; len(cons) counts rows, "
            "and cons is None asks for one."
        )

    def __repr__(self) -> str:
        return summary(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}, "_calls": {}, "_in_graphs": Kept(), "_bounds_on": {}, "_slots": {}}

    # ------------------------------------------------------------------ what a user asks of it

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
        return values_on(self).side

    @property
    def right_sides(self) -> dict[str, Tensor]:
        """The right-hand sides (batch..., rows) by name (``b``, ``d``, ``f``), those that the set has."""
        return {name: own_tensor(side) for name, side in self._sides().items()}

    @property
    def matrix(self) -> Tensor:
        """All coefficients stacked as one sparse COO tensor (batch..., rows, variables), in float64."""
        return sparse_matrix(self._structure, values_on(self).values)

    @property
    def coefficients(self) -> dict[str, Tensor]:
        """The coefficients by name (``A``, ``C``, ``E``), those that the set has, as `with_coefficients` takes them.

        (batch..., rows, variables), or (batch..., non-zeros), row by row, for rows that were stated by their non-zeros:
        sparse matrices, formulas, most ready-made sets.
        """
        return {name: own_tensor(matrix.stated()) for name, matrix in self._matrices.items()}

    @property
    def soft(self) -> Tensor:
        """(rows,) bool, on the CPU: which rows may be broken."""
        import torch

        return torch.from_numpy(self._soft_mask())

    @property
    def price(self) -> Tensor:
        """What breaking each row costs per unit, (batch..., rows) in float64; infinite where a row is hard."""
        return values_on(self).price

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

    def row_text(self, index: int, *, instance: int | None = None, terms: int = 6) -> str:
        """One row as a user would write it, shortened to ``terms`` terms; with the numbers of one instance."""
        return row_text(self, position(self.names, index, "index"), instance, terms)

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

    def check(self, *, seconds: float | None = 60.0) -> Constraints:
        """Decide whether the rows can hold within the bounds, which may be infinite; returns the set itself.

        Nothing is kept for projections. Sets with per-instance numbers are not judged here but instance by instance
        when they are solved. Cost: one linear program (HiGHS); a conflict costs one more for each of its rows.

        Args:
            seconds: time limit; None for no limit.

        Warns:
            LinSATWarning: neither a point that satisfies the rows nor a proof that there is none was found.

        Raises:
            InfeasibleError: the rows contradict each other, proved in exact arithmetic; names a minimal conflict.
        """
        from linsat.verdict.diagnosis import diagnose, error_from

        if self.batch_shape:
            return self
        outcome = diagnose(self, seconds=seconds)
        if outcome.verdict.kind == "infeasible":
            raise error_from(self, outcome)
        if outcome.verdict.kind == "unknown":
            warnings.warn(
                f"Whether the rows can hold is not known: {outcome.verdict.reason}. Fix: more seconds, or rescale rows "
                f"whose coefficients span many orders of magnitude.",
                LinSATWarning,
                stacklevel=2,
            )
        return self

    # ------------------------------------------------------------------ new sets from old ones

    def with_rhs(
        self,
        by_name: Mapping[str, Any] | None = None,
        /,
        *,
        b: Any = None,
        d: Any = None,
        f: Any = None,
        t: Any = None,
        **unknown: Never,
    ) -> Constraints:
        """The same rows with other right-hand sides, which may have leading batch dimensions and require gradients.

        Args:
            by_name: for rows of that name, or of that family (``"capacity"`` for ``capacity[0]`` and so on): a number,
                (batch..., rows), or the array that the rows form, (batch..., *shape). Other rows keep theirs. The
                numbers are put together now: a parameter that a layer learns goes to each call, ``layer(y, rhs=...)``.
                Expressions inside ``abs`` and the like that have a name, ``abs((w - w0).named("held"))``, count as
                rows ``w == w0``.
            b, d, f: for all ``<=``, ``>=``, ``==`` rows, (batch..., rows). A parameter is followed.
            t: for all expressions inside ``abs`` and the like that have a name, (batch..., expressions), likewise.

        Instances are then checked one by one when they are solved: an infeasible one is reported by its status and
        leaves the others untouched.
        """
        if unknown:
            name = next(iter(unknown))
            raise TypeError(
                f"unexpected keyword argument {name!r}; expected b, d, f or t. "
                f"Fix: with_rhs({{{name!r}: ...}}), a dictionary, where that is the name of a row."
            )
        made = self._with_numbers(b=b, d=d, f=f, t=t)
        if by_name is None:
            return made
        named, t = right_sides_by_name(made, by_name)
        rounding = max([made._rounding, *map(rounding_of, by_name.values())])
        return made._derived(sides=named, rounding=rounding, terms={} if t is None else {"t": t})

    def with_coefficients(self, *, A: Any = None, C: Any = None, E: Any = None) -> Constraints:
        """The same rows with other coefficients, which may have leading batch dimensions and require gradients.

        Args:
            A, C, E: (batch..., rows, variables). For rows that were stated by their non-zeros (sparse matrices,
                formulas, most ready-made sets) also their values (batch..., non-zeros) in the order of `coefficients`,
                or a sparse matrix of the same pattern; a dense one must be constant, with the set's zeros if it has
                some. What ends in (rows, variables) is always the matrix.

        Cost: that of reading them, as long as no coefficient appears where the set had none. Instances are then checked
        one by one when they are solved, as with `with_rhs`.
        """
        return self._with_numbers(A=A, C=C, E=E)

    def with_bounds(self, *, lower: Any = None, upper: Any = None) -> Constraints:
        """The same rows in another box.

        Args:
            lower, upper: a number; one per variable, (batch..., variables), or in the shape of the set's variable; or a
                dict from variables' names to numbers or arrays, where those left out keep their bounds.
        """
        return self._with_numbers(lower=lower, upper=upper)

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

    def with_price(self, price: Any) -> Constraints:
        """The same soft rows at another price: a number, one per soft row, or (batch..., soft rows or rows)."""
        rows = np.flatnonzero(self._soft_mask())
        if not len(rows):
            raise ConstraintError("price was given but no row of the set is soft. Fix: cons.soften(rows, price=10.0).")
        whole = arrays.read_numbers("price", price)
        if whole.ndim and whole.shape[-1] == len(self) != len(rows):
            whole = arrays.picked(whole, rows)
        return self._derived(soft=softened(self, (), rows.tolist(), whole))

    def lifted(self) -> Constraints:
        """The same set in linear rows: a further variable, after the set's own, for each maximum in its formulas.

        For what takes linear rows only, such as another solver. A set without ``abs``, norms and the like is itself.
        """
        return self if self._terms is None else lifted(self)[0]

    def __and__(self, other: Constraints) -> Constraints:
        """Both sets at once: all rows of both, in the intersection of the boxes.

        Names and shapes of variables are those of the left set, or of the right one where the left has none.
        """
        if not isinstance(other, Constraints):
            return NotImplemented
        return joined(self, other)

    # ------------------------------------------------------------------ files and other libraries

    @staticmethod
    def load(path: str | os.PathLike[str], *, box: tuple[float, float] | None = None) -> Constraints:
        """The set in a file.

        Args:
            path: a file that ends in .json, .npz, .lp or .mps (docs/files.md has the formats). LP and MPS are read by
                HiGHS (extra ``highs``).
            box: bounds (lower, upper) for variables of an LP or MPS file that have none; without it they stay infinite.

        Warns:
            LinSATWarning: variables of an LP or MPS file that must be integers are relaxed.

        Raises:
            ConstraintError: the file is missing, damaged, too large or not a constraint set; names file, place and fix.
            ImportError: HiGHS is not installed.
        """
        from linsat.files import load

        return load(path, box)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the set to a .json, .npz, .lp or .mps file, whole or not at all.

        JSON and npz keep every number to the last bit, names, and per-instance right-hand sides and bounds; npz keeps
        per-instance coefficients too. LP and MPS (extra ``highs``) hold one instance, names with spaces as
        underscores. Learned tensors are written as they are now.

        Raises:
            ConstraintError: an unknown ending, or a set that the format cannot hold.
        """
        from linsat.files import save

        save(self, path)

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
        """A ``highspy.Highs`` model with these rows, names and box (extra ``highs``); ``scores`` are what it maximises.

        For one instance: a set with right-hand sides or bounds per instance is rejected.
        """
        from linsat.interop.models import to_highs

        return to_highs(self, scores=scores)

    # ------------------------------------------------------------------ how new sets are made

    def _with_numbers(self, **given: Any) -> Constraints:
        """`with_coefficients`, `with_rhs`, `with_bounds` at once, by the names of their arguments; None: as it is.

        ``T`` and ``t``, (batch..., non-zeros) and (batch..., bases), are those of the maxima in formulas; ``price`` is
        that of the rows whose price is learned.
        """
        matrices, sides, bounds = {}, {}, {}
        for matrix_name, side_name, _ in BLOCKS:
            for name in (matrix_name, side_name):
                value = given.get(name)
                if value is None:
                    continue
                if matrix_name not in self._matrices:
                    raise ConstraintError(
                        f"{name} was given but the set has no {matrix_name} rows. Fix: leave {name} out."
                    )
                if name == matrix_name:
                    matrices[name] = self._matrices[name].with_coefficients(value)
                else:
                    sides[name] = arrays.read_right_side(name, value, self._matrices[matrix_name])
        for name in ("lower", "upper"):
            if given.get(name) is not None:
                bounds[name] = read_bound_of(self, name, given[name])
        terms = {name: given[name] for name in ("T", "t") if given.get(name) is not None}
        if terms and self._terms is None:
            raise ConstraintError(f"{next(iter(terms))} was given but no formula of the set has abs or a maximum.")
        soft = None if given.get("price") is None else repriced(self._soft, given["price"])
        rounding = rounding_of(given.get("f"))
        return self._derived(sides=sides, bounds=bounds, matrices=matrices, soft=soft, terms=terms, rounding=rounding)

    def _with_full_price(self, price: Numbers) -> Constraints:
        """The same rows, soft at prices (batch..., rows) where these are finite and hard elsewhere."""
        return self._derived(soft=from_full_price(price))

    def _with_named_bounds(self, named: Sequence[NamedBound]) -> Constraints:
        """The same set, which knows where some of its bounds come from."""
        made = copy.copy(self)
        made._named_bounds = tuple(named)
        made._settle()
        return made

    def _instances(self, start: int, stop: int) -> Constraints:
        """The set of some instances of a single batch dimension; what they share stays shared."""

        def cut(numbers: Numbers) -> Numbers:
            return numbers[start:stop] if numbers.ndim > 1 else numbers

        made = self._derived(
            sides={name: cut(side) for name, side in self._right_sides.items()},
            bounds={name: cut(bound) for name, bound in self._bounds().items() if bound.ndim > 1},
            matrices={
                name: matrix.with_stated(matrix.stated()[start:stop])
                for name, matrix in self._matrices.items()
                if matrix.batch_shape
            },
            soft=tuple(SoftRows(block.rows, cut(block.price)) for block in self._soft),
            rounding=self._rounding,
        )
        made._adjusted = self._adjusted[start:stop] if self._adjusted.ndim else self._adjusted
        if self._terms is not None:
            made._terms = self._terms.instances(cut)
            made._settle()
        return made

    def _derived(
        self,
        *,
        sides: dict[str, Numbers] | None = None,
        bounds: dict[str, Numbers] | None = None,
        matrices: dict[str, Matrix] | None = None,
        soft: tuple[SoftRows, ...] | None = None,
        terms: Mapping[str, Any] | None = None,
        rounding: float = 0.0,
    ) -> Constraints:
        """A set with the same rows: it shares the pattern, and with it everything derived from the pattern alone.

        ``rounding`` is that of the ``sides``, see `linsat.constraints.rounded`.
        """
        sides, bounds, matrices = sides or {}, bounds or {}, matrices or {}
        soft = self._soft if soft is None else soft
        kept = self._terms.replaced(**terms) if terms and self._terms is not None else self._terms
        if self._followed and not self._learned_tensors().keys() >= set(self._followed):  # frozen since: now copies
            arguments = self._arguments() | sides | bounds | matrices | {"terms": kept}
            return Constraints(**arguments)._derived(soft=repriced(soft, None))
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._soft, made._terms = soft, kept
        made._named_bounds = tuple(bound for bound in self._named_bounds if bound.side not in bounds)
        made._matrices = self._matrices | matrices
        made._right_sides = self._right_sides | sides
        made._lower, made._upper = (self._bounds() | bounds).values()
        if "f" in sides:
            made._rounding, made._adjusted = rounding, np.zeros(())
            made._free_constants()
        moved = any(matrix.row is not self._matrices[name].row for name, matrix in made._matrices.items())
        if moved or (bounds and made._width() != self.num_variables):
            made._structure = made._stacked()
        made._settle(same_bounds=not bounds)
        return made

    def _arguments(self) -> dict[str, Any]:
        own = self._bounds() | self._matrices | self._right_sides
        return {**own, "names": self._names, "variables": self._layout, "terms": self._terms}

    def _stacked(self) -> SparsityPattern:
        return stack_rows(self._matrices, self._width())

    def _width(self) -> int | None:
        return joint_width(self._matrices, self._bounds(), None if self._layout is None else self._layout.size)

    def _settle(self, *, same_bounds: bool = False) -> None:
        """Check what right-hand sides and bounds must agree on; begin without anything kept."""
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
        # Kept for later calls; plain dicts, because filling them twice is harmless.
        self._plans: dict[Any, Any] = {}  # by kind of call (linsat.plan), and constants that follow from the set
        self._calls: dict[Any, Any] = {}  # by everything but numbers (linsat.call)
        self._in_graphs = Kept()  # constants that a graph of torch.compile holds
        self._slots: dict[Any, Any] = {}  # constants as solvers read them
        self._fixed = not live and not any(map(arrays.followed, numbers.values()))
        # Kept by reference: their numbers may change.
        self._followed = () if self._fixed else tuple(self._learned_tensors())

    # ------------------------------------------------------------------ what the rest of linsat asks of it

    def _bounds(self) -> dict[str, Numbers]:
        return {"lower": self._lower, "upper": self._upper}

    def _sides(self) -> dict[str, Numbers]:
        """The right-hand sides (batch..., rows) as they are kept."""
        rows = {side: self._matrices[name].shape[0] for name, side, _ in BLOCKS if name in self._matrices}
        return {n: arrays.spread(side, (*side.shape[:-1], rows[n])) for n, side in self._right_sides.items()}

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

    def _sources(self) -> list[Numbers]:
        matrices = [matrix.source for matrix in self._matrices.values()]
        if self._terms is not None:
            matrices += self._terms.sources().values()
        return [*matrices, *self._right_sides.values(), self._lower, self._upper, *(s.price for s in self._soft)]

    def _learned_tensors(self) -> dict[str, Tensor]:
        """The user's tensors that require gradients, by argument name."""
        sources = {name: m.source for name, m in self._matrices.items()}
        sources |= {} if self._terms is None else self._terms.sources()
        sources |= self._right_sides | self._bounds() | learned_price(self._soft)
        return {name: t for name, t in sources.items() if is_tensor(t) and t.requires_grad}

    @property
    def _mapped(self) -> bool:
        """Whether a function transform maps over some number of the set, so that its instances may differ."""
        return any(is_tensor(numbers) and mapped(numbers) for numbers in self._sources())

    @property
    def _moving(self) -> bool:
        """Whether some number of the set carries a tangent of forward mode."""
        return any(is_tensor(numbers) and has_tangent(numbers) for numbers in self._sources())

    @property
    def _reach(self) -> float:
        """The largest size of any finite bound."""
        sizes = (np.abs(arrays.as_array(bound)) for bound in self._bounds().values())
        return max(float(size[np.isfinite(size)].max(initial=0.0)) for size in sizes)

    def _soft_mask(self) -> Array:
        """(rows,) bool."""
        soft = np.zeros(len(self), dtype=bool)
        for block in self._soft:
            soft[block.rows] = True
        return soft

    def _soft_violation(self, x: Any, tol: float) -> Any:
        """`row_violation` of the soft rows, 0 for the others and where it is at most ``tol`` times the row's size."""
        return soft_violation(self, x, tol)

    def _variable_name(self, index: int) -> str:
        """A variable as messages call it: ``works[3, 0]``, or ``x[15]`` in a set without names."""
        return f"x[{index}]" if self._layout is None else self._layout.entry(index)

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

    def _require_linear(self, what: str) -> None:
        """Reject a set with maxima, for what takes linear rows only."""
        if self._terms is not None:
            name = self.names[int(self._terms.row[0])]
            raise ConstraintError(
                f"{what} takes linear rows, and {name!r} has abs, a maximum or a norm. Fix: cons.lifted(), the same "
                f"set in linear rows over further variables."
            )
