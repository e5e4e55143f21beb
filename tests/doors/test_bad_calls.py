"""Bad input gets a clear error: the argument, what came, what was expected and the fix."""

import re

import numpy as np
import pytest
import torch

import linsat

SIMPLEX = linsat.constraints.simplex(3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_must_be_finite(bad):
    scores = torch.zeros(2, 3)
    scores[1, 2] = bad
    with pytest.raises(linsat.ConstraintError, match=r"y holds .* \(instance 1, variable x\[2\]\).*Fix"):
        linsat.project(scores, SIMPLEX)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan"), float("inf")])
def test_tau_must_be_positive(tau):
    with pytest.raises(linsat.ConstraintError, match="tau is"):
        linsat.project(torch.zeros(3), SIMPLEX, tau=tau)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": torch.zeros(4)}, r"y has shape \(4,\).*one entry per variable.*Fix"),
        ({"y": torch.tensor(1.0)}, "y has shape"),
        ({"y": torch.zeros(3, dtype=torch.int64)}, "y has dtype torch.int64.*Fix"),
        ({"y": np.zeros(3, dtype=complex)}, "y has dtype complex128"),
        ({"y": np.zeros(3, dtype=np.longdouble)}, "y has dtype"),
        ({"y": torch.zeros(3).to_sparse()}, "y has layout torch.sparse_coo.*Fix"),
        ({"tau": 0.1, "objective": linsat.Euclidean()}, "tau and objective were both given.*Fix"),
        ({"objective": "euclidean"}, "objective is 'euclidean'; expected"),
        ({"objective": linsat.Euclidean(weights=torch.zeros(3))}, "weights is 0.0; expected positive numbers"),
        ({"objective": linsat.Euclidean(weights=torch.ones(4))}, r"weights has shape \(4,\)"),
        ({"objective": linsat.Euclidean(weights="x")}, "weights is 'x'; expected one per variable"),
        ({"tau": "small"}, "tau is 'small'"),
        ({"tau": torch.tensor(1j)}, "tau has dtype torch.complex64"),
        ({"start": "x"}, "start is str"),
        ({"constraints": "rows"}, "constraints is a str.*Fix"),
        ({"solver": "newton"}, "solver is 'newton'"),
        ({"on_failure": "explode"}, "on_failure is 'explode'; expected one of 'raise', 'warn', 'nan', 'ignore'. Fix"),
        ({"tau": torch.ones(2)}, "tau has shape"),
        ({"start": torch.zeros(5)}, r"start has shape \(5,\).*Fix"),
        ({"start": torch.tensor([float("nan")])}, r"start\[0\] is nan; expected finite duals.*Fix"),
    ],
)
def test_malformed_arguments_are_named(arguments, message):
    call = {"y": torch.zeros(3), "constraints": SIMPLEX} | arguments
    with pytest.raises(linsat.ConstraintError, match=message):
        linsat.project(call.pop("y"), call.pop("constraints"), **call)


def test_batches_that_do_not_broadcast():
    cons = linsat.constraints.top_k(3, 1, exactly=False).with_rhs(b=torch.ones(2, 1))
    with pytest.raises(linsat.ConstraintError, match=r"y has batch dimensions \(3,\).*Fix"):
        linsat.project(torch.zeros(3, 3), cons)


def test_project_each_wants_as_many_sets_as_scores():
    with pytest.raises(linsat.ConstraintError, match="scores has 2 entries and constraints 1"):
        linsat.project_each([torch.zeros(3)] * 2, [SIMPLEX])


@pytest.mark.parametrize(
    "make",
    [
        lambda: linsat.Newton(tol=0.0),
        lambda: linsat.Newton(max_steps=0),
        lambda: linsat.Sinkhorn(max_sweeps=0),
        lambda: linsat.Sinkhorn(tol=-1.0),
        lambda: linsat.Sinkhorn(variant="v3"),
        lambda: linsat.Sinkhorn(gradient="none"),
        lambda: linsat.Sinkhorn(stop="never"),
        lambda: linsat.Sinkhorn(variant="v1"),
    ],
)
def test_solver_options_are_checked(make):
    with pytest.raises(linsat.ConstraintError):
        make()


def test_layer_wants_constraints():
    with pytest.raises(linsat.ConstraintError, match="expected linsat.Constraints"):
        linsat.LinSAT(torch.eye(3))


def test_relations_in_place_of_a_set_are_told_how_to_become_one():
    x = linsat.Variable(3, name="x")
    for given, fix in ((x.sum() == 1, "subject_to(relation)"), ([x.sum() == 1, x[0] <= 0.5], "subject_to(*relations)")):
        for call in (linsat.LinSAT, lambda cons: linsat.project(torch.rand(3), cons)):
            with pytest.raises(linsat.ConstraintError, match=re.escape(f"Fix: linsat.{fix}.")):
                call(given)


def test_an_objective_without_parentheses_is_told_to_have_them():
    with pytest.raises(linsat.ConstraintError, match="with parentheses"):
        linsat.project(torch.rand(3), SIMPLEX, objective=linsat.Euclidean)


_w = linsat.Variable(3, name="w")
FIRST_DAY = {  # what is written in the first hour -> what the message says
    "list of whole numbers": (lambda: linsat.project([1, 2, 3], SIMPLEX), r"y has dtype int64.*Fix: numpy.array\(y"),
    "no scores": (lambda: linsat.project(None, SIMPLEX), "y is None; expected floating scores"),
    "text": (lambda: linsat.project("y", SIMPLEX), "y is 'y'; expected floating scores"),
    "lists of two lengths": (lambda: linsat.project([[1.0, 2.0], [3.0]], SIMPLEX), "y is not a regular array"),
    "instances last": (lambda: linsat.project(torch.zeros(3, 2), SIMPLEX), r"Fix: y.swapaxes\(-1, -2\)"),
    "too few": (lambda: linsat.project(torch.zeros(2), SIMPLEX), "each of the 3 variables, or a set over 2"),
    "matrices": (lambda: linsat.project(torch.zeros(5, 3, 1), SIMPLEX), "Fix: flatten matrices"),
    "arguments swapped": (lambda: linsat.project(SIMPLEX, torch.zeros(3)), "Fix: .*scores come first"),
    "family not called": (lambda: linsat.project(torch.zeros(3), linsat.constraints.top_k), r"call it, top_k\("),
    "solver without parentheses": (lambda: linsat.LinSAT(SIMPLEX, solver=linsat.Newton), "solver is the class Newton"),
    "back end": (lambda: linsat.Newton(backend="cuda"), "backend is 'cuda'; expected.*leave backend out"),
    "A transposed": (lambda: linsat.Constraints(A=torch.ones(3, 2), b=[1, 1]), "one per row; or A.T, which has 2"),
    "rows of two lengths": (
        lambda: linsat.Constraints(A=[[1, 2], [1]], b=1),
        "A is not a regular array: its parts differ",
    ),
    "text as a row": (lambda: linsat.subject_to("w[0] <= 1"), "subject_to got 'w.*Fix: without quotes"),
    "list of rows": (lambda: linsat.subject_to([_w.sum() <= 1]), r"subject_to got a list;.*Fix: unpack"),
    "&": (lambda: (_w[0] <= 1) & (_w[1] <= 1), r"Fix: linsat.subject_to\(first, second\)"),
    "set & row": (lambda: SIMPLEX & (_w[0] <= 1), r"cons & linsat.subject_to\(relation\)"),
    "max": (lambda: max(_w), r"Fix:.* X.max\(\) and X.min\(\)"),
    "np.square": (lambda: np.square(_w), "np.square does not take expressions.*Fix"),
    "a solution as a point": (
        lambda: SIMPLEX.violation(linsat.solve(torch.zeros(3), SIMPLEX)),
        "x is a Solution;.*Fix: x.x",
    ),
    "text as a point": (lambda: SIMPLEX.violation("x"), "x is 'x'; expected real numbers"),
    "folder that is not there": (lambda: SIMPLEX.save("no such folder/set.json"), "there is no folder no such folder"),
    "ending": (lambda: SIMPLEX.save("set.txt"), "the name ends in '.txt'; expected one of .json.*Fix: set.json"),
}


@pytest.mark.parametrize("mistake", FIRST_DAY)
def test_mistakes_of_a_first_day_end_in_a_fix(mistake):
    call, message = FIRST_DAY[mistake]
    with pytest.raises(linsat.ConstraintError, match=message) as caught:
        call()
    assert re.search(r"Fix: .+\.$", str(caught.value))
    assert "<class" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "fix"), [("temperature", "tau="), ("tol", "linsat.Newton(tol=...)"), ("device", "where the scores are")]
)
def test_an_unknown_keyword_is_named_with_those_there_are(name, fix):
    with pytest.raises(TypeError, match=rf"{name}.*expected tau, objective.*rhs, upper. Fix: .*{re.escape(fix)}"):
        linsat.project(torch.zeros(3), SIMPLEX, **{name: 0.1})


def test_a_name_that_moved_is_where_its_message_says():
    with pytest.raises(AttributeError, match=re.escape("Fix: linsat.interop.linsatnet.sinkhorn")):
        _ = linsat.sinkhorn
    assert callable(linsat.interop.linsatnet.sinkhorn)
    assert callable(linsat.exact.regret)


def test_one_number_per_instance_is_told_its_shape():
    numbers = torch.linspace(1, 2, 4)
    cons = linsat.Constraints(A=[[1, 1, 1]], b=1)
    with pytest.raises(
        linsat.ConstraintError, match=re.escape("Fix: b[:, None], if these are one number per instance")
    ):
        linsat.LinSAT(cons)(torch.rand(4, 3), b=numbers)
    assert linsat.LinSAT(cons)(torch.rand(4, 3), b=numbers[:, None]).shape == (4, 3)


@pytest.mark.parametrize(
    "options", [{"tau": -1.0}, {"objective": "entropy"}, {"solver": "newton"}, {"on_failure": "x"}]
)
def test_layer_refuses_bad_options_when_it_is_made(options):
    with pytest.raises(linsat.ConstraintError):
        linsat.LinSAT(SIMPLEX, **options)


def test_a_warning_points_at_the_users_line():
    with pytest.warns(linsat.LinSATWarning) as caught:
        linsat.project(
            torch.rand(2, 9),
            linsat.constraints.permutation(3),
            tau=0.001,
            solver=linsat.Newton(max_steps=1),
            on_failure="warn",
        )
    assert caught[0].filename == __file__


def test_any_float_array_is_read():
    expected = linsat.project(np.array([1.0, 2.0, 3.0]), SIMPLEX)
    frozen = np.array([1.0, 2.0, 3.0])
    frozen.flags.writeable = False
    for scores in (np.array([3.0, 2.0, 1.0])[::-1], np.array([1.0, 2.0, 3.0], dtype=">f8"), frozen):
        np.testing.assert_array_equal(linsat.project(scores, SIMPLEX), expected)


def test_errors_are_value_errors():
    assert issubclass(linsat.ConstraintError, ValueError)
    assert issubclass(linsat.InfeasibleError, ValueError)


class TestFailures:
    def test_step_limit_warns_raises_or_stays_silent(self, recwarn):
        cons = linsat.constraints.doubly_stochastic(5)
        scores, solver = torch.rand(3, 25), linsat.Newton(max_steps=1)
        with pytest.warns(linsat.LinSATWarning, match="3 of 3 instances.*step_limit.*max_steps"):
            linsat.project(scores, cons, tau=0.01, solver=solver, on_failure="warn")
        with pytest.raises(linsat.ConvergenceError, match='step_limit.*on_failure="nan"'):
            linsat.project(scores, cons, tau=0.01, solver=solver)
        recwarn.clear()
        solution = linsat.solve(scores, cons, tau=0.01, solver=solver, on_failure="ignore")
        assert not recwarn
        assert (solution.status == "step_limit").all()
        assert not solution.converged.any()
        assert float(solution.violation.min()) > 1e-6
        assert torch.isfinite(solution.x).all()

    def test_every_status_says_what_to_change(self):
        for status in linsat.status.Status:
            assert len(status.advice) > 20
            assert linsat.status.Status.of(status.code) is status
            assert str(status) == status.value


def test_an_unknown_slack_is_named():
    with pytest.raises(linsat.ConstraintError, match="slack is 'some'; expected 'entropic'"):
        linsat.Entropy(slack="some")


def test_infinite_bounds_need_the_euclidean_objective():
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=1.0, upper=float("inf"))
    with pytest.raises(linsat.ConstraintError, match=r"Fix.*objective=linsat.Euclidean\(\)"):
        linsat.project(torch.zeros(2), cons)
    with pytest.raises(linsat.ConstraintError, match="finite box"):
        linsat.LinSAT(cons)
    assert linsat.LinSAT(cons, objective=linsat.Euclidean())(torch.tensor([3.0, 0.0])).sum() <= 1 + 1e-6


def test_sinkhorn_solves_the_papers_program_only():
    with pytest.raises(linsat.ConstraintError, match="Fix: use linsat.Newton"):
        linsat.project(torch.zeros(3), SIMPLEX, objective=linsat.Euclidean(), solver=linsat.Sinkhorn())


def test_tau_of_a_call_needs_a_temperature():
    with pytest.raises(linsat.ConstraintError, match="has no temperature"):
        linsat.LinSAT(SIMPLEX, objective=linsat.Euclidean())(torch.zeros(3), tau=0.1)


@pytest.mark.parametrize("arguments", [{"rhs": 1}, {"A": [[1.0]], "rhs": 1}])
def test_unknown_arguments_of_a_set_are_named_with_those_there_are(arguments):
    with pytest.raises(linsat.ConstraintError, match=r"Constraints got an argument 'rhs'; expected A, b, C,.*Fix"):
        linsat.Constraints(**arguments)


def test_arguments_of_a_set_go_by_name():
    with pytest.raises(linsat.ConstraintError, match="Constraints got list without a name; expected A, b.*Fix"):
        linsat.Constraints([[1.0]], [1.0])


def test_a_whole_matrix_of_weights_has_the_way_out_that_its_message_names():
    """min (x - y)' Q (x - y) / 2 over a row and a box, in the variables z = L' x: as cvxpy solves it."""
    import cvxpy as cp

    rng = np.random.default_rng(0)
    half = rng.normal(size=(3, 3))
    Q, y, a = half @ half.T + np.eye(3), rng.normal(size=3), np.array([[1.0, 2.0, -1.0]])
    x = cp.Variable(3)
    cp.Problem(cp.Minimize(cp.quad_form(x - y, Q)), [a @ x <= 0.3, x >= 0, x <= 1]).solve(solver="CLARABEL")
    L = np.linalg.cholesky(Q)
    back = np.linalg.inv(L.T)
    rows = np.vstack([a, np.eye(3)]) @ back
    cons = linsat.Constraints(A=rows, b=[0.3, 1, 1, 1], C=back, d=[0, 0, 0], lower=-np.inf, upper=np.inf)
    z = linsat.project(L.T @ y, cons, objective=linsat.Euclidean())
    np.testing.assert_allclose(back @ z, x.value, atol=1e-6)


MASKED = np.ma.masked_array([0.3, 0.2, 0.9], mask=[False, True, False])
LIMITED = linsat.Constraints(A=np.ones((1, 3)), b=[1.0], names=["limit"])


@pytest.mark.parametrize(
    "call",
    {
        "y": lambda door, y: door.project(MASKED, LIMITED),
        "b": lambda door, y: door.project(y, LIMITED, b=MASKED[1:2]),
        "upper": lambda door, y: door.project(y, LIMITED, upper=MASKED),
        "rhs['limit']": lambda door, y: door.project(y, LIMITED, rhs={"limit": MASKED[1:2]}),
        "start": lambda door, y: door.project(y, LIMITED, start=MASKED[1:2]),
        "tau": lambda door, y: door.project(y, LIMITED, tau=np.ma.masked_array(0.1, mask=True)),
        "A": lambda door, y: linsat.Constraints(A=MASKED[None], b=1.0),
    }.items(),
    ids=lambda item: item[0],
)
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_masked_entries_are_no_numbers(library, call):
    """What stands under a mask is not what anybody means."""
    name, made = call
    door, y = (
        pytest.importorskip("linsat.jax") if library == "jax" else linsat,
        torch.zeros(3) if library == "torch" else np.zeros(3),
    )
    with pytest.raises(linsat.ConstraintError, match=rf"{re.escape(name)} is a masked array with 1 masked.*filled"):
        made(door, y)


def test_a_mask_that_masks_nothing_is_taken():
    y = np.array([0.3, 0.2, 0.9])
    assert np.array_equal(linsat.project(np.ma.masked_array(y), LIMITED), linsat.project(y, LIMITED))


@pytest.mark.parametrize(
    "call",
    [
        lambda: linsat.project(np.zeros(3), LIMITED, limit=0.5),
        lambda: linsat.solve(torch.zeros(3), LIMITED, limit=0.5),
        lambda: linsat.LinSAT(LIMITED)(torch.zeros(3), limit=0.5),
        lambda: LIMITED.with_rhs(limit=0.5),
    ],
    ids=["project", "solve", "layer", "with_rhs"],
)
def test_the_name_of_a_row_is_no_keyword(call):
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'limit'.*Fix: (rhs=|with_rhs\()\{'limit': ...\}"):
        call()
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'limt'.*Fix: leave it out"):
        linsat.LinSAT(LIMITED)(torch.zeros(3), limt=0.5)


def test_gradients_that_would_be_lost_between_libraries():
    """A tensor that learns gives nothing where the answer is of JAX; without gradients numbers are numbers."""
    jax = pytest.importorskip("linsat.jax")
    learned, y = torch.ones(1, requires_grad=True), np.array([0.3, 0.2, 0.9])
    for name, call in {
        "y": lambda: jax.project(torch.zeros(3, requires_grad=True), LIMITED),
        "b": lambda: jax.project(y, LIMITED, b=learned),
        "rhs['limit']": lambda: jax.project(y, LIMITED, rhs={"limit": learned}),
    }.items():
        with pytest.raises(linsat.ConstraintError, match=rf"{re.escape(name)} is a tensor of torch that requires grad"):
            call()
    own = np.full(1, 0.5)
    expected = linsat.project(y, LIMITED, b=own)
    np.testing.assert_allclose(jax.project(y, LIMITED, b=torch.from_numpy(own)), expected, atol=1e-6)
    numbers = pytest.importorskip("jax.numpy").asarray(own)
    np.testing.assert_allclose(linsat.project(torch.from_numpy(y), LIMITED, b=numbers), expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_scores_are_for_project_each():
    nested = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(3)])
    with pytest.raises(linsat.ConstraintError, match="y is a nested tensor.*Fix: linsat.project_each"):
        linsat.project(nested, LIMITED)
