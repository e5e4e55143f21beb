"""Malformed calls: what a user may pass by mistake, or a program that reads its numbers from elsewhere.

Each entry is (a part of the message, which names the argument; the call). Used by `test_untrusted_input.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import linsat
from linsat import decode
from linsat.constraints import (
    budget,
    capacity_assignment,
    doubly_stochastic,
    matching,
    permutation,
    portfolio,
    ranking,
    simplex,
    top_k,
    tour,
)
from linsat_tools.explorer.language import parse

Call = tuple[str, Callable[[], Any]]

nan, inf = float("nan"), float("inf")
Y = torch.zeros(2, 3)
THREE = simplex(3)
ROW = [[1.0, 2.0, 3.0]]
X = linsat.Variable(2, 3, name="X")


class Loop(list):
    """A list that holds itself, without end."""


LOOP = Loop()
LOOP.append(LOOP)

SETS: dict[str, Call] = {
    "matrix without side": ("A was given without b", lambda: linsat.Constraints(A=ROW)),
    "side without matrix": ("d was given without C", lambda: linsat.Constraints(d=[1.0])),
    "two batches": ("do not fit together: A (2,), b (3,)", lambda: linsat.Constraints(A=[ROW, ROW], b=[[1], [2], [3]])),
    "a vector for a matrix": ("E has shape (3,)", lambda: linsat.Constraints(E=[1, 2, 3], f=1)),
    "a number for a matrix": ("A has shape ()", lambda: linsat.Constraints(A=3.0, b=1)),
    "no columns": ("C has shape (1, 0)", lambda: linsat.Constraints(C=np.zeros((1, 0)), d=1)),
    "nan coefficient": ("A[0, 1] is nan", lambda: linsat.Constraints(A=[[1, nan, 3]], b=1)),
    "infinite coefficient": ("E[0, 2] is inf", lambda: linsat.Constraints(E=[[1, 2, inf]], f=1)),
    "sparse nan": ("A[0, 0] is nan", lambda: linsat.Constraints(A=sp.csr_array([[nan, 1.0]]), b=1)),
    "nan side": ("b[0] is nan", lambda: linsat.Constraints(A=ROW, b=[nan])),
    "infinite side": ("d is inf", lambda: linsat.Constraints(C=ROW, d=inf)),
    "long side": ("b has shape (2,) but A has 1 row", lambda: linsat.Constraints(A=ROW, b=[1, 2])),
    "words as coefficients": ("A is a list of texts", lambda: linsat.Constraints(A=[["one", "two"]], b=1)),
    "None as coefficient": ("A ", lambda: linsat.Constraints(A=[[1, None]], b=1)),
    "complex": ("A has dtype", lambda: linsat.Constraints(A=[[1j, 2]], b=1)),
    "ragged": ("A is not a regular array", lambda: linsat.Constraints(A=[[1, 2], [3]], b=1)),
    "an object": ("A ", lambda: linsat.Constraints(A=object(), b=1)),
    "a dictionary": ("A ", lambda: linsat.Constraints(A={"x": 1}, b=1)),
    "a list of itself": ("A ", lambda: linsat.Constraints(A=LOOP, b=1)),
    "dates": ("A has dtype", lambda: linsat.Constraints(A=np.array([["2020-01-01"]], dtype="datetime64[D]"), b=1)),
    "a text": ("A ", lambda: linsat.Constraints(A="x <= 1", b=1)),
    "huge integer": ("b ", lambda: linsat.Constraints(A=ROW, b=10**400)),
    "different widths": (
        "disagree on the number of variables",
        lambda: linsat.Constraints(A=ROW, b=1, E=[[1, 1]], f=1),
    ),
    "bound of other length": ("disagree", lambda: linsat.Constraints(A=ROW, b=1, lower=[0, 0])),
    "crossed bounds": ("lower = 2.0 is above upper", lambda: linsat.Constraints(A=ROW, b=1, lower=2)),
    "one crossed bound": ("lower[1] = 5.0", lambda: linsat.Constraints(A=ROW, b=1, lower=[0, 5, 0])),
    "nan bound": ("upper[1] is nan", lambda: linsat.Constraints(A=ROW, b=1, upper=[1, nan, 1])),
    "no bound": ("upper is -inf", lambda: linsat.Constraints(A=ROW, b=1, upper=-inf)),
    "an empty row": ("A[0] has no non-zero coefficient", lambda: linsat.Constraints(A=[[0, 0]], b=-1)),
    "one name": ("names", lambda: linsat.Constraints(A=ROW, b=1, names="row")),
    "numbers as names": ("names", lambda: linsat.Constraints(A=ROW, b=1, names=[1])),
    "too many names": ("names has length 2", lambda: linsat.Constraints(A=ROW, b=1, names=["a", "b"])),
    "batches that do not fit": (
        "batch dimensions",
        lambda: linsat.Constraints(A=ROW, b=np.ones((4, 1)), E=ROW, f=np.ones((3, 1))),
    ),
    "contradiction": ("E", lambda: linsat.Constraints(E=[[1, 1], [1, 1]], f=[0.5, 1.5]).check()),
    "side of missing rows": ("b was given but the set has no A rows", lambda: THREE.with_rhs(b=1.0)),
    "bounds put in crossed": ("lower", lambda: THREE.with_bounds(lower=3.0)),
    "joined with another width": ("Cannot join sets over 3 and 4", lambda: THREE & simplex(4)),
    "violation of another width": ("x has shape (4,)", lambda: THREE.violation(torch.zeros(4))),
}

FAMILIES: dict[str, Call] = {
    "simplex 0": ("n is 0", lambda: simplex(0)),
    "simplex of a fraction": ("n is 2.5", lambda: simplex(2.5)),
    "simplex of true": ("n is True", lambda: simplex(True)),
    "simplex of a text": ("n is '3'", lambda: simplex("3")),
    "simplex too full": ("total is 4", lambda: simplex(3, 4)),
    "simplex nan": ("total is nan", lambda: simplex(3, nan)),
    "simplex negative": ("total is -1", lambda: simplex(3, -1)),
    "top_k more than all": ("k is 4", lambda: top_k(3, 4)),
    "top_k negative": ("k is -1", lambda: top_k(3, -1)),
    "top_k fraction": ("k is 1.5", lambda: top_k(3, 1.5)),
    "budget of words": ("costs", lambda: budget(["a"], 1)),
    "budget of nothing": ("costs", lambda: budget([], 1)),
    "budget nan": ("costs is nan at index 1", lambda: budget([1, nan], 1)),
    "budget unlimited": ("at_most", lambda: budget([1, 2], inf)),
    "budget of None": ("at_most", lambda: budget([1, 2], None)),
    "square of -2": ("n is -2", lambda: doubly_stochastic(-2)),
    "permutation of None": ("n is None", lambda: permutation(None)),
    "matching of nobody": ("n1 is 0", lambda: matching(0, 3)),
    "matching negative": ("at_most", lambda: matching(2, 3, at_most=-1)),
    "matching of a text": ("at_most", lambda: matching(2, 3, at_most="two")),
    "bins too small": ("capacity", lambda: capacity_assignment(4, 2, 1)),
    "bins miscounted": ("capacity", lambda: capacity_assignment(4, 2, [1, 2, 3])),
    "sizes miscounted": ("sizes", lambda: capacity_assignment(4, 2, 4, sizes=[1, 1])),
    "sizes negative": ("sizes", lambda: capacity_assignment(2, 2, 4, sizes=[1, -1])),
    "ranking of too few labels": ("groups", lambda: ranking(3, groups="ab", at_least={"a": 0.1})),
    "ranking of no such label": ("at_least", lambda: ranking(2, groups="ab", at_least={"c": 0.1})),
    "ranking above one": ("at_least", lambda: ranking(2, groups="ab", at_least={"a": 1.5})),
    "ranking with a list": ("at_least", lambda: ranking(2, groups="ab", at_least=[0.5])),
    "ranking with bad weights": (
        "exposure",
        lambda: ranking(2, groups="ab", at_least={"a": 0.1}, exposure=[1, 2, 3]),
    ),
    "tour of one place": ("start", lambda: tour(5, 0, 0)),
    "tour to nowhere": ("end", lambda: tour(5, 0, 7)),
    "tour from a name": ("start", lambda: tour(5, "A", 1)),
    "tour with priority too late": ("within", lambda: tour(5, 0, 1, priority=2, within=9)),
    "tour without priority": ("within", lambda: tour(5, 0, 1, within=2)),
    "portfolio of unknown assets": ("preferred", lambda: portfolio(3, [5], 0.5)),
    "portfolio twice": ("preferred", lambda: portfolio(3, [1, 1], 0.5)),
    "portfolio above one": ("at_least", lambda: portfolio(3, [1], 1.5)),
    "portfolio of a name": ("preferred", lambda: portfolio(3, "AB", 0.5)),
}

CALLS: dict[str, Call] = {
    "no scores": ("y", lambda: linsat.project(None, THREE)),
    "a list of words": ("y", lambda: linsat.project(["a", "b", "c"], THREE)),
    "whole numbers": ("y has dtype torch.int64", lambda: linsat.project(torch.zeros(3, dtype=torch.int64), THREE)),
    "truth values": ("y has dtype", lambda: linsat.project(np.zeros(3, dtype=bool), THREE)),
    "too few scores": ("y has shape (2,)", lambda: linsat.project(torch.zeros(2), THREE)),
    "one number": ("y has shape ()", lambda: linsat.project(torch.tensor(0.0), THREE)),
    "nan score": ("y holds nan (instance 0, variable x[1])", lambda: linsat.project(torch.tensor([0, nan, 0]), THREE)),
    "infinite score": ("y holds inf", lambda: linsat.solve(np.array([0, 0, inf]), THREE, on_failure="raise")),
    "sparse scores": ("y has layout", lambda: linsat.project(Y.to_sparse(), THREE)),
    "no constraints": ("constraints is a NoneType", lambda: linsat.project(Y, None)),
    "a matrix for constraints": ("constraints is a Tensor", lambda: linsat.project(Y, torch.eye(3))),
    "tau 0": ("tau is 0", lambda: linsat.project(Y, THREE, tau=0)),
    "tau nan": ("tau is nan", lambda: linsat.project(Y, THREE, tau=nan)),
    "tau in words": ("tau is 'warm'", lambda: linsat.project(Y, THREE, tau="warm")),
    "tau a list of words": ("tau is", lambda: linsat.project(Y, THREE, tau=["a"])),
    "tau per variable": ("tau has shape (3,)", lambda: linsat.project(Y, THREE, tau=torch.ones(3))),
    "one tau negative": ("tau is -1", lambda: linsat.project(Y, THREE, tau=torch.tensor([1.0, -1.0]))),
    "tau imaginary": ("tau", lambda: linsat.project(Y, THREE, tau=1j)),
    "solver by name": ("solver is 'newton'", lambda: linsat.project(Y, THREE, solver="newton")),
    "solver as class": ("solver is", lambda: linsat.project(Y, THREE, solver=linsat.Newton)),
    "on_failure explode": ("on_failure is 'explode'", lambda: linsat.project(Y, THREE, on_failure="explode")),
    "on_failure None": ("on_failure is None", lambda: linsat.solve(Y, THREE, on_failure=None)),
    "start of another shape": ("start has shape (5,)", lambda: linsat.project(Y, THREE, start=torch.zeros(5))),
    "start of words": ("start is str", lambda: linsat.solve(Y, THREE, start="here")),
    "batch of other size": (
        "y has batch dimensions (2,)",
        lambda: linsat.project(Y, THREE.with_rhs(f=torch.ones(5, 1))),
    ),
    "each, miscounted": ("scores has 1 entries", lambda: linsat.project_each([Y], [THREE, THREE])),
    "each, one bad": ("constraints is a str", lambda: linsat.project_each([Y], ["rows"])),
    "box beyond float16": (
        "y has dtype torch.float16",
        lambda: linsat.project(Y.half(), linsat.Constraints(A=ROW, b=1e6, upper=1e6)),
    ),
    "layer without a set": ("expected linsat.Constraints", lambda: linsat.LinSAT(None)),
    "layer with tau -1": ("tau", lambda: linsat.LinSAT(THREE, tau=-1)),
    "newton tol 2": ("tol is 2", lambda: linsat.Newton(tol=2)),
    "newton tol nan": ("tol is nan", lambda: linsat.Newton(tol=nan)),
    "newton half a step": ("max_steps is 0.5", lambda: linsat.Newton(max_steps=0.5)),
    "newton backend": ("backend is 'gpu'", lambda: linsat.Newton(backend="gpu")),
    "sinkhorn sweeps": ("max_sweeps is 0", lambda: linsat.Sinkhorn(max_sweeps=0)),
    "sinkhorn variant": ("variant is 'v9'", lambda: linsat.Sinkhorn(variant="v9")),
    "sinkhorn signed": (
        "non-negative coefficients",
        lambda: linsat.project(torch.zeros(2), budget([1, -1], 0.5), solver=linsat.Sinkhorn()),
    ),
    "marginals of a vector": (
        "S has shape",
        lambda: linsat.interop.linsatnet.sinkhorn(torch.ones(3), torch.ones(3), torch.ones(3)),
    ),
    "marginals negative": (
        "S",
        lambda: linsat.interop.linsatnet.sinkhorn(-torch.ones(2, 2), torch.ones(2), torch.ones(2)),
    ),
    "marginals of other totals": (
        "u sums to",
        lambda: linsat.interop.linsatnet.sinkhorn(torch.ones(2, 2), [1.0, 1.0], [1.0, 2.0]),
    ),
    "decode of other width": ("x has shape", lambda: decode.rounding(torch.zeros(4), THREE)),
    "decode nan": ("x", lambda: decode.rounding(torch.tensor([nan, 0.0, 1.0]), THREE)),
    "decode without a set": ("cons is of type", lambda: decode.rounding(torch.zeros(3), "rows")),
    "decode too many": ("k", lambda: decode.top_k(torch.zeros(3), 9)),
    "decode tol": ("tol is -1", lambda: decode.rounding(torch.zeros(3), THREE, tol=-1)),
    "hungarian shape": ("shape", lambda: decode.hungarian(torch.zeros(6), shape=(2, 2))),
    "hungarian shape of words": ("shape", lambda: decode.hungarian(torch.zeros(4), shape="2x2")),
    "variable of size 0": ("shape contains 0", lambda: linsat.Variable(0)),
    "variable without a name": ("name is ''", lambda: linsat.Variable(2, name="")),
    "variable product": ("", lambda: X[0, 0] * X[0, 1]),
    "variable index": ("does not fit shape (2, 3)", lambda: X[5]),
    "row of a word": ("", lambda: X.sum() <= "three"),
    "row of nan": ("", lambda: X.sum() <= nan),
    "strict row": ("", lambda: X.sum() < 3),
    "no rows": ("", lambda: linsat.subject_to("x <= 1", variables=[X])),
    "file of no kind": ("ends in '.txt'", lambda: linsat.Constraints.load("rows.txt")),
    "file that is not there": ("does not exist", lambda: linsat.Constraints.load("there_is_none.json")),
    "box of one end": ("box", lambda: linsat.Constraints.load("there_is_none.lp", box=(1.0,))),
    "box crossed": ("box", lambda: linsat.Constraints.load("there_is_none.lp", box=(2.0, 1.0))),
}

ROW_TEXTS: dict[str, str] = {
    "import": "__import__('os').system('id') <= 1",
    "attribute": "a.__class__ <= 1",
    "subscript": "a[0] <= 1",
    "call": "exec(a) <= 1",
    "call of a bracket": "a(b) <= 1",
    "lambda": "lambda a <= 1",
    "walrus": "(a := 1) <= 1",
    "power": "a ** 9999999 <= 1",
    "caret": "a ^ 2 <= 1",
    "format": "{a} <= 1",
    "f-string": "f'{a}' <= 1",
    "semicolon": "a <= 1; b <= 1",
    "backslash": "a \\ b <= 1",
    "dollar": "$a <= 1",
    "shell": "`id` <= 1",
    "markup": "<script>alert(1)</script>",
    "quote": "'a' <= 1",
    "zero byte": "a\x00 <= 1",
    "escape": "\x1b[2J <= 1",
    "right to left": "a \u202e<= 1",
    "full-width digit": "a <= \uff11",
    "letter of another script": "\u0430 <= 1",
    "surrogate": "a \udcff <= 1",
    "strict": "a < 1",
    "not equal": "a != 1",
    "no relation": "a + b",
    "only a relation": "<=",
    "no right-hand side": "a + b <=",
    "no variable": "1 <= 2",
    "cancelled": "a - a <= 1",
    "three relations": "0 <= a <= b <= 1",
    "opposite": "0 <= a >= 1",
    "equal twice": "a = b = 1",
    "quadratic": "a * b <= 1",
    "square": "a * a <= 1",
    "division": "1 / a <= 1",
    "by zero": "a / 0 <= 1",
    "by a difference": "a / (1 - 1) <= 1",
    "too large": "1e300 a <= 1",
    "too small": "1e-300 a <= 1",
    "overflow": "a <= " + "*".join(["999999"] * 60),
    "exponent": "a <= 1e99999",
    "digits": "a <= " + "9" * 5000,
    "open": "(a <= 1",
    "closed": "a) <= 1",
    "deep": "(" * 5000 + "a" + ")" * 5000 + " <= 1",
    "long name": "a" * 1000 + " <= 1",
    "long label": "x" * 500 + ": a <= 1",
    "no label": ": a <= 1",
    "label of a box": "box: 0 <= a <= 1",
    "crossed box": "2 <= a <= 1",
    "two boxes": "0 <= a <= 1\n0 <= a <= 2",
    "long text": "a <= 1\n" * 100_000,
    "many lines": "\n" * 500,
    "many variables": " + ".join(f"v{i}" for i in range(60)) + " <= 1",
    "many rows": "a <= 1\n" * 60,
}

READ_ROWS: dict[str, Call] = {
    name: ("line ", lambda text=text: parse(text))
    for name, text in ROW_TEXTS.items()  # type: ignore[misc]
}
