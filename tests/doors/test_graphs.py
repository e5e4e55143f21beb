"""One graph: torch.compile(fullgraph=True), torch.export, fake tensors and the registered operator itself."""

import copy
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import linsat
from linsat import _transforms
from linsat.request import Options
from linsat.torch.operator import Arguments
from linsat.torch.options import describe
from tests.helpers.statements import Stated

F64 = torch.float64
SQUARE = linsat.constraints.doubly_stochastic(3)
CAPS = linsat.Constraints(A=[[1.0] * 9, [0.5, 2.0, 1.0] * 3], b=[2.5, 3.0], names=["all", "weighted"])
SIDES = torch.tensor([[1.0, 2.0], [2.5, 1.5], [0.5, 1.0], [2.0, 3.0]], dtype=F64)

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning",  # dynamo's own
    "ignore::FutureWarning",
    "ignore::UserWarning:torch.*",
)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values[0] if len(values) == 1 else values, dtype=F64))


def layers() -> dict[str, tuple[nn.Module, dict[str, torch.Tensor]]]:
    """A layer for each objective and each kind of number, with the arguments of a call."""
    return {
        "paper": (linsat.LinSAT(SQUARE, tau=0.2), {}),
        "slack-free": (linsat.LinSAT(CAPS, objective=linsat.Entropy(0.2, slack="none")), {}),
        "nearest": (linsat.LinSAT(CAPS, objective=linsat.Euclidean()), {}),
        "learned tau": (linsat.LinSAT(SQUARE, tau=parameter(0.2)), {}),
        "learned weights": (linsat.LinSAT(CAPS, objective=linsat.Euclidean(parameter(*[1.0, 2.0, 0.5] * 3))), {}),
        "learned b": (linsat.LinSAT(CAPS.with_rhs(b=parameter(2.0, 1.5)), tau=0.2), {}),
        "learned A": (linsat.LinSAT(linsat.Constraints(A=nn.Parameter(torch.rand(2, 9)), b=[1.0, 1.0])), {}),
        "b and tau of a call": (linsat.LinSAT(CAPS), {"b": SIDES, "tau": torch.tensor([0.1, 0.2, 0.3, 0.4])}),
        "bounds of a call": (linsat.LinSAT(CAPS, tau=0.2), {"upper": torch.rand(4, 9, dtype=F64) + 0.5}),
        "learned price": (linsat.LinSAT(CAPS.soften("weighted", price=parameter(0.1)), tau=0.2), {}),
        "A of a call": (linsat.LinSAT(CAPS, tau=0.2), {"A": torch.rand(4, 2, 9, dtype=F64) + 0.1}),
    }


def gradients(model: nn.Module, function: Any, inputs: torch.Tensor, numbers: dict[str, torch.Tensor]) -> list[Any]:
    """x, and the gradients of a loss to scores, parameters and the arguments of the call."""
    model.zero_grad()
    given = [inputs.clone().requires_grad_(), *(t.clone().requires_grad_() for t in numbers.values())]
    x = function(given[0], **dict(zip(numbers, given[1:])))
    (x**2 * torch.linspace(0.0, 1.0, x.shape[-1])).sum().backward()
    return [x.detach(), *(t.grad for t in given), *(p.grad.clone() for p in model.parameters())]


QUICK = ("paper", "learned b", "b and tau of a call")  # a trace takes a second or two


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in layers()])
def test_a_compiled_layer_is_one_graph_with_the_same_numbers(name):
    layer, numbers = layers()[name]
    inputs = torch.randn(4, 9, dtype=F64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = gradients(layer, compiled, inputs, numbers)
    for one, other in zip(found, gradients(layer, layer, inputs, numbers), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_any_batch_size_and_a_set_used_twice():
    def both(y):
        return linsat.project(y, SQUARE, tau=0.2) + linsat.solve(y, SQUARE, objective=linsat.Euclidean()).x

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager", dynamic=True)
    for count in (2, 5, 3):
        y = torch.randn(count, 9, dtype=F64)
        torch.testing.assert_close(compiled(y), both(y), rtol=0, atol=1e-12)


def test_the_cpp_compiler_takes_every_objective():
    """All of torch.compile with its default, inductor; elsewhere all but the C++ compiler, which takes seconds."""

    def every(y, P, prior):
        objectives = linsat.Euclidean(), linsat.KL(0.7, prior), linsat.Tsallis(1.5), linsat.Quadratic(P)
        return [linsat.project(y, CAPS, tau=0.2), *(linsat.project(y, CAPS, objective=given) for given in objectives)]

    y, P, prior = torch.randn(3, 9, dtype=F64), torch.diag(torch.linspace(1, 2, 9, dtype=F64)), torch.rand(9).double()
    for one, other in zip(torch.compile(every, fullgraph=True)(y, P, prior), every(y, P, prior), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_an_exported_program_runs_and_trains_in_another_process(tmp_path):
    """Dynamic batch, learned and per-instance numbers; the process that loads it imports linsat before torch."""
    model = nn.Sequential(nn.Linear(5, 9, dtype=F64), linsat.LinSAT(CAPS.with_rhs(b=parameter(2.0, 1.5)), tau=0.2))
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.randn(4, 5, dtype=F64),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    sides = linsat.LinSAT(CAPS, objective=linsat.Euclidean())
    shapes = {"y": {0: batch}, "b": {0: batch}}
    per_instance = torch.export.export(sides, (torch.randn(4, 9, dtype=F64),), {"b": SIDES}, dynamic_shapes=shapes)
    torch.export.save(per_instance, tmp_path / "sides.pt2")

    script = """
        import sys
        import linsat
        assert "torch" not in sys.modules
        import torch
        folder = sys.argv[1]
        inputs, scores, b = torch.load(folder + "/inputs.pt")
        model = torch.export.load(folder + "/model.pt2").module()
        x = model(inputs)
        (x**2).sum().backward()
        found = [x.detach(), *(p.grad for p in model.parameters())]
        found.append(torch.export.load(folder + "/sides.pt2").module()(scores, b=b))
        torch.save(found, folder + "/found.pt")
    """
    inputs, scores = torch.randn(7, 5, dtype=F64), torch.randn(6, 9, dtype=F64)
    b = torch.rand(6, 2, dtype=F64) + 1
    torch.save([inputs, scores, b], tmp_path / "inputs.pt")
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=True, timeout=120)
    x = model(inputs)
    (x**2).sum().backward()
    expected = [x.detach(), *(p.grad for p in model.parameters()), sides(scores, b=b)]
    for one, other in zip(torch.load(tmp_path / "found.pt"), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("transform", "number"),
    [
        (torch.func.jacrev, "y"),
        pytest.param(torch.func.grad, "y", marks=pytest.mark.slow),
        pytest.param(torch.func.vmap, "y", marks=pytest.mark.slow),
        pytest.param(torch.func.jacrev, "b", marks=pytest.mark.slow),
    ],
)
def test_function_transforms_inside_a_graph(transform, number):
    y = torch.randn(4, 9, dtype=F64)

    def of_scores(y):
        x = linsat.project(y, SQUARE, tau=0.3)
        return (x**2).sum() if transform is torch.func.grad else x

    def of_sides(b):
        return linsat.project(y, CAPS.with_rhs(b=b), tau=0.3)

    function, given = (of_scores, y) if number == "y" else (of_sides, SIDES[0])
    compiled = torch.compile(transform(function), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(given), transform(function)(given), rtol=0, atol=1e-12)


def test_a_transform_within_a_transform_is_rejected_inside_a_graph():
    nested = torch.func.jacrev(torch.func.jacrev(lambda y: linsat.project(y, SQUARE, tau=0.3).sum()))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="one function transform within another"):
        torch.compile(nested, fullgraph=True, backend="eager")(torch.randn(9, dtype=F64))


def test_fake_and_meta_tensors_have_shapes_and_gradients():
    with FakeTensorMode():
        y = torch.empty(4, 9, requires_grad=True)
        x = linsat.project(y, SQUARE)
        x.sum().backward()
        assert x.shape == y.grad.shape == (4, 9)
        assert x.dtype == torch.float32
    meta = linsat.project(torch.empty(2, 3, 9, device="meta"), CAPS, objective=linsat.Euclidean())
    assert meta.shape == (2, 3, 9)
    assert meta.is_meta


IMPOSSIBLE = torch.tensor([[3.0], [8.0]], dtype=F64)  # of four variables in [0, 1]


def test_a_graph_raises_when_it_runs():
    cons = linsat.Constraints(C=[[1.0] * 4], d=[1.0], names=["demand"])
    compiled = torch.compile(
        lambda y, d: linsat.project(y, cons.with_rhs(d=d), tau=0.2), fullgraph=True, backend="eager"
    )
    y = torch.zeros(2, 4, dtype=F64)
    assert torch.isfinite(compiled(y, IMPOSSIBLE / 3)).all()
    with pytest.raises(linsat.InfeasibleError, match="instance 1.*\n*.*demand"):
        compiled(y, IMPOSSIBLE)
    with pytest.raises(linsat.ConstraintError, match="is nan"):
        compiled(y, IMPOSSIBLE * torch.nan)
    with pytest.raises(linsat.ConstraintError, match="y holds nan"):
        compiled(y * torch.nan, IMPOSSIBLE / 3)


def test_an_exported_graph_warns_or_gives_nan_when_it_runs():
    y = torch.zeros(2, 4, dtype=F64)
    cons = linsat.Constraints(C=[[1.0] * 4], d=[1.0])
    warns, gives_nan = (
        torch.export.export(linsat.LinSAT(cons, on_failure=how), (y,), {"d": IMPOSSIBLE}).module()
        for how in ("warn", "nan")
    )
    with pytest.warns(linsat.LinSATWarning, match="instance 1: infeasible"):
        warns(y, d=IMPOSSIBLE)
    x = gives_nan(y, d=IMPOSSIBLE)
    assert torch.isfinite(x[0]).all()
    assert torch.isnan(x[1]).all()


def test_a_price_of_a_graph_must_be_positive():
    def project(y, price):
        return linsat.project(y, CAPS.soften("weighted", price=price), tau=0.2)

    compiled = torch.compile(project, fullgraph=True, backend="eager")
    y, price = torch.randn(2, 9, dtype=F64), torch.tensor([[0.1], [0.2]], dtype=F64)
    torch.testing.assert_close(compiled(y, price), project(y, price), rtol=0, atol=1e-12)
    with pytest.raises(linsat.ConstraintError, match="price holds a number that is not positive"):
        compiled(y, -price)


@pytest.mark.slow
def test_shapes_and_names_of_variables_in_a_graph():
    X, Y = linsat.Variable(3, 3, name="X"), linsat.Variable(2, name="Y")
    layer = linsat.LinSAT(linsat.subject_to(X.sum(0) == 1, Y.sum() + X.sum() <= 4), tau=0.2)
    given = {"X": torch.randn(2, 3, 3, dtype=F64), "Y": torch.randn(2, 2, dtype=F64)}
    found, expected = torch.compile(layer, fullgraph=True, backend="eager")(given), layer(given)
    for name in ("X", "Y"):
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-12)


def test_bounds_that_an_objective_cannot_have_are_rejected_when_a_graph_runs():
    cons = linsat.Constraints(A=[[1.0, 1.0]], b=[1.0], lower=-torch.inf)
    compiled = torch.compile(lambda y: linsat.project(y, cons), fullgraph=True, backend="eager")
    with pytest.raises(linsat.ConstraintError, match="works in a finite box"):
        compiled(torch.zeros(3, 2))


def test_coefficients_of_a_graph_must_fit_the_pattern():
    layer = linsat.LinSAT(linsat.Constraints(A=[[1.0, 0.0, 1.0]], b=[1.0]))
    exported = (torch.zeros(2, 3), {"A": torch.rand(2, 1, 3)})
    with pytest.raises(linsat.ConstraintError, match="state the set sparse"):
        torch.export.export(layer, exported[:1], exported[1])


def test_unrolled_sinkhorn_is_rejected_in_an_exported_program():
    layer = linsat.LinSAT(SQUARE, solver=linsat.Sinkhorn(gradient="unrolled"))
    with pytest.raises(linsat.ConstraintError, match="gradient='implicit'"):
        torch.export.export(layer, (torch.zeros(2, 9),))


def test_other_formats_are_rejected_with_a_way_out(monkeypatch):
    layer, y = linsat.LinSAT(SQUARE), torch.zeros(2, 9)
    with pytest.raises(linsat.ConstraintError, match="torch.jit.trace cannot record a projection"):
        torch.jit.trace(layer, y)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(linsat.ConstraintError, match="ONNX has no operator for a projection"):
        torch.export.export(layer, (y,))


@dataclass(frozen=True, eq=False)
class Scaled(linsat.Objective):
    """x of the nearest point to ``scale`` times the scores: an objective of the user's."""

    scale: float = 2.0

    def linear(self, y):
        return self.scale * y

    def conjugate(self, u, lower, upper):
        x = self.point(u, lower, upper)
        return x * (u - 0.5 * x)

    def point(self, u, lower, upper):
        return torch.where(u <= lower, lower, torch.where(u >= upper, upper, u))

    def slope(self, u, lower, upper):
        return ((u > lower) & (u < upper)).to(u.dtype)


def test_a_users_own_objective_in_a_graph():
    y = torch.randn(4, 9, dtype=F64)
    compiled = torch.compile(lambda y: linsat.project(y, CAPS, objective=Scaled(3.0)), fullgraph=True, backend="eager")
    torch.testing.assert_close(
        compiled(y), linsat.project(3 * y, CAPS, objective=linsat.Euclidean()), atol=1e-8, rtol=0
    )
    text = describe(Scaled(3.0), Options(linsat.Newton()), constant=True, names=None)
    arguments = operator_arguments(linsat.Euclidean())._replace(options=text.replace("Scaled", "Unheard"))
    with pytest.raises(linsat.ConstraintError, match="'Unheard', which this process does not know"):
        torch.ops.linsat.project(*arguments)


def operator_arguments(objective, *, learned: bool = False) -> Arguments:
    stated = Stated.of(CAPS, objective, torch.randn(3, 9, dtype=F64))
    numbers = [t.clone() for t in stated.numbers]
    parameters = list(stated.objective.parameters().values())
    if learned:
        for t in numbers[:4]:  # all but the prices, which are infinite
            t.requires_grad_()
        parameters = [t.clone().requires_grad_() for t in parameters]
    return Arguments(
        scores=stated.scores.requires_grad_(learned),
        pattern=[*CAPS._structure.on("cpu")],
        numbers=numbers,
        parameters=parameters,
        start=None,
        options=describe(objective, Options(linsat.Newton()), constant=not learned, names=None),
    )


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("objective", [linsat.Entropy(0.2), linsat.Euclidean(torch.ones(9))])
def test_the_operator_keeps_the_rules_of_operators(objective, learned):
    torch.library.opcheck(torch.ops.linsat.project.default, tuple(operator_arguments(objective, learned=learned)))


def test_second_derivatives_of_the_operator():
    """Those of an exported program, which is differentiated by the operator's own formula."""
    arguments = operator_arguments(linsat.Entropy(0.3), learned=True)
    *numbers, price = arguments.numbers
    tensors = (arguments.scores, *numbers, arguments.parameters[0])

    def x(scores, values, side, lower, upper, tau):
        changed = arguments._replace(scores=scores, numbers=[values, side, lower, upper, price], parameters=[tau])
        return torch.ops.linsat.project(*changed)[0]

    assert torch.autograd.gradcheck(x, tensors)
    assert torch.autograd.gradgradcheck(x, tensors)


def test_what_is_compiled_is_not_copied_with_a_layer():
    layer = linsat.LinSAT(SQUARE, tau=0.2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    y = torch.randn(2, 9)
    compiled(y)
    torch.testing.assert_close(copy.deepcopy(layer)(y), layer(y))


def test_an_older_torch_runs_the_call_between_two_graphs(monkeypatch):
    monkeypatch.setattr(_transforms, "ONE_GRAPH_SINCE", (99, 0))
    between = _transforms.recorded(lambda y: linsat.project(y, SQUARE, tau=0.2))
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda y: between(2.0 * y).square(), backend=counter)
    y = torch.randn(4, 9, dtype=F64)
    torch.testing.assert_close(compiled(y), linsat.project(2.0 * y, SQUARE, tau=0.2).square(), rtol=0, atol=0)
    assert counter.frame_count == 2  # what comes before the call, and what comes after it
