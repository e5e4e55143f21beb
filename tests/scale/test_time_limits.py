"""Time limits inside a stage: linear programs and interior-point steps stop when the time of the block is over."""

import time

import numpy as np
import pytest
import torch

import linsat
from linsat.plan import plan_of
from linsat.verdict.programs import linear_program
from linsat.verdict.system import Deadline, OutOfTime, time_left, time_limit

# x0 + x1 + x2 <= 1 and x0 + x1 >= 1 force x2 to 0 together, which takes a linear program to see.
FORCING = {"A": [[1.0, 1.0, 1.0]], "b": [1.0], "C": [[1.0, 1.0, 0.0]], "d": [1.0]}


def test_a_linear_program_ends_with_the_block_around_it():
    with time_limit(Deadline(0)), pytest.raises(OutOfTime):
        linear_program(np.ones(1), bounds=[(0, 1)])
    assert linear_program(np.ones(1), bounds=[(0, 1)]).status == 0
    assert time_left() == np.inf


def test_a_long_linear_program_is_stopped_midway():
    rng = np.random.default_rng(0)
    matrix = rng.random((1200, 1200))  # more than a second of HiGHS
    began = time.process_time()
    with time_limit(Deadline(0.2)), pytest.raises(OutOfTime):
        linear_program(-rng.random(1200), A_ub=matrix, b_ub=matrix.sum(1) / 3, bounds=[(0, 1)] * 1200)
    assert time.process_time() - began < 10


def test_an_interior_point_step_ends_with_it():
    cons = linsat.Constraints(**FORCING)
    solver = linsat.Newton(backend="interior_point")
    with time_limit(Deadline(0)), pytest.raises(OutOfTime):
        linsat.solve(torch.zeros(3), cons, objective=linsat.Euclidean(), solver=solver)
    assert linsat.solve(torch.ones(3), cons, objective=linsat.Euclidean(), solver=solver).converged


def test_what_was_cut_short_is_not_kept():
    cons = linsat.Constraints(**FORCING)
    plan = plan_of(cons, linsat.Entropy(), linsat.Newton(), 3)
    with time_limit(Deadline(0)), pytest.raises(OutOfTime):
        plan.decided()
    assert plan.unpack(plan.decided(), plan.form(plan.numbers)).free.tolist() == [[True, True, False]]


def test_advice_names_box_width_and_scale():
    cons, scores = linsat.constraints.doubly_stochastic(3), torch.arange(9.0) ** 2
    with pytest.raises(linsat.ConvergenceError) as caught:
        linsat.project(scores, cons, tau=1e-3, solver=linsat.Newton(max_steps=1))
    for words in ("max_steps", "box width * largest score / tau", "Narrow the box", "similar scale"):
        assert words in str(caught.value)


def test_rejection_of_unbounded_variables_suggests_a_box_and_the_nearest_point():
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=[1.0], lower=-np.inf, upper=[1.0, np.inf])
    with pytest.raises(linsat.ConstraintError, match=r"for each such variable.*objective=linsat\.Euclidean\(\)"):
        linsat.project(torch.zeros(2), cons)
