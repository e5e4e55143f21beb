"""The explorer's answers against closed forms, Clarabel, HiGHS and brute force; its exports run elsewhere."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math

import numpy as np
import pytest

from linsat.files import read_model
from linsat.objectives import NAMED
from linsat_tools.explorer.answer import answer
from linsat_tools.explorer.language import parse
from linsat_tools.explorer.polygon import best_vertex, polygon
from linsat_tools.explorer.presets import PRESETS
from tests.helpers.oracles import (
    System,
    elastic,
    entropic_optimum,
    kl_optimum,
    linear_optimum,
    nearest_point,
    slack_free_optimum,
    tsallis_optimum,
)

by_preset = pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
solvable = pytest.mark.parametrize("preset", [p for p in PRESETS if p.name != "infeasible"], ids=lambda p: p.name)


def _ask(preset, objective=None):
    question = {"text": preset.text, "scores": preset.scores, "tau": preset.tau}
    return answer(question | {"objective": objective or preset.objective})


def _prices(found) -> np.ndarray | None:
    """What each row costs per unit, infinite where it is hard; None: all are hard."""
    prices = np.array([np.inf if row["price"] is None else row["price"] for row in found["rows"]])
    return prices if np.isfinite(prices).any() else None


def _system(found) -> System:
    """The answer's own rows as plain numpy."""
    rows = found["rows"]
    return System(
        np.array([row["coefficients"] for row in rows]),
        [row["sense"] for row in rows],
        np.array([row["rhs"] for row in rows]),
        np.zeros(len(found["variables"])),
        np.array(found["lower"]),
        np.array(found["upper"]),
    )


def test_two_variables_on_a_line_have_a_closed_form():
    found = answer({"text": "a + b = 1", "scores": {"a": 0.7, "b": -0.2}, "tau": 0.3})
    expected = 1 / (1 + math.exp(-0.9 / 0.6))  # both odds are shifted alike until they multiply to 1
    assert found["state"] == "solved"
    assert found["x"] == pytest.approx([expected, 1 - expected], abs=1e-9)
    (row,) = found["rows"]
    assert row["dual"] == pytest.approx(-0.25, abs=1e-9)
    assert row["activity"] == pytest.approx(1, abs=1e-9)
    assert found["violation"] < 1e-9


ORACLES = {
    "entropy": entropic_optimum,
    "slack-free-entropy": slack_free_optimum,
    "kl": kl_optimum,
    "tsallis": tsallis_optimum,
    "euclidean": lambda system, scores, tau, price: nearest_point(system, scores / tau, tau, price),
}


@pytest.mark.parametrize("objective", NAMED)
@solvable
def test_presets_have_the_optimum_that_clarabel_finds(preset, objective):
    found = _ask(preset, objective)
    system, prices = _system(found), _prices(found)
    optimum = ORACLES[objective](system, np.array(found["scores"]), preset.tau, prices)
    assert found["status"] == "converged"
    assert optimum is not None
    assert found["x"] == pytest.approx(optimum, abs=2e-5)
    assert found["answers"][objective]["x"] == found["x"]
    for row, gap in zip(found["rows"], system.matrix @ np.array(found["x"]) - system.rhs):
        broken = {"<=": gap, ">=": -gap, "==": abs(gap)}[row["sense"]]
        assert row["violation"] == pytest.approx(max(0.0, broken), abs=1e-7)
        assert row["price"] is not None or broken < 1e-8


def test_the_answers_do_not_depend_on_which_is_chosen():
    preset = PRESETS[0]
    found = {objective: _ask(preset, objective) for objective in NAMED}
    assert all(one["answers"] == found["entropy"]["answers"] for one in found.values())
    assert {objective: one["x"] for objective, one in found.items()} == {
        objective: one["x"] for objective, one in found["entropy"]["answers"].items()
    }


@solvable
def test_presets_tend_to_the_vertex_that_highs_finds(preset):
    found = _ask(preset)
    scores, vertex = np.array(found["scores"]), np.array(found["vertex"])
    system, prices = _system(found), _prices(found)
    whole, cost = elastic(system, prices)
    paid = 0.0
    for row, gap in zip(found["rows"], system.matrix @ vertex - system.rhs):
        broken = max(0.0, {"<=": gap, ">=": -gap, "==": abs(gap)}[row["sense"]])
        assert row["price"] is not None or broken < 1e-8
        paid += 0.0 if row["price"] is None else row["price"] * broken
    best = linear_optimum(whole, np.append(scores, -cost))
    assert scores @ vertex - paid == pytest.approx(best, abs=1e-8)
    for objective, other in found["answers"].items():
        assert other["path"]["tau"][0] == pytest.approx(1e-3)
        assert np.abs(np.array(other["path"]["x"][0]) - vertex).max() < 0.01, objective


def test_without_a_single_best_vertex_none_is_shown():
    assert answer({"text": "a + b = 1", "scores": {"a": 1, "b": 1}})["vertex"] is None
    assert answer({"text": "a + b <= 1", "scores": {"a": 1, "b": 1}})["vertex"] is None
    assert answer({"text": "a + b <= 1", "scores": {"a": 1, "b": 0.9}})["vertex"] == pytest.approx([1, 0])
    assert best_vertex(parse("a + b = 3"), np.array([1.0, 0.0])) is None  # nor where there is no point at all


def test_the_conflict_is_named_in_the_users_words():
    found = _ask(next(preset for preset in PRESETS if preset.name == "infeasible"))
    assert found["state"] == "infeasible"
    assert [found["rows"][i]["name"] for i in found["conflict"]] == [
        "first column",
        "second column",
        "first row",
        "second row",
    ]
    assert "harmless" not in found["message"]
    assert "second row: c + d >= 1.5" in found["message"]
    alone = answer({"text": "a + b <= 1\ntoo much: a >= 2"})
    assert [alone["rows"][i]["line"] for i in alone["conflict"]] == [2]
    assert "cannot hold within the bounds: too much: a >= 2" in alone["message"]


def _corners_by_force(problem) -> list[np.ndarray]:
    """Every meeting point of two lines (rows or sides of the box) that satisfies all rows."""
    lines = [(a, row.rhs) for a, row in zip(problem.matrix(), problem.rows)]
    for i in range(2):
        lines += [(np.eye(2)[i], problem.lower[i]), (np.eye(2)[i], problem.upper[i])]
    found: list[np.ndarray] = []
    for (a, b), (c, d) in itertools.combinations(lines, 2):
        both = np.array([a, c])
        if abs(np.linalg.det(both)) < 1e-9:
            continue
        point = np.linalg.solve(both, [b, d])
        inside = all(low - 1e-7 <= v <= high + 1e-7 for v, low, high in zip(point, problem.lower, problem.upper))
        gaps = problem.matrix() @ point - [row.rhs for row in problem.rows]
        holds = all(
            g <= 1e-7 if row.sense == "<=" else g >= -1e-7 if row.sense == ">=" else abs(g) <= 1e-7
            for g, row in zip(gaps, problem.rows)
        )
        if inside and holds and all(np.abs(point - other).max() > 1e-6 for other in found):
            found.append(point)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_the_polygon_has_the_corners_of_brute_force(seed):
    rng = np.random.default_rng(seed)
    inside = rng.uniform(0.1, 0.9, 2)
    lines = ["-1 <= a <= 1.5", "0 <= b <= 2"]
    for _ in range(rng.integers(0, 5)):
        c, d = rng.integers(-9, 10, 2) / 4
        sense = rng.choice(["<=", ">=", "="], p=[0.45, 0.45, 0.1])
        at = c * inside[0] + d * inside[1] + (0.2 if sense == "<=" else -0.2 if sense == ">=" else 0.0)
        if c or d:
            lines.append(f"{c}*a + {d}*b {sense} {at:.6f}")
    problem = parse("\n".join(lines))
    expected, found = _corners_by_force(problem), [np.array(corner) for corner in polygon(problem)]
    for corner in expected:
        assert min(np.abs(corner - other).max() for other in found) < 1e-6
    assert len(found) == len(expected)
    turns = []
    for p, q, r in zip(found, found[1:] + found[:1], found[2:] + found[:2]):
        turns.append((q - p)[0] * (r - q)[1] - (q - p)[1] * (r - q)[0])
    assert all(turn > -1e-9 for turn in turns)  # in order around it


def test_a_segment_a_point_and_nothing():
    assert sorted(polygon(parse("a + b = 1"))) == [pytest.approx([0, 1]), pytest.approx([1, 0])]
    assert polygon(parse("a + b = 1\na - b = 0")) == [pytest.approx([0.5, 0.5])]
    assert polygon(parse("a + b >= 3")) == []


@pytest.mark.parametrize("objective", NAMED)
@solvable
def test_exported_python_runs_and_gives_the_same_x(preset, objective):
    found = _ask(preset, objective)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found["python"], {})
    assert eval(printed.getvalue(), {"__builtins__": {}}) == pytest.approx(dict(zip(found["variables"], found["x"])))


@by_preset
def test_exported_json_is_a_constraint_file(preset, tmp_path):
    found = _ask(preset)
    path = tmp_path / "constraints.json"
    path.write_text(found["json"], encoding="utf-8")
    model = read_model(path)
    loaded = model.constraints
    assert tuple(model.variables) == tuple(found["variables"])
    names = [row["name"] for row in found["rows"]]
    matrix = loaded.matrix.to_dense()
    for name, sense, rhs, coefficients in zip(loaded.names, loaded.senses, loaded.rhs.tolist(), matrix.tolist()):
        row = found["rows"][names.index(name)]
        assert (row["sense"], row["rhs"], row["coefficients"]) == (sense, rhs, coefficients)
    prices = {name: price for name, price in zip(loaded.names, loaded.price.tolist()) if price < math.inf}
    assert prices == {row["name"]: row["price"] for row in found["rows"] if row["price"] is not None}
    assert len(loaded) == len(names)
    assert np.array_equal(loaded.lower.expand(len(found["variables"])).numpy(), found["lower"])
    assert np.array_equal(loaded.upper.expand(len(found["variables"])).numpy(), found["upper"])


def test_hostile_labels_stay_strings_in_exported_code():
    label = "x'],); import os; ('"
    found = answer({"text": f"{label}: a + b <= 1"})
    namespace: dict = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(found["python"], namespace)
    assert "os" not in namespace
    assert namespace["constraints"].names == (label,)
    assert json.loads(found["json"])["names"] == [label]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (None, "the question is a NoneType"),
        ([], "the question is a list"),
        ({}, "text is a NoneType"),
        ({"text": 3}, "text is a int"),
        ({"text": "a <= 1", "scores": [1]}, "scores is a list"),
        ({"text": "a <= 1", "scores": {"a": "1"}}, "scores.a is '1'; expected a number"),
        ({"text": "a <= 1", "scores": {"a": True}}, "scores.a is True"),
        ({"text": "a <= 1", "scores": {"a": 1e9}}, "from -1000 to 1000"),
        ({"text": "a <= 1", "scores": {"a": float("nan")}}, "scores.a is nan"),
        ({"text": "a <= 1", "scores": {"a": 10**400}}, "scores.a is 1000"),
        ({"text": "a <= 1", "tau": 0}, "tau is 0; expected a number from 0.001 to 10"),
        ({"text": "a <= 1", "tau": None}, "tau is None"),
        (
            {"text": "a <= 1", "objective": "euclid"},
            "objective is 'euclid'; expected one of entropy, slack-free",
        ),
        ({"text": "a <= 1", "objective": ["entropy"]}, "objective is ['entropy']"),
        ({"text": "a <= 1, price 0"}, "line 1, column 15: expected one positive number after 'price'"),
        ({"text": "a <"}, "line 1, column 3"),
    ],
)
def test_wrong_questions_are_answered_by_what_is_wrong(question, said):
    found = answer(question)
    assert found["state"] == "error"
    assert said in found["message"]


def test_nothing_written_is_not_an_error():
    assert answer({"text": "# only a comment\n"}) == {"state": "empty"}


def test_a_variable_without_rows_is_a_plain_sigmoid_in_its_box():
    found = answer({"text": "-1 <= a <= 3", "scores": {"a": 0.25}, "tau": 0.5})
    assert found["x"] == pytest.approx([-1 + 4 / (1 + math.exp(-4 * 0.25 / 0.5))])
    assert found["rows"] == []


def test_rows_that_conflict_are_solved_when_one_has_a_price():
    found = answer({"text": "a + b <= 1\nwish: a + b >= 1.5, price 2", "scores": {"a": 1}, "objective": "euclidean"})
    assert found["state"] == "solved"
    assert sum(found["x"]) == pytest.approx(1.0, abs=1e-9)
    assert found["rows"][1]["violation"] == pytest.approx(0.5, abs=1e-9)
    assert found["rows"][1]["dual"] == pytest.approx(2.0, abs=1e-9)  # its price: it is broken
