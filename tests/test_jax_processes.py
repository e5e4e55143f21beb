"""`linsat.jax` in processes that are set up differently: without torch, and with two devices."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import linsat, linsat.jax
cons = linsat.constraints.simplex(4)
project = lambda y: linsat.jax.project(y, cons, objective=linsat.Euclidean())
y = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
x, jacobian = jax.jit(jax.vmap(lambda y: (project(y), jax.jacrev(project)(y))))(y)
def sparsemax(y):  # closed form
    s = np.sort(y)[::-1]
    k = np.arange(1, 5)
    t = (np.cumsum(s) - 1) / k
    return np.maximum(y - t[(s > t).nonzero()[0].max()], 0)
for one, scores, slopes in zip(np.asarray(x), np.asarray(y), np.asarray(jacobian)):
    expected = sparsemax(scores)
    support = expected > 0
    np.testing.assert_allclose(one, expected, atol=1e-12)
    inside = np.diag(support.astype(float)) - np.outer(support, support) / support.sum()
    np.testing.assert_allclose(slopes, inside, atol=1e-9)
try:
    linsat.jax.project(y, linsat.Constraints(E=[[1.0] * 4], f=9))
except linsat.InfeasibleError as error:
    assert "cannot hold" in str(error)
else:
    raise AssertionError("an infeasible set was accepted")
assert sys.modules["torch"] is None
print("done")
"""

TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import linsat, linsat.jax
assert len(jax.devices()) == 2
cons = linsat.constraints.simplex(5)
y = jnp.asarray(np.random.default_rng(0).normal(size=(8, 5)))
project = lambda y: linsat.jax.project(y, cons, objective=linsat.Euclidean())
step = jax.jit(jax.value_and_grad(lambda y: (lambda x: ((x**2).sum(), x))(project(y)), has_aux=True))
rows = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))
(_, x), gradient = step(jax.device_put(y, rows))
assert {shard.data.shape for shard in gradient.addressable_shards} == {(4, 5)}, gradient.sharding
support = np.asarray(x > 0)  # closed form: the gradient of the squares of a projection onto a face of the simplex
inside = 2 * np.where(support, x - (x * support).sum(-1, keepdims=True) / support.sum(-1, keepdims=True), 0)
np.testing.assert_allclose(gradient, inside, atol=1e-9)
np.testing.assert_allclose(x.sum(-1), 1.0, atol=1e-12)
np.testing.assert_allclose(jax.pmap(project)(y.reshape(2, 4, 5)).reshape(8, 5), x, atol=1e-12)
print("done")
"""


@pytest.mark.parametrize(
    ("program", "flags"),
    [(WITHOUT_TORCH, ""), (TWO_DEVICES, "--xla_force_host_platform_device_count=2")],
    ids=["without torch", "two devices"],
)
def test_process(program: str, flags: str):
    environment = os.environ | {"XLA_FLAGS": f"--xla_backend_optimization_level=0 {flags}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("done")
