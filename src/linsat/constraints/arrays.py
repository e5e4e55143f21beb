"""Reading what users hand in: matrices, right-hand sides and bounds, from torch, numpy, scipy.sparse or lists.

Everything becomes float64 torch data. Tensors that require gradients are kept by reference and read again at
each solve, so that a learned right-hand side (or coefficient) keeps working through training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch.autograd import forward_ad

from linsat.errors import ConstraintError

Tensor = torch.Tensor


def _reject_dtype(name: str, dtype: object) -> None:
    raise ConstraintError(
        f"{name} has dtype {dtype}; expected real numbers (float, int or bool). "
        f"Fix: convert {name} to a floating type first."
    )


def to_tensor(name: str, value: Any) -> Tensor:
    """Any array-like as a real torch tensor (dense, COO or CSR); float64 unless it requires gradients."""
    with torch.inference_mode(False):  # what a set keeps must be usable outside inference mode too
        return _to_tensor(name, value)


def _to_tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.dtype in (torch.quint8, torch.qint8):
            _reject_dtype(name, value.dtype)
        if value.requires_grad:
            return value
        if value.layout == torch.strided and forward_ad.unpack_dual(value).tangent is not None:
            raise ConstraintError(
                f"{name} carries a tangent of forward mode (torch.func.jvp, jacfwd), which linsat cannot follow. "
                f"Fix: reverse mode, torch.func.vjp or jacrev."
            )
        return value.detach().to(torch.float64, copy=True)
    if scipy.sparse.issparse(value):
        coo = scipy.sparse.coo_array(value)
        if coo.dtype.kind not in "fiub":
            _reject_dtype(name, coo.dtype)
        index = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        data = torch.from_numpy(coo.data.astype(np.float64))
        return torch.sparse_coo_tensor(index, data, coo.shape, check_invariants=True)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ConstraintError(
            f"{name} is not a regular array ({error}). Fix: give every row the same length."
        ) from None
    if array.dtype.kind not in "fiub":
        _reject_dtype(name, array.dtype)
    return torch.from_numpy(np.array(array, dtype=np.float64))


def check_finite(name: str, values: Tensor) -> None:
    """Reject NaN and infinity, naming the first offender by its index."""
    bad = ~torch.isfinite(values.detach())
    if bool(bad.any()):
        index = tuple(int(i) for i in bad.nonzero()[0])
        where = f"{name}[{', '.join(map(str, index))}]" if index else name
        raise ConstraintError(
            f"{where} is {float(values.detach()[index])}; expected a finite number. "
            f"Fix: leave out the row (or bound) that is not meant to bind."
        )


@dataclass(frozen=True)
class Matrix:
    """One block of rows (A, C or E) as its non-zero pattern and the tensor its values are read from."""

    name: str
    shape: tuple[int, int]
    row: Tensor  # (nnz,) on the CPU
    col: Tensor  # (nnz,) on the CPU
    source: Tensor  # the (nnz,) values themselves, or the user's tensor where ``live``
    live: bool = False  # read from the user's tensor anew each time, because it required gradients when it was given

    def values(self) -> Tensor:
        """The (nnz,) coefficients in float64, connected to the user's tensor where it requires gradients."""
        if not self.live:
            return self.source
        if self.source.layout == torch.sparse_coo:
            return self.source.coalesce().values().to(torch.float64)
        if self.source.layout == torch.sparse_csr:
            return self.source.values().to(torch.float64)
        # Zeros of a learned dense matrix are part of the pattern: their gradient is not zero.
        return self.source.reshape(-1).to(torch.float64)


def read_matrix(name: str, value: Any) -> Matrix:
    """Validate one coefficient matrix (rows x variables); one that was read before is taken as it is."""
    if isinstance(value, Matrix):
        return value
    tensor = to_tensor(name, value)
    if tensor.dim() != 2:
        hint = f"For a single row write {name}[None, :]." if tensor.dim() == 1 else "Coefficients have no batch."
        raise ConstraintError(
            f"{name} has shape {tuple(tensor.shape)}; expected a matrix (rows, variables). Fix: {hint}"
        )
    shape = (int(tensor.shape[0]), int(tensor.shape[1]))
    if shape[1] == 0:
        raise ConstraintError(f"{name} has shape {shape}; expected at least one variable (column).")
    if tensor.layout == torch.strided:
        check_finite(name, tensor)
        if tensor.requires_grad:
            row, col = (grid.reshape(-1) for grid in torch.meshgrid(*map(torch.arange, shape), indexing="ij"))
            return Matrix(name, shape, row, col, tensor, live=True)
        row, col = tensor.nonzero(as_tuple=True)
        return Matrix(name, shape, row.cpu(), col.cpu(), tensor[row, col])
    if tensor.layout == torch.sparse_csr:
        coo = tensor.detach().to_sparse_coo()
    elif tensor.layout == torch.sparse_coo:
        coo = tensor.detach()
    else:
        raise ConstraintError(
            f"{name} has layout {tensor.layout}; expected dense, COO or CSR. Fix: {name}.to_sparse_coo()."
        )
    coo = coo.coalesce()
    row, col = coo.indices().cpu()
    bad = ~torch.isfinite(coo.values())
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        raise ConstraintError(
            f"{name}[{int(row[at])}, {int(col[at])}] is {float(coo.values()[at])}; expected a finite number. "
            f"Fix: leave out the row that is not meant to bind."
        )
    if tensor.requires_grad:
        return Matrix(name, shape, row, col, tensor, live=True)
    keep = (coo.values() != 0).cpu()
    return Matrix(name, shape, row[keep], col[keep], coo.values()[keep.to(coo.device)])


def read_right_side(name: str, value: Any, matrix: Matrix) -> Tensor:
    """Validate one right-hand side: a scalar, (rows,) or (batch..., rows)."""
    tensor = to_tensor(name, value)
    rows = matrix.shape[0]
    if tensor.layout != torch.strided:
        raise ConstraintError(f"{name} is sparse; expected a dense vector. Fix: {name}.to_dense().")
    check_finite(name, tensor)
    if tensor.dim() > 0 and tensor.shape[-1] != rows:
        raise ConstraintError(
            f"{name} has shape {tuple(tensor.shape)} but {matrix.name} has {rows} rows; "
            f"expected {name} of shape ({rows},) or (batch, {rows}). Fix: one right-hand side per row."
        )
    return tensor


def read_bound(name: str, value: Any) -> Tensor:
    """Validate one side of the box: a scalar, (variables,) or (batch..., variables)."""
    tensor = to_tensor(name, value)
    if tensor.layout != torch.strided:
        raise ConstraintError(f"{name} is sparse; expected a dense vector. Fix: {name}.to_dense().")
    check_bound(name, tensor)
    return tensor


def check_bound(name: str, values: Tensor) -> None:
    """Reject NaN, and an infinity on the wrong side, naming the first offender by its index."""
    missing = -torch.inf if name == "lower" else torch.inf
    bad = ~(torch.isfinite(values.detach()) | (values.detach() == missing))
    if bool(bad.any()):
        index = tuple(int(i) for i in bad.nonzero()[0])
        where = f"{name}[{', '.join(map(str, index))}]" if index else name
        raise ConstraintError(
            f"{where} is {float(values.detach()[index])}; expected a finite number, or {missing} for no {name} bound. "
            f"Fix: {name}={missing} where nothing is meant to bind."
        )
