"""The numbers of a set: reading what users hand in, and the few operations that arrays and tensors share.

Constants become float64 numpy arrays. Torch tensors whose numbers may change (they require gradients, or belong to a
graph or a function transform) are kept by reference and read again at each solve, so that a learned right-hand side
keeps working through training; constants on another device stay there. torch is imported only where a tensor is asked
for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import scipy.sparse

from linsat._optional import is_tensor
from linsat._transforms import has_tangent, mapped, plain, plain_tensors, tracing, transforming
from linsat.errors import ConstraintError

if TYPE_CHECKING:
    import torch

    from linsat.constraints.coefficients import Matrix

    Tensor = torch.Tensor

Array = np.ndarray[Any, Any]
Numbers = Any  # an Array; or a tensor that is `followed` or lives on another device
Shape = tuple[int, ...]

_FIX_NAN = "find out where it comes from."


# ------------------------------------------------------------------ reading


def reject_dtype(name: str, dtype: object) -> NoReturn:
    """Raise an error about numbers that are not real."""
    raise ConstraintError(
        f"{name} has dtype {dtype}; expected real numbers (float, int or bool). "
        f"Fix: convert {name} to a floating type first."
    )


def not_numbers(name: str, value: Any, expected: str) -> ConstraintError:
    """The error for what is no array of numbers at all, such as a text, None or a `Solution`."""
    text = np.asarray(value).dtype.kind in "US"
    what = f"{name} is {value!r}" if value is None or isinstance(value, str) else f"{name} is a {type(value).__name__}"
    what += " of texts" if text and not isinstance(value, str) else ""
    fix = f"{name}.x" if type(value).__name__ == "Solution" else "an array of floats"
    return ConstraintError(f"{what}; expected {expected}. Fix: {fix}.")


def shown(value: Any) -> str:
    """A value in a message: itself where it is short, else what it is."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def reject_masked(name: str, value: Any) -> None:
    """Raise an error about a masked array of numpy with masked entries: these have no numbers."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ConstraintError(
            f"{name} is a masked array with {np.ma.count_masked(value)} masked entries; expected numbers everywhere. "
            f"Fix: {name}.filled(number), with the number that masked entries stand for."
        )


def reject_lost(name: str, value: Any) -> None:
    """The same, and a tensor whose gradients would be lost where the answer is an array of numpy or JAX."""
    reject_masked(name, value)
    if is_tensor(value) and value.requires_grad:
        raise ConstraintError(
            f"{name} is a tensor of torch that requires gradients; expected an array. Fix: linsat.project with all "
            f"scores as tensors, which differentiates; or {name}.detach()."
        )


def is_sparse(value: Any) -> bool:
    """Whether the value is a sparse matrix of scipy, or a tensor of torch that is not dense."""
    return not is_dense(value) if is_tensor(value) else scipy.sparse.issparse(value)


def is_dense(tensor: Tensor) -> bool:
    import torch

    return tensor.layout == torch.strided


def followed(numbers: Numbers) -> bool:
    """Whether the numbers may change under a set that keeps them: learned, of a graph, mapped over, with a tangent."""
    return is_tensor(numbers) and (numbers.requires_grad or tracing(numbers) or mapped(numbers) or has_tangent(numbers))


def read_numbers(name: str, value: Any) -> Numbers:
    """Any dense array-like as real numbers."""
    if is_sparse(value):
        fix = "to_dense" if is_tensor(value) else "toarray"
        raise ConstraintError(f"{name} is sparse; expected a dense array. Fix: {name}.{fix}().")
    return read_tensor(name, value) if is_tensor(value) else read_array(name, value)


def read_array(name: str, value: Any) -> Array:
    """Any array-like but tensors as a float64 array that nothing else holds."""
    array = read_any(name, value, "real numbers (float, int or bool)")
    if array.dtype.kind not in "fiub":
        reject_dtype(name, array.dtype)
    return np.array(array, dtype=np.float64, order="C")


def read_any(name: str, value: Any, expected: str) -> Array:
    """Any array-like as it is; what is no array, or a list of no numbers, is rejected."""
    array = _regular(name, value)
    if array.dtype.kind in "OUS" and not isinstance(value, np.ndarray):
        raise not_numbers(name, value, expected)
    return array


def _regular(name: str, value: Any) -> Array:
    if is_traced(value):
        raise ConstraintError(
            f"{name} is traced by JAX (jit, grad or vmap); expected numbers known by now. Fix: make sets and look "
            f"at points outside; traced numbers of a set come with the call, linsat.project(y, cons, b=b)."
        )
    reject_lost(name, value)
    try:
        return np.asarray(value)
    except ValueError:
        raise ConstraintError(
            f"{name} is not a regular array: its parts differ in length. Fix: give every row the same length."
        ) from None


def read_constant(value: Any, name: str = "The constant", *, missing: float | None = None) -> Array:
    """A number or array-like as a float64 numpy array, finite but for ``missing``; else it is rejected by ``name``."""
    if is_tensor(value):
        if value.requires_grad:
            raise ConstraintError(
                f"{name} requires gradients, which would be lost here. Fix: pass its .detach(), then put the "
                f"tensor back with Constraints.with_rhs or Constraints.with_bounds."
            )
        value = value.to_dense().cpu()
        value = (value if value.is_complex() else value.double()).numpy()
    elif scipy.sparse.issparse(value):
        value = value.toarray()
    array = _regular(name, value)
    if array.dtype.kind not in "fiub":
        kind = f"dtype {array.dtype}" if isinstance(value, np.ndarray) else f"type {type(value).__name__}"
        raise ConstraintError(
            f"{name} has {kind}; expected a number or an array of real numbers. Fix: convert it first."
        )
    array = array.astype(np.float64)  # a copy, so that later changes to the user's array do not reach us
    wrong = ~np.isfinite(array) if missing is None else ~np.isfinite(array) & (array != missing)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = f" at index {', '.join(map(str, index))}" if index else ""
        expected = "finite numbers" if missing is None else f"finite numbers, or {missing} for no bound"
        fix = _FIX_NAN if np.isnan(array[index]) else "leave out what is not meant to bind."
        raise ConstraintError(f"{name} is {array[index]}{where}; expected {expected}. Fix: {fix}")
    return array


def read_tensor(name: str, value: Tensor) -> Numbers:
    """A tensor of any layout: itself where it is `followed`, else a copy."""
    check_tensor(name, value)
    return value if followed(value) else constant(value)


def check_tensor(name: str, value: Tensor) -> None:
    """Reject tensors that hold no real numbers."""
    import torch

    if value.is_complex() or value.dtype in (torch.quint8, torch.qint8):
        reject_dtype(name, value.dtype)


def constant(tensor: Tensor) -> Numbers:
    """The numbers of a dense tensor that is not tracked, copied; a tensor still where they are on another device."""
    import torch

    # What a set keeps must be usable outside inference mode and function transforms too.
    with plain_tensors() if transforming() else torch.inference_mode(False):
        own = tensor.detach().to(torch.float64, copy=True)
        return own.resolve_neg().numpy() if own.device.type == "cpu" else own


def read_right_side(name: str, value: Any, matrix: Matrix) -> Numbers:
    """Validate one right-hand side: a scalar, (rows,) or (batch..., rows); infinite where a row holds for every x."""
    side, rows = read_numbers(name, value), matrix.shape[0]
    check_side(name, side)
    if side.ndim > 0 and side.shape[-1] != rows:
        fix = f"{name}[:, None], if these are one number per instance" if rows == 1 == side.ndim else "one per row"
        if side.ndim == 1 and side.shape[0] == matrix.shape[1]:
            fix += f"; or {matrix.name}.T, which has {matrix.shape[1]}"
        raise ConstraintError(
            f"{name} has shape {tuple(side.shape)} but {matrix.name} has {rows} row{'s' * (rows != 1)}; "
            f"expected {name} of shape ({rows},) or (batch, {rows}). Fix: {fix}."
        )
    return side


def read_bound(name: str, value: Any) -> Numbers:
    """Validate one side of the box: a scalar, (variables,) or (batch..., variables)."""
    if value is None:
        missing = "-inf" if name == "lower" else "inf"
        raise ConstraintError(
            f"{name} is None; expected numbers. Fix: leave {name} out, or {name}={missing} for no bound."
        )
    bound = read_numbers(name, value)
    check_bound(name, bound)
    return bound


# ------------------------------------------------------------------ looking at numbers


def visible(numbers: Numbers) -> Numbers | None:
    """The numbers themselves, those of all mapped instances, without gradients; None where they are traced."""
    if not is_tensor(numbers):
        return None if tracing() or is_traced(numbers) else numbers
    return None if tracing(numbers) else plain(numbers)


def as_array(numbers: Numbers) -> Array:
    """The present numbers, those of all mapped instances, as a numpy array, which may share their memory."""
    if not is_tensor(numbers):
        return np.asarray(numbers)
    with plain_tensors():
        return plain(numbers).cpu().resolve_neg().numpy()


def first_place(wrong: Numbers) -> tuple[int, ...]:
    """The index of the first true entry."""
    return tuple(int(i) for i in np.argwhere(as_array(wrong))[0])


def indexed(name: str, index: Sequence[int]) -> str:
    """An entry in words, ``b[2, 0]``."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name


def check_finite(name: str, numbers: Numbers) -> None:
    """Reject NaN and infinity, naming the first offender by its index; in a graph that is left to the solve."""
    _check(name, numbers, None, "a finite number", "leave out the row (or bound) that is not meant to bind.")


def check_bound(name: str, numbers: Numbers) -> None:
    """Reject NaN, and an infinity on the wrong side, naming the first offender by its index; not in a graph."""
    missing = -np.inf if name == "lower" else np.inf
    expected = f"a finite number, or {missing} for no {name} bound"
    _check(name, numbers, missing, expected, f"{name}={missing} where nothing is meant to bind.")


def check_side(side: str, numbers: Numbers, name: str | None = None) -> None:
    """Reject NaN, and infinities but ``b = inf`` and ``d = -inf``, which every x satisfies; not in a graph.

    Args:
        side: ``b``, ``d`` or ``f``.
        name: what a message calls it, if not that.
    """
    if side == "f":
        check_finite(name or side, numbers)
    else:
        missing = np.inf if side == "b" else -np.inf
        expected = f"a finite number, or {missing} for no row"
        _check(name or side, numbers, missing, expected, f"{missing} where the row is not meant to bind.")


def _check(name: str, numbers: Numbers, missing: float | None, expected: str, fix: str) -> None:
    """Reject what is neither finite nor ``missing``."""
    seen = visible(numbers)
    if seen is None or (not is_tensor(seen) and np.isfinite(seen).all()):
        return
    fine = namespace(seen).isfinite(seen)
    bad = ~(fine if missing is None else fine | (seen == missing))
    if bool(bad.any()):
        index = first_place(bad)
        fix = _FIX_NAN if np.isnan(float(seen[index])) else fix
        raise ConstraintError(f"{indexed(name, index)} is {float(seen[index])}; expected {expected}. Fix: {fix}")


# ------------------------------------------------------------------ what arrays and tensors share


def namespace(*numbers: Numbers) -> Any:
    """torch where one is a tensor, JAX's numpy where one is JAX's, else numpy: for functions of the same name."""
    if any(map(is_tensor, numbers)):
        return sys.modules["torch"]
    return sys.modules["jax"].numpy if any(map(is_jax, numbers)) else np


def to_tensor(numbers: Numbers, device: torch.device | str | None = None) -> Tensor:
    """The numbers as a float64 tensor on a device (default: where they are), with gradients; may share their memory."""
    try:
        import torch
    except ImportError:
        raise ImportError(
            "A torch tensor was asked for, and torch is not installed. Fix: Constraints.statement(), all numbers in "
            "numpy arrays.",
            name="torch",
        ) from None

    if not is_tensor(numbers):
        # torch takes no array that is read-only; torch.compile does, and knows no flags.
        shared = torch.compiler.is_dynamo_compiling() or numbers.flags.writeable
        numbers = torch.from_numpy(numbers if shared else numbers.copy())
    return numbers.to(device or numbers.device, torch.float64).resolve_neg()


def floating(tensor: Tensor) -> Tensor:
    """The tensor as the solvers read it: float32 or float64, with its sign applied."""
    import torch

    tensor = tensor if tensor.dtype in (torch.float64, torch.float32) else tensor.to(torch.float64)
    return tensor.resolve_neg()


def given_tensor(value: Any) -> Tensor:
    """A tensor as it is; a number or any other array as float64 on the CPU, whatever torch's default device.

    Raises:
        TypeError, ValueError, RuntimeError, OverflowError: the value holds no real numbers.
    """
    import torch

    if is_tensor(value):
        return value.resolve_neg()
    if isinstance(value, np.ndarray) and not tracing():  # of any strides and byte order, read-only too: torch takes few
        value = np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
    return torch.as_tensor(value, dtype=torch.float64, device="cpu")


def to_float64(value: Any, device: torch.device | None) -> Numbers | None:
    """A number or array-like as a float64 array, or as a tensor on a device; None where it is complex.

    Raises:
        TypeError, ValueError, RuntimeError, OverflowError: the value holds no real numbers.
    """
    if device is not None:
        tensor = given_tensor(value)
        return None if tensor.is_complex() else to_tensor(tensor, device)
    if is_jax(value):  # in the precision that JAX has
        return None if value.dtype.kind == "c" else value.astype(namespace(value).zeros(0).dtype)
    array = as_array(value)
    return None if array.dtype.kind == "c" else array.astype(np.float64)


def is_traced(value: Any) -> bool:
    """Whether JAX traces the value, which then has no numbers yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def is_jax(value: Any) -> bool:
    """Whether the value is an array of JAX, or a tracer that stands for one."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def alike(parts: Sequence[Numbers]) -> list[Numbers]:
    """All as arrays or, where one is a tensor, all as tensors on its device."""
    tensor = next((part for part in parts if is_tensor(part)), None)
    if tensor is None:
        return list(parts)
    return [part.to(tensor.device) if is_tensor(part) else to_tensor(part, tensor.device) for part in parts]


def spread(numbers: Numbers, shape: Sequence[int]) -> Numbers:
    """The numbers broadcast to a shape, as a view."""
    return (
        numbers.expand(tuple(shape)) if is_tensor(numbers) else namespace(numbers).broadcast_to(numbers, tuple(shape))
    )


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The shape to which all broadcast.

    Raises:
        ValueError: there is none.
    """
    given = [shape for shape in shapes if len(shape)]
    if not given or all(shape == given[0] for shape in given[1:]):
        return tuple(given[0]) if given else ()
    torch = sys.modules.get("torch")
    if torch is None:
        return np.broadcast_shapes(*map(tuple, shapes))
    try:
        return tuple(torch.broadcast_shapes(*shapes))  # which also takes the symbolic lengths of a graph
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def side_by_side(parts: Sequence[Numbers]) -> Numbers:
    """(batch..., n) each, their batch dimensions broadcast, one after the other in the last dimension."""
    if len(parts) <= 1:
        return parts[0] if parts else np.zeros(0)
    batch = broadcast_shapes(*(part.shape[:-1] for part in parts))
    wide = [spread(part, (*batch, part.shape[-1])) for part in alike(parts)]
    xp = namespace(*wide)
    return xp.concatenate(wide, -1)


def picked(numbers: Numbers, columns: Any) -> Numbers:
    """Some entries of the last dimension, in this order."""
    positions = np.asarray(columns, dtype=np.int64)
    if not is_tensor(numbers):
        return numbers.take(positions, axis=-1)
    return numbers.index_select(-1, positions_on(numbers, positions))


def positions_on(numbers: Numbers, positions: Array) -> Any:
    """Positions as an index for these numbers: an array, or a tensor on their device."""
    if not is_tensor(numbers):
        return positions
    import torch

    return torch.from_numpy(positions).to(numbers.device)


def ranges(starts: Array, stops: Array) -> Array:
    """``np.arange(start, stop)`` of each pair, one after the other."""
    lengths = stops - starts
    return np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)


def spans(ordered: Array, keys: Array) -> tuple[Array, Array]:
    """The positions at which each of some keys stands in an ascending array, and which of the keys it is."""
    starts, stops = np.searchsorted(ordered, keys, side="left"), np.searchsorted(ordered, keys, side="right")
    return ranges(starts, stops), np.repeat(np.arange(len(keys)), stops - starts)
