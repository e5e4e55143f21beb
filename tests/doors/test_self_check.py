"""A back end that is compiled where it runs proves itself there; layers that start from their last duals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import linsat
from linsat.torch import self_check

ROOT = Path(__file__).parents[2]
F64 = torch.float64

# A process for all faults: to start the interpreter takes longer than to check a back end.
PROGRAM = """
import json, warnings
import torch, linsat
from linsat.triton import backend as triton
from linsat.torch import self_check

self_check._BATCH = 2  # of every system; the interpreter takes a second for each
solve = triton.TritonBackend.solve

def wrong_x(self, problem, options, start=None):
    result = solve(self, problem, options, start)
    if result.x.shape[1] == 16:  # along directions that change no sum of a row or column: no verdict sees it
        result.x = result.x + 1e-3 * torch.tensor([1.0, -1, 0, 0, -1, 1, *[0] * 10], dtype=torch.float64)
    return result

def wrong_gradient(self, problem, options, start=None):
    result = solve(self, problem, options, start)
    if result.x.shape[1] == 16:  # rows that hold forgive any dual: no verdict sees it
        result.mu = 0.5 * result.mu
    return result

def broken(self, *args, **kwargs):
    raise RuntimeError("no kernel image is available")

y = torch.tensor([0.3, 0.1, 0.2], dtype=torch.float64, requires_grad=True)
for fault, planted in {"x": wrong_x, "gradient": wrong_gradient, "launch": broken, "none": solve}.items():
    triton.TritonBackend.solve = planted
    self_check._faults.clear()  # as in a new process
    cons = linsat.constraints.simplex(3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            x = linsat.project(y, cons, tau=1.0, solver=linsat.Newton(backend="triton"))
    torch.testing.assert_close(x, linsat.project(y, cons, tau=1.0), rtol=0, atol=1e-9)
    print(json.dumps([fault, [str(one.message) for one in said if issubclass(one.category, linsat.LinSATWarning)]]))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """The warnings of two calls, by the fault that was planted."""
    pytest.importorskip("triton")
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return dict(json.loads(line) for line in ran.stdout.splitlines())


@pytest.mark.parametrize(
    ("fault", "words"), [("x", "apart in x"), ("gradient", "apart in the gradient"), ("launch", "no kernel image")]
)
def test_a_planted_fault_is_seen_at_first_use_and_torch_serves(
    fault: str, words: str, said: dict[str, list[str]]
) -> None:
    (text,) = said[fault]
    assert text.startswith("backend='triton' is turned off on cpu")
    assert words in text
    assert text.endswith("python -m linsat check")


def test_kernels_without_a_fault_pass(said: dict[str, list[str]]) -> None:
    assert said["none"] == []


def test_every_system_of_the_check_is_solved_and_has_a_gradient() -> None:
    """Else a comparison would compare nothing."""
    for name, cons, objective in self_check._systems():
        scores = torch.zeros((1, cons.num_variables), dtype=F64)
        codes, x, gradient = self_check._both_ways(scores, torch.ones_like(scores), cons, objective, self_check._PLAIN)
        assert codes.tolist() == [0], name
        assert torch.isfinite(x).all()
        assert torch.isfinite(gradient).all()


def test_the_core_passes_on_this_machine() -> None:
    assert next(self_check._differences(linsat.Newton(backend="kernel"), torch.device("cpu")), None) is None


class TestWarmStart:
    cons = linsat.constraints.doubly_stochastic(8)

    def layer(self, **options: object) -> linsat.LinSAT:
        return linsat.LinSAT(self.cons, objective=linsat.Entropy(tau=0.02), **options)  # type: ignore[arg-type]

    def test_answers_and_gradients_are_those_of_a_cold_start(self) -> None:
        torch.manual_seed(0)
        warm, cold = self.layer(warm_start=True), self.layer()
        y = torch.randn(4, 64, dtype=F64, requires_grad=True)
        for _ in range(3):
            moved = y + 0.01 * torch.randn_like(y)
            pairs = []
            for layer in (warm, cold):
                x = layer(moved)
                pairs.append((x, *torch.autograd.grad((x * moved.detach()).sum(), y, retain_graph=True)))
            torch.testing.assert_close(*pairs, rtol=0, atol=1e-6)

    def test_it_saves_steps_where_scores_change_little(self) -> None:
        torch.manual_seed(0)
        y = torch.randn(4, 64, dtype=F64)
        first = linsat.solve(y, self.cons, tau=0.02)
        warm = self.layer(warm_start=True)
        warm(y)
        shapes, duals = warm._last  # type: ignore[misc]
        assert shapes == [y.shape]
        again = linsat.solve(y + 1e-4, self.cons, tau=0.02, start=duals)
        assert int(again.steps.max()) <= int(first.steps.max()) // 2

    def test_other_shapes_and_transforms_start_cold(self) -> None:
        warm = self.layer(warm_start=True)
        y = torch.randn(3, 64, dtype=F64)
        warm(y)
        torch.testing.assert_close(warm(y[:2]), self.layer()(y[:2]), rtol=0, atol=1e-8)
        mapped = torch.vmap(warm)(y)
        torch.testing.assert_close(mapped, self.layer()(y), rtol=0, atol=1e-8)
        assert warm._last is not None
        assert warm._last[0] == [(2, 64)]

    def test_duals_are_not_part_of_the_state(self) -> None:
        warm = self.layer(warm_start=True)
        warm(torch.zeros(64))
        assert list(warm.state_dict()) == []
