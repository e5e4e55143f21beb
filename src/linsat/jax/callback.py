"""``backend="kernel"``: JAX calls back to the host, where the compiled kernel of the torch layer runs.

Arrays on an accelerator travel to the host and back with each call. Reverse mode only, once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from linsat.constraints.constraint_set import Constraints
from linsat.jax.arguments import Call
from linsat.objectives import Objective
from linsat.projection import project as project_tensor
from linsat.solvers import Newton

_SIDES = ("b", "d", "f")
Array = Any  # a jax.Array, or a tracer that stands for one


def project_by_kernel(
    call: Call, constraints: Constraints, objective: Objective, solver: Newton | None, on_failure: Any
) -> Array:
    """x of a call as JAX reads it: one solve forward; one solve and one adjoint solve backward."""
    width = call.numbers["y"].shape[-1]
    # Every array has the full batch shape, so that vmap may put its axis in front of each alike.
    y = call.numbers["y"]
    y = jnp.where(call.numbers["held"], -jnp.inf, y) if "held" in call.numbers else y
    numbers = {"y": y.reshape(*call.batch, width)}
    numbers |= {name: jnp.broadcast_to(side, (*call.batch, side.shape[-1])) for name, side in call.own.items()}
    for name in objective.parameters():
        given = call.numbers[name]
        numbers[name] = given.reshape(call.batch) if name == "tau" else jnp.broadcast_to(given, (*call.batch, width))
    x = _project(_Call(constraints, objective, solver, on_failure), numbers)
    return call.restore(x.astype(call.dtype))


@dataclass(frozen=True, eq=False)
class _Call:
    """What is constant in a computation."""

    constraints: Constraints
    objective: Objective  # its kind; the numbers are among the arguments
    solver: Newton | None
    on_failure: Any

    def run(self, numbers: dict[str, torch.Tensor]) -> torch.Tensor:
        sides = {name: numbers[name] for name in _SIDES if name in numbers}
        constraints = self.constraints.with_rhs(**sides) if sides else self.constraints
        own = {name: numbers[name] for name in self.objective.parameters()}
        objective = replace(self.objective, **own) if own else self.objective  # type: ignore[type-var]
        return project_tensor(
            numbers["y"], constraints, objective=objective, solver=self.solver, on_failure=self.on_failure
        )


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
    x = replace(call, on_failure="ignore").run(leaves)  # the forward pass has reported what failed
    found = torch.autograd.grad(x, list(leaves.values()), cotangent["x"], allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }
