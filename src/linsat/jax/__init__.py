"""The layer in JAX (extra ``jax``): `project` and `solve`, under jit, grad, jacfwd, vmap and sharding, on any device.

The same Newton step as in torch runs in ``lax.while_loop``; nothing calls back to the host and torch is not imported.
"""

from linsat._optional import require

require("jax", extra="jax", purpose="linsat.jax")

from linsat.jax.projection import Solution, project, solve  # noqa: E402

__all__ = ["Solution", "project", "solve"]
