"""The projection as primitives of JAX, lowered to the native core on the CPU and to `lax` operations elsewhere.

    solve       (scores, pattern, numbers, start, known, rest) -> x, duals, bits, counts, decided
    push        the tangents of x and of the duals, linear in those of the numbers
    pull_back   its transpose: gradients to scores and numbers

On the CPU `solve` and `pull_back` are custom calls of XLA (native/xla.h); `push`, and whatever is differentiated again,
is made of `lax` operations (`linsat.jax.arrays`). A mapped axis joins the batch of instances. The duals travel from
solve to pull_back as the bytes of doubles, as numbers that never change do: JAX may not have 64 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from linsat.arrays.newton import Newton
from linsat.errors import ConstraintError
from linsat.jax import arrays
from linsat.jax.operands import MOVING, NUMBERS, Answers, Kind, Operands, Solved, work_dtype
from linsat.native.binding import PARAMETERS, Core, load
from linsat.plan import Numbers

Array = Any
_NUMBERS = len(Numbers._fields)
_NONE = np.zeros((0, 0), np.float32)
_SOLVE, _PULL_BACK = "linsat_xla_solve", "linsat_xla_pull_back"  # functions of native/xla.h


# ------------------------------------------------------------------ the native core


def _register() -> str | None:
    """Hand the core to XLA; None, or the reason why that cannot be.

    At once, because a program that was compiled or exported elsewhere may need nothing else.
    """
    core = load()
    if not isinstance(core, Core):
        return core
    for name in (_SOLVE, _PULL_BACK):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(core.functions, name)), platform="cpu")
    return None


_not_registered = _register()


@functools.cache
def unavailable() -> str | None:
    """None, or the reason why the native core cannot run within JAX.

    The first time a tiny projection runs through it, because an interface between two programs that were compiled
    apart is best believed when it has been seen to work.
    """
    if _not_registered is not None:
        return _not_registered
    try:
        with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
            x = _try_out()
    except Exception as error:  # whatever XLA says
        return f"XLA does not run it ({str(error).splitlines()[0][:200]})"
    return None if np.allclose(x, [[0.75, 0.25]], atol=1e-6) else "its answer to a simple question is wrong within XLA"


def _try_out() -> np.ndarray:
    """The point of the simplex nearest to (1, 0.5)."""
    from linsat.constraints.families import simplex
    from linsat.objectives import Euclidean
    from linsat.plan import plan_of

    constraints = simplex(2)  # a plan does not keep its set alive
    plan = plan_of(constraints, Euclidean(), Newton(), 2)
    assert plan.numbers is not None
    kind = Kind(plan, plan.objective.kind(), tuple(plan.numbers), native=True)
    operands = operands_of(kind, np.array([[1.0, 0.5]], np.float32), Numbers(*[None] * _NUMBERS), ())
    return np.asarray(jax.jit(lambda scores: solve(kind, operands._replace(scores=scores)).x)(operands.scores))


# ------------------------------------------------------------------ calls


def operands_of(
    kind: Kind,
    scores: Array,
    given: Numbers,
    parameters: Sequence[Array],
    start: Array | None = None,
    rest: Array | None = None,
) -> Operands:
    """From scores (N, l), the numbers that came with the call (None: the set's own) and those of the objective."""
    plan, pattern = kind.plan, kind.plan.pattern
    numbers = [
        array if kept is None else np.ascontiguousarray(kept, np.float64).view(np.uint8)
        for kept, array in zip(kind.constants, given, strict=True)
    ]
    row, col = pattern.row.astype(np.int32), pattern.col.astype(np.int32)
    known = plan.known()
    known = np.zeros((0, 0), np.uint8) if known is None else known
    last = [_NONE if start is None else start, known, _NONE if rest is None else rest]
    if len(parameters) > PARAMETERS:
        raise ConstraintError(
            f"{kind.stated[0].__name__} has {len(parameters)} arrays of numbers; linsat.jax takes up to {PARAMETERS}. "
            f"Fix: fewer fields that are arrays, for instance two of one shape in one."
        )
    others = [*parameters, *[_NONE] * (PARAMETERS - len(parameters))]
    return Operands._make([scores, row, col, pattern.senses, *numbers, *others, *last])


def solve(kind: Kind, operands: Operands) -> Answers:
    """Every instance."""
    return Answers(*_solve_p.bind(*operands, kind=kind))


_solve_p, _push_p, _pull_p = (Primitive(f"linsat_{name}") for name in ("solve", "push", "pull_back"))
for primitive in (_solve_p, _push_p, _pull_p):
    primitive.multiple_results = True


@functools.partial(jax.jit, static_argnames=("name", "params"))
def _run(*operands: Array, name: str, params: tuple[tuple[str, Any], ...]) -> Any:
    which = {"solve": _solve_p, "push": _push_p, "pull_back": _pull_p}[name]
    return which.bind(*operands, **dict(params))


_solve_p.def_impl(lambda *operands, **params: _run(*operands, name="solve", params=tuple(params.items())))
_push_p.def_impl(lambda *operands, **params: _run(*operands, name="push", params=tuple(params.items())))
_pull_p.def_impl(lambda *operands, **params: _run(*operands, name="pull_back", params=tuple(params.items())))


def _shape(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.core.ShapedArray(shape, np.dtype(dtype))


def _solve_shapes(*operands: Any, kind: Kind) -> list[Any]:
    (count, width), rows = operands[0].shape, kind.plan.pattern.num_rows
    return [
        _shape((count, width), operands[0].dtype),
        _shape((count, rows), work_dtype()),
        _shape((count, 8 * rows), np.uint8),
        _shape((count, 3), np.int32),
        _shape((count, 2 * (width + rows)), np.uint8),
    ]


_SHARED, _OWN = Solved._fields.index("duals"), len(Solved._fields)  # with `solve`; before what is linear


def _push_shapes(*operands: Any, kind: Kind, moving: tuple[int, ...]) -> list[Any]:
    return [_shape(operands[0].shape, operands[0].dtype), _shape(operands[_SHARED].shape, operands[_SHARED].dtype)]


def _pull_shapes(*operands: Any, kind: Kind, wanted: tuple[int, ...]) -> list[Any]:
    like = [operands[n] if n == 0 or n in wanted else _shape((0, 0), np.float32) for n in MOVING]
    return [_shape(one.shape, one.dtype) for one in like]


_solve_p.def_abstract_eval(_solve_shapes)
_push_p.def_abstract_eval(_push_shapes)
_pull_p.def_abstract_eval(_pull_shapes)


def _lowering(target: str, by_lax: Any) -> tuple[Any, Any]:
    """To `lax` operations; and on the CPU to a custom call, where the core takes it."""
    otherwise = mlir.lower_fun(by_lax, multiple_results=True)

    def called(*operands: Array, kind: Kind, **params: Any) -> Any:
        # The core reads the bits of the duals, and has no use for the duals as JAX has them.
        own = [operand for n, operand in enumerate(operands) if n != _SHARED or not params]
        shapes = (_pull_shapes if params else _solve_shapes)(*operands, kind=kind, **params)
        return jax.ffi.ffi_call(target, [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in shapes])(
            *own, options=kind.options
        )

    def on_cpu(ctx: Any, *operands: Any, kind: Kind, **params: Any) -> Any:
        if not kind.native:
            return otherwise(ctx, *operands, kind=kind, **params)
        run = functools.partial(called, kind=kind, **params)
        devices = getattr(ctx.module_context.axis_context, "device_assignment", None)  # None: not told, or one
        if devices is not None and len(devices) > 1:
            run = _apart(run, ctx.avals_in, ctx.avals_out)
        return mlir.lower_fun(run, multiple_results=True)(ctx, *operands)

    return otherwise, on_cpu


for primitive, target, by_lax in ((_solve_p, _SOLVE, arrays.solve), (_pull_p, _PULL_BACK, arrays.pull_back)):
    anywhere, on_cpu = _lowering(target, by_lax)
    mlir.register_lowering(primitive, anywhere)
    mlir.register_lowering(primitive, on_cpu, platform="cpu")
mlir.register_lowering(_push_p, mlir.lower_fun(arrays.push, multiple_results=True))
try:  # JAX tells a lowering which devices there are if it is known to ask
    from jax._src.dispatch import prim_requires_devices_during_lowering

    prim_requires_devices_during_lowering.update((_solve_p, _pull_p))
except ImportError:
    pass


def _apart(run: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """``run`` on several devices, each with its share of the instances; XLA would gather them on all otherwise."""
    count = inputs[0].shape[0]

    def is_split(aval: Any) -> bool:
        return bool(aval.shape) and aval.shape[0] == count > 1

    def axis_of(args: Sequence[Any]) -> Any:
        """The axes of the mesh along which the scores are split."""
        spec = args[0].sharding.spec
        return spec[0] if len(spec) else None

    def placed(mesh: Any, axis: Any, avals: Sequence[Any]) -> list[Any]:
        return [NamedSharding(mesh, PartitionSpec(axis) if is_split(aval) else PartitionSpec()) for aval in avals]

    def partition(mesh: Any, args: Any, results: Any) -> Any:
        axis = axis_of(args)

        def here(*operands: Array) -> Any:
            results = run(*operands)  # of a number that all share, the sum over the devices
            return tuple(
                part if axis is None or is_split(aval) or not part.size else jax.lax.psum(part, axis)
                for part, aval in zip(results, outputs, strict=True)
            )

        return mesh, here, tuple(placed(mesh, axis, outputs)), tuple(placed(mesh, axis, inputs))

    def rule(n: int, aval: Any) -> str:
        return " ".join("n" if d == 0 and is_split(aval) else f"f{n}_{d}" for d in range(len(aval.shape)))

    left = ", ".join(rule(n, aval) for n, aval in enumerate(inputs))
    right = ", ".join(rule(len(inputs) + n, aval) for n, aval in enumerate(outputs))
    wrapped = custom_partitioning(lambda *operands: tuple(run(*operands)))
    wrapped.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, args, results: tuple(placed(mesh, axis_of(args), outputs)),
        sharding_rule=f"{left} -> {right}",
    )
    return wrapped


# ------------------------------------------------------------------ derivatives


def _solve_jvp(primals: Sequence[Array], tangents: Sequence[Any], *, kind: Kind) -> tuple[Any, Any]:
    answers = Answers(*_solve_p.bind(*primals, kind=kind))
    moving = tuple(n for n in MOVING if type(tangents[n]) is not ad.Zero)
    still = [ad.Zero(jax.typeof(part).to_tangent_aval()) for part in answers]
    if not moving:
        return list(answers), still
    point = answers.duals, answers.bits, answers.counts, answers.decided
    dots = (tangents[n] for n in moving)
    x_dot, duals_dot = _push_p.bind(*primals[:_SHARED], *point, *dots, kind=kind, moving=moving)
    return list(answers), [x_dot, duals_dot, *still[2:]]


def _push_transpose(cotangents: Sequence[Any], *operands: Any, kind: Kind, moving: tuple[int, ...]) -> list[Any]:
    to_x = ad.instantiate_zeros(cotangents[0])
    to_duals = jnp.asarray(_NONE) if type(cotangents[1]) is ad.Zero else cotangents[1]
    pulled = _pull_p.bind(*operands[:_OWN], to_x, to_duals, kind=kind, wanted=moving)
    gradients = dict(zip(MOVING, pulled, strict=True))
    linear = zip(moving, operands[_OWN:], strict=True)
    return [None] * _OWN + [gradients[n] if ad.is_undefined_primal(operand) else None for n, operand in linear]


def _jvp_by_lax(function: Any) -> Any:
    """The derivative of what is made of `lax` operations."""

    def rule(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        moving = [n for n, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]

        def some(*given: Array) -> Any:
            operands = list(primals)
            for n, operand in zip(moving, given, strict=True):
                operands[n] = operand
            return function(*operands, **params)

        return jax.jvp(some, [primals[n] for n in moving], [tangents[n] for n in moving])

    return rule


ad.primitive_jvps[_solve_p] = _solve_jvp
ad.primitive_jvps[_push_p] = _jvp_by_lax(arrays.push)
ad.primitive_jvps[_pull_p] = _jvp_by_lax(arrays.pull_back)
ad.primitive_transposes[_push_p] = _push_transpose


# ------------------------------------------------------------------ mapped axes


def _mapped(primitive: Primitive) -> Any:
    """A mapped axis joins the batch; what all instances share and nobody maps stays shared."""

    def rule(operands: Sequence[Array], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        moved = [d is not None for d in dims]
        first = moved.index(True)
        size = operands[first].shape[dims[first]]
        parts = [jnp.moveaxis(o, d, 0) if m else o for o, d, m in zip(operands, dims, moved, strict=True)]
        count = parts[0].shape[-2]
        shared = {n for n in MOVING[1:] if len(parts[n]) == 1 and not moved[n]}
        if primitive is _solve_p:
            shared.add(Operands._fields.index("known"))
        # Numbers with a gradient for each mapped instance, and numbers whose tangent is mapped, are no longer shared.
        shared -= set(params.get("wanted", ()))
        for n, tangent in zip(params.get("moving", ()), range(_OWN, len(operands)), strict=False):
            if n in shared:
                shared = shared - {n} if moved[tangent] else shared | {tangent}

        def joined(n: int) -> Array:
            part = parts[n]
            if 1 <= n < NUMBERS.start or n in shared or (part.shape == _NONE.shape and not moved[n]):
                return part
            whole = part if moved[n] else part[None]
            whole = jnp.broadcast_to(whole, (size, count, *whole.shape[2:]))
            return whole.reshape(size * count, *whole.shape[2:])

        answers = primitive.bind(*map(joined, range(len(operands))), **params)
        split = [
            jnp.zeros((size, *answer.shape), answer.dtype)
            if answer.shape == _NONE.shape
            else answer.reshape(size, count, *answer.shape[1:])
            for answer in answers
        ]
        for n, position in enumerate(MOVING if primitive is _pull_p else ()):
            if position and position in params["wanted"] and parts[position].shape[-2] == 1:
                split[n] = split[n].sum(1, keepdims=True)  # over those that share it
        return split, [0] * len(split)

    return rule


for primitive in (_solve_p, _push_p, _pull_p):
    batching.primitive_batchers[primitive] = _mapped(primitive)
