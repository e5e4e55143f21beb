"""Constraint sets without torch: tests/doors/without_torch/cases.py where it cannot be imported; `statement()`."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import linsat

CASES = Path(__file__).parent / "without_torch" / "cases.py"
SOURCE = Path(linsat.__file__).parent


def test_sets_work_in_a_process_that_cannot_import_torch():
    command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=CASES.parents[2])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_sets_do_not_import_torch_where_it_could_be_imported():
    program = """
import sys, linsat
cons = linsat.constraints.permutation(3) & linsat.Constraints(A=[[1.0] * 9], b=[[4.0], [5.0]])
str(cons), cons.violation([0.0] * 9), linsat.constraints.simplex(3).check()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def module_level_imports(path: Path) -> set[str]:
    """Packages that a file imports when it is imported; not those for type checkers."""
    found = set()

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.ClassDef | ast.With | ast.Try):
                visit(node.body)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                visit([*node.body, *node.orelse])

    visit(ast.parse(path.read_text(encoding="utf-8")).body)
    return found


def test_no_file_of_what_a_user_states_imports_torch():
    files = [*(SOURCE / "constraints").glob("*.py"), *(SOURCE / "files").glob("*.py")]
    files += [*(SOURCE / "native").glob("*.py"), *(SOURCE / "objectives").glob("*.py"), *SOURCE.glob("_*.py")]
    files += [
        SOURCE / f"{name}.py"
        for name in ("projection", "numpy_door", "call", "plan", "failures", "exact", "decode", "formulas")
    ]
    assert len(files) > 20
    assert [path.name for path in files if "torch" in module_level_imports(path)] == []
    assert "torch" in module_level_imports(SOURCE / "torch" / "call.py")  # the search finds what there is


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_statement_of_constant_tensors():
    A, b = torch.tensor([[1.0, 0.0, 2.0]], dtype=torch.float32), torch.tensor([[0.5], [0.25]], dtype=torch.bfloat16)
    for given in (A, A.to_sparse(), A.to_sparse_csr()):
        stated = linsat.Constraints(A=given, b=b, upper=torch.ones(3)).soften(price=torch.tensor(2.0)).statement()
        assert (stated.row.tolist(), stated.col.tolist(), stated.values.tolist()) == ([0, 0], [0, 2], [1, 2])
        assert (stated.rhs.tolist(), stated.price.tolist()) == ([[0.5], [0.25]], [2])
        assert {array.dtype for array in (stated.values, stated.rhs, stated.upper)} == {np.dtype(np.float64)}


def test_learned_numbers_of_float32_meet_constants():
    cons = linsat.Constraints(A=np.eye(2), b=[1.0, 2.0], C=np.ones((1, 2)), d=0.5)
    price = torch.tensor([2.0], requires_grad=True)
    assert cons.soften(1, price).price.tolist() == [torch.inf, 2, torch.inf]
    side = torch.tensor([4.0], requires_grad=True)
    found = cons.with_rhs({"A[1]": side}).rhs
    assert (found.tolist(), found.dtype) == ([1, 4, 0.5], torch.float64)
    found.sum().backward()
    assert side.grad.tolist() == [1]


@pytest.mark.parametrize("name", ["A", "b", "upper", "price"])
def test_a_statement_of_learned_tensors_is_rejected(name):
    numbers = {"A": torch.ones(1, 2), "b": torch.ones(1), "upper": torch.ones(2), "price": torch.ones(1)}
    numbers[name].requires_grad_()
    price = numbers.pop("price")
    with pytest.raises(linsat.ConstraintError, match=rf"torch follows \({name}\).*detach"):
        linsat.Constraints(**numbers).soften(price=price).statement()


def test_tensors_of_a_set_made_in_a_transform_are_constants():
    """Tensors from outside that a set reads inside jacrev are numbers like any other; the set serves outside too."""
    made, E, f = [], torch.ones(1, 3), torch.tensor([1.0])

    def inside(y: torch.Tensor) -> torch.Tensor:
        made.append(linsat.Constraints(E=E, f=f))
        return linsat.project(y, made[0], objective=linsat.Euclidean())

    y = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
    jacobian = torch.func.jacrev(inside)(y)
    np.testing.assert_allclose(jacobian, np.eye(3) - 1 / 3, atol=1e-12)  # projection onto a plane, no bound active
    assert made[0].statement().rhs.tolist() == [1.0]
