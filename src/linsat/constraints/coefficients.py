"""One block of coefficients, A, C or E: the pattern, which all instances share, and the numbers, which may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import scipy.sparse

from linsat._optional import is_tensor
from linsat._transforms import Kept, tracing
from linsat.constraints import arrays
from linsat.constraints.arrays import Array, Numbers, Shape
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor


@dataclass(frozen=True)
class Matrix:
    """One block of rows as its non-zero pattern, row by row, and the numbers its values are read from."""

    name: str
    shape: tuple[int, int]
    row: Array  # (nnz,) int64
    col: Array  # (nnz,) int64
    source: Numbers  # the (batch..., nnz) values themselves, or the user's tensor where ``live``
    sparse: bool  # stated by its non-zeros, as new values for it are
    live: bool = False  # read from the user's tensor each time: it required gradients, or was mapped over
    kept: Kept = field(default_factory=Kept, init=False, repr=False, compare=False)  # what follows from the numbers

    @property
    def batch_shape(self) -> Shape:
        """Leading dimensions of per-instance coefficients; empty when all instances share them."""
        whole = self.live and not (self.sparse and arrays.is_dense(self.source))
        return tuple(self.source.shape[: -2 if whole else -1])

    def values(self) -> Numbers:
        """The (batch..., nnz) coefficients in float64, connected to the user's tensor where it requires gradients."""
        if not self.live:
            return self.source
        import torch

        if self.source.layout == torch.sparse_coo:
            return self.source.coalesce().values().to(torch.float64)
        if self.source.layout == torch.sparse_csr:
            return self.source.values().to(torch.float64)
        # Zeros of a learned dense matrix are part of the pattern: their gradient is not zero.
        return (self.source if self.sparse else self.source.flatten(-2)).to(torch.float64)

    def stated(self) -> Numbers:
        """The coefficients as `with_coefficients` takes them."""
        values = self.values()
        if self.sparse:
            return values
        shape = (*values.shape[:-1], *self.shape)
        flat = _zeros_like(values, math.prod(self.shape))
        if is_tensor(values):
            return flat.index_copy(-1, arrays.positions_on(values, self._places()), values).reshape(shape)
        flat[..., self._places()] = values
        return flat.reshape(shape)

    def with_coefficients(self, value: Any) -> Matrix:
        """The block with other coefficients, shared or per instance; the pattern stays where it holds them all.

        A matrix (batch..., rows, variables). A block stated by its non-zeros takes a sparse matrix of its pattern, or
        (batch..., nnz) values in their order, too: `is_whole` tells the forms apart. A block is taken as it is.
        """
        if isinstance(value, Matrix):
            return value
        if self.sparse and not arrays.is_sparse(value):
            numbers = arrays.read_numbers(self.name, value)
            return self._of_whole(numbers) if self.is_whole(numbers.shape) else self._with_values(numbers)
        if tracing(value if is_tensor(value) else None):
            return self._in_graph(
                value if arrays.is_sparse(value) else arrays.to_tensor(arrays.read_numbers(self.name, value))
            )
        if self.full and not arrays.is_sparse(value):  # any matrix has this pattern
            numbers = arrays.read_numbers(self.name, value)
            if numbers.ndim >= 2 and tuple(numbers.shape[-2:]) == self.shape:
                arrays.check_finite(self.name, numbers)
                live = arrays.followed(numbers)
                source = numbers if live else numbers.reshape(*numbers.shape[:-2], len(self.row))
                return Matrix(self.name, self.shape, self.row, self.col, source, sparse=False, live=live)
        given = read_matrix(self.name, value)
        if given.shape != self.shape:
            rows, width = self.shape
            raise ConstraintError(
                f"{self.name} has shape {(*given.batch_shape, *given.shape)}; expected (..., {rows}, {width}), like "
                f"the coefficients it replaces. Fix: other rows or variables need a new Constraints."
            )
        kept = given._in_pattern(self)
        if kept is None and self.sparse:
            raise ConstraintError(
                f"{self.name} has coefficients where the set has none; expected the pattern of the set's own sparse "
                f"rows. Fix: a new Constraints, or {len(self.row)} values in the order of `cons.coefficients`."
            )
        return kept or given

    def with_stated(self, value: Any) -> Matrix:
        """`with_coefficients` for values in the form of `stated`, whatever their batch dimensions."""
        if self.sparse and not arrays.is_sparse(value):
            return self._with_values(arrays.read_numbers(self.name, value))
        return self.with_coefficients(value)

    @property
    def full(self) -> bool:
        """Whether every place has a coefficient."""
        return len(self.row) == math.prod(self.shape)

    def is_whole(self, shape: Sequence[int]) -> bool:
        """Whether coefficients of this shape are a matrix (batch..., rows, variables): its last two lengths say so.

        A length that is not known in a graph is one of a batch.
        """
        return len(shape) >= 2 and isinstance(shape[-2], int) and tuple(shape[-2:]) == self.shape

    def _of_whole(self, numbers: Numbers) -> Matrix:
        """A block stated by its non-zeros, with those of a dense matrix (batch..., rows, variables)."""
        arrays.check_finite(self.name, numbers)
        live = arrays.followed(numbers)
        if self.full and live:
            return replace(self, source=numbers, sparse=False, live=True)
        flat = numbers.reshape(*numbers.shape[:-2], math.prod(self.shape))
        if not self.full:
            seen = None if live else arrays.visible(flat)
            if seen is None:
                self.reject_whole(numbers.shape, known=False)
            outside = np.setdiff1d(np.arange(flat.shape[-1]), self._places())
            if bool((arrays.picked(seen, outside) != 0).any()):
                self.reject_whole(numbers.shape, known=True)
            flat = arrays.picked(flat, self._places())
        return replace(self, source=flat, live=False)

    def reject_whole(self, shape: Sequence[int], *, known: bool) -> NoReturn:
        """Raise an error about a matrix whose zeros are, or may be, others than those of the set."""
        (rows, width), count = self.shape, len(self.row)
        has = "has coefficients" if known else "is traced, mapped or learned: it may have coefficients"
        also = f", in another shape than ({rows}, {width}): (batch, 1, {count}) for scores (batch, 1, {count})"
        raise ConstraintError(
            f"{self.name} has shape {tuple(shape)}, that of a matrix (..., rows, variables), and {has} where the set "
            f"has none; expected a matrix with the zeros of the set, or the values of its non-zeros, row by row, "
            f"(..., {count}). Fix: only these values{also if count == width else ''}; or a new Constraints."
        )

    def _in_graph(self, tensor: Tensor) -> Matrix:
        """With a matrix (batch..., rows, variables) of a graph, whose zeros are unknown."""
        if arrays.is_sparse(tensor) or not self.full:
            raise ConstraintError(
                f"{self.name} of a graph may have non-zeros where the set has zeros. Fix: state the set sparse, "
                f"Constraints({self.name}={self.name}.to_sparse(), ...), and give the values of its non-zeros."
            )
        if tensor.dim() < 2 or tensor.shape[-2] != self.shape[0] or tensor.shape[-1] != self.shape[1]:
            rows, width = self.shape
            raise ConstraintError(f"{self.name} has shape {tuple(tensor.shape)}; expected (..., {rows}, {width}).")
        return replace(self, source=tensor, live=True)

    def _with_values(self, values: Numbers) -> Matrix:
        count = len(self.row)
        if values.ndim == 0 or values.shape[-1] != count:
            raise ConstraintError(
                f"{self.name} has shape {tuple(values.shape)}; expected (..., {count}): one value for each non-zero of "
                f"the set's sparse rows, row by row. Fix: start from cons.coefficients[{self.name!r}]; a dense matrix: "
                f"{self.name}.to_sparse()."
            )
        arrays.check_finite(self.name, values)
        return replace(self, source=values, live=arrays.followed(values))

    def _in_pattern(self, other: Matrix) -> Matrix | None:
        """The same coefficients in the pattern of another block, or None where that lacks some of them."""
        own, others = self._places(), other._places()
        if np.array_equal(own, others):
            return replace(self, row=other.row, col=other.col)
        if self.live or not len(others):
            return None
        at = np.minimum(np.searchsorted(others, own), len(others) - 1)
        if not np.array_equal(others[at], own):
            return None
        values = _zeros_like(self.source, len(others))
        values[..., arrays.positions_on(values, at)] = self.source
        return replace(self, row=other.row, col=other.col, source=values)

    def _places(self) -> Array:
        """(nnz,) position of each coefficient in the flattened matrix; ascending."""
        return self.row * self.shape[1] + self.col


def _zeros_like(values: Numbers, count: int) -> Numbers:
    """(batch..., count) zeros with the batch dimensions, and on the device, of these values."""
    shape = (*values.shape[:-1], count)
    return values.new_zeros(shape) if is_tensor(values) else np.zeros(shape)


def read_matrix(name: str, value: Any) -> Matrix:
    """Validate one coefficient matrix (batch..., rows, variables); one that was read before is taken as it is."""
    if isinstance(value, Matrix):
        return value
    if arrays.is_sparse(value):
        return read_sparse(name, value)
    numbers = arrays.read_numbers(name, value)
    check_matrix_shape(name, numbers.shape)
    return _read_dense(name, numbers)


def check_matrix_shape(name: str, shape: Sequence[int]) -> None:
    """Reject what is no matrix (batch..., rows, variables) with a variable."""
    if len(shape) < 2:
        fix = f"for a single row write {name}[None, :]." if len(shape) else "one list of coefficients per row."
        raise ConstraintError(
            f"{name} has shape {tuple(shape)}; expected a matrix (rows, variables), or one per instance "
            f"(batch, rows, variables). Fix: {fix}"
        )
    if shape[-1] == 0:
        raise ConstraintError(f"{name} has shape {tuple(shape)}; expected at least one variable (column).")


def _read_dense(name: str, numbers: Numbers) -> Matrix:
    arrays.check_finite(name, numbers)
    rows, width = (int(size) for size in numbers.shape[-2:])
    live = arrays.followed(numbers)
    # Every entry where numbers may change, and where there is no instance to ask.
    every = np.ones((rows, width), dtype=bool)
    filled = every if live or 0 in numbers.shape else arrays.as_array((numbers != 0).reshape(-1, rows, width).any(0))
    row, col = np.nonzero(filled)
    if live:
        return Matrix(name, (rows, width), row, col, numbers, sparse=False, live=True)
    source = arrays.picked(numbers.reshape(*numbers.shape[:-2], rows * width), row * width + col)
    return Matrix(name, (rows, width), row, col, source, sparse=False)


def join(name: str, parts: Sequence[Matrix]) -> Matrix:
    """The rows of several blocks, whose batch dimensions broadcast, one after another."""
    starts = [sum(part.shape[0] for part in parts[:i]) for i in range(len(parts) + 1)]
    shape = (starts[-1], parts[0].shape[1])
    if not any(part.sparse for part in parts):
        batch = arrays.broadcast_shapes(*(part.batch_shape for part in parts))
        flat = [
            arrays.spread(part.stated(), (*batch, *part.shape)).reshape(*batch, math.prod(part.shape)) for part in parts
        ]
        return read_matrix(name, arrays.side_by_side(flat).reshape(*batch, *shape))
    values = arrays.side_by_side([part.values() for part in parts])
    row = np.concatenate([part.row + start for part, start in zip(parts, starts, strict=False)])
    col = np.concatenate([part.col for part in parts])
    return Matrix(name, shape, row, col, values, sparse=True, live=arrays.followed(values))


def read_sparse(name: str, value: Any) -> Matrix:
    """Validate one sparse coefficient matrix; only CSR tensors may have batch dimensions."""
    if not is_tensor(value):
        return _read_scipy(name, value)
    import torch

    arrays.check_tensor(name, value)
    check_matrix_shape(name, value.shape)
    if value.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise ConstraintError(
            f"{name} has layout {value.layout}; expected dense, COO or CSR. Fix: {name}.to_sparse_coo()."
        )
    return _read_tensor(name, value) if value.dim() == 2 else _read_batch(name, value)


def _read_scipy(name: str, value: Any) -> Matrix:
    if value.dtype.kind not in "fiub":
        arrays.reject_dtype(name, value.dtype)
    check_matrix_shape(name, value.shape)
    csr = scipy.sparse.csr_array(value)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    csr.check_format()
    row = np.repeat(np.arange(csr.shape[0], dtype=np.int64), np.diff(csr.indptr))
    shape = (int(csr.shape[0]), int(csr.shape[1]))
    return _of_entries(name, shape, row, csr.indices.astype(np.int64), csr.data.astype(np.float64))


def _read_tensor(name: str, tensor: Tensor) -> Matrix:
    coo = tensor.detach().to_sparse_coo().coalesce()
    row, col = coo.indices().cpu().numpy().copy()
    shape = (int(tensor.shape[0]), int(tensor.shape[1]))
    matrix = _of_entries(name, shape, row, col, arrays.constant(coo.values()))
    if tensor.requires_grad:
        return Matrix(name, shape, row, col, tensor, sparse=True, live=True)
    return matrix


def _of_entries(name: str, shape: tuple[int, int], row: Array, col: Array, values: Numbers) -> Matrix:
    """The block of these coefficients, row by row, without those that are zero."""
    bad = np.flatnonzero(~_seen(arrays.namespace(values).isfinite(values)))
    if bad.size:
        at = int(bad[0])
        raise ConstraintError(
            f"{name}[{int(row[at])}, {int(col[at])}] is {float(values[at])}; expected a finite number. "
            f"Fix: find out where it comes from; leave out a row that is not meant to bind."
        )
    kept = np.flatnonzero(_seen(values != 0))
    if len(kept) == len(row):
        return Matrix(name, shape, row, col, values, sparse=True)
    return Matrix(name, shape, row[kept], col[kept], values[arrays.positions_on(values, kept)], sparse=True)


def _seen(flags: Numbers) -> Array:
    return flags.cpu().numpy() if is_tensor(flags) else flags


def _read_batch(name: str, tensor: Tensor) -> Matrix:
    """CSR of shape (batch..., rows, variables) whose instances have one pattern."""
    import torch

    fix = f"Constraints({name}=pattern, ...).with_coefficients({name}=values), values (batch, non-zeros)"
    if tensor.layout != torch.sparse_csr:
        raise ConstraintError(f"{name} is a COO tensor of shape {tuple(tensor.shape)}; expected CSR. Fix: {fix}.")
    rows, width = (int(size) for size in tensor.shape[-2:])
    starts = tensor.crow_indices().reshape(-1, rows + 1).cpu().numpy()
    columns = tensor.col_indices().flatten(0, -2).cpu().numpy()
    if not (starts == starts[:1]).all() or not (columns == columns[:1]).all():
        raise ConstraintError(f"{name} has another pattern in each instance; expected one for all. Fix: {fix}.")
    if not len(starts):
        raise ConstraintError(f"{name} has shape {tuple(tensor.shape)}, no instance; expected a pattern. Fix: {fix}.")
    row, col = np.repeat(np.arange(rows), np.diff(starts[0])), columns[0].astype(np.int64)
    if not (np.diff(row * width + col) > 0).all():
        raise ConstraintError(f"{name} has rows whose columns do not ascend; expected each once, in order.")
    arrays.check_finite(name, tensor.values())
    live = arrays.followed(tensor)
    source = tensor if live else arrays.constant(tensor.values())
    return Matrix(name, (rows, width), row, col, source, sparse=True, live=live)
