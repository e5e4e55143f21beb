"""`Constraints`: linear rows and a box, validated once and never changed afterwards."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from linsat._forks import one_thread_after_a_fork
from linsat._transforms import Kept, mapped, tracing
from linsat.constraints.arrays import (
    Tensor,
    check_bound,
    check_finite,
    followed,
    read_bound,
    read_right_side,
)
from linsat.constraints.by_name import read_bound_of, right_sides_by_name
from linsat.constraints.checks import (
    check_bounds,
    check_empty_rows,
    check_finite_box,
    check_names,
    joint_batch_shape,
)
from linsat.constraints.coefficients import Matrix, join, read_matrix
from linsat.constraints.layout import Layout, flatten, holds_tensors
from linsat.constraints.soft import (
    SoftRows,
    check_price,
    from_full_price,
    full_price,
    learned_price,
    repriced,
    softened,
)
from linsat.constraints.statement import Statement
from linsat.constraints.structure import (
    BLOCKS,
    EQUAL,
    GREATER,
    SparsityPattern,
    Values,
    joint_width,
    sparse_matrix,
    stack_last,
    stack_rows,
)
from linsat.constraints.text import SENSE_TEXT, row_text, summary
from linsat.constraints.variables import read_layout
from linsat.errors import ConstraintError, LinSATWarning

if TYPE_CHECKING:
    from linsat.compile.diagnosis import NamedBound


class Constraints:
    """Linear rows ``A x <= b``, ``C x >= d``, ``E x = f`` and a box ``lower <= x <= upper``.

    Args:
        A, C, E: coefficient matrices (rows, variables); any of them may be left out. torch (dense, COO, CSR), numpy,
            scipy.sparse or nested lists; any sign. ``(batch..., rows, variables)`` for instances that differ: dense,
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
        self._right_sides: dict[str, Tensor] = {}
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
        self.lower = read_bound("lower", lower)
        self.upper = read_bound("upper", upper)
        self._layout = read_layout(variables)
        self._structure = self._stacked()
        self._names = check_names(names, len(self))
        self._named_bounds: tuple[NamedBound, ...] = ()
        self._soft: tuple[SoftRows, ...] = ()
        self._settle()

    def _bounds(self) -> dict[str, Tensor]:
        return {"lower": self.lower, "upper": self.upper}

    def _stacked(self) -> SparsityPattern:
        return stack_rows(self._matrices, self._width())

    def _width(self) -> int | None:
        return joint_width(self._matrices, self._bounds(), None if self._layout is None else self._layout.size)

    def _settle(self) -> None:
        """Check what right-hand sides and bounds must agree on; begin without anything compiled."""
        check_bounds(self.lower, self.upper, self._layout)
        check_empty_rows(self._structure, self._matrices, self._right_sides)
        numbers = self._right_sides | self._bounds()
        numbers |= {f"price {i}" if i else "price": block.price for i, block in enumerate(reversed(self._soft))}
        own = {name: matrix.batch_shape for name, matrix in self._matrices.items()}
        self._batch_shape = joint_batch_shape(own | {name: tensor.shape[:-1] for name, tensor in numbers.items()})
        # (device, versions) -> compiled system; a plain dict because filling it twice is harmless.
        self._compiled: dict[Any, Any] = {}
        self.in_graphs = Kept()
        live = any(matrix.live for matrix in self._matrices.values())
        self._followed = tuple(self.learned_tensors())  # kept by reference: their numbers may change
        self._fixed = not live and not any(map(followed, numbers.values()))
        self.fixed_box = not live and not followed(self.lower) and not followed(self.upper)
        self.box_cache: dict[Any, Any] = {}  # what follows from coefficients and bounds alone

    # ------------------------------------------------------------------ what a user asks of it

    def __len__(self) -> int:
        return self._structure.num_rows

    @property
    def num_variables(self) -> int | None:
        """Number of variables; None for a set without rows and with scalar bounds, which fits any number."""
        return self._structure.num_variables

    @property
    def batch_shape(self) -> torch.Size:
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
        vector = x if isinstance(x, torch.Tensor) else np.asarray(x)
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
    def rhs(self) -> Tensor:
        """All right-hand sides stacked, (batch..., rows), in float64."""
        return self.numbers().rhs

    @property
    def price(self) -> Tensor:
        """What breaking each row costs per unit, (batch..., rows) in float64; infinite where a row is hard."""
        found = self.numbers().price
        return torch.full((len(self),), torch.inf, dtype=torch.float64) if found is None else found

    @property
    def right_sides(self) -> dict[str, Tensor]:
        """The right-hand sides (batch..., rows) by name (``b``, ``d``, ``f``), those that the set has."""
        rows = {side: self._matrices[matrix].shape[0] for matrix, side, _ in BLOCKS if matrix in self._matrices}
        return {name: side.expand(*side.shape[:-1], rows[name]) for name, side in self._right_sides.items()}

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
        return {name: matrix.stated() for name, matrix in self._matrices.items()}

    @property
    def blocks(self) -> Mapping[str, Matrix]:
        """Coefficients by name, with their pattern and how they were stated."""
        return MappingProxyType(self._matrices)

    def numbers(self, device: torch.device | str | None = None) -> Values:
        """Coefficients, right-hand sides and bounds in float64 on ``device``, with gradients where asked for."""
        values = [m.values() for m in self._matrices.values()]
        if device is None:
            device = values[0].device if values else self.lower.device
        return Values(
            values=stack_last(values, device),
            rhs=stack_last(list(self.right_sides.values()), device),
            lower=self.lower.to(device, torch.float64),
            upper=self.upper.to(device, torch.float64),
            price=full_price(self._soft, len(self), device),
        )

    def statement(self) -> Statement:
        """All numbers as plain numpy arrays.

        Raises:
            ConstraintError: a number is a tensor that requires gradients or belongs to a transform or graph of torch.
        """
        if not self.fixed:
            held = ", ".join(self.learned_tensors()) or "of a transform or graph"
            raise ConstraintError(
                f"The set holds tensors that torch follows ({held}); expected constants. "
                f"Fix: build it from arrays, or from tensor.detach()."
            )
        numbers, pattern = self.numbers("cpu"), self._structure
        return Statement(
            row=pattern.row.numpy(),
            col=pattern.col.numpy(),
            senses=pattern.senses.numpy(),
            values=numbers.values.numpy(),
            rhs=numbers.rhs.numpy(),
            lower=numbers.lower.numpy(),
            upper=numbers.upper.numpy(),
            price=None if numbers.price is None else numbers.price.numpy(),
            num_variables=self.num_variables,
            batch_shape=tuple(self.batch_shape),
        )

    def row_violation(self, x: Any) -> Any:
        """How far each row, hard or soft, is from holding, (batch..., rows), in the units of the row; 0: it holds."""
        as_numpy = not holds_tensors(x)
        gap, _ = self._row_gaps(self._read_point(x))
        return gap.detach().cpu().numpy() if as_numpy else gap

    def violation(self, x: Any) -> Any:
        """The worst violation of any hard row or bound at ``x`` (in any shape that `project` takes), per instance.

        Soft rows (`soften`) may be broken and do not count; `row_violation` gives every row. A row's violation is
        relative to its size there, ``max(1, sum_j |a_ij x_j|)``, a bound's to ``max(1, |x_j|)``. A measure, without
        gradients; `row_violation` has them.
        """
        as_numpy = not holds_tensors(x)
        point = self._read_point(x).detach()
        lower, upper = (bound.detach().to(point.device, torch.float64) for bound in (self.lower, self.upper))
        outside = torch.maximum(lower - point, point - upper).clamp_min(0.0) / point.abs().clamp_min(1.0)
        gap, size = self._row_gaps(point)
        worst = outside.amax(-1)
        if len(self):
            gap = torch.where(self.soft.to(gap.device), 0.0, gap.detach())
            worst = torch.maximum(worst, (gap / size.clamp_min(1.0)).amax(-1))
        return worst.cpu().numpy() if as_numpy else worst

    def soft_violation(self, x: Tensor, tol: float) -> Tensor:
        """`row_violation` of the soft rows, 0 for the others and where it is at most ``tol`` times the row's size."""
        gap, size = self._row_gaps(self._read_point(x))
        held = gap.detach() <= tol * size.clamp_min(1.0)  # not for NaN, which stays
        return torch.where(held | ~self.soft.to(gap.device), 0.0, gap)

    def _row_gaps(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """By how much each row is violated, and sum_j |a_ij x_j|, both (batch..., rows)."""
        numbers = self.numbers(point.device)
        row = self._structure.row.to(point.device)
        terms = point[..., self._structure.col.to(point.device)] * numbers.values  # (batch..., nnz)
        zeros = terms.new_zeros((*terms.shape[:-1], len(self)))
        excess = zeros.index_add(-1, row, terms) - numbers.rhs
        senses = self._structure.senses.to(point.device)
        gap = torch.where(senses == GREATER, -excess, torch.where(senses == EQUAL, excess.abs(), excess))
        return gap.clamp_min(0.0), zeros.index_add(-1, row, terms.detach().abs())

    def _read_point(self, x: Any) -> Tensor:
        def read(name: str, part: Any) -> Tensor:
            return part if isinstance(part, torch.Tensor) else torch.from_numpy(np.array(part, dtype=np.float64))

        return flatten("x", x, self._layout, self.num_variables, read)[0].to(torch.float64)

    def row_text(self, index: int, *, instance: int | None = None, terms: int = 6) -> str:
        """One row as a user would write it, shortened to ``terms`` terms; with the numbers of one instance."""
        return row_text(self, index, instance, terms)

    def __repr__(self) -> str:
        return summary(self)

    # ------------------------------------------------------------------ making new sets from old ones

    def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"lower": self.lower, "upper": self.upper}
        arguments |= {"names": self._names, "variables": self._layout}
        return arguments | self._matrices | self._right_sides

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

    def with_full_price(self, price: Tensor) -> Constraints:
        """The same rows, soft at prices (batch..., rows) where these are finite and hard elsewhere."""
        return self._derived(soft=from_full_price(price))

    def instances(self, start: int, stop: int) -> Constraints:
        """The set of some instances of a single batch dimension; what they share stays shared."""

        def cut(tensor: Tensor) -> Tensor:
            return tensor[start:stop] if tensor.dim() > 1 else tensor

        return self._derived(
            sides={name: cut(side) for name, side in self._right_sides.items()},
            bounds={name: cut(bound) for name, bound in self._bounds().items() if bound.dim() > 1},
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
        sides: dict[str, Tensor] | None = None,
        bounds: dict[str, Tensor] | None = None,
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
        made.lower, made.upper = (self._bounds() | bounds).values()
        moved = any(matrix.row is not self._matrices[name].row for name, matrix in made._matrices.items())
        if moved or (bounds and made._width() != self.num_variables):
            made._structure = made._stacked()
        made._settle()
        if not bounds and not matrices and self.fixed_box:
            made.box_cache = self.box_cache
        return made

    def __and__(self, other: Constraints) -> Constraints:
        """Both sets at once: all rows of both, in the intersection of the boxes.

        Names and shapes of variables are those of the left set, or of the right one where the left has none.
        """
        if not isinstance(other, Constraints):
            return NotImplemented
        widths = {self.num_variables, other.num_variables} - {None}
        if len(widths) > 1:
            raise ConstraintError(
                f"Cannot join sets over {self.num_variables} and {other.num_variables} variables. "
                f"Fix: build both over the same variables (linsat.Variable stacks several into one vector)."
            )
        joint_batch_shape({"the left set": self.batch_shape, "the right set": other.batch_shape})
        for side, s in (("left", self), ("right", other)):
            learned = [name for name, t in s.learned_tensors().items() if t.is_leaf]
            if learned:
                raise ConstraintError(
                    f"The {side} set has learned numbers ({', '.join(learned)}), which a joined set could not follow. "
                    f"Fix: join first, then put them in with with_rhs, with_bounds, with_coefficients or soften."
                )
        arguments: dict[str, Any] = {
            "lower": torch.maximum(self.lower, other.lower),
            "upper": torch.minimum(self.upper, other.upper),
            "variables": self._layout or other._layout,
        }
        names: list[str] = []
        prices: list[Tensor] = []
        for matrix_name, side_name, _ in BLOCKS:
            parts = [s for s in (self, other) if matrix_name in s._matrices]
            if not parts:
                continue
            arguments[matrix_name] = join(matrix_name, [s._matrices[matrix_name] for s in parts])
            sides = [s.right_sides[side_name].to(torch.float64) for s in parts]
            batch = torch.broadcast_shapes(*(side.shape[:-1] for side in sides))
            arguments[side_name] = torch.cat([side.expand(*batch, -1) for side in sides], dim=-1)
            for s in parts:
                here = [i for i, block in enumerate(s._row_blocks()) if block == matrix_name]
                names += [s.names[i] for i in here]
                prices.append(s.price[..., here])
        if self._names is not None or other._names is not None:
            arguments["names"] = names
        joined = Constraints(**arguments)
        if self._soft or other._soft:
            batch = torch.broadcast_shapes(*(price.shape[:-1] for price in prices))
            joined = joined.with_full_price(torch.cat([price.expand(*batch, -1) for price in prices], dim=-1))
        joined._named_bounds = tuple(
            bound for s in (self, other) for bound in s._named_bounds if s._binds(joined, bound)
        )
        return joined

    def _binds(self, joined: Constraints, bound: NamedBound) -> bool:
        """Whether a bound of this set is also that of a set it was joined into."""
        own, theirs = getattr(self, bound.side), getattr(joined, bound.side)
        pick = [t.detach()[..., bound.variable] if t.dim() and t.shape[-1] > 1 else t.detach() for t in (own, theirs)]
        return bool((pick[0] == pick[1]).all())

    def _row_blocks(self) -> list[str]:
        return [name for name, matrix in self._matrices.items() for _ in range(matrix.shape[0])]

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
        sources = (matrix.source for matrix in self._matrices.values())
        prices = (block.price for block in self._soft)
        return any(map(mapped, (*sources, *self._right_sides.values(), self.lower, self.upper, *prices)))

    def check_numbers(self) -> None:
        """Check again what may have changed since the set was made: tensors that were kept by reference."""
        for name, side in self._right_sides.items():
            check_finite(name, side)
        for name, matrix in self._matrices.items():
            check_finite(name, matrix.values())
        check_bound("lower", self.lower)
        check_bound("upper", self.upper)
        check_bounds(self.lower, self.upper, self._layout)
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
        check_finite_box(self.lower, self.upper, self._layout)

    def learned_tensors(self) -> dict[str, Tensor]:
        """The user's tensors that require gradients, by argument name."""
        sources = {name: m.source for name, m in self._matrices.items()}
        sources |= self._right_sides | self._bounds() | learned_price(self._soft)
        return {name: t for name, t in sources.items() if t.requires_grad}

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
        found = torch.zeros(len(self), dtype=torch.bool)
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
