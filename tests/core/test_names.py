"""Names, shapes and labels: of variables and rows, in scores, answers, messages and files."""

import copy
import pickle

import numpy as np
import pytest
import torch

import linsat
from linsat.constraints.names import family_shape, rows_named
from tests.helpers.arithmetic import assert_same_answer
from tests.helpers.oracles import System, nearest_point

F64 = torch.float64
DAYS = ["Mon", "Tue", "Wed"]


def roster(**names):
    """Two people, three days, one on each day; nobody more than two."""
    works = linsat.Variable(["Ann", "Bob"], DAYS, name="works", **names)
    return linsat.subject_to((works.sum(0) == 1).named("staffed"), (works.sum(1) <= 2).named("at most 2"))


def pair():
    """A matrix and a vector: what is missing on a day is bought."""
    works, off = linsat.Variable(2, 3, name="works"), linsat.Variable(3, name="off", upper=4.0)
    return linsat.subject_to((works.sum(0) + off == 2).named("staffed"), (works.sum(1) <= 1.5).named("cap"))


def scores(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------ shapes


def test_scores_in_the_shape_of_the_variable_come_back_in_it():
    cons = roster()
    y = scores(4, 2, 3)
    x = linsat.project(y, cons, objective=linsat.Euclidean())
    assert x.shape == (4, 2, 3)
    rows = np.vstack([np.kron(np.eye(2), np.ones((1, 3))), np.kron(np.ones((1, 2)), np.eye(3))])
    system = System(rows, ["<="] * 2 + ["=="] * 3, np.array([2.0, 2.0, 1.0, 1.0, 1.0]), np.full(6, 0.5))
    for instance in range(4):
        expected = nearest_point(system, y[instance].reshape(-1).numpy())
        np.testing.assert_allclose(x[instance].reshape(-1), expected, atol=1e-6)
    assert torch.equal(x.reshape(4, 6), linsat.project(y.reshape(4, 6), cons, objective=linsat.Euclidean()))
    assert_same_answer(x[0], linsat.project(y[0], cons, objective=linsat.Euclidean()))


def test_several_variables_take_and_give_a_dict():
    cons = pair()
    y = {"works": scores(4, 2, 3), "off": scores(3)}
    x = linsat.project(y, cons)
    assert {name: tuple(part.shape) for name, part in x.items()} == {"works": (4, 2, 3), "off": (4, 3)}
    flat = torch.cat([y["works"].reshape(4, 6), y["off"].expand(4, 3)], dim=-1)
    together = linsat.project(flat, cons)
    assert torch.equal(torch.cat([x["works"].reshape(4, 6), x["off"]], dim=-1), together)
    for name, part in cons.unstack(together).items():
        assert torch.equal(part, x[name])
    torch.testing.assert_close(x["works"].sum(1) + x["off"], torch.full((4, 3), 2.0, dtype=F64))
    arrays = linsat.project({name: part.numpy() for name, part in y.items()}, cons)
    assert all(isinstance(arrays[name], np.ndarray) for name in ("works", "off"))
    np.testing.assert_array_equal(arrays["off"], x["off"].numpy())


def test_gradients_through_shapes_and_dicts():
    works, off = scores(2, 2, 3).requires_grad_(), scores(2, 3, seed=1).requires_grad_()

    def both(w, o):
        x = linsat.project({"works": w, "off": o}, pair(), tau=0.5)
        return x["works"], x["off"]

    assert torch.autograd.gradcheck(both, (works, off))
    assert torch.autograd.gradcheck(lambda w: linsat.project(w, roster(), tau=0.5), (works,))


@pytest.mark.parametrize("shape", [(1, 5), (1, 1, 5), (5,), (1,), ()])
def test_an_array_as_long_as_all_variables_is_flat(shape):
    """Where both readings are possible, x is the same and the batch is that of the flat reading."""
    X = linsat.Variable(*shape, name="X")
    cons = linsat.subject_to(X.sum() <= 0.7)
    size = int(np.prod(shape))
    flat = scores(3, size)
    x = linsat.project(flat, cons)
    assert x.shape == (3, size)
    shaped = linsat.solve(flat.reshape(3, *shape), cons)
    assert shaped.x.shape == (3, *shape)
    assert torch.equal(shaped.x.reshape(3, size), x)
    by_name = linsat.solve({"X": flat.reshape(3, *shape)}, cons)
    assert by_name.status.shape == (3,)


def test_solution_decoders_and_violation_keep_the_shape():
    cons, y = roster(), scores(4, 2, 3)
    solution = linsat.solve(y, cons)
    assert solution.x.shape == (4, 2, 3)
    assert solution.status.shape == (4,)
    assert solution.duals.shape == (4, 5)
    assert "x (4, 2, 3)" in repr(solution)
    half = torch.full((2, 3), 0.25, dtype=F64)  # by hand: every day misses half a nurse
    assert cons.row_violation(half).tolist() == [0.0, 0.0, 0.5, 0.5, 0.5]
    assert float(cons.violation(half)) == 0.5
    dictionary = linsat.solve({"works": y, "off": scores(4, 3)}, pair())
    assert repr(dictionary).startswith("Solution(works (4, 2, 3), off (4, 3): 4 converged")
    np.testing.assert_array_equal(dictionary.violation, pair().violation(dictionary.x))
    decided = linsat.decode.greedy_repair(solution.x, cons)
    assert decided.x.shape == (4, 2, 3)
    assert repr(decided).startswith("Decoded(x (4, 2, 3): 4 of 4 feasible; worst violation 0.0")
    assert "\n" not in repr(decided)
    square = linsat.constraints.permutation(3)
    found = linsat.decode.hungarian(scores(5, 3, 3), square)  # the set knows the shape
    assert found.x.shape == (5, 3, 3)
    assert bool(found.feasible.all())
    rounded = linsat.decode.rounding({"works": y, "off": torch.zeros(4, 3, dtype=F64)}, pair())
    assert sorted(rounded.x) == ["off", "works"]
    assert repr(linsat.decode.top_k(scores(4), 2)) == "Decoded(x (4,))"


def test_bounds_and_weights_in_the_shape_of_the_variable():
    cons, y = roster(), scores(4, 2, 3)
    upper = torch.ones(2, 3, dtype=F64)
    upper[0, 1] = 0.0
    x = linsat.project(y, cons.with_bounds(upper=upper))
    assert bool((x[:, 0, 1] == 0).all())
    assert bool((x[:, 1, 1] == 1).all())
    two = pair().with_bounds(upper={"off": 0.25})
    assert two.upper.tolist() == [1.0] * 6 + [0.25] * 3
    weights = torch.tensor([[1.0, 2.0, 3.0], [4.0, 1.0, 1.0]], dtype=F64)
    shaped = linsat.project(y, cons, objective=linsat.Euclidean(weights=weights))
    flat = linsat.project(y, cons, objective=linsat.Euclidean(weights=weights.reshape(-1)))
    assert torch.equal(shaped, flat)


def test_project_each_takes_shapes_and_dicts():
    sets = [roster(), roster().with_rhs(f=[1.0, 0.5, 1.0]), pair()]
    ys = [scores(4, 2, 3), scores(4, 2, 3, seed=1), {"works": scores(2, 3), "off": scores(3)}]
    together = linsat.project_each(ys, sets)
    for x, y, cons in zip(together[:2], ys[:2], sets[:2], strict=True):
        torch.testing.assert_close(x, linsat.project(y, cons))
    assert together[2]["works"].shape == (2, 3)


def test_families_over_a_matrix_have_its_shape():
    for cons, shape in (
        (linsat.constraints.doubly_stochastic(3), (3, 3)),
        (linsat.constraints.matching(2, 4), (2, 4)),
        (linsat.constraints.capacity_assignment(4, 2, 3), (4, 2)),
        (linsat.constraints.ranking(3), (3, 3)),
        (linsat.constraints.tour(4, 0, 3), (4, 4)),
    ):
        x = linsat.project(scores(2, *shape), cons)
        assert x.shape == (2, *shape)
        assert float(cons.violation(x).max()) < 1e-8


def test_matrices_take_variables_too():
    X = linsat.Variable(2, 3, name="X")
    rows = np.kron(np.eye(2), np.ones((1, 3)))
    cons = linsat.Constraints(A=rows, b=1.0, variables=[X])
    assert cons.row_text(1) == "X[1, 0] + X[1, 1] + X[1, 2] <= 1"
    assert linsat.project(scores(7, 2, 3), cons).shape == (7, 2, 3)
    fruit = linsat.Constraints(A=[[3, 1, 4]], b=4, variables=["apples", "pears", "plums"])
    assert fruit.row_text(0) == "3 apples + pears + 4 plums <= 4"


# ------------------------------------------------------------------ transforms


def test_vmap_and_copies_keep_shapes():
    layer, y = linsat.LinSAT(roster(), tau=0.3), scores(4, 2, 3)
    expected = layer(y)
    assert torch.allclose(torch.func.vmap(layer)(y), expected, atol=1e-12)
    jacobian = torch.func.jacrev(layer)(y[0])
    assert jacobian.shape == (2, 3, 2, 3)
    both = linsat.LinSAT(pair(), tau=0.3)
    parts = {"works": y, "off": scores(4, 3)}
    mapped = torch.func.vmap(both)(parts)
    for name, x in both(parts).items():
        assert torch.allclose(mapped[name], x, atol=1e-12)
    for other in (copy.copy(layer.constraints), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        cons = getattr(other, "constraints", other)
        assert cons._layout == roster()._layout
        assert torch.equal(linsat.project(y, cons, tau=0.3), expected)


# ------------------------------------------------------------------ names and labels


def test_rows_and_variables_are_called_by_name_and_label():
    cons = roster()
    assert cons.names == ("at most 2[Ann]", "at most 2[Bob]", "staffed[Mon]", "staffed[Tue]", "staffed[Wed]")
    assert cons.row_text(3) == "works[Ann, Tue] + works[Bob, Tue] == 1"
    assert cons._variable_name(4) == "works[Bob, Tue]"
    assert repr(cons).splitlines()[0].startswith("Constraints(works (2, 3): 6 variables in [0, 1], 5 rows")
    numbered = linsat.subject_to((linsat.Variable(4, 5, name="works").sum(1) <= 1).named("cap"))
    assert numbered._variable_name(15) == "works[3, 0]"


def test_labels_follow_indexing_sums_and_arithmetic():
    works = linsat.Variable(["Ann", "Bob", "Cid"], DAYS, 2, name="works")
    assert works["Bob"].labels == (tuple(DAYS), None)
    assert works[:, "Tue", 0].labels == (("Ann", "Bob", "Cid"),)
    assert works[..., ["Mon", "Wed"], :].labels == (("Ann", "Bob", "Cid"), ("Mon", "Wed"), None)
    assert works[np.array([True, False, True])].labels[0] == ("Ann", "Cid")
    assert works.sum(2).T.labels == (tuple(DAYS), ("Ann", "Bob", "Cid"))
    assert works.sum((0, 2)).labels == (tuple(DAYS),)
    assert works.diff(axis=1).labels[1] == ("Tue", "Wed")
    assert (works[:, 1:] - works[:, :-1]).labels[1] == ("Tue", "Wed")
    assert (2 * works - 1).labels == works.labels
    assert (np.ones(3) @ works.sum(2)).labels == (tuple(DAYS),)
    assert (works.sum(2) @ np.ones(3)).labels == (("Ann", "Bob", "Cid"),)
    assert (works.sum(2) + np.zeros((4, 3, 3))).labels == (None, ("Ann", "Bob", "Cid"), tuple(DAYS))
    assert works.flatten().labels == (None,)
    assert works[None, "Ann"].shape == (1, 3, 2)


def test_named_takes_one_name_or_one_per_row():
    X = linsat.Variable(2, 2, name="X")
    assert linsat.subject_to((X <= 1).named("cap")).names == ("cap[0, 0]", "cap[0, 1]", "cap[1, 0]", "cap[1, 1]")
    assert linsat.subject_to((X.sum(0) <= 1).named(["left", "right"])).names == ("left", "right")


def test_families_of_rows_are_found_by_name():
    X = linsat.Variable(2, 3, name="X")
    cons = linsat.subject_to((X <= 0.5).named("cap"), (X.sum() >= 1).named("total"), X[0, 0] == 0)
    assert rows_named(cons, "cap") == [0, 1, 2, 3, 4, 5]
    assert rows_named(cons, "cap[1, 0]") == [3]
    assert rows_named(cons, "total") == [6]
    assert rows_named(linsat.Constraints(A=np.eye(2), b=1.0), "A") == [0, 1]
    mixed = linsat.Constraints(A=np.eye(3), b=1.0, names=["cap", "cap[0]", "cap more"])
    assert rows_named(mixed, "cap") == [0, 1]  # all that share the name
    assert family_shape(cons.names[:6]) == (2, 3)
    assert family_shape(cons.names[1:6]) == (5,)  # one is missing: no array
    assert family_shape(["total"]) == ()
    assert family_shape(["same", "same"]) == (2,)


@pytest.mark.parametrize("value", [2.5, [1.0, 2.0], np.ones((7, 2)), np.ones((7, 1, 2))])
def test_right_hand_sides_by_name(value):
    cons = roster()
    expected = cons.right_sides["b"].numpy() * 0 + np.asarray(value, dtype=float)
    changed = cons.with_rhs({"at most 2": value})
    np.testing.assert_array_equal(changed.right_sides["b"], expected)
    np.testing.assert_array_equal(changed.right_sides["f"], cons.right_sides["f"])
    assert changed.names == cons.names
    assert changed._layout == cons._layout
    np.testing.assert_array_equal(cons.with_rhs(b=expected).rhs, changed.rhs)


def test_right_hand_sides_in_the_shape_of_the_rows():
    X = linsat.Variable(2, 3, name="X")
    cons = linsat.subject_to((X <= 0.5).named("cap"), (X.sum() <= 2).named("total"))
    caps = torch.rand(4, 2, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    totals = torch.tensor([1.0, 1.5, 2.0, 2.5], dtype=F64)  # one row: one number per instance
    changed = cons.with_rhs({"cap": caps, "total": totals})
    assert torch.equal(changed.right_sides["b"], torch.cat([caps.reshape(4, 6), totals[:, None]], dim=-1))
    assert torch.equal(cons.with_rhs({"cap[1, 2]": 0.1}).rhs, torch.tensor([0.5] * 5 + [0.1, 2.0], dtype=F64))
    x = linsat.project(scores(4, 2, 3), changed)
    assert bool((x <= caps + 1e-9).all())


def test_a_layer_takes_right_hand_sides_by_name_with_gradients():
    layer, y = linsat.LinSAT(roster(), tau=0.5), scores(3, 2, 3)
    caps = torch.full((3, 2), 1.7, dtype=F64, requires_grad=True)
    staff = torch.tensor([1.0, 0.8, 0.9], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c, s: layer(y, rhs={"at most 2": c, "staffed": s}), (caps, staff))
    x = layer(y, rhs={"staffed": 0.5})
    torch.testing.assert_close(x.sum(1), torch.full((3, 3), 0.5, dtype=F64))


def test_names_and_shapes_survive_joins():
    named, plain = roster(), linsat.Constraints(A=np.ones((1, 6)), b=3.5)
    for joined in (named & plain, plain & named):
        assert joined._layout == named._layout
        assert linsat.project(scores(4, 2, 3), joined).shape == (4, 2, 3)
    square = linsat.subject_to(linsat.Variable(6, name="flat").sum() <= 3.5)
    assert (named & square)._layout == named._layout
    assert (square & named)._layout == square._layout
    changed = named.with_bounds(upper=0.9).with_rhs(f=0.8)
    assert (changed._layout, changed.names) == (named._layout, named.names)


# ------------------------------------------------------------------ expressions


def test_means_differences_and_running_sums_are_those_of_numpy():
    X = linsat.Variable(3, 4, name="X")
    point = np.random.default_rng(0).random((3, 4))

    def value(expression):
        return (expression.terms[X] @ point.reshape(-1)).reshape(expression.shape)

    for expression, expected in (
        (X.sum(dim=0), point.sum(0)),
        (X.sum(axis=(0, 1)), point.sum()),
        (np.sum(X), point.sum()),
        (np.sum(X, axis=1), point.sum(1)),
        (X.mean(), point.mean()),
        (X.mean(dim=-1), point.mean(-1)),
        (np.mean(X, 0), point.mean(0)),
        (X.diff(), np.diff(point)),
        (np.diff(X, axis=0), np.diff(point, axis=0)),
        (X.diff(n=2, dim=1), np.diff(point, n=2)),
        (np.cumsum(X), np.cumsum(point)),
        (X.cumsum(axis=0), point.cumsum(0)),
        (X.cumsum(dim=1), point.cumsum(1)),
        (X[0].cumsum(0), point[0].cumsum()),
    ):
        assert expression.shape == np.shape(expected)
        np.testing.assert_allclose(value(expression), expected, atol=1e-12)


# ------------------------------------------------------------------ files and the command line


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_files_keep_names_shapes_and_labels(tmp_path, ending):
    for cons in (roster(), pair(), linsat.Constraints(A=[[1, 2]], b=1, variables=["a", "b"])):
        cons.save(tmp_path / f"c.{ending}")
        back = linsat.Constraints.load(tmp_path / f"c.{ending}")
        assert (back._layout, back.names) == (cons._layout, cons.names)
        assert torch.equal(back.matrix.to_dense(), cons.matrix.to_dense())


def test_an_lp_file_has_the_names_as_far_as_it_can(tmp_path):
    pytest.importorskip("highspy")
    roster().save(tmp_path / "c.lp")
    back = linsat.Constraints.load(tmp_path / "c.lp")
    assert set(back._layout.entries()) == {f"works_{who}_{day}" for who in ("Ann", "Bob") for day in DAYS}
    assert "works_Ann_Mon + works_Bob_Mon == 1" in repr(back)


# ------------------------------------------------------------------ what messages say


def test_a_conflict_in_words():
    works = linsat.Variable(4, 10, name="works")
    cons = linsat.subject_to((works.sum(0) == 1).named("staffed"), (works.sum(1) <= 2).named("at most 2"))
    with pytest.raises(linsat.InfeasibleError) as caught:
        cons.check()
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("  at most 2[0]: works[0, 0] + works[0, 1]")
    assert lines[3] == "  and 2 more rows 'at most 2'"
    assert lines[6] == "  and 7 more rows 'staffed'"
    # Any nine of the ten days suffice for a conflict: 9 > 4 * 2.
    assert lines[7] == "9 rows 'staffed' need 9; 4 rows 'at most 2' allow 8."


@pytest.mark.parametrize(
    ("relations", "words"),
    [
        (lambda X: [(X.sum() >= 5).named("much")], "It needs 5; the bounds allow 4."),
        (lambda X: [(X.sum() <= -0.5).named("little")], "It allows -0.5."),
        (
            lambda X: [(X[0] + 2 * X[1] >= 2.5).named("floor"), (X[0] + X[1] <= 1).named("roof")],
            "Row 'floor' needs 2.5; row 'roof' allows 1; the bounds allow 1: 2.5 needed, 2 allowed.",
        ),
        (
            lambda X: [(3 * X[0] >= 2).named("floor"), (X[0] <= 0.5).named("roof")],
            "Row 'floor' needs 2; row 'roof' (times 3) allows 1.5.",
        ),
    ],
)
def test_certificates_in_words_add_up_by_hand(relations, words):
    X = linsat.Variable(4, name="X")
    with pytest.raises(linsat.InfeasibleError) as caught:
        linsat.subject_to(*relations(X), variables=[X]).check()
    assert words in str(caught.value).splitlines()


def test_many_rows_of_many_names_are_shortened():
    X = linsat.Variable(30, name="X")
    cons = linsat.subject_to(*((X[i] >= 0.5).named(f"wish {i}") for i in range(30)), (X.sum() <= 14).named("total"))
    with pytest.raises(linsat.InfeasibleError) as caught:
        cons.check()
    assert len(str(caught.value).splitlines()) < 16
    assert len(caught.value.rows) == 30  # 29 wishes need 14.5
    assert "more" in str(caught.value)


def test_an_infinite_bound_under_entropy_names_the_variable_and_both_ways_out():
    level = linsat.Variable(["night", "day"], name="level", lower=-np.inf, upper=np.inf)
    cons = linsat.subject_to((level.sum() == 1).named("total"))
    with pytest.raises(linsat.ConstraintError) as caught:
        linsat.project(torch.zeros(2), cons)
    text = str(caught.value)
    assert "variable level[night] (and 1 more) lies between -inf and inf" in text
    assert "finite lower and upper bound" in text
    assert "objective=linsat.Euclidean()" in text
    assert "leave out" not in text  # which would mean [0, 1]
    x = linsat.project(torch.tensor([5.0, -3.0], dtype=F64), cons, objective=linsat.Euclidean())
    torch.testing.assert_close(x, torch.tensor([4.5, -3.5], dtype=F64))  # by hand: both move by half of 2 - 1


def test_scores_that_are_not_finite_are_named():
    y = scores(2, 2, 3)
    y[1, 0, 2] = float("inf")
    with pytest.raises(linsat.ConstraintError, match=r"instance 1, variable works\[Ann, Wed\]"):
        linsat.project(y, roster())


X23 = linsat.Variable(2, 3, name="X")
WRONG = {
    "scores of another shape": (
        lambda: linsat.project(torch.zeros(3, 5), roster()),
        r"y has shape \(3, 5\); expected \(\.\.\., 2, 3\) like works, or flat, \(\.\.\., 6\)",
    ),
    "one array for two variables": (
        lambda: linsat.project(torch.zeros(2, 3), pair()),
        r"expected a dict \{'works': \(\.\.\., 2, 3\), 'off': \(\.\.\., 3\)\}, or flat",
    ),
    "a variable left out": (lambda: linsat.project({"works": torch.zeros(2, 3)}, pair()), "no entry for off"),
    "an unknown variable": (
        lambda: linsat.project({"works": torch.zeros(2, 3), "of": torch.zeros(3)}, pair()),
        "No variable of y is named 'of'. Fix: did you mean 'off'",
    ),
    "a piece of another shape": (
        lambda: linsat.project({"works": torch.zeros(3, 2), "off": torch.zeros(3)}, pair()),
        r"y\['works'\] has shape \(3, 2\); expected \(2, 3\)",
    ),
    "integer scores in a dict": (
        lambda: linsat.project({"works": torch.zeros(2, 3, dtype=torch.int64), "off": torch.zeros(3)}, pair()),
        r"y\['works'\] has dtype torch.int64",
    ),
    "batches that do not fit": (
        lambda: linsat.project({"works": torch.zeros(4, 2, 3), "off": torch.zeros(5, 3)}, pair()),
        "do not broadcast",
    ),
    "two devices": (
        lambda: linsat.project({"works": torch.zeros(2, 3), "off": torch.zeros(3, device="meta")}, pair()),
        "works on cpu, off on meta",
    ),
    "a dict without names": (
        lambda: linsat.project({"x": torch.zeros(4)}, linsat.constraints.simplex(4)),
        "y is a dict, but the set has no named variables",
    ),
    "a dict for single names": (
        lambda: linsat.project({"a": torch.zeros(1)}, linsat.Constraints(A=[[1]], b=1, variables=["a"])),
        "have a name each",
    ),
    "unstack without names": (lambda: linsat.constraints.simplex(4).unstack(torch.zeros(4)), "variables have names"),
    "unstack of another length": (lambda: roster().unstack(torch.zeros(5)), r"x has shape \(5,\)"),
    "an unknown row": (lambda: roster().with_rhs({"stafed": 1.0}), "No row is named 'stafed'. Fix: did you mean"),
    "a row far from any name": (lambda: roster().with_rhs({"q": 1.0}), "one of 'at most 2', 'staffed'"),
    "an unknown index of a family": (lambda: roster().with_rhs({"staffed[Sun]": 1.0}), r"did you mean 'staffed\["),
    "a name that is no text": (lambda: roster().with_rhs({3: 1.0}), "No row is named 3"),
    "right-hand sides that are no dict": (lambda: roster().with_rhs([1.0]), "rhs is list; expected a dict"),
    "right-hand sides of another length": (
        lambda: roster().with_rhs({"staffed": [1.0, 2.0]}),
        r"rhs\['staffed'\] has shape \(2,\); expected a number or \(\.\.\., 3\)",
    ),
    "one row twice": (
        lambda: roster().with_rhs({"staffed": 1.0, "staffed[Mon]": 0.5}),
        r"'staffed\[Mon\]' twice, by 'staffed' and 'staffed\[Mon\]'",
    ),
    "right-hand sides of two batches": (
        lambda: roster().with_rhs(f=np.ones((4, 3))).with_rhs({"staffed": np.ones((5, 3))}),
        "do not broadcast|batch dimensions",
    ),
    "NaN by name": (lambda: roster().with_rhs({"staffed": float("nan")}), r"rhs\['staffed'\] is nan"),
    "sparse by name": (lambda: roster().with_rhs({"staffed": torch.ones(3).to_sparse()}), "is sparse"),
    "bounds that cross": (
        lambda: roster().with_bounds(lower=[[0, 0, 0], [0, 2, 0]]),
        r"lower = 2 is above upper = 1 at works\[Bob, Tue\]",
    ),
    "bounds of an unknown variable": (lambda: pair().with_bounds(upper={"of": 1.0}), "did you mean 'off'"),
    "bounds by name without names": (
        lambda: linsat.constraints.simplex(3).with_bounds(upper={"x": 1.0}),
        "upper is a dict, but the set has no named variables",
    ),
    "a parameter in shape": (
        lambda: roster().with_bounds(upper=torch.nn.Parameter(torch.ones(2, 3))),
        r"parameter of shape \(2, 3\).*flatten",
    ),
    "two variables of one name": (
        lambda: linsat.subject_to(linsat.Variable(2).sum() + linsat.Variable(3).sum() <= 1),
        "Two variables are named 'x'",
    ),
    "a label twice": (lambda: linsat.Variable(["a", "a"]), "label 'a' occurs twice"),
    "a label with brackets": (lambda: linsat.Variable(["a[0]"]), "has brackets"),
    "labels that are no texts": (lambda: linsat.Variable([1, 2]), "a list of texts"),
    "an unknown label": (lambda: linsat.Variable(DAYS, name="d")["Mn"], "did you mean 'Mon'"),
    "a label on an axis without": (lambda: X23["Mon"], "that axis has none"),
    "names of another number": (lambda: (X23.sum(0) <= 1).named(["a", "b"]), "or 3 of them, one per row"),
    "names of variables of another number": (
        lambda: linsat.Constraints(A=[[1, 2]], b=1, variables=["a"]),
        "disagree on the number of variables: A has 2, variables has 1",
    ),
    "a name of a variable twice": (
        lambda: linsat.Constraints(A=[[1, 2]], b=1, variables=["a", "a"]),
        "variables names 'a' twice",
    ),
    "both axis and dim": (lambda: X23.sum(axis=0, dim=0), "axis and dim were both given"),
    "an axis that is not there": (lambda: X23.cumsum(axis=2), "axis = 2 does not fit"),
    "differences of no number": (lambda: X23.diff(n=-1), "n is -1"),
    "a function of numpy that is not linear": (lambda: np.sort(X23), "np.sort does not take expressions"),
    "hungarian without a shape": (lambda: linsat.decode.hungarian(torch.zeros(4)), "shape is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_named_with_a_fix(name):
    call, message = WRONG[name]
    with pytest.raises(linsat.ConstraintError, match=message) as caught:
        call()
    assert "Fix: " in str(caught.value)


BAD_VARIABLES = {
    "no name": '[{"shape": [2]}]',
    "another key": '[{"name": "x", "size": 2}]',
    "a negative length": '[{"name": "x", "shape": [-2]}]',
    "too many": '[{"name": "x", "shape": [5000000, 5000000]}]',
    "labels for one axis of two": '[{"name": "x", "shape": [1, 2], "labels": [["a"]]}]',
    "too few labels": '[{"name": "x", "shape": [2], "labels": [["a"]]}]',
    "labels that are numbers": '[{"name": "x", "shape": [2], "labels": [[1, 2]]}]',
    "a name twice": '[{"name": "x", "shape": [1]}, {"name": "x", "shape": [1]}]',
    "entries of one name": '[{"name": "x", "shape": [1]}, {"name": "x[0]", "shape": []}]',
    "a name and an object": '["x", {"name": "y"}]',
}


@pytest.mark.parametrize("name", BAD_VARIABLES)
def test_files_with_bad_variables_are_rejected(tmp_path, name):
    path = tmp_path / "c.json"
    path.write_text(f'{{"version": 1, "variables": {BAD_VARIABLES[name]}, "A": [[1, 1]], "b": 1}}')
    with pytest.raises(linsat.ConstraintError, match="variables|axis"):
        linsat.Constraints.load(path)


def test_archives_with_bad_layouts_are_rejected(tmp_path):
    for layout in (["{"], ["[1]"], ['{"name": 3}']):
        np.savez(tmp_path / "c.npz", A=np.ones((1, 2)), b=1.0, layout=np.array(layout))
        with pytest.raises(linsat.ConstraintError, match="layout|variables"):
            linsat.Constraints.load(tmp_path / "c.npz")
    np.savez(
        tmp_path / "c.npz", A=np.ones((1, 1)), b=1.0, layout=np.array(['{"name": "x"}']), variables=np.array(["x"])
    )
    with pytest.raises(linsat.ConstraintError, match="both variables and layout"):
        linsat.Constraints.load(tmp_path / "c.npz")


def test_sets_of_one_pattern_keep_their_own_names():
    """Two sets of one full row each, which share what follows from the pattern."""
    first, second = (linsat.Constraints(A=[[1.0, 1.0, 1.0]], b=[2.0], names=[name]) for name in ("budget", "room"))
    for cons, name in ((first, "budget"), (second, "room"), (first, "budget")):
        assert rows_named(cons, name) == [0]
        assert len(cons.soften(name)) == 1
    with pytest.raises(linsat.ConstraintError, match="No row is named 'room'"):
        first.soften("room")
