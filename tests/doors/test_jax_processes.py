"""`linsat.jax` in processes that are set up differently: without torch, with two devices, with programs of others."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.arithmetic import HAS_KERNEL

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
# Numbers that all instances share: their gradient is the sum over both devices, that of one device alone.
row = linsat.Constraints(A=[[1.0, 2, 3, 4, 5]], b=2.0, E=[[1.0] * 5], f=1.0)
loss = lambda y, tau, b: (linsat.jax.project(y, row, objective=linsat.Entropy(tau, slack="none"), b=b) ** 2).sum()
both = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
tau, b = jnp.asarray(0.3), jnp.asarray([2.0])
alone, apart = both(y, tau, b), both(jax.device_put(y, rows), tau, b)
for one, other in zip(alone, apart):
    np.testing.assert_allclose(one, other, atol=1e-12)
assert {shard.data.shape for shard in apart[0].addressable_shards} == {(4, 5)}
mapped = jax.pmap(jax.grad(loss, argnums=(0, 1, 2)), in_axes=(0, None, None))(y.reshape(2, 4, 5), tau, b)
np.testing.assert_allclose(mapped[0].reshape(8, 5), alone[0], atol=1e-12)
np.testing.assert_allclose(mapped[1].sum(0), alone[1], atol=1e-12)
np.testing.assert_allclose(mapped[2].sum(0), alone[2], atol=1e-12)
found = linsat.jax.solve(jax.device_put(y, rows), row, objective=linsat.Euclidean(), on_failure="raise")  # known
np.testing.assert_allclose(found.x.sum(-1), 1.0, atol=1e-12)
print("done")
"""

# Compiled by one process, run by another: what the core needs to know must be in the program. The first x is
# (1/2, 0, 1/2, 0): both rows bind, x_1 and x_3 are at 0, and nothing is left to move x_0.
CACHED = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hits" in event else None)
import linsat, linsat.jax
padding = [linsat.constraints.simplex(n) for n in range(2, int(sys.argv[1]))]  # other addresses, other first layouts
for other in padding:
    linsat.jax.project(jnp.zeros(other.num_variables), other)
cons = linsat.Constraints(A=[[1.0, 2, 3, 4]], b=2.0, E=[[1.0] * 4], f=1.0)

@jax.jit
def only_step(y, b):
    return jax.value_and_grad(lambda y: linsat.jax.project(y, cons, objective=linsat.Euclidean(), b=b)[0, 0])(y)

value, gradient = only_step(jnp.asarray([[0.0, 0, 3, 0], [1, 1, 0, 0]]), jnp.asarray([2.0]))
print(len(hits), float(value), *np.asarray(gradient).ravel())
"""

EXPORT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax import export
import linsat, linsat.jax
cons = linsat.Constraints(A=[[1.0, 2, 3, 4]], b=2.0, E=[[1.0] * 4], f=1.0)
step = jax.jit(jax.grad(lambda y: linsat.jax.project(y, cons, objective=linsat.Euclidean())[0, 0]))
allowed = [export.DisabledSafetyCheck.custom_call(name) for name in ("linsat_xla_solve", "linsat_xla_pull_back")]
made = export.export(step, disabled_checks=allowed)(jax.ShapeDtypeStruct((2, 4), jnp.float32))
open(sys.argv[1], "wb").write(made.serialize())
print(*np.asarray(step(jnp.asarray([[0.0, 0, 3, 0], [1, 1, 0, 0]]))).ravel())
"""

LOAD = """
import sys
import jax.numpy as jnp, numpy as np
from jax import export
import linsat.jax
step = export.deserialize(open(sys.argv[1], "rb").read()).call
print(*np.asarray(step(jnp.asarray([[0.0, 0, 3, 0], [1, 1, 0, 0]]))).ravel())
"""


def run(program: str, *arguments: str, flags: str = "", **environment: str) -> str:
    """What a program prints in a separate process."""
    environment |= {"XLA_FLAGS": f"--xla_backend_optimization_level=0 {flags}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("program", "flags"),
    [(WITHOUT_TORCH, ""), (TWO_DEVICES, "--xla_force_host_platform_device_count=2")],
    ids=["without torch", "two devices"],
)
def test_process(program: str, flags: str):
    assert run(program, flags=flags).endswith("done")


def test_a_program_from_the_compilation_cache(tmp_path):
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    first = run(CACHED, "2", **settings).split()
    second = run(CACHED, "9", **settings).split()
    assert float(first[1]) == pytest.approx(0.5, abs=1e-6)
    assert first[1:] == second[1:]
    assert int(second[0]) > int(first[0])


@pytest.mark.skipif(not HAS_KERNEL, reason="the native core is not built")
def test_an_exported_program(tmp_path):
    pytest.importorskip("flatbuffers")  # JAX writes programs with it
    path = str(tmp_path / "step")
    made = run(EXPORT, path)
    assert made == run(LOAD, path)
    np.testing.assert_allclose([float(number) for number in made.split()][:4], 0.0, atol=1e-6)
