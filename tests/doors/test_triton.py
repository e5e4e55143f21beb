"""The Triton kernels: the CPU kernel's answers in Triton's interpreter, and code for three GPUs, without any GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import linsat
from linsat.machine import describe_backends
from linsat.triton import TritonBackend, backend, layout
from linsat.triton.layout import layout_of
from tests.helpers.statements import rows_of, untouched_problem

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
F64 = torch.float64


def lines(*command, **environment):
    """What a program prints, line by line, from JSON."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    ran = subprocess.run(
        [sys.executable, *map(str, command)], env=env | environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def interpreted(*arguments):
    return lines("-m", "tests.doors.triton_interpreter", *arguments, TRITON_INTERPRET="1")


def close(record, tol=1e-9):
    """The same verdicts, and numbers that agree."""
    return record["codes"] == record["kernel_codes"] and all(value <= tol for value in record["apart"].values())


def nearest_with_prices(y):
    """min |x - y|^2 / 2 + 0.7 max(sum x - 1, 0) + 0.5 max(2 - sum x, 0) over the unit box, by Clarabel."""
    import cvxpy as cp

    x = cp.Variable(3)
    cost = cp.sum_squares(x - y) / 2 + 0.7 * cp.pos(cp.sum(x) - 1) + 0.5 * cp.pos(2 - cp.sum(x))
    cp.Problem(cp.Minimize(cost), [x >= 0, x <= 1]).solve(solver=cp.CLARABEL)
    return x.value


def test_the_solvers_contract_in_the_interpreter():
    """One process for all of it: to start the interpreter takes longer than a problem."""
    found = {record["name"]: record for record in interpreted("smoke")}
    compared = [record for record in found.values() if "apart" in record]
    assert len(compared) == 10
    for record in compared:
        single = "float32" in record["name"]  # x is rounded to float32 in the end
        assert close(record, 1e-6 if single else 1e-9), record
        assert record["codes"] == [0] * len(record["codes"])
        assert record["violation"] <= (1e-6 if single else 1e-12), record
        if not single and "warm" not in record["name"]:
            assert record["steps"] == record["array_steps"], record  # small sets take other ones in the native core
    assert found["per-instance right-hand sides, warm"]["steps"] == [0, 0]
    assert found["infeasible"]["codes"] == [3]
    assert found["alone"]["equal"]
    soft = found["contradictory soft rows"]
    np.testing.assert_allclose(soft["x"][0], nearest_with_prices(np.array(soft["scores"][0])), atol=1e-6)


@pytest.mark.slow
def test_two_hundred_systems_over_all_objectives_are_the_cpu_kernels():
    found = interpreted("sweep", 0, 200)
    assert len(found) == 200
    far = [record for record in found if not close(record)]
    assert not far, [(record["name"], record["codes"], record["kernel_codes"], record["apart"]) for record in far]
    assert sum(record["codes"] == [0] * len(record["codes"]) for record in found) >= 190


@pytest.mark.slow
def test_float32_steps_end_where_float64_steps_do():
    found = interpreted("mixed", 0, 40)
    far = [record for record in found if not close(record)]
    assert not far, [(record["name"], record["codes"], record["kernel_codes"], record["apart"]) for record in far]


def test_a_kernel_compiles_for_each_gpu_without_one(tmp_path):
    found = lines(ROOT / "benchmarks" / "gpu_codegen.py", "--smoke", TRITON_CACHE_DIR=str(tmp_path))
    assert [record["target"] for record in found] == ["sm_80", "sm_90", "gfx942"]
    assert all(record["binary_bytes"] > 0 and record["registers"] > 0 for record in found)
    assert [record["spill_bytes"] for record in found] == [0, 0, 0]


@pytest.mark.slow
def test_recorded_code_is_what_the_compiler_makes():
    """Every kernel up to 32 rows that share variables, for every GPU: no spills."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("gpu_codegen", ROOT / "benchmarks" / "gpu_codegen.py")
    codegen = importlib.util.module_from_spec(spec)
    sys.modules["gpu_codegen"] = codegen
    spec.loader.exec_module(codegen)
    known = json.loads(codegen.OUTPUT.read_text())
    names = ("objective", "others", "leading", "dtype")
    wanted = {tuple(getattr(case, name) for name in names) for case in codegen.every_case()}
    for target in codegen.TARGETS:
        kept = [record for record in known["kernels"] if record["target"] == target]
        assert {tuple(record[name] for name in names) for record in kept} == wanted
        assert not [record for record in kept if record["others"] <= 32 and record["spill_bytes"]]
    case = codegen.Case("paper", 32, 32)
    for target in codegen.TARGETS:
        assert codegen.record(case, target)["spill_bytes"] == 0


class TestLayout:
    """Which rows lead, and where variables go."""

    def of(self, cons):
        return layout_of(rows_of(cons))

    @pytest.mark.parametrize(
        ("cons", "others"),
        [
            (linsat.constraints.simplex(7), 0),
            (linsat.constraints.doubly_stochastic(20), 20),
            (linsat.constraints.capacity_assignment(64, 4, [20] * 4), 4),
            (linsat.Constraints(A=np.ones((12, 15)), b=20.0), 11),
            (linsat.Constraints(lower=[0.0, -1.0], upper=[1.0, 1.0]), 0),
        ],
    )
    def test_every_variable_has_a_place_and_every_coefficient_its_own(self, cons, others):
        found = self.of(cons)
        assert found.others == others
        used = found.variable_of[found.variable_of >= 0]
        assert sorted(used.tolist()) == list(range(cons.num_variables))
        assert len(found.target.unique()) == len(found.target)
        rows = rows_of(cons)
        lines = found.coefficients(rows.values).reshape(1 + found.others, found.places)
        A = torch.zeros(rows.shape, dtype=F64)
        A[rows.row, rows.col] = rows.values[0]
        for place, j in enumerate(found.variable_of.tolist()):
            slot = found.row_of[place // found.members]
            expected = A[slot, j] if j >= 0 and slot >= 0 and place // found.members < found.slots else 0.0
            assert lines[0, place] == expected
            for g in range(found.others):
                row = found.row_of[found.slots + g]
                assert lines[1 + g, place] == (A[row, j] if j >= 0 else 0.0)

    def test_a_group_of_very_different_rows_does_not_lead(self):
        A = np.zeros((41, 200))
        A[0, :160] = 1.0
        A[np.arange(1, 41), np.arange(160, 200)] = 1.0
        assert self.of(linsat.Constraints(A=A, b=1.0)).others == 41

    def test_too_many_rows_are_left_to_torch(self):
        rng = np.random.default_rng(0)
        cons = linsat.Constraints(A=rng.uniform(size=(layout.MOST_OTHER_ROWS + 2, 20)), b=50.0)
        assert "share variables with other rows, more than 256" in self.of(cons)


def problem(objective=None, device="cpu"):
    scores = torch.zeros(1, 2, dtype=F64)
    return untouched_problem(linsat.constraints.simplex(2), objective or linsat.Euclidean(), scores)


def test_it_says_why_it_does_not_take_a_problem(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert TritonBackend().supports(problem()) == "Triton runs on a GPU, not on cpu"
    for other in (linsat.Tsallis(), linsat.Quadratic(np.eye(2))):
        words = f"the Triton kernels know Euclidean, Entropy, KL, not {type(other).__name__}"
        assert TritonBackend().supports(problem(other)) == words
    monkeypatch.setattr(backend, "_installed", lambda: False)
    assert TritonBackend().supports(problem()) == "triton is not installed. Fix: pip install 'linsat[gpu]'"
    with pytest.raises(linsat.ConstraintError, match="backend='triton' cannot be used here: triton is not installed"):
        linsat.project(torch.zeros(2), linsat.constraints.simplex(2), solver=linsat.Newton(backend="triton"))


def test_info_says_whether_there_is_a_gpu_for_it(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert dict(describe_backends())["triton"] == "Triton runs on a GPU, not on cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert dict(describe_backends())["triton"] == "available"
    monkeypatch.setattr(backend, "_installed", lambda: False)
    assert dict(describe_backends())["triton"].startswith("triton is not installed")


def test_float32_steps_are_taken_where_float64_is_slow(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    given = problem()

    class Scores:  # as scores on a GPU look
        device = torch.device("cuda", 0)
        dtype = torch.float32

    class Given:
        scores = Scores

    for capability, mixed in (((8, 0), False), ((9, 0), False), ((8, 6), True), ((8, 9), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert TritonBackend()._is_mixed(Given) is mixed
    assert TritonBackend()._is_mixed(given) is False  # on the CPU
    assert TritonBackend(mixed=True)._is_mixed(given) is True


def test_neither_importing_nor_projecting_on_the_cpu_imports_triton():
    program = (
        "import sys, torch, linsat; linsat.project(torch.zeros(2, 3), linsat.constraints.simplex(3));"
        "print('linsat.triton.forward' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert ran.stdout.strip() == "False", ran.stderr
