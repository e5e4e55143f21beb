"""Calling the native core on a batch of torch tensors: tensors in, tensors out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from linsat.native import binding
from linsat.native.binding import Core, load
from linsat.native.layout import NativeLayout
from linsat.objectives import Objective
from linsat.objectives.base import native_code

Tensor = torch.Tensor
_NUMBERS = 5  # values, side, lower, upper, price


class Stated:
    """A statement as the core reads it, and the tensors behind it, which must live as long."""

    def __init__(
        self, objective: Objective, numbers: Sequence[Tensor], count: int, *, gamma_shift: float = 0.0
    ) -> None:
        """``numbers`` are values, side, lower, upper and price, (1 or count, .) each."""
        self.kept = [tensor.resolve_neg() for tensor in (*numbers, *objective.parameters().values())]
        given = [_numbers(tensor, count) for tensor in self.kept]
        parameters = binding.Parameters(*given[len(numbers) :])
        kind, slack = native_code(objective), objective.entropic_slack
        self.structure = binding.Statement(kind, slack, *given[: len(numbers)], parameters, gamma_shift)


def solve(
    layout: NativeLayout,
    stated: Stated,
    scores: Tensor,
    *,
    tol: float,
    max_steps: int,
    start: Tensor | None = None,
    known: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
    """x, duals, counts (3, N: status, steps, solver), what was decided, and whether all have converged.

    ``known`` is what is decided for all instances; without it presolve decides for each, (N, .).

    Raises:
        MemoryError: the results do not fit; the message says how much they need, and how to split the batch.
    """
    scores = dense_scores(scores)
    count, k = scores.shape[0], layout.rows
    try:
        x, duals = torch.empty_like(scores), _empty((count, k), torch.float64)
        counts = _empty((3, count), torch.int64)
        size = 2 * (scores.shape[1] + k)
        decided = known if known is not None else _empty((count, size), torch.uint8)
    except RuntimeError as error:
        raise _memory_error(count, scores.shape[1], k, error) from None
    given = None if start is None else _dense(start.to(torch.float64).expand(count, k))
    unsolved = ctypes.c_int64(0)
    at = counts.data_ptr()
    call = binding.Solve(
        count,
        scores.dtype is torch.float32,
        max_steps,
        torch.get_num_threads(),
        tol,
        scores.data_ptr(),
        None if given is None else given.data_ptr(),
        None if known is None else known.data_ptr(),
        x.data_ptr(),
        duals.data_ptr(),
        None if known is not None else decided.data_ptr(),
        at,
        at + 8 * count,
        at + 16 * count,
        ctypes.addressof(unsolved),
    )
    _core().solve(layout.address, stated.structure, call)
    return x, duals, counts, decided, unsolved.value == 0


def pull_back(
    layout: NativeLayout,
    stated: Stated,
    scores: Tensor,
    duals: Tensor,
    status: Tensor,
    decided: Tensor,
    grad_x: Tensor | None,
    grad_duals: Tensor | None,
    wanted: Sequence[Tensor | None],
) -> tuple[Tensor, list[Tensor | None]]:
    """Gradients to the scores, in their dtype and the shape of grad_x, and to values, side, lower, upper, price and the
    numbers of the objective, like the tensors in ``wanted``; None where that is None. ``status`` begins with the codes.
    """
    scores = dense_scores(scores)
    count = scores.shape[0]
    if grad_x is not None:
        grad_x = _dense(grad_x if grad_x.dtype is scores.dtype else grad_x.to(scores.dtype))
    grad_scores = torch.empty_like(scores if grad_x is None else grad_x)
    duals, status, decided = _dense(duals), _dense(status), _dense(decided)
    given = None if grad_duals is None else _dense(grad_duals.to(torch.float64))
    made: list[Tensor | None] = [None if like is None else _empty(tuple(like.shape), torch.float64) for like in wanted]
    places = [
        binding.Gradient()
        if one is None
        else binding.Gradient(one.data_ptr(), one.shape[1] if len(one) == count else 0)
        for one in made
    ]
    call = binding.Pull(
        count,
        scores.dtype is torch.float32,
        torch.get_num_threads(),
        scores.data_ptr(),
        None if grad_x is None else grad_x.data_ptr(),
        duals.data_ptr(),
        None if given is None else given.data_ptr(),
        status.data_ptr(),
        decided.data_ptr(),
        decided.shape[1] if decided.shape[0] == count > 1 else 0,
        grad_scores.data_ptr(),
        *places[:_NUMBERS],
        binding.ParameterGradients(*places[_NUMBERS:]),
    )
    _core().pull_back(layout.address, stated.structure, call)
    return grad_scores, made


def _core() -> Core:
    core = load()
    assert isinstance(core, Core)  # or there would be no layout
    return core


def dense_scores(scores: Tensor) -> Tensor:
    """The scores in a dtype that the core reads; float32 holds every shorter one exactly."""
    return _dense(scores if scores.dtype in (torch.float32, torch.float64) else scores.to(torch.float32))


def _numbers(tensor: Tensor, count: int) -> ctypes.Structure:
    """Where the numbers of ``count`` instances are: one each, or shared by all."""
    rows = tensor.shape[0]
    if rows not in (1, count):  # the core would read beyond the end
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} does not fit a batch of {count} instances.")
    step, stride = tensor.stride()
    return binding.Numbers(tensor.data_ptr(), 0 if rows == 1 else step, stride, tensor.dtype is torch.float32)


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.resolve_neg()  # memory knows nothing of a sign that torch has yet to apply
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for the core to write to; on the CPU, whatever torch's default device."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def _memory_error(count: int, l: int, k: int, error: RuntimeError) -> Exception:
    """What a batch needs where there is not enough memory for it; any other error as it is."""
    if "memory" not in str(error):
        return error
    needed = 8 * count * (2 * l + k) / 2**30
    return MemoryError(
        f"y holds {count:,} instances of {l:,} variables; there is not enough memory for the {needed:.2g} GB that "
        f"solving them at once needs. Fix: smaller batches, for instance "
        f"torch.cat([linsat.project(part, constraints) for part in y.split({max(1, min(4096, count // 8))})])."
    )
