"""The quadratic objective with a full matrix, and the nearest point in a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse as sp

from linsat._array_namespace import Tensor, to_numpy
from linsat._optional import is_tensor
from linsat.constraints.arrays import is_sparse, spread, to_float64
from linsat.errors import ConstraintError
from linsat.objectives.base import Objective
from linsat.objectives.euclidean import Euclidean

if TYPE_CHECKING:
    import torch

_DENSE = 1000  # variables up to which a sparse matrix becomes a dense one, which the native core takes
NEGATIVE = 1e-6  # of the largest diagonal entry: an eigenvalue may be so far below 0 by rounding, of float32 too


class Matrix(Objective):
    """Omega(x) = x'Px / 2 with a matrix for each instance, or one for all: what both objectives below are.

    Spread over a batch, the matrix is (1 or N, l l), row by row; of a large sparse one it is (1, nnz), at the places
    ``sparsity``.
    """

    matrix: ClassVar[str]  # the field that holds it
    couples = True
    definite: ClassVar[bool] = False
    sparsity: Any = None

    def parameters(self) -> dict[str, Any]:
        return {self.matrix: getattr(self, self.matrix)}

    def probe(self, like: Tensor) -> Objective:
        """Rows and box know nothing of P."""
        return Euclidean()

    def spread(self, batch_shape: Sequence[int], num_variables: int, device: torch.device | None = None) -> Objective:
        given, batch, l = getattr(self, self.matrix), tuple(batch_shape), num_variables
        places = None
        if is_sparse(given):
            given, places = self._from_sparse(given, l)
        try:
            number = to_float64(given, device)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            number = None
        if number is None:
            kind = getattr(given, "dtype", type(given).__name__)
            raise ConstraintError(f"{self.matrix} is of type {kind}; expected a matrix of real numbers {(l, l)}.")
        if places is not None:
            return replace(self, **{self.matrix: number[None], "sparsity": places})  # type: ignore[type-var]
        try:
            if number.ndim < 2 or tuple(number.shape[-2:]) != (l, l):
                raise ValueError
            if number.ndim == 2:
                number = number.reshape(1, l * l)
            else:
                number = spread(number, (*batch, l, l)).reshape(math.prod(batch), l * l)
        except (RuntimeError, ValueError):
            raise ConstraintError(
                f"{self.matrix} has shape {tuple(number.shape)}; expected {(l, l)} for all instances, or "
                f"{(*batch, l, l)}. Fix: one row and one column for each variable."
            ) from None
        return replace(self, **{self.matrix: number})  # type: ignore[type-var]

    def _from_sparse(self, given: Any, l: int) -> tuple[Any, tuple[np.ndarray, np.ndarray] | None]:
        """As a dense matrix or, where that is large, its values and their places."""
        if tuple(given.shape) != (l, l):
            raise ConstraintError(
                f"{self.matrix} has shape {tuple(given.shape)}; expected {(l, l)}. "
                f"Fix: one row and one column for each variable."
            )
        if is_tensor(given):
            if l > _DENSE:
                raise ConstraintError(
                    f"{self.matrix} is a sparse tensor of {l} rows; expected a dense one, or a scipy matrix. "
                    f"Fix: scipy.sparse.csr_array of its values."
                )
            return given.to_dense(), None
        if l <= _DENSE:
            return given.toarray(), None
        whole = sp.coo_array(given)
        whole.sum_duplicates()
        return whole.data, (whole.row, whole.col)

    def times(self, x: Tensor) -> Tensor:
        """P x of x (N, l), once spread."""
        l = x.shape[-1]
        if self.sparsity is not None:
            own = to_numpy(x)
            made = np.stack([self.of_instance(n, l) @ own[n] for n in range(len(own))]) if len(own) else own
            return made if isinstance(x, np.ndarray) else x.new_tensor(made)
        whole = getattr(self, self.matrix).reshape(-1, l, l)
        return (((whole + whole.swapaxes(-1, -2)) / 2) @ x[..., None])[..., 0]

    def cost_slope(self, x: Tensor, lower: Tensor) -> Tensor:
        return self.times(x)

    def of_instance(self, instance: int, l: int) -> sp.csr_array:
        """The matrix of one instance, once spread, symmetric."""
        number = to_numpy(getattr(self, self.matrix))
        own = number[min(instance, number.shape[0] - 1)]
        if self.sparsity is None:
            whole = sp.csr_array(own.reshape(l, l))
        else:
            whole = sp.csr_array((own, self.sparsity), shape=(l, l))
        return sp.csr_array((whole + whole.T) / 2)

    def check(self) -> None:
        """Reject a matrix that is not positive (semi-)definite, once spread.

        Raises:
            ConstraintError: names its smallest eigenvalue.
        """
        number = to_numpy(getattr(self, self.matrix))
        l = math.isqrt(number.shape[1])
        for instance in range(len(number)):
            if self.sparsity is not None:
                whole = self.of_instance(instance, 1 + max(int(part.max(initial=0)) for part in self.sparsity))
                least, largest = _smallest(whole), float(np.abs(whole.diagonal()).max(initial=0.0))
            else:
                dense = number[instance].reshape(l, l)
                if not np.isfinite(dense).all():
                    raise ConstraintError(
                        f"{self.matrix} holds numbers that are not finite; expected finite ones. "
                        f"Fix: find out where they come from."
                    )
                least = float(np.linalg.eigvalsh((dense + dense.T) / 2).min(initial=math.inf))
                largest = float(np.abs(np.diagonal(dense)).max(initial=0.0))
            enough = least > 0 if self.definite and self.sparsity is None else least >= -NEGATIVE * largest
            if not enough:
                kind = "positive definite" if self.definite else "positive semi-definite"
                which = f" of instance {instance}" if len(number) > 1 else ""
                more = abs(least) + 1e-8 * max(1.0, largest)
                raise ConstraintError(
                    f"{self.matrix}{which} is not {kind}: its smallest eigenvalue is {least:.3g}; expected "
                    f"{'a positive one' if self.definite else 'none below 0'}. "
                    f"Fix: L @ L.T of any L; or add {more:.2g} to its diagonal."
                )


def _smallest(matrix: sp.csr_array) -> float:
    """The smallest eigenvalue of a sparse symmetric matrix, roughly; 0 where pivots without pivoting are all positive.

    Those of the matrix with `NEGATIVE` times its largest diagonal entry added: so far below 0 is rounding.
    """
    from scipy.sparse.linalg import ArpackError, eigsh, splu

    shift = NEGATIVE * float(np.abs(matrix.diagonal()).max(initial=1e-300))
    shifted = sp.csc_array(matrix + shift * sp.eye_array(len(matrix.diagonal())))
    try:
        factor = splu(shifted, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        if (factor.U.diagonal() > 0).all():
            return 0.0
    except RuntimeError:  # a pivot is 0
        pass
    try:
        return float(eigsh(matrix, k=1, which="SA", return_eigenvectors=False, tol=1e-4)[0])  # pyright: ignore[reportArgumentType]
    except ArpackError:  # which does not tell
        return -shift


@dataclass(frozen=True, eq=False)
class Quadratic(Matrix):
    """``max <y, x> - x'Px / 2``: a quadratic program, with a full matrix.

    Args:
        P: symmetric, positive semi-definite: (variables, variables) for all instances, (batch..., variables,
            variables) for each, or a sparse matrix of scipy; its symmetric part counts. May be learned.

    The layer of OptNet, model predictive control, portfolios with risk. Bounds may be infinite and are met exactly
    where they bind: a zero is 0.0. A row does nothing until it binds. ``P x = y + A'duals + bound_duals`` (`Solution`).
    A P that is not semi-definite (to the rounding of float32) is an error that names its smallest eigenvalue; without
    curvature, bounds and rows must keep x from running off, else the status is ``unbounded``. Where P is singular and
    several x are best, one of them is returned. Cost: a factorisation of P for each P, and a few of the rows and bounds
    that bind; up to a few hundred variables and rows by the native core, beyond that by a sparse interior-point method.
    """

    P: Any
    sparsity: Any = None

    native = "quadratic"
    matrix = "P"


@dataclass(frozen=True, eq=False)
class Metric(Matrix):
    """``min (x - y)'W(x - y) / 2``, W symmetric and positive definite: what ``Euclidean(weights=W)`` becomes."""

    weights: Any
    sparsity: Any = None

    native = "metric"
    matrix = "weights"
    definite = True

    def linear(self, y: Tensor) -> Tensor:
        return self.times(y)


def _spreads(own: Sequence[int], batch: Sequence[int]) -> bool:
    """Whether numbers of these instances spread over those of a batch."""
    return len(own) <= len(batch) and all(n in (1, b) for n, b in zip(own[::-1], batch[::-1], strict=False))


def as_metric(weights: Any, batch_shape: Sequence[int], width: int) -> Metric | None:
    """The metric that square weights are; None: they are numbers of each variable.

    Weights (variables, variables) of as many instances as variables could be either: symmetric and positive definite,
    they are a metric.
    """
    shape = tuple(getattr(weights, "shape", ()))
    if len(shape) < 2 or shape[-2:] != (width, width):
        return None
    if is_sparse(weights) or not _spreads(shape[:-1], batch_shape):
        return Metric(weights)
    if not _spreads(shape[:-2], batch_shape):
        return None
    try:
        whole = to_numpy(weights)
    except (TypeError, RuntimeError):  # its numbers are not known yet
        raise ConstraintError(
            f"weights has shape {shape} and y as many instances as variables: weights of each instance, or a metric "
            f"for all? Fix: weights[None] for a metric; for weights of each instance, another batch shape."
        ) from None
    alike = np.abs(whole - whole.swapaxes(-1, -2)) <= 1e-12 * np.abs(whole).max(initial=0.0)
    return Metric(weights) if alike.all() and np.linalg.eigvalsh(whole).min(initial=1.0) > 0 else None
