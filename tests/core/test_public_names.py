"""The surface a user meets: few names at the top, what was moved says where to, and a set shows what is a user's."""

import pytest

import linsat


def test_few_names_at_the_top():
    assert len(linsat.__all__) <= 30
    assert {"project", "solve", "subject_to", "KL", "Quadratic", "maximum", "norm"} <= set(linsat.__all__)
    assert {"linsat_layer", "init_constraints"} <= set(linsat.__all__)
    for name in linsat.__all__:
        assert getattr(linsat, name).__doc__


@pytest.mark.parametrize("name", ["Status", "LinSATError", "load", "save", "regret", "sinkhorn", "multi_set_sinkhorn"])
def test_a_moved_name_says_where_it_is(name):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'. Fix: linsat\.\S+{name}$") as caught:
        getattr(linsat, name)
    module, _, last = str(caught.value).partition("Fix: linsat.")[2].rpartition(".")
    home = linsat.Constraints if module == "Constraints" else __import__(f"linsat.{module}", fromlist=[last])
    assert callable(getattr(home, last))


def test_a_set_shows_what_is_a_users():
    """The rest, which other modules of the library ask for, has an underscore."""
    shown = [name for name in dir(linsat.Constraints(A=[[1.0]], b=[1.0])) if not name.startswith("_")]
    assert len(shown) <= 29
    assert all(getattr(linsat.Constraints, name).__doc__ for name in shown)
