"""The layer on JAX arrays (extra ``jax``): `project`, differentiable, under jit, vmap and grad.

The mathematics is the torch layer's: JAX calls back to the host, where the same solver runs on the CPU. So arrays on an
accelerator travel to the host and back with each call.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from linsat._optional import require
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import expected_shape
from linsat.errors import ConstraintError
from linsat.projection import project as project_tensor
from linsat.request import OnFailure

jax = require("jax", extra="jax", purpose="linsat.jax")
jnp = jax.numpy

_SIDES = ("b", "d", "f")
Array = Any  # a jax.Array, or a tracer that stands for one


def project(
    y: Array,
    constraints: Constraints,
    *,
    tau: Any = 0.1,
    b: Array = None,
    d: Array = None,
    f: Array = None,
    on_failure: OnFailure = "raise",
) -> Array:
    """The point of the constraint set that fits the scores best: `linsat.project` for JAX.

    Args:
        y: scores, float32 or float64 (which needs ``jax_enable_x64``): flat, (..., variables), or in the shape of the
            set's variable.
        constraints: the rows and the box; a constant of the computation, without learned tensors.
        tau: temperature, a number or an array that broadcasts to the batch shape; arrays get gradients.
        b, d, f: right-hand sides in place of the set's own, (rows,) or (batch..., rows); they get gradients.
        on_failure: as in `linsat.project`, for instances that are not solved.

    Returns:
        x like y. Reverse mode only: ``jax.grad``, ``jax.vjp``, ``jax.jacrev``, once (no second derivatives).
        Cost: one solve forward; one solve and one adjoint solve backward, because torch keeps no state between the two
        callbacks; the copies to and from the host.

    Raises:
        InfeasibleError: the rows contradict each other.
        ConstraintError: malformed arguments. Inside jit, numbers are seen only when the program runs; NaN scores and
            ``on_failure="raise"`` then end in JAX's own runtime error with linsat's message inside.
    """
    if not isinstance(constraints, Constraints):
        raise ConstraintError(f"constraints is {type(constraints).__name__}; expected linsat.Constraints.")
    if constraints.learned_tensors():
        raise ConstraintError(
            "constraints hold torch tensors that require gradients, which JAX cannot follow. "
            "Fix: pass the right-hand sides as b=, d=, f=."
        )
    scores = jnp.asarray(y)
    if not jnp.issubdtype(scores.dtype, jnp.floating):
        raise ConstraintError(f"y has dtype {scores.dtype}; expected floating scores. Fix: y.astype(float).")
    width, layout = constraints.num_variables, constraints.layout
    shaped = None if layout is None else layout.flattened(scores)
    if shaped is not None:
        scores = shaped[0]
    elif scores.ndim == 0 or (width is not None and scores.shape[-1] != width):
        raise ConstraintError(f"y has shape {scores.shape}; expected {expected_shape(layout, width)}.")
    given = {name: _floating(side, scores) for name, side in zip(_SIDES, (b, d, f), strict=True) if side is not None}
    if not constraints.batch_shape and not given:
        constraints.check()  # contradictions come out here as they are, not from inside a callback
    fixed_tau = float(tau) if isinstance(tau, (int, float)) else None
    batch = scores.shape[:-1]
    for name, side in given.items():
        expected = constraints.right_sides.get(name)
        if expected is None or side.ndim == 0 or side.shape[-1] != expected.shape[-1]:
            rows = 0 if expected is None else expected.shape[-1]
            raise ConstraintError(
                f"{name} has shape {side.shape}; expected (..., {rows}), one right-hand side per row."
            )
        batch = _joint(name, batch, side.shape[:-1])
    batch = _joint("the constraint set", batch, tuple(constraints.batch_shape))
    numbers: dict[str, Array] = {"y": jnp.broadcast_to(scores, (*batch, scores.shape[-1]))}
    # Every array gets the full batch shape, so that vmap may put its axis in front of each alike.
    numbers |= {name: jnp.broadcast_to(side, (*batch, side.shape[-1])) for name, side in given.items()}
    if fixed_tau is None:
        numbers["tau"] = jnp.broadcast_to(_floating(tau, scores), batch)
    _check_numbers(numbers, fixed_tau)
    x = _project(_Call(constraints, fixed_tau, on_failure), numbers)
    return x if layout is None or shaped is None else layout.restored(x, shaped[1])


@dataclass(frozen=True)
class _Call:
    """What is constant in a computation; equal and hashed by the identity of the set, as jit wants it."""

    constraints: Constraints
    tau: float | None
    on_failure: OnFailure

    def run(self, numbers: dict[str, torch.Tensor]) -> torch.Tensor:
        sides = {name: numbers[name] for name in _SIDES if name in numbers}
        constraints = self.constraints.with_rhs(**sides) if sides else self.constraints
        tau = numbers["tau"] if self.tau is None else self.tau
        return project_tensor(numbers["y"], constraints, tau=tau, on_failure=self.on_failure)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _project(call: _Call, numbers: dict[str, Array]) -> Array:
    return _on_host(functools.partial(_forward, call), {"x": numbers["y"]}, numbers)["x"]


def _keep(call: _Call, numbers: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
    return _project(call, numbers), numbers


def _pull_back(call: _Call, numbers: dict[str, Array], cotangent: Array) -> tuple[dict[str, Array]]:
    return (_on_host(functools.partial(_backward, call), numbers, numbers, {"x": cotangent}),)


_project.defvjp(_keep, _pull_back)


def _on_host(function: Any, like: dict[str, Array], *arguments: dict[str, Array]) -> dict[str, Array]:
    """function(*arguments) on the host; its results have the shapes and dtypes of the arrays in ``like``.

    Doubles travel as pairs of 32-bit words. JAX may run the callback on another thread, where a scoped
    ``jax.enable_x64`` does not hold, and would there round every double to single precision.
    """

    def callback(*packed: dict[str, Any]) -> dict[str, np.ndarray]:
        tensors = [{name: _tensor(array) for name, array in numbers.items()} for numbers in packed]
        return {name: _words(tensor.detach().numpy()) for name, tensor in function(*tensors).items()}

    packed = [{name: _pack(array) for name, array in numbers.items()} for numbers in arguments]
    expected = {name: jax.eval_shape(_pack, array) for name, array in like.items()}
    found = jax.pure_callback(callback, expected, *packed, vmap_method="broadcast_all")
    return {name: _unpack(array, like[name].dtype) for name, array in found.items()}


def _pack(array: Array) -> Array:
    return jax.lax.bitcast_convert_type(array, jnp.uint32) if array.dtype == jnp.float64 else array


def _unpack(array: Array, dtype: Any) -> Array:
    return jax.lax.bitcast_convert_type(array, dtype) if array.dtype != dtype else array


def _tensor(array: Any) -> torch.Tensor:
    """What `_pack` made, as a tensor."""
    copy = np.array(array, order="C")  # what JAX hands over is read-only
    return torch.from_numpy(copy.view(np.float64).reshape(copy.shape[:-1]) if copy.dtype == np.uint32 else copy)


def _words(array: np.ndarray) -> np.ndarray:
    """An array of the host as `_pack` would make it."""
    if array.dtype != np.float64:
        return array
    return np.ascontiguousarray(array).reshape(-1).view(np.uint32).reshape((*array.shape, 2))


def _forward(call: _Call, numbers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return {"x": call.run(numbers)}


def _backward(
    call: _Call, numbers: dict[str, torch.Tensor], cotangent: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    leaves = {name: tensor.requires_grad_() for name, tensor in numbers.items()}
    x = _Call(call.constraints, call.tau, "ignore").run(leaves)  # the forward pass has reported what failed
    found = torch.autograd.grad(x, list(leaves.values()), cotangent["x"], allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }


def _floating(numbers: Any, scores: Array) -> Array:
    """Whole numbers as floats: words of 32 bits mean doubles to `_on_host`."""
    array = jnp.asarray(numbers)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(scores.dtype)


def _joint(name: str, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return tuple(np.broadcast_shapes(first, second))
    except ValueError:
        raise ConstraintError(
            f"the batch dimensions {second} of {name} do not broadcast with {first}. Fix: one per instance, or shared."
        ) from None


def _check_numbers(numbers: dict[str, Array], tau: float | None) -> None:
    """Reject what the host can see now; tracers are checked when the program runs."""
    for name, array in numbers.items():
        if not isinstance(array, jax.core.Tracer) and not bool(jnp.isfinite(array).all()):
            raise ConstraintError(f"{name} holds NaN or infinity; expected finite numbers.")
    if tau is not None and not (np.isfinite(tau) and tau > 0):
        raise ConstraintError(f"tau is {tau}; expected a positive, finite temperature. Fix: tau=0.1, say.")
