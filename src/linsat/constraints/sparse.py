"""Reading sparse coefficients: matrices of scipy, COO and CSR tensors of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from linsat._optional import is_tensor
from linsat.constraints.arrays import (
    Array,
    Numbers,
    check_finite,
    check_tensor,
    constant,
    followed,
    namespace,
    positions_on,
    reject_dtype,
)
from linsat.constraints.coefficients import Matrix, check_matrix_shape
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor


def read_sparse(name: str, value: Any) -> Matrix:
    """Validate one sparse coefficient matrix; only CSR tensors may have batch dimensions."""
    if not is_tensor(value):
        return _read_scipy(name, value)
    import torch

    check_tensor(name, value)
    check_matrix_shape(name, value.shape)
    if value.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise ConstraintError(
            f"{name} has layout {value.layout}; expected dense, COO or CSR. Fix: {name}.to_sparse_coo()."
        )
    return _read_tensor(name, value) if value.dim() == 2 else _read_batch(name, value)


def _read_scipy(name: str, value: Any) -> Matrix:
    if value.dtype.kind not in "fiub":
        reject_dtype(name, value.dtype)
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
    found = _of_entries(name, shape, row, col, constant(coo.values()))
    if tensor.requires_grad:
        return Matrix(name, shape, row, col, tensor, sparse=True, live=True)
    return found


def _of_entries(name: str, shape: tuple[int, int], row: Array, col: Array, values: Numbers) -> Matrix:
    """The block of these coefficients, row by row, without those that are zero."""
    bad = np.flatnonzero(~_seen(namespace(values).isfinite(values)))
    if bad.size:
        at = int(bad[0])
        raise ConstraintError(
            f"{name}[{int(row[at])}, {int(col[at])}] is {float(values[at])}; expected a finite number. "
            f"Fix: leave out the row that is not meant to bind."
        )
    kept = np.flatnonzero(_seen(values != 0))
    if len(kept) == len(row):
        return Matrix(name, shape, row, col, values, sparse=True)
    return Matrix(name, shape, row[kept], col[kept], values[positions_on(values, kept)], sparse=True)


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
    check_finite(name, tensor.values())
    live = followed(tensor)
    source = tensor if live else constant(tensor.values())
    return Matrix(name, (rows, width), row, col, source, sparse=True, live=live)
