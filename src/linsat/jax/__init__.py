"""The layer in JAX (extra ``jax``): `project` and `solve`, under jit, grad, jacfwd, vmap and sharding, on any device.

On the CPU XLA runs the native core, elsewhere the same Newton step in `lax` operations; torch is not imported, and
nothing calls back to Python but the choice of pieces of rows with `abs`, maxima or norms.
"""

from linsat._optional import require

require("jax", extra="jax", purpose="linsat.jax")

import jax  # noqa: E402

from linsat.constraints.constraint_set import Constraints  # noqa: E402
from linsat.jax.projection import Solution, project, solve  # noqa: E402

jax.tree_util.register_static(Constraints)  # a set may be an argument of a function that JAX traces

__all__ = ["Solution", "project", "solve"]
