"""Where nothing bounds x and scores are many temperatures apart, rows may hold to 1e-9 of terms of 1e28 that cannot.

Two rows say a - b = 1 and 2 a - 2 b = 2 or 3, by hand; a and b are as large as scores and temperature make them.
"""

from typing import Any

import numpy as np
import pytest

import linsat
from linsat.status import Status

ROWS, CAN, CANNOT = [[1.0, -1.0, 0.0], [2.0, -2.0, 0.0]], [1.0, 2.0], [1.0, 3.0]
SCORES = np.array([64.0, 64.0, 0.0])
OBJECTIVES: list[linsat.Objective] = [
    linsat.KL(1.0),
    linsat.KL(0.7),
    linsat.KL(2.0),
    linsat.Tsallis(1.1, 0.5),
    linsat.Tsallis(1.1, 0.4),
]
BOX: dict[str, Any] = {"lower": 0.0, "upper": np.inf}


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("instances", [1, 3, 20])
def test_only_what_can_hold_is_solved(objective: linsat.Objective, instances: int) -> None:
    sides = np.array([CANNOT if n % 3 == 0 else CAN for n in range(instances)])
    cons, y = linsat.Constraints(E=ROWS, f=sides, **BOX), np.tile(SCORES, (instances, 1))
    found = linsat.solve(y, cons, objective=objective, on_failure="ignore")
    expected = ["infeasible" if n % 3 == 0 else "converged" for n in range(instances)]
    assert [str(status) for status in found.status] == expected
    assert set(found.solved_by) <= {"newton", "interior_point"}
    if instances > 1:  # a gradient is there for what was solved
        solved = linsat.project(y[1:3], linsat.Constraints(E=ROWS, f=sides[1:3], **BOX), objective=objective)
        np.testing.assert_allclose(solved, found.x[1:3], rtol=1e-12)


def test_such_answers_are_reached() -> None:
    """Else nothing here says anything: rows hold relative to their terms, and by no means to 1e-9."""
    cons = linsat.Constraints(E=ROWS, f=[CAN], **BOX)
    found = linsat.solve(SCORES[None], cons, objective=linsat.Tsallis(1.1, 0.4))
    assert found.x[0, :2].min() > 1e11
    assert np.abs(np.array(ROWS) @ found.x[0] - CAN).max() > 1e-6


def test_inside_jit_it_is_reported() -> None:
    jax = pytest.importorskip("jax")
    from linsat.jax import solve

    with jax.enable_x64(True):
        cons = linsat.Constraints(E=ROWS, f=[CANNOT], **BOX)

        def codes(y):
            return solve(y, cons, objective=linsat.Tsallis(1.1, 0.5), on_failure="ignore").status

        code = int(jax.jit(codes)(jax.numpy.asarray(SCORES[None]))[0])
    assert Status.of(code) != "converged"
