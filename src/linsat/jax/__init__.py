"""The layer in JAX (extra ``jax``): `project` and `solve`, under jit, grad, jacfwd, vmap and sharding, on any device.

On the CPU XLA runs the native core, elsewhere the same Newton step in `lax` operations; torch is not imported, and
nothing calls back to Python but the choice of pieces of rows with `abs`, maxima or norms.
"""

from linsat._optional import require

require("jax", extra="jax", purpose="linsat.jax")

from linsat.jax.projection import Solution, project, solve  # noqa: E402

__all__ = ["Solution", "project", "solve"]
