"""`linsat check`: verdicts against linear programs and brute force, in words and as JSON."""

from __future__ import annotations

import contextlib
import importlib.util
import json

import numpy as np
import pytest
from scipy.optimize import linprog

pytest.importorskip("typer")

import linsat
from linsat import machine
from linsat.native import binding
from linsat.verdict.system import Deadline
from linsat_tools.cli import main
from linsat_tools.cli.analysis import forced_variables, redundant_rows, temperatures
from tests.helpers.oracles import random_system


def _check(capsys, *arguments: str) -> tuple[int, dict]:
    try:
        code = main(["check", *arguments, "--json"])
    except SystemExit as stop:
        code = stop.code
    return code, json.loads(capsys.readouterr().out)


def _range(system, variable=None, row=None, without=()) -> tuple[float, float]:
    """Least and largest value of a variable or row over the set without some rows, by HiGHS."""
    direction = np.eye(system.matrix.shape[1])[variable] if row is None else system.matrix[row]
    keep = [i for i in range(len(system.rhs)) if i not in without]
    sign = np.array([-1.0 if system.senses[i] == ">=" else 1.0 for i in keep])
    loose = np.array([system.senses[i] != "==" for i in keep], dtype=bool)
    matrix, rhs = sign[:, None] * system.matrix[keep], sign * system.rhs[keep]
    ends = []
    for way in (1.0, -1.0):
        found = linprog(
            way * direction,
            A_ub=matrix[loose] if loose.any() else None,
            b_ub=rhs[loose] if loose.any() else None,
            A_eq=matrix[~loose] if (~loose).any() else None,
            b_eq=rhs[~loose] if (~loose).any() else None,
            bounds=list(zip(system.lower, system.upper)),
        )
        assert found.status == 0
        ends.append(way * found.fun)
    return ends[0], ends[1]


@pytest.mark.parametrize("seed", range(6))
def test_forced_variables_are_those_without_a_range(seed):
    system = random_system(np.random.default_rng(seed), "boundary", largest=8, rows=6)
    found = {f.variable: f.value for f in forced_variables(linsat.Constraints(**system.arguments()))}
    ranges = [_range(system, variable=i) for i in range(system.matrix.shape[1])]
    assert set(found) == {i for i, (low, high) in enumerate(ranges) if high - low < 1e-7}
    for variable, value in found.items():
        assert value == pytest.approx(ranges[variable][0], abs=1e-7)


def test_a_variable_forced_between_its_bounds():
    cons = linsat.Constraints(E=[[1, 2, 0], [2, 1, 0]], f=[1.2, 1.2])  # the only solution has x0 = x1 = 0.4
    found = {f.variable: f.value for f in forced_variables(cons)}
    assert found == pytest.approx({0: 0.4, 1: 0.4}, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_redundant_rows_follow_from_the_rest(seed):
    rng = np.random.default_rng(100 + seed)
    system = random_system(rng, "signed", largest=5, rows=4)
    # A multiple of a row, loosened, and a sum of two: both follow.
    system.matrix = np.vstack([system.matrix, 2 * system.matrix[:1]])
    system.rhs = np.append(system.rhs, 2 * system.rhs[0] + {"<=": 0.3, ">=": -0.3, "==": 0.0}[system.senses[0]])
    system.senses.append(system.senses[0])
    cons = linsat.Constraints(**system.arguments())
    order = [i for sense in ("<=", ">=", "==") for i, s in enumerate(system.senses) if s == sense]
    found = [order[i] for i in redundant_rows(cons, 60.0, lambda done, total: None)]
    assert found

    def excess(row: int, without: list[int]) -> float:
        low, high = _range(system, row=row, without=without)
        sense, side = system.senses[row], system.rhs[row]
        return max(high - side if sense != ">=" else 0.0, side - low if sense != "<=" else 0.0)

    for row in found:  # all at once
        assert excess(row, found) < 1e-6
    for row in set(range(len(system.rhs))) - set(found):  # and no other besides
        assert excess(row, [*found, row]) > 1e-6


def test_in_words(tmp_path, capsys):
    content = {
        "version": 1,
        "variables": ["[red]apples", "pears", "plums"],
        "A": [[3, 1, 4], {"[red]apples": 1, "pears": 1}, {"[red]apples": 2}],
        "b": [4, 5, 0],
        "E": [{"pears": 1, "plums": 1}],
        "f": 1.5,
        "names": ["budget", "loose", "no apples", "both"],
    }
    (tmp_path / "fruit.json").write_text(json.dumps(content))
    assert main(["check", str(tmp_path / "fruit.json")]) == 0
    shown = capsys.readouterr().out
    assert "3 variables, 4 rows (3 <=, 1 ==)" in shown
    assert "feasible: some point of the box satisfies every row" in shown
    assert "forced variables: 1\n  [red]apples = 0\n" in shown  # names are no markup
    assert "  loose: [red]apples + pears <= 5\n" in shown
    assert "tau: " in shown


def test_conflicting_rows_are_named_and_minimal(tmp_path, capsys):
    content = {
        "version": 1,
        "variables": ["a", "b", "c"],
        "A": [[3, 1, 4], {"a": 1, "b": 1}],
        "b": [1, 1],
        "C": [{"b": 1, "c": 1}],
        "d": 1.5,
        "names": ["budget", "innocent", "enough"],
    }
    (tmp_path / "set.json").write_text(json.dumps(content))
    code, found = _check(capsys, str(tmp_path / "set.json"))
    assert code == 1
    assert found["feasible"] is False
    assert found["conflict_is_minimal"] is True
    assert found["conflict"] == [
        {"row": "budget", "text": "3 a + b + 4 c <= 1"},
        {"row": "enough", "text": "b + c >= 1.5"},
    ]
    with pytest.raises(SystemExit) as caught:
        main(["check", str(tmp_path / "set.json")])
    assert caught.value.code == 1
    assert "these rows cannot hold together" in capsys.readouterr().out


def test_instances_are_judged_one_by_one(tmp_path, capsys):
    cons = linsat.constraints.budget([2.0, 3.0], at_most=5.0).with_rhs(b=[[5.0], [-1.0], [1.0], [-2.0]])
    cons.save(tmp_path / "set.npz")
    code, found = _check(capsys, str(tmp_path / "set.npz"))
    assert (code, found["feasible"], found["infeasible_instances"]) == (1, False, [1, 3])
    cons.with_rhs(b=[[5.0], [1.0]]).save(tmp_path / "set.npz")
    code, found = _check(capsys, str(tmp_path / "set.npz"))
    assert (code, found["feasible"], found["infeasible_instances"]) == (0, True, [])


def test_the_range_of_tau_scales_with_the_scores():
    cons = linsat.constraints.top_k(20, 4)
    scores = np.random.default_rng(0).normal(size=20)
    one, ten = (temperatures(cons, size * scores, 60.0) for size in (1.0, 10.0))
    assert one.from_objective
    assert ten.lowest == pytest.approx(10 * one.lowest)
    assert ten.highest == pytest.approx(10 * one.highest)
    # What the range claims, checked by the sigmoid of the closed form of top-k: its multiplier by bisection.
    for tau, decided in ((one.lowest / 10, True), (one.highest * 10, False)):
        low, high = -1e3, 1e3
        for _ in range(200):
            middle = (low + high) / 2
            x = 1 / (1 + np.exp(-np.clip((scores + middle) / tau, -700, 700)))
            low, high = (middle, high) if x.sum() < 4 else (low, middle)
        assert (np.abs(x - 0.2).max() > 0.75) == decided
    assert temperatures(linsat.Constraints(E=[[1.0, 1.0]], f=2.0), None, 60.0) is None  # nothing is left to decide


def test_an_lp_model_with_an_objective(tmp_path, capsys):
    pytest.importorskip("highspy")
    text = "Maximize\n obj: 30 x + 10 y\nSubject To\n c: x + y <= 1.5\nBinaries\n x\n y\nEnd\n"
    (tmp_path / "m.lp").write_text(text)
    code, found = _check(capsys, str(tmp_path / "m.lp"))
    assert code == 0
    assert "2 integer variables are relaxed" in found["notes"][0]
    assert found["tau"]["scores"] == "objective"
    assert found["tau"]["for_scores_of_spread"] == pytest.approx(10.0)


def test_out_of_time_is_said(tmp_path, capsys):
    linsat.constraints.doubly_stochastic(4).save(tmp_path / "set.json")
    code, found = _check(capsys, str(tmp_path / "set.json"), "--seconds", "0")
    assert code == 3
    assert (found["feasible"], found["redundant"], found["tau"]) == (None, None, None)
    with pytest.raises(SystemExit) as caught:
        main(["check", str(tmp_path / "set.json"), "--seconds", "0"])
    assert caught.value.code == 3
    shown = capsys.readouterr().out
    assert "unknown: time ran out" in shown
    assert "feasible" not in shown
    with pytest.raises(SystemExit) as caught:
        main(["check", str(tmp_path / "set.json"), "--seconds", "nan"])
    assert caught.value.code == 2


def test_one_of_the_rows_of_a_doubly_stochastic_matrix_is_redundant(tmp_path, capsys):
    linsat.constraints.doubly_stochastic(3).save(tmp_path / "set.json")
    _, found = _check(capsys, str(tmp_path / "set.json"))
    assert len(found["redundant"]) == 1  # rank 2 n - 1
    assert found["forced"] == []


def test_every_stage_of_check_says_that_time_ran_out():
    cons = linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=[1.0], C=[[1.0, 1.0, 0.0]], d=[1.0])
    assert forced_variables(cons, Deadline(0)) is None
    assert redundant_rows(cons, 0.0, lambda done, total: None) is None
    assert temperatures(cons, None, 0.0) is None
    assert [f.variable for f in forced_variables(cons)] == [2]


def test_info_names_versions(capsys):
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    assert f"numpy        {np.__version__}" in shown


@pytest.mark.parametrize("kernel", [binding.load(), "turned off"])
def test_info_says_of_each_back_end_whether_it_can_be_used(capsys, monkeypatch, kernel):
    monkeypatch.setattr(machine, "load", lambda: kernel)
    assert main(["info"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.split("back ends\n")[1].splitlines())
    usable = not isinstance(kernel, str)
    assert shown["kernel"].startswith("available (" if usable else f"not available: {kernel}")
    assert shown["arrays"].startswith("available on cpu")
    assert shown["interior_point"] == "available"
    if importlib.util.find_spec("jax") is None:
        assert shown["xla"].startswith("not available: linsat.jax needs jax")
    elif isinstance(binding.load(), str):
        assert shown["xla"].startswith("not available, JAX runs lax operations: ")
    else:
        assert shown["xla"] == "available: JAX runs the kernel"


def test_warmup_projects_with_every_objective_and_says_where(capsys):
    assert main(["warmup"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:22].strip() for line in lines] == ["entropy", "slack-free-entropy", "kl", "tsallis", "euclidean"]
    back_end = "kernel" if binding.unavailable() is None else "arrays"
    assert all(line.split()[-3:-2] == [back_end] and line.endswith(" s") for line in lines)


FREE_MPS = """NAME          FREE
ROWS
 N  COST
 L  CAP
 G  NEED
COLUMNS
    X         COST         1.0   CAP          1.0
    X         NEED         1.0
    Y         CAP          1.0   NEED         1.0
RHS
    RHS       CAP          4.0   NEED         {need}
BOUNDS
 FR BND       X
ENDATA
"""


@pytest.mark.parametrize(("need", "code"), [("3.0", 0), ("4.0000001", 1)])
def test_infinite_bounds_need_no_box(need, code, tmp_path, capsys):
    pytest.importorskip("highspy")
    # Text behind ENDATA is no part of the model, as other readers have it.
    (tmp_path / "m.mps").write_text(FREE_MPS.format(need=need) + "\nnan: written by hand\n")
    got, found = _check(capsys, str(tmp_path / "m.mps"))
    assert (got, found["feasible"], found["tau"]) == (code, code == 0, None)
    assert [entry["row"] for entry in found["conflict"]] == ([] if code == 0 else ["CAP", "NEED"])
    assert found["conflict_is_minimal"] is (code == 1)
    with contextlib.suppress(SystemExit):
        main(["check", str(tmp_path / "m.mps")])
    shown = capsys.readouterr().out
    assert ("tau: not tried; 2 variables have an infinite bound" in shown) == (code == 0)
    assert ("objective=linsat.Euclidean() needs none" in shown) == (code == 0)


def test_bounds_from_the_box_are_named(tmp_path, capsys):
    pytest.importorskip("highspy")
    (tmp_path / "m.mps").write_text(FREE_MPS.format(need="3.0"))
    got, found = _check(capsys, str(tmp_path / "m.mps"), "--box", "-1", "1")
    assert got == 1
    assert [entry["row"] for entry in found["conflict"]] == ["NEED"]
    assert found["conflict_bounds"] == ["X <= 1 (from the box)", "Y <= 1 (from the box)"]
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path / "m.mps"), "--box", "-1", "1"])
    assert "together with these bounds:\n  X <= 1 (from the box)" in capsys.readouterr().out


def test_projecting_asks_for_finite_bounds(tmp_path, capsys):
    pytest.importorskip("highspy")
    (tmp_path / "m.mps").write_text(FREE_MPS.format(need="3.0"))
    np.save(tmp_path / "y.npy", np.zeros((1, 2)))
    files = [
        "--constraints",
        str(tmp_path / "m.mps"),
        "--scores",
        str(tmp_path / "y.npy"),
        "--out",
        str(tmp_path / "x.npy"),
    ]
    with pytest.raises(SystemExit) as caught:
        main(["project", *files])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "variable X (and 1 more) lies between -inf and inf" in said
    assert "linsat.Euclidean()" in said
    assert "--box" in said
