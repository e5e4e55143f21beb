r"""The projection as a registered operator: what a graph of torch.compile or torch.export holds in place of linsat.

    linsat::project(scores, pattern, numbers, parameters, start, options) -> x, duals, codes, steps, solved_by, decided
    linsat::project_backward(...) -> gradients

Everything about the rows is in the arguments: ``pattern`` is row, column and sense (`SparsityPattern`), ``numbers``
what the set states (`linsat.plan.Numbers`), ``parameters`` those of the objective, and ``options`` a text that says the
rest. So a saved graph runs in any process that has imported linsat. ``decided`` is what presolve found, packed.

Importing this file registers the operators and costs almost nothing; what they do is imported when they first run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from linsat._transforms import forward_mode, transform_depth, transforming
from linsat.errors import ConstraintError

Tensor = torch.Tensor
Tensors = Sequence[Tensor]


class Arguments(NamedTuple):
    """Of the operator `project`."""

    scores: Tensor  # (N, l)
    pattern: list[Tensor]  # row (nnz,), col (nnz,), senses (k,)
    numbers: list[Tensor]  # (1 or N, .) each
    parameters: list[Tensor]  # (1 or N, .) each
    start: Tensor | None  # (N, k)
    options: str  # see `linsat.torch.options.Description`

    @property
    def decided_shape(self) -> tuple[Any, int]:
        """Of what presolve decided for each instance: two facts of each variable and of each row."""
        return self.scores.shape[0], 2 * self.scores.shape[1] + 2 * self.pattern[2].shape[0]


class Answers(NamedTuple):
    """Of the operator `project`."""

    x: Tensor  # (N, l) of the dtype of the scores
    duals: Tensor  # (N, k)
    codes: Tensor  # (N,)
    steps: Tensor  # (N,)
    solved_by: Tensor  # (N,)
    decided: Tensor  # (N, .) uint8


def apply(arguments: Arguments) -> Answers:
    """Run or record the operator, with gradients, in a graph or within function transforms."""
    if not torch.compiler.is_compiling() and hasattr(arguments.scores, "fake_mode"):
        arguments = _faked(arguments)
    forward = forward_mode()
    if not transforming() and not forward:
        return Answers(*torch.ops.linsat.project(*arguments))
    if torch.compiler.is_compiling() and forward:
        raise ConstraintError(
            "torch.compile cannot follow forward mode (torch.func.jvp, jacfwd, hessian) through linsat. "
            "Fix: reverse mode (torch.func.vjp, jacrev), or call it outside of torch.compile."
        )
    scores, pattern, numbers, parameters, start, options = arguments
    tensors = [scores, *numbers, *parameters]
    if torch.compiler.is_compiling():  # which knows of views, not of tensors themselves, what a transform made of them
        tensors = [tensor.view_as(tensor) for tensor in tensors]
    if not forward and not _recorded(tensors):
        return Answers(*torch.ops.linsat.project(*_arguments(options, len(numbers), pattern, start, tensors)))
    if torch.compiler.is_compiling() and transform_depth() > 1:
        raise ConstraintError(
            "torch.compile cannot follow one function transform within another (jacrev of jacrev, vmap of jacrev) "
            "through linsat. Fix: call it outside of torch.compile."
        )
    return Answers(*(Pushed if forward else Transformed).apply(options, len(numbers), *pattern, start, *tensors))


def _recorded(tensors: Tensors) -> bool:
    """Whether a gradient may be asked for; torch.compile gives the functions below wrong arguments where it is not."""
    if not torch.is_grad_enabled():
        return False
    return not torch.compiler.is_compiling() or any(tensor.requires_grad for tensor in tensors)


def _faked(arguments: Arguments) -> Arguments:
    """The rows are real tensors; a fake mode takes fake ones only."""
    mode = arguments.scores.fake_mode  # type: ignore[attr-defined]
    if mode.allow_non_fake_inputs:
        return arguments

    def fake(tensor: Tensor) -> Tensor:
        return tensor if hasattr(tensor, "fake_mode") else mode.from_tensor(tensor)

    return Arguments(*tree_map_only(torch.Tensor, fake, tuple(arguments)))


def _rebuilt() -> Any:
    from linsat.torch import rebuilt

    return rebuilt


_project = torch.library.custom_op(
    "linsat::project",
    lambda *arguments: tuple(_rebuilt().project(Arguments(*arguments))),
    mutates_args=(),
    schema="(Tensor scores, Tensor[] pattern, Tensor[] numbers, Tensor[] parameters, Tensor? start, str options)"
    " -> (Tensor x, Tensor duals, Tensor codes, Tensor steps, Tensor solved_by, Tensor decided)",
)
_project_backward = torch.library.custom_op(
    "linsat::project_backward",
    lambda grad_x, grad_duals, duals, codes, decided, needed, *arguments: _rebuilt().pull_back(
        Arguments(*arguments), _rebuilt().Point(duals, codes, decided), (grad_x, grad_duals), needed
    ),
    mutates_args=(),
    schema="(Tensor? grad_x, Tensor? grad_duals, Tensor duals, Tensor codes, Tensor decided, bool[] needed,"
    " Tensor scores, Tensor[] pattern, Tensor[] numbers, Tensor[] parameters, Tensor? start, str options) -> Tensor[]",
)


@_project.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    given = Arguments(*arguments)
    scores, count = given.scores, given.scores.shape[0]
    whole = [scores.new_empty(count, dtype=torch.int64) for _ in range(3)]
    duals = scores.new_empty((count, given.pattern[2].shape[0]), dtype=torch.float64)
    return scores.new_empty(scores.shape), duals, *whole, scores.new_empty(given.decided_shape, dtype=torch.uint8)


@_project_backward.register_fake
def _(grad_x: Any, grad_duals: Any, duals: Any, codes: Any, decided: Any, needed: Any, *arguments: Any) -> list[Tensor]:
    given = Arguments(*arguments)
    tensors = (given.scores, *given.numbers, *given.parameters)
    return [t.new_empty(t.shape) for t, wants in zip(tensors, needed, strict=True) if wants]


# ------------------------------------------------------------------ gradients


def _keep(ctx: Any, arguments: Arguments, answers: Answers) -> None:
    """What the gradient needs, for the operator and for `Transformed` alike."""
    ctx.options, ctx.numbers = arguments.options, len(arguments.numbers)
    kept = (arguments.scores, *arguments.pattern, *arguments.numbers, *arguments.parameters)
    ctx.save_for_backward(*kept, answers.duals, answers.codes, answers.decided)
    ctx.set_materialize_grads(False)


def _pull(ctx: Any, grad_x: Tensor | None, grad_duals: Tensor | None, needed: list[bool]) -> list[Tensor | None]:
    """Gradients to scores, numbers and parameters, None where not needed."""
    if grad_x is None and grad_duals is None:
        return [None] * len(needed)
    arguments, (duals, codes, decided) = _kept(ctx.options, ctx.numbers, ctx.saved_tensors)
    tensors = [arguments.scores, *arguments.numbers, *arguments.parameters]
    if not torch.compiler.is_compiling() and forward_mode():  # whose tangents torch operations hand on
        return _rebuilt().pull_tangents_back(arguments, (duals, codes, decided), (grad_x, grad_duals), needed)
    if _recorded([t for t in (grad_x, grad_duals, duals, *tensors) if t is not None]):
        text = "".join("1" if wants else "0" for wants in needed)  # function transforms take no tuples
        how = ctx.options, ctx.numbers, text, codes, decided, *arguments.pattern
        pulled = iter(PulledBack.apply(*how, grad_x, grad_duals, duals, *tensors))
    else:
        pulled = iter(torch.ops.linsat.project_backward(grad_x, grad_duals, duals, codes, decided, needed, *arguments))
    return [next(pulled) if wants else None for wants in needed]


def _kept(options: str, numbers: int, saved: Tensors) -> tuple[Arguments, tuple[Tensor, Tensor, Tensor]]:
    """What `_keep` has kept: the arguments, and duals, codes and what presolve decided."""
    scores, row, col, senses, *tensors, duals, codes, decided = saved
    return _arguments(options, numbers, (row, col, senses), None, (scores, *tensors)), (duals, codes, decided)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[2:])
    _keep(ctx, Arguments(*inputs), Answers(*output))


def _backward(ctx: Any, grad_x: Tensor | None, grad_duals: Tensor | None, *_: Any) -> tuple[Any, ...]:
    wants = ctx.needs_input_grad
    gradients = _pull(ctx, grad_x, grad_duals, [wants[0], *wants[2], *wants[3]])
    end = 1 + ctx.numbers
    return gradients[0], [None] * 3, gradients[1:end], gradients[end:], None, None


_project.register_autograd(_backward, setup_context=_setup)


class Transformed(torch.autograd.Function):
    """The operator within function transforms (grad, jacrev, vmap), which do not see an operator's own formula."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        options: str, numbers: int, row: Tensor, col: Tensor, senses: Tensor, start: Tensor | None, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        return torch.ops.linsat.project(*_arguments(options, numbers, (row, col, senses), start, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        options, numbers, row, col, senses, start, *tensors = inputs
        ctx.mark_non_differentiable(*output[2:])
        _keep(ctx, _arguments(options, numbers, (row, col, senses), start, tensors), Answers(*output))

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor | None, grad_duals: Tensor | None, *_: Any) -> tuple[Any, ...]:
        return *[None] * 6, *_pull(ctx, grad_x, grad_duals, list(ctx.needs_input_grad[6:]))


class Pushed(Transformed):
    """The same in forward mode; a separate class, because torch.compile takes no function that has a `jvp`."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        def run(given: Arguments) -> Any:
            tensors = given.scores, *given.numbers, *given.parameters
            return Pushed.apply(given.options, len(given.numbers), *given.pattern, given.start, *tensors)

        options, numbers, row, col, senses, start, *tensors = inputs
        given = _arguments(options, numbers, (row, col, senses), start, tensors)
        return _mapped(run, info.batch_size, given, _arguments("", numbers, (), in_dims[5], in_dims[6:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        Transformed.setup_context(ctx, inputs, output)
        _, _, row, col, senses, _, scores, *tensors = inputs
        answers = Answers(*output)
        ctx.save_for_forward(scores, row, col, senses, *tensors, answers.duals, answers.codes, answers.decided)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        # torch switches forward mode off here, and with it that of transforms further out: on again, without the
        # tangents of this one.
        with forward_ad._set_fwd_grad_enabled(True):
            ours = ctx.options, ctx.numbers, [forward_ad.unpack_dual(tensor).primal for tensor in ctx.saved_tensors]
            arguments, point = _kept(*ours)
            moved = _rebuilt().push_forward(arguments, point, tangents[6:])
        return *moved, None, None, None, None


class PulledBack(torch.autograd.Function):
    """Gradients of a projection, as functions of everything: one more derivative may follow."""

    generate_vmap_rule = True

    @staticmethod
    def forward(options: str, numbers: int, needed: str, *given: Any) -> tuple[Tensor, ...]:
        codes, decided, row, col, senses, grad_x, grad_duals, duals, *tensors = given
        arguments = _arguments(options, numbers, (row, col, senses), None, tensors)
        wants = [digit == "1" for digit in needed]
        return tuple(torch.ops.linsat.project_backward(grad_x, grad_duals, duals, codes, decided, wants, *arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.options, ctx.numbers, ctx.needed, *given = inputs
        ctx.save_for_backward(*given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        codes, decided, row, col, senses, grad_x, grad_duals, duals, *tensors = ctx.saved_tensors
        arguments = _arguments(ctx.options, ctx.numbers, (row, col, senses), None, tensors)
        wants = [digit == "1" for digit in ctx.needed]
        module = _rebuilt()
        point = module.Point(duals, codes, decided)
        return *[None] * 8, *module.differentiate(arguments, point, (grad_x, grad_duals), wants, grads)


def _arguments(options: str, numbers: int, pattern: Tensors, start: Tensor | None, tensors: Tensors) -> Arguments:
    """From scores, so many ``numbers``, and parameters."""
    end = 1 + numbers
    return Arguments(tensors[0], list(pattern), list(tensors[1:end]), list(tensors[end:]), start, options)


# ------------------------------------------------------------------ function transforms of the operator itself


class _Join:
    """Mapped instances join the ordinary batch: the solver sees one batch of mapped x instances."""

    def __init__(self, mapped: int, scores: Tensor, dim: int | None) -> None:
        self.mapped, self.count = mapped, _instances(scores, dim)

    def each(self, tensor: Any, dim: int | None) -> Any:
        """One for each mapped instance."""
        if tensor is None:
            return None
        front = tensor.expand(self.mapped, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        whole = front.expand(self.mapped, self.count, *front.shape[2:])
        return whole.reshape(self.mapped * self.count, *front.shape[2:])

    def shared(self, tensor: Tensor, dim: int | None) -> Tensor:
        """One for all where all share it, else one for each."""
        return tensor if dim is None and tensor.shape[0] == 1 else self.each(tensor, dim)

    def split(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(self.mapped, self.count, *tensor.shape[1:])


def _instances(tensor: Tensor, dim: int | None) -> int:
    """The first dimension of a tensor that is not mapped, or of each mapped one."""
    return (tensor if dim is None else tensor.movedim(dim, 0)[0]).shape[0]


def _mapped(run: Callable[[Arguments], Any], count: int, given: Arguments, dims: Any) -> tuple[Any, Any]:
    """The answers to ``count`` mapped instances, and where they are mapped; ``dims`` are `Arguments` of dimensions."""
    join = _Join(count, given.scores, dims.scores)
    answers = run(
        Arguments(
            join.each(given.scores, dims.scores),
            given.pattern,
            [*map(join.shared, given.numbers, dims.numbers)],
            [*map(join.shared, given.parameters, dims.parameters)],
            join.each(given.start, dims.start),
            given.options,
        )
    )
    return tuple(map(join.split, answers)), (0,) * len(answers)


@_project.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    def run(given: Arguments) -> Any:
        return torch.ops.linsat.project(*given)

    return _mapped(run, info.batch_size, Arguments(*arguments), Arguments(*in_dims))


@_project_backward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *everything: Any) -> tuple[Any, Any]:
    (grad_x, grad_duals, duals, codes, decided, needed), given = everything[:6], Arguments(*everything[6:])
    of_scores, _, of_numbers, of_parameters, *_ = in_dims[6:]
    join = _Join(info.batch_size, given.scores, of_scores)
    tensors, dims = [given.scores, *given.numbers, *given.parameters], [of_scores, *of_numbers, *of_parameters]
    # A gradient is summed over the instances that share a number, not over the mapped ones: here they may not share it.
    joined = [(join.each if wants else join.shared)(*pair) for *pair, wants in zip(tensors, dims, needed, strict=True)]
    joined[0] = join.each(given.scores, of_scores)
    gradients = torch.ops.linsat.project_backward(
        *map(join.each, (grad_x, grad_duals, duals, codes), in_dims[:4]),
        join.each(decided, in_dims[4]),
        needed,
        *_arguments(given.options, len(given.numbers), given.pattern, None, joined),
    )
    alone = [_instances(t, dim) != join.count for t, dim, wants in zip(tensors, dims, needed, strict=True) if wants]
    pairs = zip(map(join.split, gradients), alone, strict=True)
    split = [whole.sum(1, keepdim=True) if shared else whole for whole, shared in pairs]
    return split, [0] * len(split)
