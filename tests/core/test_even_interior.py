"""`has_even_interior`: seen for the usual families, and never where a linear program finds something forced."""

import numpy as np
import pytest
from scipy.optimize import linprog

import linsat
from linsat.arrays.presolve import has_even_interior
from linsat.objectives import Entropy
from tests.helpers.oracles import random_system
from tests.helpers.statements import form_of

SEEN = {
    "simplex": linsat.constraints.simplex(7),
    "doubly stochastic": linsat.constraints.doubly_stochastic(6),
    "matching": linsat.constraints.matching(5, 4),
    "capacity": linsat.constraints.capacity_assignment(6, 3, 3.0, sizes=np.linspace(0.5, 1.5, 6)),
    "wide box": linsat.Constraints(E=np.ones((1, 4)), f=1.0, lower=-2.0, upper=[3.0, 4.0, 5.0, 6.0]),
}
NOT_SEEN = {
    "two rows force each other": linsat.Constraints(A=[[1.0, 1, 0]], b=1.0, C=[[1.0, 1.0, 0]], d=1.0),
    "sums to nothing": linsat.Constraints(E=np.ones((1, 3)), f=0.0),
    "sums to everything": linsat.Constraints(E=np.ones((1, 3)), f=3.0),
    "a cap that the floor reaches": linsat.Constraints(E=np.ones((1, 4)), f=2.0, A=[[1.0, 1, 0, 0]], b=1.0),
    "a fixed variable": linsat.Constraints(E=np.ones((1, 3)), f=1.0, upper=[1.0, 1.0, 0.0]),
    "no point at all": linsat.Constraints(E=np.ones((1, 3)), f=4.0),
}


def _seen(cons):
    return has_even_interior(form_of(cons, Entropy(0.1)), cons._structure.on("cpu")[2])


def _thickness(system):
    """The largest share of the box, and of one unit of every inequality, by which a point can be inside; by HiGHS."""
    width = system.upper - system.lower
    l = len(width)
    sign = np.array([{"<=": 1.0, ">=": -1.0, "==": 0.0}[sense] for sense in system.senses])
    loose, eye = sign != 0, np.eye(l)
    rows = np.hstack([sign[loose, None] * system.matrix[loose], np.ones((loose.sum(), 1))])
    inside = np.vstack([np.hstack([eye, width[:, None]]), np.hstack([-eye, width[:, None]]), rows])
    ends = np.concatenate([system.upper, -system.lower, (sign * system.rhs)[loose]])
    exact = np.hstack([system.matrix[~loose], np.zeros(((~loose).sum(), 1))])
    found = linprog(
        np.append(np.zeros(l), -1.0), inside, ends, exact, system.rhs[~loose], [(None, None)] * l + [(None, 1.0)]
    )
    return -np.inf if found.x is None else found.x[-1]


@pytest.mark.parametrize("name", SEEN)
def test_seen(name):
    assert _seen(SEEN[name])


@pytest.mark.parametrize("name", NOT_SEEN)
def test_not_seen(name):
    assert not _seen(NOT_SEEN[name])


def test_random_systems_where_it_is_seen_have_an_interior():
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(200):
        system = random_system(rng, str(rng.choice(["positive", "signed", "boundary"])), largest=12, rows=4)
        if rng.random() < 0.5:  # else nothing with an equality would be
            system.rhs = system.matrix.sum(1) * rng.uniform(0.2, 0.8) + np.where(
                [sense == "==" for sense in system.senses],
                0.0,
                np.where([sense == "<=" for sense in system.senses], 1.0, -1.0) * rng.uniform(-0.1, 1.0),
            )
        if _seen(linsat.Constraints(**system.arguments())):
            seen += 1
            assert _thickness(system) > 0
    assert seen > 20
