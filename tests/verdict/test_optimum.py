"""Nothing that is not the optimum is called converged: answers once accepted, judged by formulas of the fuzzer."""

from dataclasses import replace

import numpy as np
import pytest

import linsat
from fuzz.optimality import TOLERANCE, duality_gap
from fuzz.systems import draw
from linsat.arrays.interior import instances


def test_tsallis_at_its_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices of 1e5 and x next to its bound, where it follows u as steeply as it likes: a gap of 7e-7 was forgiven.

    Newton's method, which often ends better, has no part in it.
    """
    monkeypatch.setattr(instances, "_polished", lambda *_: False)
    asked = {"objective": "tsallis", "alpha": 8.0, "metric": None, "P": None, "each": {}, "dtype": "float64"}
    case = replace(draw(201, 275), **asked).alone(0)
    y = case.scores.reshape(-1, len(case.lower))[0]
    cons = replace(case, shared=True).constraints(linsat)
    solver = linsat.Newton(backend="interior_point")
    found = linsat.solve(y, cons, objective=linsat.Tsallis(8.0, case.tau), solver=solver, on_failure="ignore")
    duals = np.empty(len(case.senses))
    duals[case.order()] = found.duals
    gap = duality_gap(case, 0, y, found.x, duals).relative
    assert not found.converged or gap <= TOLERANCE
    assert gap <= 1e-5  # an answer near enough for the question to be asked
