"""Formulas beside the rows of a case: sums of abs, maxima, minima and norms that its known point satisfies.

Each is written twice, for the library and as maxima of affine pieces in numpy, from which Clarabel gets its epigraphs.
Judged are rows, formulas, signs of multipliers, the value against Clarabel's, x of the numpy door, and the gradient to
the scores against finite differences.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
import torch

import linsat
from fuzz.families import Array, Rng
from fuzz.measure import evaluation_rounding, row_size, violations
from fuzz.optimality import linear_part, value
from fuzz.systems import Case
from fuzz.verdict import Verdict

KINDS = ("abs", "differences", "largest", "maximum", "minimum", "one")
_HOLDS = 1e-9  # of the size of a row or formula
_WORTH = 1e-7  # of a value, relative to its size
_APART = 1e-7  # of two doors
_STEP = 3e-5  # of finite differences, relative to the scores
_AGREE, _OFF = 1e-3, 3e-3  # of differences among themselves, and of the gradient from them
_DENSE_ROWS = 256  # beyond them Quadratic may not take formulas
_ROUNDING = 64 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class Formula:
    """sum_m max_p (pieces[m, p] x - offsets[m, p]) <= side, and the same in the words of the library."""

    kind: str
    pieces: Array  # (maxima, pieces, variables)
    offsets: Array  # (maxima, pieces)
    side: float
    relation: Callable[[Any, Any], Any]  # of linsat and its variable
    price: float | None = None

    def over(self, x: Array) -> float:
        """By how much it is violated at x, below zero where it is not."""
        return float((self.pieces @ x - self.offsets).max(1).sum() - self.side)

    def size(self, x: Array) -> float:
        """What its violation is relative to."""
        return max(1.0, float((np.abs(self.pieces) @ np.abs(x)).max(1).sum()))

    def rounding(self, x: Array) -> float:
        terms = (np.abs(self.pieces) @ np.abs(x) + np.abs(self.offsets)).max(1).sum()
        return _ROUNDING * float(terms + abs(self.side))


def draw(rng: Rng, kind: str, at: Array) -> Formula:
    """A formula of a kind that the point ``at`` satisfies, now and then with equality."""
    l, eye = len(at), np.eye(len(at))
    near = at + rng.normal(size=l) * rng.choice([0.0, 0.1]) * (1.0 + np.abs(at))
    G, H = (rng.integers(-2, 3, (int(rng.integers(1, 4)), l)).astype(float) for _ in range(2))
    H = np.resize(H, G.shape)
    cut = G @ near
    if kind in ("abs", "largest"):
        pieces, offsets = np.stack([eye, -eye], 1), np.stack([near, -near], 1)
        if kind == "largest":
            pieces, offsets = pieces.reshape(1, 2 * l, l), offsets.reshape(1, 2 * l)
    elif kind == "differences":
        D = np.diff(eye, axis=0) if l > 1 else eye
        pieces, offsets = np.stack([D, -D], 1), np.zeros((len(D), 2))
    elif kind == "maximum":
        pieces, offsets = np.stack([G, H, 0 * G], 1), np.stack([cut, H @ near, 0 * cut], 1)
    elif kind == "minimum":
        pieces, offsets = np.stack([-G, -H], 1), np.stack([-cut, -cut], 1)
    else:
        pieces, offsets = np.stack([G[:1], -G[:1]], 1), np.stack([cut[:1], -cut[:1]], 1)
    empty = Formula(kind, pieces, offsets, 0.0, lambda library, w: None)
    room = 0.0 if rng.random() < 0.2 else float(rng.exponential(0.1)) * empty.size(at)
    side = empty.over(at) + room
    stated: dict[str, Callable[[Any, Any], Any]] = {
        "abs": lambda library, w: abs(w - near).sum() <= side,
        "differences": lambda library, w: library.norm(w.diff() if l > 1 else w, 1) <= side,
        "largest": lambda library, w: library.norm(w - near, "inf") <= side,
        "maximum": lambda library, w: library.maximum(G @ w - cut, H @ w - H @ near, 0.0).sum() <= side,
        "minimum": lambda library, w: library.minimum(G @ w - cut, H @ w - cut).sum() >= -side,
        "one": lambda library, w: abs(G[0] @ w - cut[0]) <= side,
    }
    price = float(10.0 ** rng.uniform(-2, 4)) if rng.random() < 0.2 else None
    return replace(empty, side=side, relation=stated[kind], price=price)


def judge_formulas(case: Case, verdict: Verdict, library: Any = linsat) -> None:
    """The first system of a case with formulas besides, its soft rows left out."""
    case = _plain(case)
    point = case.points[0]
    if point is None or not case.scores.size or case.wide:
        return
    rng = np.random.default_rng([len(case.senses), len(case.lower)])
    kinds = rng.choice(KINDS, int(rng.integers(1, 3)), replace=False)
    formulas = [draw(rng, str(kind), point) for kind in kinds]
    formulas = [f for f in formulas if f.pieces.any()]
    if formulas:
        judge_case(case, formulas, verdict, library)


def judge_case(case: Case, formulas: list[Formula], verdict: Verdict, library: Any = linsat) -> None:
    """A case of hard rows in double precision with these formulas besides; its first scores."""
    kinds = ", ".join(f.kind for f in formulas)
    cons, objective = statement(case, formulas, library), case.asked(library)
    y = torch.from_numpy(case.scores.reshape(-1, len(case.lower))[0])
    try:
        solution = library.solve(y, cons, objective=objective, on_failure="ignore")
    except linsat.InfeasibleError as error:
        verdict.find("false infeasible", f"formulas {kinds}: {error}")
        return
    except linsat.ConstraintError:  # the core factors full matrices densely; what is too large for that is rejected
        if case.P is None or len(case.senses) <= _DENSE_ROWS:
            raise
        verdict.checks["formulas, refused"] += 1
        return
    status = str(solution.status.item())
    verdict.checks["formulas"] += 1
    if status != "converged":
        verdict.checks["formulas, reported"] += 1
        if status == "infeasible":
            verdict.find("false infeasible", f"formulas {kinds}")
        return
    x = solution.x.numpy()
    if _hold(case, formulas, x, verdict):
        _judge_value(case, formulas, y.numpy(), x, _multipliers(solution, cons, formulas, verdict), verdict)
        _judge_numpy(cons, objective, y.numpy(), x, library, verdict)
        _judge_gradient(cons, objective, y, library, verdict)


def _plain(case: Case) -> Case:
    """One system of hard rows, in double precision; the paper's slack, of which formulas have none, left out."""
    case, hard = case.alone(0), case.hard
    objective = "slack-free" if case.objective == "entropic" else case.objective
    return replace(
        case, matrix=case.matrix[hard], senses=[s for s, h in zip(case.senses, hard, strict=True) if h],
        sides=case.sides[:, hard], price=None, objective=objective, dtype="float64", sparse=False, batch=(1,),
    )  # fmt: skip


def statement(case: Case, formulas: list[Formula], library: Any) -> Any:
    """The set as `linsat.subject_to` makes it."""
    w = library.Variable(len(case.lower), name="w", lower=case.lower, upper=case.upper)
    relations = []
    for sense in dict.fromkeys(case.senses):
        rows = [i for i, s in enumerate(case.senses) if s == sense]
        left, right = case.matrix[rows] @ w, case.sides[0][rows]
        relations.append(left <= right if sense == "<=" else left >= right if sense == ">=" else left == right)
    named = [formula.relation(library, w).named(f"formula {i}") for i, formula in enumerate(formulas)]
    cons = library.subject_to(*relations, *named, variables=[w])
    for i, formula in enumerate(formulas):
        if formula.price is not None:
            cons = cons.soften(f"formula {i}", price=formula.price)
    return cons


def _hold(case: Case, formulas: list[Formula], x: Array, verdict: Verdict) -> bool:
    """Whether rows, box and hard formulas hold at x."""
    k = len(case.senses)
    over = violations(case, 0, x)
    rows = over[:k] - evaluation_rounding(case, 0, x) > _HOLDS * row_size(case, 0, x)
    hard = [f for f in formulas if f.price is None]
    broken = [f.kind for f in hard if f.over(x) - f.rounding(x) > _HOLDS * f.size(x)]
    if not np.isfinite(x).all() or rows.any() or (over[k:] > 0).any() or broken:
        verdict.find("silent violation", f"with formulas, of rows {np.flatnonzero(rows).tolist()}, {broken} or the box")
        return False
    return True


def _multipliers(solution: Any, cons: Any, formulas: list[Formula], verdict: Verdict) -> tuple[Array, Array]:
    """Of the rows of the case, and of the formulas, whose sign and size are judged."""
    duals = np.asarray(solution.duals)
    places = [list(cons.names).index(f"formula {i}") for i in range(len(formulas))]
    for formula, dual in zip(formulas, duals[places], strict=True):
        signed = -dual if formula.kind == "minimum" else dual
        if signed > 0 or (formula.price is not None and -signed > formula.price * (1 + 1e-9)):
            verdict.find("duals", f"{dual:.3g} of a formula with {formula.kind}, at a price of {formula.price}")
    return np.delete(duals, places), duals[places]


def _judge_value(
    case: Case, formulas: list[Formula], y: Array, x: Array, duals: tuple[Array, Array], verdict: Verdict
) -> None:
    """Clarabel finds no better value; what its point breaks of hard rows is charged at our multipliers."""
    best = optimum(case, formulas, y)
    if best is None:
        verdict.checks["formulas: Clarabel unsure"] += 1
        return
    verdict.checks["formulas, values"] += 1
    inside = np.clip(best, case.lower, case.upper)
    of_rows = np.empty(len(case.senses))
    of_rows[case.order()] = duals[0]
    charged = float(np.abs(of_rows) @ violations(case, 0, inside)[: len(of_rows)])
    paid = [0.0, 0.0]
    for formula, dual in zip(formulas, duals[1], strict=True):
        for i, at in enumerate((x, inside)):
            worth = (abs(dual) if i else 0.0) if formula.price is None else formula.price
            paid[i] += worth * max(formula.over(at), 0.0)
    ours, theirs = value(case, y, x) - paid[0], value(case, y, inside) - paid[1] - charged
    size = 1.0 + float(np.abs(linear_part(case, y) * x).sum()) + abs(ours)
    worth = [abs(d) if f.price is None else f.price for f, d in zip(formulas, duals[1], strict=True)]
    rounding = float(np.abs(of_rows) @ evaluation_rounding(case, 0, x))
    rounding += sum(w * f.rounding(x) for w, f in zip(worth, formulas, strict=True))
    if theirs - ours > _WORTH * size + rounding:
        kinds = ", ".join(f.kind for f in formulas)
        verdict.find("optimum", f"formulas {kinds}: a value of {ours:.9g}, where Clarabel has {theirs:.9g}")


def optimum(case: Case, formulas: list[Formula], y: Array) -> Array | None:
    """The point that Clarabel finds; None where it does not vouch for it."""
    x, l = cp.Variable(len(y)), len(y)
    goal = linear_part(case, y) @ x - _cost(case, x)
    rows: list[Any] = []
    for bound, way in ((case.lower, 1.0), (case.upper, -1.0)):
        finite = np.isfinite(bound)
        rows += [way * x[finite] >= way * bound[finite]] if finite.any() else []
    for a, sense, b in zip(case.matrix, case.senses, case.sides[0], strict=True):
        rows.append(a @ x <= b if sense == "<=" else a @ x >= b if sense == ">=" else a @ x == b)
    for formula in formulas:
        shape = formula.offsets.shape
        pieces = formula.pieces.reshape(-1, l) @ x - formula.offsets.ravel()
        over = cp.sum(cp.max(cp.reshape(pieces, shape, order="C"), axis=1)) - formula.side
        if formula.price is None:
            rows.append(over <= 0)
        else:
            goal -= formula.price * cp.pos(over)
    problem = cp.Problem(cp.Maximize(goal), rows)
    for tol in (1e-11, 1e-10):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an inaccurate answer is reported by the status below
            try:
                problem.solve(solver=cp.CLARABEL, tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
            except cp.SolverError:
                return None
        if problem.status == cp.OPTIMAL:
            return np.asarray(x.value)
    return None


def _cost(case: Case, x: Any) -> Any:
    """Omega(x), for cvxpy."""
    if case.P is not None:
        return cp.quad_form(x, cp.psd_wrap(case.P)) / 2
    if case.objective == "euclidean":
        return cp.sum(cp.multiply(np.ones(x.size) if case.metric is None else case.metric, x**2)) / 2
    t = x - case.lower
    if case.objective == "kl":
        prior = np.ones(x.size) if case.prior is None else case.prior
        return -case.tau * cp.sum(cp.entr(t) + cp.multiply(1.0 + np.log(prior), t))
    if case.objective == "tsallis":
        return case.tau * cp.sum(cp.power(t, case.alpha) - t) / (case.alpha * (case.alpha - 1))
    free = case.upper > case.lower
    share = cp.multiply(1.0 / np.where(free, case.upper - case.lower, 1.0), t)[free]
    return -case.tau * cp.sum(cp.entr(share) + cp.entr(1 - share)) if free.any() else 0.0


def _judge_numpy(cons: Any, objective: Any, y: Array, x: Array, library: Any, verdict: Verdict) -> None:
    found = library.solve(y, cons, objective=objective, on_failure="ignore")
    apart = np.abs(found.x - x) / np.maximum(1.0, np.abs(x))
    if str(found.status.item()) != "converged" or not apart.max(initial=0.0) <= _APART:
        verdict.find("doors", f"numpy, formulas: {found.status.item()}, x is {apart.max():.1e} from torch's")


def _judge_gradient(cons: Any, objective: Any, y: torch.Tensor, library: Any, verdict: Verdict) -> None:
    """Along one direction of the scores; where differences do not agree with each other, x has a kink."""
    rng = np.random.default_rng(len(y))
    weights, direction = (torch.from_numpy(rng.normal(size=len(y))) for _ in range(2))
    direction = direction * y.abs().clamp(min=0.1)

    def total(scores: torch.Tensor) -> torch.Tensor:
        return (library.project(scores, cons, objective=objective, on_failure="nan") * weights).sum()

    here = float(total(y))
    steps = [(float(total(y + way * direction)) - here) / way for way in (_STEP, _STEP / 2, -_STEP / 2)]
    size = 1.0 + sum(map(abs, steps))
    if not max(steps) - min(steps) <= _AGREE * size:
        verdict.checks["formulas: a kink"] += 1
        return
    learned = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(learned), learned)
    slope = float(gradient @ direction)
    verdict.checks["formulas, gradients"] += 1
    if not min(steps) - _OFF * size <= slope <= max(steps) + _OFF * size:
        verdict.find("gradient", f"formulas: {slope:.6g} along a direction; differences say {steps[1]:.6g}")
