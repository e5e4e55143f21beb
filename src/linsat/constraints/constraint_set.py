"""`Constraints`: linear rows and a box, validated once and never changed afterwards."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linsat._transforms import tracing
from linsat.constraints.arrays import Numbers, picked, read_numbers, read_right_side
from linsat.constraints.by_name import read_bound_of, right_sides_by_name
from linsat.constraints.coefficients import Matrix
from linsat.constraints.joining import joined
from linsat.constraints.rounded import rounding_of
from linsat.constraints.rows_and_box import RowsAndBox
from linsat.constraints.soft import SoftRows, from_full_price, repriced, softened
from linsat.constraints.structure import BLOCKS
from linsat.constraints.terms import lifted
from linsat.errors import ConstraintError, LinSATWarning

if TYPE_CHECKING:
    import torch

    from linsat.compile.diagnosis import NamedBound

    Tensor = torch.Tensor


class Constraints(RowsAndBox):
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
    ``b`` may be an ``nn.Parameter`` that an optimiser updates. The first projection compiles the set (presolve, check
    for contradictions) and keeps the result; `check` looks for contradictions at once.

    Raises:
        ConstraintError: malformed input; the message names argument, index, value and fix.
    """

    # ------------------------------------------------------------------ making new sets from old ones

    def _arguments(self) -> dict[str, Any]:
        own = self._bounds() | self._matrices | self._right_sides
        return {**own, "names": self._names, "variables": self._layout, "terms": self._terms}

    def with_rhs(
        self,
        by_name: Mapping[str, Any] | None = None,
        /,
        *,
        b: Any = None,
        d: Any = None,
        f: Any = None,
        t: Any = None,
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
        made = self._with_numbers(b=b, d=d, f=f, t=t)
        if by_name is None:
            return made
        named, t = right_sides_by_name(made, by_name)
        rounding = max(made._rounding, *map(rounding_of, by_name.values()))
        return made._derived(sides=named, rounding=rounding, terms={} if t is None else {"t": t})

    def with_coefficients(self, *, A: Any = None, C: Any = None, E: Any = None) -> Constraints:
        """The same rows with other coefficients, which may have leading batch dimensions and require gradients.

        Args:
            A, C, E: (batch..., rows, variables), in the shape of the coefficients they replace; for rows that were
                stated by their non-zeros (sparse matrices, formulas, most ready-made sets) their values
                (batch..., non-zeros) in the order of `coefficients`, or a sparse matrix of the same pattern.

        Cost: that of reading them, as long as no coefficient appears where the set had none. Instances are then checked
        one by one when they are solved, as with `with_rhs`.
        """
        return self._with_numbers(A=A, C=C, E=E)

    def _with_numbers(self, **given: Any) -> Constraints:
        """`with_coefficients`, `with_rhs`, `with_bounds` at once, by the names of their arguments; None: as it is.

        ``T`` and ``t``, (batch..., non-zeros) and (batch..., bases), are those of the maxima in formulas.
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
                    sides[name] = read_right_side(name, value, self._matrices[matrix_name])
        for name in ("lower", "upper"):
            if given.get(name) is not None:
                bounds[name] = read_bound_of(self, name, given[name])
        terms = {name: given[name] for name in ("T", "t") if given.get(name) is not None}
        if terms and self._terms is None:
            raise ConstraintError(f"{next(iter(terms))} was given but no formula of the set has abs or a maximum.")
        rounding = rounding_of(given.get("f"))
        return self._derived(sides=sides, bounds=bounds, matrices=matrices, terms=terms, rounding=rounding)

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
        whole = read_numbers("price", price)
        if whole.ndim and whole.shape[-1] == len(self) != len(rows):
            whole = picked(whole, rows)
        return self._derived(soft=softened(self, (), rows.tolist(), whole))

    def _with_full_price(self, price: Numbers) -> Constraints:
        """The same rows, soft at prices (batch..., rows) where these are finite and hard elsewhere."""
        return self._derived(soft=from_full_price(price))

    def _instances(self, start: int, stop: int) -> Constraints:
        """The set of some instances of a single batch dimension; what they share stays shared."""

        def cut(numbers: Numbers) -> Numbers:
            return numbers[start:stop] if numbers.ndim > 1 else numbers

        made = self._derived(
            sides={name: cut(side) for name, side in self._right_sides.items()},
            bounds={name: cut(bound) for name, bound in self._bounds().items() if bound.ndim > 1},
            matrices={
                name: matrix.with_coefficients(matrix.stated()[start:stop])
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

    # ------------------------------------------------------------------ checks, and what other parts of linsat ask for

    def _with_tensors(self, tensors: dict[str, Tensor]) -> Constraints:
        """The same set with some of its arguments (``A``, ``b``, ..., ``upper``) or its learned price replaced."""
        blocks = {n: block.with_coefficients(tensors[n]) for n, block in self._matrices.items() if n in tensors}
        soft = repriced(self._soft, tensors.get("price"))
        terms = {name: t for name, t in tensors.items() if name in ("T", "t")}
        given = {name: t for name, t in tensors.items() if name not in ("price", "T", "t")}
        if not tracing():
            return Constraints(**(self._arguments() | given | blocks))._derived(soft=soft, terms=terms)
        sides = {name: t for name, t in given.items() if name in self._right_sides}
        bounds = {name: t for name, t in given.items() if name in ("lower", "upper")}
        return self._derived(sides=sides, bounds=bounds, matrices=blocks, soft=soft, terms=terms)

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

    def lifted(self) -> Constraints:
        """The same set in linear rows: a further variable, after the set's own, for each maximum in its formulas.

        For what takes linear rows only, such as another solver. A set without ``abs``, norms and the like is itself.
        """
        return self if self._terms is None else lifted(self)[0]

    def _with_named_bounds(self, named: Sequence[NamedBound]) -> Constraints:
        """The same set, which knows where some of its bounds come from."""
        made = copy.copy(self)
        made._named_bounds = tuple(named)
        made._settle()
        return made
