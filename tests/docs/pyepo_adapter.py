"""The adapter for PyEPO against the optima of PyEPO's own models; run as a script by test_arena."""

from __future__ import annotations

import pytest
import torch

import linsat
from arena import decisions
from linsat.interop.pyepo import FenchelYoung, constraints_of


def main() -> None:
    task = decisions.Task("shortest path", train=6, test=2, grid=(3, 4))
    model, _, c = task.data(5)
    cons = constraints_of(model)
    for costs in c:
        model.setObj(costs)
        _, best = model.solve()
        x = linsat.argmax(-costs.astype(float), cons)
        assert x @ costs == pytest.approx(best, rel=1e-5)
    t = linsat.argmax(-torch.from_numpy(c), cons)
    predicted = torch.from_numpy(c) + 0.1
    expected = linsat.fenchel_young_loss(-predicted, t, cons, tau=0.5)
    assert FenchelYoung(model, tau=0.5)(predicted, t).item() == pytest.approx(expected.item())
    sack, _, values = decisions.Task("knapsack", train=4, test=2, items=6).data(3)
    relaxed = decisions._relaxed(sack)
    for value in values:
        relaxed.setObj(value)
        _, best = relaxed.solve()
        assert linsat.argmax(value.astype(float), constraints_of(sack)) @ value == pytest.approx(best, rel=1e-5)
    assert FenchelYoung(sack).sign == 1.0
    for wrong, words in (
        (lambda: FenchelYoung("model"), "optmodel is str"),
        (lambda: FenchelYoung(model, constraints=linsat.constraints.simplex(3)), "one variable for each cost"),
        (lambda: constraints_of(object()), "the rows of object are not known"),
    ):
        with pytest.raises(linsat.ConstraintError, match=words):
            wrong()
    print("agrees")


if __name__ == "__main__":
    main()
