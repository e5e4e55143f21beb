"""Calling the kernel on a batch: tensors in, tensors out."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from linsat.backends.cpu_kernel import native
from linsat.backends.cpu_kernel.layout import KernelLayout, layout_of
from linsat.backends.cpu_kernel.native import Library, Numbers, load
from linsat.compile.problem import Presolved, Problem, StandardForm, Tensor
from linsat.objectives import Entropy, Euclidean
from linsat.solvers.newton import Newton
from linsat.solvers.result import SolverResult

_ENTROPY, _EUCLIDEAN = 0, 1  # as in kernel.c
# Work of this many seconds is worth waking a thread for.
_WORTH_WAKING = 6e-5
# An evaluation and a factorisation that take this long are shared among threads, where there are few instances.
_WORTH_SHARING, _ENOUGH_INSTANCES = 5e-4, 8
_STEPS = 10  # a solve takes about this many, each an evaluation and a factorisation
_FORM = ("lower", "upper", "rhs", "slack", "scale", "dual_lower", "dual_upper")
_PRESOLVED = ("free", "at_upper", "active", "tight", "infeasible", "tight_share")
_FIXED = 1 + len(_FORM) + len(_PRESOLVED)  # tensors of a problem that are not of its objective


class Pulled(NamedTuple):
    """What the gradient of a loss becomes."""

    scores: Tensor  # of the dtype of the scores and the shape of the gradient of x
    q: Tensor  # (N, k) adjoint duals, zero outside the rows whose dual lies strictly inside its bounds
    parameter: Tensor | None  # (N, 1) to tau or (N, l) to the weights, where asked for


class KernelBackend:
    """Newton's method, its gradient and presolve in C: entropic and Euclidean problems on the CPU.

    Cost per instance as in `linsat.solvers.newton.Newton`; nothing is allocated per instance. An instance's answer is
    the same to the last bit whatever its batch and the number of threads.
    """

    name = "kernel"

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why the kernel cannot take the problem."""
        kind = type(problem.objective)
        if kind is not Entropy and kind is not Euclidean:
            return f"the kernel knows Entropy and Euclidean, not {kind.__name__}"
        return self.takes(problem)

    def takes(self, form: StandardForm) -> str | None:
        """None, or the reason why the kernel cannot take these rows."""
        loaded = load()
        if isinstance(loaded, str):
            return f"the kernel is not available: {loaded}"
        if form.rhs.device.type != "cpu":
            return f"the kernel runs on the CPU, not on {form.rhs.device.type}"
        layout = layout_of(form.rows, loaded)
        return f"the set is too large for the kernel: {layout}" if isinstance(layout, str) else None

    def solve(self, problem: Problem, options: Newton, start: Tensor | None = None) -> SolverResult:
        """Solve every instance; ``start`` are duals (N, k) of an earlier solve.

        Raises:
            MemoryError: the results do not fit; the message says how much they need, and how to split the batch.
        """
        call, scores = _Call(problem), _scores(problem)
        count, k = problem.size, problem.rows.shape[0]
        try:
            x, mu = torch.empty_like(scores), _empty((count, k), torch.float64)
            counts = _empty((3, count), torch.int64).zero_()  # solved by the first of SOLVERS
        except RuntimeError as error:
            raise _memory_error(problem, error) from None
        given = None if start is None else _dense(start.to(torch.float64).expand(count, k))
        unsolved = ctypes.c_int64(0)
        arguments = native.Solve(
            count,
            options.max_steps,
            scores.dtype is torch.float32,
            call.together(count),
            options.tol,
            call.loaded.constants_at,
            scores.data_ptr(),
            None if given is None else given.data_ptr(),
            x.data_ptr(),
            mu.data_ptr(),
            counts.data_ptr(),
            counts.data_ptr() + 8 * count,
            ctypes.addressof(unsolved),
        )
        call.run(call.loaded.forward, arguments, count, _STEPS)
        return SolverResult(mu, x, counts, unsolved.value == 0)

    def vjp(
        self,
        problem: Problem,
        mu: Tensor,
        grad_x: Tensor,
        *,
        codes: Tensor,
        grad_mu: Tensor | None = None,
        parameter: bool = False,
    ) -> Pulled:
        """The gradient to the scores and q, from which all other gradients follow (`linsat.gradient.implicit`).

        ``grad_x`` may have any shape of N l numbers. Instances that did not converge have no gradient: zeros.
        ``codes`` are those of a `SolverResult`, or its counts, which begin with them. ``parameter`` asks for the
        gradient of tau or the weights.
        """
        call, scores = _Call(problem), _scores(problem)
        grad_x, mu = _dense(grad_x if grad_x.dtype is scores.dtype else grad_x.to(scores.dtype)), _dense(mu)
        try:
            grad_y, q = torch.empty_like(grad_x), torch.empty_like(mu)
        except RuntimeError as error:
            raise _memory_error(problem, error) from None
        given = None if grad_mu is None else _dense(grad_mu.to(torch.float64))
        codes = _dense(codes)
        to_parameter = None
        if parameter:
            width = 1 if type(problem.objective) is Entropy else scores.shape[1]
            to_parameter = _empty((problem.size, width), torch.float64)
        arguments = native.Pull(
            problem.size,
            scores.dtype is torch.float32,
            call.together(problem.size),
            call.loaded.constants_at,
            scores.data_ptr(),
            grad_x.data_ptr(),
            mu.data_ptr(),
            None if given is None else given.data_ptr(),
            codes.data_ptr(),
            grad_y.data_ptr(),
            q.data_ptr(),
            None if to_parameter is None else to_parameter.data_ptr(),
        )
        call.run(call.loaded.backward, arguments, problem.size, 2)
        return Pulled(grad_y, q, to_parameter)

    def propagate(self, form: StandardForm, senses: Tensor, blank: Presolved) -> Presolved:
        """`linsat.compile.presolve.propagate`, where `takes` says that the kernel can; ``blank`` has nothing fixed."""
        sizes = {tensor.shape[0] for tensor in form.tensors()}
        count = max(sizes) if 0 not in sizes else 0
        call = _Call(form.problem(form.lower[:1].expand(count, -1), Euclidean(), blank))
        k, l = form.rows.shape
        variables = _empty((2, count, l), torch.bool)
        active, infeasible = _empty((count, k), torch.bool), _empty((count,), torch.bool)
        senses = _dense(senses)
        arguments = native.Presolve(
            count,
            call.loaded.constants_at,
            senses.data_ptr(),
            variables[0].data_ptr(),
            variables[1].data_ptr(),
            active.data_ptr(),
            infeasible.data_ptr(),
        )
        call.run(call.loaded.presolve, arguments, count, 1)
        return Presolved(variables[0], variables[1], active, blank.tight, blank.tight_share, infeasible)


class _Call:
    """The structures one call points to, and the tensors behind them, which must live as long."""

    def __init__(self, problem: Problem) -> None:
        loaded = load()
        assert isinstance(loaded, Library)
        layout = layout_of(problem.rows, loaded)
        assert isinstance(layout, KernelLayout)
        self.loaded, self.layout = loaded, layout
        self.structure, self.kept = _structure(problem)

    def together(self, count: int) -> bool:
        """Whether threads share the work on each of ``count`` instances, instead of the instances."""
        return self.layout.seconds > _WORTH_SHARING and count < _ENOUGH_INSTANCES

    def run(self, task: int, arguments: ctypes.Structure, count: int, passes: int) -> None:
        """Work through the instances in as many threads as pay off."""
        threads = 1
        if passes * count * self.layout.seconds > _WORTH_WAKING:
            threads = torch.get_num_threads()
            if not getattr(arguments, "together", False):
                threads = min(threads, count)
        self.loaded.run(task, self.layout.address, self.structure, arguments, threads)


def _structure(problem: Problem) -> tuple[ctypes.Structure, list[Tensor]]:
    """The problem as the kernel reads it; kept where numbers never change."""
    kept = None if problem.cache is None else problem.cache.get("kernel")
    if kept is not None and kept[0] is problem.presolved:
        if kept[1] is problem.objective:
            return kept[2], kept[3]
        structure, tensors = native.Problem.from_buffer_copy(kept[2]), kept[3][:_FIXED]
    else:
        structure, tensors = _point_to(problem)
    tensors = tensors + _add_parameter(structure, problem)
    if problem.cache is not None:
        problem.cache["kernel"] = (problem.presolved, problem.objective, structure, tensors)
    return structure, tensors


def _point_to(problem: Problem) -> tuple[ctypes.Structure, list[Tensor]]:
    entropy = type(problem.objective) is Entropy
    structure = native.Problem(_ENTROPY if entropy else _EUCLIDEAN, problem.objective.entropic_slack)
    tensors = {"values": problem.rows.values, **{name: getattr(problem, name) for name in _FORM}}
    tensors |= {name: getattr(problem.presolved, name) for name in _PRESOLVED}
    kept = []
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.float64 and tensor.dtype is not torch.bool:
            tensor = tensor.to(torch.float64)
        tensor = _rows_of(tensor)
        kept.append(tensor)
        setattr(structure, name, _numbers(tensor, problem.size))
    return structure, kept


def _add_parameter(structure: ctypes.Structure, problem: Problem) -> list[Tensor]:
    """Have the structure point to the numbers of the objective; what must live as long as it."""
    objective = problem.objective
    parameter = objective.tau if isinstance(objective, Entropy) else getattr(objective, "weights", None)
    if not isinstance(parameter, torch.Tensor):
        structure.parameter = Numbers()
        return []
    parameter = _rows_of(parameter if parameter.dtype is torch.float64 else parameter.to(torch.float64))
    structure.parameter = _numbers(parameter, problem.size)
    return [parameter]


def _numbers(tensor: Tensor, count: int) -> Numbers:
    """Where the numbers of ``count`` instances are: one each, or shared by all."""
    if tensor.shape[0] == 1:
        return Numbers(tensor.data_ptr(), 0)
    if tensor.shape[0] != count:  # the kernel would read beyond the end
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} does not fit a batch of {count} instances.")
    return Numbers(tensor.data_ptr(), tensor.stride(0))


def _rows_of(tensor: Tensor) -> Tensor:
    """The tensor with neighbours in memory along its last dimension; the first may be expanded."""
    tensor = tensor.resolve_neg()  # memory knows nothing of a sign that torch has yet to apply
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def _scores(problem: Problem) -> Tensor:
    """The scores in a dtype that the kernel reads; float32 holds every shorter one exactly."""
    scores = problem.scores
    return _dense(scores if scores.dtype in (torch.float32, torch.float64) else scores.to(torch.float32))


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor.resolve_neg()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for the kernel to write to; on the CPU, whatever torch's default device."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def _memory_error(problem: Problem, error: RuntimeError) -> Exception:
    """What a batch needs where there is not enough memory for it; any other error as it is."""
    if "memory" not in str(error):
        return error
    count, (k, l) = problem.size, problem.rows.shape
    needed = 8 * count * (2 * l + k) / 2**30
    return MemoryError(
        f"y holds {count:,} instances of {l:,} variables; there is not enough memory for the {needed:.2g} GB that "
        f"solving them at once needs. Fix: smaller batches, for instance "
        f"torch.cat([linsat.project(part, constraints) for part in y.split({max(1, min(4096, count // 8))})])."
    )
