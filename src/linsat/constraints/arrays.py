"""Reading what users hand in, from torch, numpy, scipy.sparse or lists.

Everything becomes float64 torch data. Tensors that require gradients are kept by reference and read again at
each solve, so that a learned right-hand side (or coefficient) keeps working through training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch.autograd import forward_ad

from linsat._transforms import mapped, plain, tracing
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    from linsat.constraints.coefficients import Matrix

Tensor = torch.Tensor


def _reject_dtype(name: str, dtype: object) -> None:
    raise ConstraintError(
        f"{name} has dtype {dtype}; expected real numbers (float, int or bool). "
        f"Fix: convert {name} to a floating type first."
    )


def followed(tensor: Tensor) -> bool:
    """Whether the numbers may change under a set that keeps the tensor: learned, of a graph, or mapped over."""
    return tensor.requires_grad or tracing(tensor) or mapped(tensor)


def to_tensor(name: str, value: Any) -> Tensor:
    """Any array-like as a real torch tensor (dense, COO or CSR); float64 unless it is `followed`."""
    with torch.inference_mode(False):  # what a set keeps must be usable outside inference mode too
        return _to_tensor(name, value)


def _to_tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.dtype in (torch.quint8, torch.qint8):
            _reject_dtype(name, value.dtype)
        if value.requires_grad or tracing(value):  # in a graph nobody can change it later
            return value
        if value.layout == torch.strided and forward_ad.unpack_dual(value).tangent is not None:
            raise ConstraintError(
                f"{name} carries a tangent of forward mode (torch.func.jvp, jacfwd), which linsat cannot follow. "
                f"Fix: reverse mode, torch.func.vjp or jacrev."
            )
        return value if mapped(value) else value.detach().to(torch.float64, copy=True)
    if scipy.sparse.issparse(value):
        if value.dtype.kind not in "fiub":
            _reject_dtype(name, value.dtype)
        return _from_scipy(value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ConstraintError(
            f"{name} is not a regular array ({error}). Fix: give every row the same length."
        ) from None
    if array.dtype.kind not in "fiub":
        _reject_dtype(name, array.dtype)
    return torch.from_numpy(np.array(array, dtype=np.float64))


def _from_scipy(value: Any) -> Tensor:
    """A matrix of scipy as a coalesced COO tensor; scipy sorts faster, and often there is nothing to sort."""
    csr = scipy.sparse.csr_array(value)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    csr.check_format()
    index = np.empty((2, csr.nnz), dtype=np.int64)
    index[0] = np.repeat(np.arange(csr.shape[0], dtype=csr.indices.dtype), np.diff(csr.indptr))
    index[1] = csr.indices
    data = torch.from_numpy(csr.data.astype(np.float64))
    return torch.sparse_coo_tensor(torch.from_numpy(index), data, csr.shape, check_invariants=False, is_coalesced=True)


def check_finite(name: str, values: Tensor) -> None:
    """Reject NaN and infinity, naming the first offender by its index; in a graph that is left to the solve."""
    if tracing(values):
        return
    values = plain(values)
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        index = tuple(int(i) for i in bad.nonzero()[0])
        where = f"{name}[{', '.join(map(str, index))}]" if index else name
        raise ConstraintError(
            f"{where} is {float(values[index])}; expected a finite number. "
            f"Fix: leave out the row (or bound) that is not meant to bind."
        )


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
    """Reject NaN, and an infinity on the wrong side, naming the first offender by its index; not in a graph."""
    if tracing(values):
        return
    missing = -torch.inf if name == "lower" else torch.inf
    values = plain(values)
    bad = ~(torch.isfinite(values) | (values == missing))
    if bool(bad.any()):
        index = tuple(int(i) for i in bad.nonzero()[0])
        where = f"{name}[{', '.join(map(str, index))}]" if index else name
        raise ConstraintError(
            f"{where} is {float(values[index])}; expected a finite number, or {missing} for no {name} bound. "
            f"Fix: {name}={missing} where nothing is meant to bind."
        )
