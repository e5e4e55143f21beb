"""`Constraints`: linear rows and a box, validated once and never changed afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from linsat._transforms import plain_tensors
from linsat.constraints.arrays import Matrix, Tensor, check_finite, read_bound, read_matrix, read_right_side
from linsat.errors import ConstraintError

LESS, EQUAL, GREATER = -1, 0, 1
_SENSE_TEXT = {LESS: "<=", EQUAL: "==", GREATER: ">="}
_BLOCKS = (("A", "b", LESS), ("C", "d", GREATER), ("E", "f", EQUAL))


@dataclass(frozen=True)
class Structure:
    """What stays the same when right sides and bounds change: the pattern of all rows, A first, then C, then E."""

    num_rows: int
    num_variables: int | None  # None: no rows and scalar bounds, so any number of variables fits
    row: Tensor  # (nnz,) row of each coefficient
    col: Tensor  # (nnz,) variable of each coefficient
    senses: Tensor  # (rows,) LESS, EQUAL or GREATER
    default_names: tuple[str, ...]
    memory: dict[Any, Any] = field(default_factory=dict, compare=False)  # derived from the pattern, made on demand

    def on(self, device: torch.device | str) -> tuple[Tensor, Tensor, Tensor]:
        """row, col and senses on a device; plain tensors also when asked for from inside a function transform."""
        key = ("on", str(device))
        if key not in self.memory:
            with plain_tensors():
                self.memory[key] = tuple(t.to(device) for t in (self.row, self.col, self.senses))
        return self.memory[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "memory": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@dataclass(frozen=True)
class Numbers:
    """The numbers of a constraint set in float64 on one device, connected to the user's tensors for gradients."""

    values: Tensor  # (nnz,)
    rhs: Tensor  # (batch..., rows)
    lower: Tensor  # (batch..., variables) or a scalar
    upper: Tensor

    def require_grad(self) -> bool:
        return any(t.requires_grad for t in (self.values, self.rhs, self.lower, self.upper))


class Constraints:
    """Linear rows ``A x <= b``, ``C x >= d``, ``E x = f`` and a box ``lower <= x <= upper``.

    Args:
        A, C, E: coefficient matrices (rows, variables); any of them may be left out. torch (dense, COO, CSR), numpy,
            scipy.sparse or nested lists; any sign.
        b, d, f: right sides, a scalar, ``(rows,)`` or ``(batch..., rows)`` for instances that differ.
        lower, upper: the box, a scalar, ``(variables,)`` or ``(batch..., variables)``; must be finite.
        names: one name per row (rows of A, then C, then E), used in every message; default ``A[0]``, ``C[2]``, ...

    A set is immutable. Tensors that require gradients are kept by reference, everything else is copied; so a learned
    ``b`` may be an ``nn.Parameter`` that an optimiser updates. The first projection compiles the set (presolve, check
    for contradictions) and keeps the result; `check` does so at once.

    Raises:
        ConstraintError: malformed input; the message names argument, index, value and fix.
    """

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
    ) -> None:
        given = {"A": A, "b": b, "C": C, "d": d, "E": E, "f": f}
        self._matrices: dict[str, Matrix] = {}
        self._right_sides: dict[str, Tensor] = {}
        for matrix_name, side_name, _ in _BLOCKS:
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
        self._structure = self._stack()
        self._names = self._check_names(names)
        self._check_bounds()
        self._check_empty_rows()
        self._batch_shape = self._broadcast_batches()
        # (device, versions) -> compiled system; a plain dict because filling it twice is harmless.
        self._compiled: dict[Any, Any] = {}
        live = any(matrix.live for matrix in self._matrices.values())
        self._fixed = not live and not self.learned_tensors()
        self.lanes: dict[Any, Any] = {}  # what `linsat.projection` keeps of earlier calls

    # ------------------------------------------------------------------ reading the input

    def _stack(self) -> Structure:
        widths = {m.name: m.shape[1] for m in self._matrices.values()}
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if bound.dim() > 0 and bound.shape[-1] != 1:
                widths[name] = int(bound.shape[-1])
        if len(set(widths.values())) > 1:
            listed = ", ".join(f"{name} has {width}" for name, width in widths.items())
            raise ConstraintError(
                f"The arguments disagree on the number of variables: {listed}. "
                f"Fix: give every matrix one column, and every bound one entry, per variable."
            )
        width = next(iter(widths.values()), None)
        rows, cols, senses, names, offset = [], [], [], [], 0
        for matrix_name, _, sense in _BLOCKS:
            matrix = self._matrices.get(matrix_name)
            if matrix is None:
                continue
            rows.append(matrix.row + offset)
            cols.append(matrix.col)
            senses += [sense] * matrix.shape[0]
            names += [f"{matrix_name}[{i}]" for i in range(matrix.shape[0])]
            offset += matrix.shape[0]
        empty = torch.zeros(0, dtype=torch.int64)
        return Structure(
            num_rows=offset,
            num_variables=width,
            row=torch.cat(rows) if rows else empty,
            col=torch.cat(cols) if cols else empty,
            senses=torch.tensor(senses, dtype=torch.int8),
            default_names=tuple(names),
        )

    def _check_names(self, names: Sequence[str] | None) -> tuple[str, ...] | None:
        if names is None:
            return None
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ConstraintError("names must be a sequence of strings, one per row (rows of A, then C, then E).")
        if len(names) != len(self):
            raise ConstraintError(
                f"names has {len(names)} entries but there are {len(self)} rows. "
                f"Fix: one name per row, rows of A first, then C, then E."
            )
        return tuple(names)

    def _check_bounds(self) -> None:
        try:
            lower, upper = torch.broadcast_tensors(self.lower.detach(), self.upper.detach().to(self.lower.device))
        except RuntimeError:
            raise ConstraintError(
                f"lower has shape {tuple(self.lower.shape)} and upper {tuple(self.upper.shape)}, which do not "
                f"broadcast. Fix: give both a scalar, (variables,) or (batch, variables)."
            ) from None
        crossed = lower > upper
        if bool(crossed.any()):
            index = tuple(int(i) for i in crossed.nonzero()[0])
            where = f"[{', '.join(map(str, index))}]" if index else ""
            raise ConstraintError(
                f"lower{where} = {float(lower[index])} is above upper{where} = {float(upper[index])}. "
                f"Fix: swap or widen them."
            )

    def _check_empty_rows(self) -> None:
        for matrix_name, side_name, _ in _BLOCKS:
            matrix = self._matrices.get(matrix_name)
            if matrix is None or matrix.live:
                continue
            filled = torch.zeros(matrix.shape[0], dtype=torch.bool)
            filled[matrix.row] = True
            side = self.right_sides[side_name].detach().cpu().reshape(-1, matrix.shape[0])
            wrong = (~filled) & (side != 0)
            if bool(wrong.any()):
                instance, row = (int(i) for i in wrong.nonzero()[0])
                raise ConstraintError(
                    f"{matrix_name}[{row}] has no non-zero coefficient but {side_name}[{row}] = "
                    f"{float(side[instance, row])}. Fix: give the row coefficients or remove it."
                )

    def _broadcast_batches(self) -> torch.Size:
        shapes = {name: side.shape[:-1] for name, side in self._right_sides.items()}
        shapes |= {"lower": self.lower.shape[:-1], "upper": self.upper.shape[:-1]}
        try:
            return torch.broadcast_shapes(*shapes.values())
        except RuntimeError:
            listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items() if shape)
            raise ConstraintError(
                f"The batch dimensions of the right sides and bounds do not fit together: {listed}. "
                f"Fix: give each the same leading dimensions, or none."
            ) from None

    # ------------------------------------------------------------------ what a person asks of it

    def __len__(self) -> int:
        return self._structure.num_rows

    @property
    def num_variables(self) -> int | None:
        """Number of variables; None for a set without rows and with scalar bounds, which fits any number."""
        return self._structure.num_variables

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of per-instance right sides and bounds; empty when all instances share them."""
        return self._batch_shape

    @property
    def senses(self) -> tuple[str, ...]:
        """``"<="``, ``">="`` or ``"=="`` for each row."""
        return tuple(_SENSE_TEXT[int(sense)] for sense in self._structure.senses)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per row: rows of A first, then C, then E."""
        return self._structure.default_names if self._names is None else self._names

    @property
    def rhs(self) -> Tensor:
        """All right sides stacked, (batch..., rows), in float64."""
        return self.numbers().rhs

    @property
    def right_sides(self) -> dict[str, Tensor]:
        """The right sides (batch..., rows) by name (``b``, ``d``, ``f``), those that the set has."""
        rows = {side: self._matrices[matrix].shape[0] for matrix, side, _ in _BLOCKS if matrix in self._matrices}
        return {name: side.expand(*side.shape[:-1], rows[name]) for name, side in self._right_sides.items()}

    @property
    def matrix(self) -> Tensor:
        """All coefficients stacked as one sparse COO tensor (rows, variables), in float64."""
        index = torch.stack([self._structure.row, self._structure.col])
        values = self.numbers().values
        shape = (len(self), self.num_variables or 0)
        return torch.sparse_coo_tensor(index.to(values.device), values, shape, check_invariants=True).coalesce()

    def numbers(self, device: torch.device | str | None = None) -> Numbers:
        """Coefficients, right sides and bounds in float64 on ``device``, with gradients where asked for."""
        values = [m.values() for m in self._matrices.values()]
        sides = [side.to(torch.float64) for side in self.right_sides.values()]
        if device is None:
            device = values[0].device if values else self.lower.device
        batch = torch.broadcast_shapes(*(side.shape[:-1] for side in sides)) if sides else torch.Size()
        empty = torch.zeros(0, dtype=torch.float64, device=device)
        return Numbers(
            values=torch.cat([v.to(device) for v in values]) if values else empty,
            rhs=torch.cat([s.to(device).expand(*batch, -1) for s in sides], dim=-1) if sides else empty,
            lower=self.lower.to(device, torch.float64),
            upper=self.upper.to(device, torch.float64),
        )

    def row_violation(self, x: Any) -> Any:
        """How far each row is from holding, (batch..., rows), in the units of the row; 0 where it holds."""
        as_numpy = not isinstance(x, torch.Tensor)
        point = self._read_point(x)
        numbers = self.numbers(point.device)
        terms = point[..., self._structure.col.to(point.device)] * numbers.values  # (batch..., nnz)
        zeros = point.new_zeros((*point.shape[:-1], len(self)))
        activity = zeros.index_add(-1, self._structure.row.to(point.device), terms)
        excess = activity - numbers.rhs
        senses = self._structure.senses.to(point.device)
        gap = torch.where(senses == GREATER, -excess, torch.where(senses == EQUAL, excess.abs(), excess))
        gap = gap.clamp_min(0.0)
        return gap.detach().cpu().numpy() if as_numpy else gap

    def violation(self, x: Any) -> Any:
        """The worst violation of any row or bound at ``x`` (batch..., variables), per instance, in original units.

        A measure, without gradients; `row_violation` has them.
        """
        as_numpy = not isinstance(x, torch.Tensor)
        point = self._read_point(x)
        numbers = self.numbers(point.device)
        outside = torch.maximum(numbers.lower - point, point - numbers.upper).amax(-1)
        rows = self.row_violation(point)
        worst = torch.maximum(outside, rows.amax(-1)) if len(self) else outside
        worst = worst.clamp_min(0.0).detach()
        return worst.cpu().numpy() if as_numpy else worst

    def _read_point(self, x: Any) -> Tensor:
        tensor = x if isinstance(x, torch.Tensor) else torch.from_numpy(np.array(x, dtype=np.float64))
        if tensor.dim() == 0 or (self.num_variables is not None and tensor.shape[-1] != self.num_variables):
            raise ConstraintError(
                f"x has shape {tuple(tensor.shape)}; expected (..., {self.num_variables}), one entry per variable."
            )
        return tensor.to(torch.float64)

    def row_text(self, index: int, *, rhs: float | None = None, terms: int = 6) -> str:
        """One row as a person would write it, shortened to ``terms`` terms; ``rhs`` stands for one instance's own."""
        here = self._structure.row == index
        values = self.numbers().values.detach().cpu()[here].tolist()
        pieces: list[str] = []
        for value, col in zip(values, self._structure.col[here].tolist(), strict=True):
            if value != 0:
                size = "" if abs(value) == 1 else f"{abs(value):g} "
                sign = ("-" if value < 0 else "") if not pieces else ("- " if value < 0 else "+ ")
                pieces.append(f"{sign}{size}x[{col}]")
        if len(pieces) > terms:
            pieces = [*pieces[: terms - 1], "+ ...", pieces[-1]]
        side = self.rhs.detach()[..., index] if rhs is None else torch.tensor(rhs)
        shown = f"{float(side):g}" if side.dim() == 0 else f"(one of {side.numel()} right sides)"
        return f"{' '.join(pieces) or '0'} {self.senses[index]} {shown}"

    def __repr__(self) -> str:
        senses = self.senses
        counts = ", ".join(f"{senses.count(s)} {s}" for s in ("<=", ">=", "==") if s in senses) or "none"
        lower, upper = self.lower.detach(), self.upper.detach()
        box = f"[{_span(lower, 'min')}, {_span(upper, 'max')}]"
        width = "any number of" if self.num_variables is None else str(self.num_variables)
        batch = f", batch {tuple(self.batch_shape)}" if self.batch_shape else ""
        lines = [f"Constraints({width} variables in {box}, {_count(len(self), 'row')}: {counts}{batch})"]
        shown = range(len(self)) if len(self) <= 6 else [0, 1, 2, len(self) - 1]
        for position, index in enumerate(shown):
            if len(self) > 6 and position == 3:
                lines.append("  ...")
            lines.append(f"  {self.names[index]}: {self.row_text(index)}")
        return "\n".join(lines)

    # ------------------------------------------------------------------ making new sets from old ones

    def _arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"lower": self.lower, "upper": self.upper, "names": self._names}
        return arguments | self._matrices | self._right_sides

    def with_rhs(self, *, b: Any = None, d: Any = None, f: Any = None) -> Constraints:
        """The same rows with other right sides, which may have leading batch dimensions and require gradients.

        Instances are then checked one by one when they are solved: an infeasible one is reported by its status and
        leaves the others untouched.
        """
        arguments = self._arguments()
        for name, value, matrix in (("b", b, "A"), ("d", d, "C"), ("f", f, "E")):
            if value is None:
                continue
            if matrix not in self._matrices:
                raise ConstraintError(f"{name} was given but the set has no {matrix} rows. Fix: leave {name} out.")
            arguments[name] = value
        return self._derived(arguments)

    def with_bounds(self, *, lower: Any = None, upper: Any = None) -> Constraints:
        """The same rows in another box, scalar, per variable or per instance (batch..., variables)."""
        arguments = self._arguments()
        arguments["lower"] = self.lower if lower is None else lower
        arguments["upper"] = self.upper if upper is None else upper
        return self._derived(arguments)

    def _derived(self, arguments: dict[str, Any]) -> Constraints:
        """A set with the same rows: it shares the pattern, and with it everything derived from the pattern alone."""
        made = Constraints(**arguments)
        if made._structure.num_variables == self._structure.num_variables:
            made._structure = self._structure
        return made

    def __and__(self, other: Constraints) -> Constraints:
        """Both sets at once: all rows of both, in the intersection of the boxes."""
        if not isinstance(other, Constraints):
            return NotImplemented
        widths = {self.num_variables, other.num_variables} - {None}
        if len(widths) > 1:
            raise ConstraintError(
                f"Cannot join sets over {self.num_variables} and {other.num_variables} variables. "
                f"Fix: build both over the same variables (linsat.Variable stacks several into one vector)."
            )
        for side, s in (("left", self), ("right", other)):
            learned = [name for name, t in s.learned_tensors().items() if t.is_leaf]
            if learned:
                raise ConstraintError(
                    f"The {side} set has learned numbers ({', '.join(learned)}), which a joined set could not follow. "
                    f"Fix: join first, then put them in with with_rhs or with_bounds."
                )
        arguments: dict[str, Any] = {
            "lower": torch.maximum(self.lower, other.lower),
            "upper": torch.minimum(self.upper, other.upper),
        }
        names: list[str] = []
        for matrix_name, side_name, _ in _BLOCKS:
            parts = [s for s in (self, other) if matrix_name in s._matrices]
            if not parts:
                continue
            arguments[matrix_name] = torch.cat([_matrix_argument(s._matrices[matrix_name]) for s in parts])
            sides = [s.right_sides[side_name].to(torch.float64) for s in parts]
            batch = torch.broadcast_shapes(*(side.shape[:-1] for side in sides))
            arguments[side_name] = torch.cat([side.expand(*batch, -1) for side in sides], dim=-1)
            for s in parts:
                names += [name for name, block in zip(s.names, s._row_blocks(), strict=True) if block == matrix_name]
        if self._names is not None or other._names is not None:
            arguments["names"] = names
        return Constraints(**arguments)

    def _row_blocks(self) -> list[str]:
        return [name for name, matrix in self._matrices.items() for _ in range(matrix.shape[0])]

    # ------------------------------------------------------------------ from and to other libraries

    @staticmethod
    def from_cvxpy(constraints: Any, variable: Any, *, box: tuple[float, float] | None = None) -> Constraints:
        """The affine constraints of a cvxpy problem over one variable (extra ``cvxpy``).

        Args:
            constraints: a cvxpy constraint or a list of them: ``==``, ``<=``, ``>=``, Zero, NonPos or NonNeg of affine
                expressions in ``variable``; parameters count with their present values. A two-sided row becomes two.
            variable: the ``cvxpy.Variable``; matrices are flattened row by row. Its ``nonneg``, ``bounds`` and the like
                become the box; so do constraints on one entry where the variable has no bound of its own.
            box: bounds (lower, upper) for entries that have none.

        Warns:
            LinSATWarning: a boolean or integer variable is relaxed.

        Raises:
            ConstraintError: a constraint that is not affine (named), other variables, or no finite bounds.
        """
        from linsat.bridges import from_cvxpy

        return from_cvxpy(constraints, variable, box=box)

    @staticmethod
    def from_scipy(constraints: Any, bounds: Any = None, *, box: tuple[float, float] | None = None) -> Constraints:
        """Rows of ``scipy.optimize.LinearConstraint`` (one or a list) within ``scipy.optimize.Bounds``.

        ``lb <= A x <= ub`` becomes one row where an end is infinite or both are equal, else two. ``box`` gives
        (lower, upper) for variables without finite bounds; the layer works in a box.

        Raises:
            ConstraintError: another kind of constraint (named), shapes that disagree, or no finite bounds.
        """
        from linsat.bridges import from_scipy

        return from_scipy(constraints, bounds, box=box)

    def to_highs(self, *, scores: Any = None) -> Any:
        """A ``highspy.Highs`` model with these rows, names and box (extra ``cli``); ``scores`` are what it maximises.

        For one instance: a set with right sides or bounds per instance is refused.
        """
        from linsat.bridges import to_highs

        return to_highs(self, scores=scores)

    # ------------------------------------------------------------------ compiled once, kept, never copied

    def check_numbers(self) -> None:
        """Check again what may have changed since the set was made: tensors that were kept by reference."""
        for name, side in self._right_sides.items():
            check_finite(name, side)
        for name, matrix in self._matrices.items():
            check_finite(name, matrix.values())
        check_finite("lower", self.lower)
        check_finite("upper", self.upper)
        self._check_bounds()

    def with_tensors(self, tensors: dict[str, Tensor]) -> Constraints:
        """The same set with some of its arguments (``A``, ``b``, ..., ``upper``) replaced."""
        return Constraints(**(self._arguments() | tensors))

    def check(self) -> Constraints:
        """Compile now: raises `InfeasibleError` when the rows contradict each other; returns the set itself."""
        from linsat._compile import compile_constraints

        compile_constraints(self)
        return self

    def learned_tensors(self) -> dict[str, Tensor]:
        """The user's tensors that require gradients, by argument name."""
        sources = {name: m.source for name, m in self._matrices.items()}
        sources |= dict(self._right_sides) | {"lower": self.lower, "upper": self.upper}
        return {name: t for name, t in sources.items() if t.requires_grad}

    @property
    def fixed(self) -> bool:
        """Whether no number of the set was given as a tensor that requires gradients."""
        return self._fixed

    @property
    def structure(self) -> Structure:
        return self._structure

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": {}, "lanes": {}}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _span(bound: Tensor, side: str) -> str:
    value = float(bound.min() if side == "min" else bound.max()) if bound.numel() else 0.0
    varies = bound.numel() > 1 and bool((bound != bound.reshape(-1)[0]).any())
    return f"{value:g}" + (" (varies)" if varies else "")


def _matrix_argument(matrix: Matrix) -> Tensor:
    """The block as something `Constraints` accepts again."""
    if matrix.live:
        return matrix.source
    index = torch.stack([matrix.row, matrix.col]).to(matrix.source.device)
    return torch.sparse_coo_tensor(index, matrix.source, matrix.shape, check_invariants=True).coalesce()
