"""One block of coefficients, A, C or E: the pattern, which all instances share, and the numbers, which may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from linsat._transforms import tracing
from linsat.constraints.arrays import Tensor, check_finite, followed, to_tensor
from linsat.errors import ConstraintError


@dataclass(frozen=True)
class Matrix:
    """One block of rows as its non-zero pattern, row by row, and the tensor its values are read from."""

    name: str
    shape: tuple[int, int]
    row: Tensor  # (nnz,) on the CPU
    col: Tensor  # (nnz,) on the CPU
    source: Tensor  # the (batch..., nnz) values themselves, or the user's tensor where ``live``
    sparse: bool  # stated by its non-zeros, as new values for it are
    live: bool = False  # read from the user's tensor anew each time: it required gradients, or was mapped over

    @property
    def batch_shape(self) -> torch.Size:
        """Leading dimensions of per-instance coefficients; empty when all instances share them."""
        whole = self.live and not (self.sparse and self.source.layout == torch.strided)
        return self.source.shape[: -2 if whole else -1]

    def values(self) -> Tensor:
        """The (batch..., nnz) coefficients in float64, connected to the user's tensor where it requires gradients."""
        if not self.live:
            return self.source
        if self.source.layout == torch.sparse_coo:
            return self.source.coalesce().values().to(torch.float64)
        if self.source.layout == torch.sparse_csr:
            return self.source.values().to(torch.float64)
        # Zeros of a learned dense matrix are part of the pattern: their gradient is not zero.
        return (self.source if self.sparse else self.source.flatten(-2)).to(torch.float64)

    def stated(self) -> Tensor:
        """The coefficients as `with_coefficients` takes them."""
        values, (rows, width) = self.values(), self.shape
        if self.sparse:
            return values
        flat = values.new_zeros((*values.shape[:-1], rows * width))
        return flat.index_copy(-1, self._places().to(values.device), values).unflatten(-1, (rows, width))

    def with_coefficients(self, value: Any) -> Matrix:
        """The block with other coefficients, shared or per instance; the pattern stays where it holds them all.

        A block stated by its non-zeros takes (batch..., nnz) values in their order, or a sparse matrix of its pattern;
        any other a matrix (batch..., rows, variables).
        """
        tensor = to_tensor(self.name, value)
        if self.sparse and tensor.layout == torch.strided:
            return self._with_values(tensor)
        if tracing(tensor):
            return self._in_graph(tensor)
        found = _read(self.name, tensor)
        if found.shape != self.shape:
            rows, width = self.shape
            raise ConstraintError(
                f"{self.name} has shape {tuple(tensor.shape)}; expected (..., {rows}, {width}), like the coefficients "
                f"it replaces. Fix: other rows or variables need a new Constraints."
            )
        kept = found._in_pattern(self)
        if kept is None and self.sparse:
            raise ConstraintError(
                f"{self.name} has coefficients where the set has none; expected the pattern of the set's own sparse "
                f"rows. Fix: a new Constraints, or {len(self.row)} values in the order of `cons.coefficients`."
            )
        return kept or found

    def _in_graph(self, tensor: Tensor) -> Matrix:
        """With a matrix (batch..., rows, variables) of a graph, which nobody can ask where it is zero."""
        if tensor.layout != torch.strided or len(self.row) != math.prod(self.shape):
            raise ConstraintError(
                f"{self.name} of a graph may have non-zeros where the set has zeros. Fix: state the set sparse, "
                f"Constraints({self.name}={self.name}.to_sparse(), ...), and give the values of its non-zeros."
            )
        if tensor.dim() < 2 or tensor.shape[-2] != self.shape[0] or tensor.shape[-1] != self.shape[1]:
            rows, width = self.shape
            raise ConstraintError(f"{self.name} has shape {tuple(tensor.shape)}; expected (..., {rows}, {width}).")
        return replace(self, source=tensor, live=True)

    def _with_values(self, tensor: Tensor) -> Matrix:
        count = len(self.row)
        if tensor.dim() == 0 or tensor.shape[-1] != count:
            raise ConstraintError(
                f"{self.name} has shape {tuple(tensor.shape)}; expected (..., {count}): one value for each non-zero of "
                f"the set's sparse rows, row by row. Fix: start from cons.coefficients[{self.name!r}]; a dense matrix: "
                f"{self.name}.to_sparse()."
            )
        check_finite(self.name, tensor)
        return replace(self, source=tensor, live=followed(tensor))

    def _in_pattern(self, other: Matrix) -> Matrix | None:
        """The same coefficients in the pattern of another block, or None where that lacks some of them."""
        own, others = self._places(), other._places()
        if torch.equal(own, others):
            return replace(self, row=other.row, col=other.col)
        if self.live or not len(others):
            return None
        at = torch.searchsorted(others, own).clamp_max(len(others) - 1)
        if not torch.equal(others[at], own):
            return None
        values = self.source.new_zeros((*self.source.shape[:-1], len(others)))
        values[..., at.to(values.device)] = self.source
        return replace(self, row=other.row, col=other.col, source=values)

    def _places(self) -> Tensor:
        """(nnz,) position of each coefficient in the flattened matrix; ascending."""
        return self.row * self.shape[1] + self.col


def read_matrix(name: str, value: Any) -> Matrix:
    """Validate one coefficient matrix (batch..., rows, variables); one that was read before is taken as it is."""
    return value if isinstance(value, Matrix) else _read(name, to_tensor(name, value))


def join(name: str, parts: Sequence[Matrix]) -> Matrix:
    """The rows of several blocks, whose batch dimensions broadcast, one after another."""
    batch = torch.broadcast_shapes(*(part.batch_shape for part in parts))
    if not any(part.sparse for part in parts):
        return read_matrix(name, torch.cat([part.stated().expand(*batch, *part.shape) for part in parts], dim=-2))
    values = torch.cat([part.values().expand(*batch, -1) for part in parts], dim=-1)
    starts = [sum(part.shape[0] for part in parts[:i]) for i in range(len(parts) + 1)]
    row = torch.cat([part.row + start for part, start in zip(parts, starts, strict=False)])
    col, shape = torch.cat([part.col for part in parts]), (starts[-1], parts[0].shape[1])
    return Matrix(name, shape, row, col, values, sparse=True, live=followed(values))


def _read(name: str, tensor: Tensor) -> Matrix:
    if tensor.dim() < 2:
        fix = f"For a single row write {name}[None, :]." if tensor.dim() else "One list of coefficients per row."
        raise ConstraintError(
            f"{name} has shape {tuple(tensor.shape)}; expected a matrix (rows, variables), or one per instance "
            f"(batch, rows, variables). Fix: {fix}"
        )
    if tensor.shape[-1] == 0:
        raise ConstraintError(f"{name} has shape {tuple(tensor.shape)}; expected at least one variable (column).")
    if tensor.layout == torch.strided:
        return _read_dense(name, tensor)
    if tensor.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise ConstraintError(
            f"{name} has layout {tensor.layout}; expected dense, COO or CSR. Fix: {name}.to_sparse_coo()."
        )
    return _read_sparse(name, tensor) if tensor.dim() == 2 else _read_sparse_batch(name, tensor)


def _read_dense(name: str, tensor: Tensor) -> Matrix:
    check_finite(name, tensor)
    rows, width = (int(size) for size in tensor.shape[-2:])
    live = followed(tensor)
    # Every entry where numbers may change, and where there is no instance to ask.
    every = torch.ones((rows, width), dtype=torch.bool)
    filled = every if live or not tensor.numel() else (tensor != 0).reshape(-1, rows, width).any(0)
    row, col = filled.nonzero(as_tuple=True)
    source = tensor if live else tensor[..., row, col]
    return Matrix(name, (rows, width), row.cpu(), col.cpu(), source, sparse=False, live=live)


def _read_sparse(name: str, tensor: Tensor) -> Matrix:
    coo = (tensor.detach().to_sparse_coo() if tensor.layout == torch.sparse_csr else tensor.detach()).coalesce()
    row, col = coo.indices().cpu()
    bad = ~torch.isfinite(coo.values())
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        raise ConstraintError(
            f"{name}[{int(row[at])}, {int(col[at])}] is {float(coo.values()[at])}; expected a finite number. "
            f"Fix: leave out the row that is not meant to bind."
        )
    shape = (int(tensor.shape[0]), int(tensor.shape[1]))
    if tensor.requires_grad:
        return Matrix(name, shape, row, col, tensor, sparse=True, live=True)
    keep = (coo.values() != 0).cpu()
    if bool(keep.all()):
        return Matrix(name, shape, row, col, coo.values().clone(), sparse=True)  # torch.compile takes no view of it
    return Matrix(name, shape, row[keep], col[keep], coo.values()[keep.to(coo.device)], sparse=True)


def _read_sparse_batch(name: str, tensor: Tensor) -> Matrix:
    """CSR of shape (batch..., rows, variables) whose instances have one pattern."""
    fix = f"Constraints({name}=pattern, ...).with_coefficients({name}=values), values (batch, non-zeros)"
    if tensor.layout != torch.sparse_csr:
        raise ConstraintError(f"{name} is a COO tensor of shape {tuple(tensor.shape)}; expected CSR. Fix: {fix}.")
    rows, width = (int(size) for size in tensor.shape[-2:])
    starts = tensor.crow_indices().reshape(-1, rows + 1).cpu()
    columns = tensor.col_indices().flatten(0, -2).cpu()
    if not bool((starts == starts[:1]).all()) or not bool((columns == columns[:1]).all()):
        raise ConstraintError(f"{name} has another pattern in each instance; expected one for all. Fix: {fix}.")
    if not len(starts):
        raise ConstraintError(f"{name} has shape {tuple(tensor.shape)}, no instance; expected a pattern. Fix: {fix}.")
    row, col = torch.repeat_interleave(torch.arange(rows), starts[0].diff()), columns[0].to(torch.int64)
    if not bool(((row * width + col).diff() > 0).all()):
        raise ConstraintError(f"{name} has rows whose columns do not ascend; expected each once, in order.")
    values = tensor.values()
    check_finite(name, values)
    live = tensor.requires_grad
    return Matrix(name, (rows, width), row, col, tensor if live else values, sparse=True, live=live)
