"""Systems of rows with a known feasible point, and the projections asked of them; all from (seed, number)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fuzz.families import FAMILIES, SENSES, Array, Rng, Rows, feasible_sides
from fuzz.structured import STRUCTURED

DTYPES = ("float16", "bfloat16", "float32", "float64")
LAYOUTS = ("contiguous", "strided", "transposed")
OBJECTIVES = ("entropic", "slack-free", "euclidean", "kl", "tsallis", "quadratic", "metric")
BOUNDLESS = ("euclidean", "quadratic", "metric")  # need no finite bound
ABOVE_LOWER = ("kl", "tsallis")  # need a finite lower bound
_MOST_SIDES = 48  # right-hand sides of one case
_SHARED_BATCHES: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (2, 1), (1, 2, 1), (5,), (0,))
_HEAVY = {"many rows": 24, "tiny": 12}  # families of which only one turn in so many is taken
_TINY_SIDES = 400  # of the family whose systems fill the lanes of vectors
_GRAPH_EVERY = 150  # cases between two that are compiled, and between two that are exported: seconds each


@dataclass
class Case:
    """One call: rows over a box, ``sides`` (systems, rows), and scores for them.

    ``shared``: one right-hand side for all scores, given as (rows,). Otherwise every instance has its own, and the
    batch dimensions of the scores are ``batch``, whose product is the number of systems.
    """

    family: str
    matrix: Array  # (rows, variables)
    senses: list[str]
    sides: Array  # (systems, rows)
    lower: Array  # (variables,), may be infinite where the objective allows it
    upper: Array
    scores: Array  # (batch..., variables) float64, rounded to the dtype by the caller
    batch: tuple[int, ...]
    shared: bool
    tau: float
    dtype: str = "float64"
    layout: str = "contiguous"
    sparse: bool = False  # hand the matrices over as scipy.sparse
    points: list[Array | None] = field(default_factory=list)  # per system: a point that satisfies it; None: infeasible
    weights: Array | None = None  # (rows,) multipliers that refute the infeasible systems
    excess: float = 0.0  # infeasible systems: by this share of some row's mean coefficient every point violates it
    objective: str = "entropic"
    metric: Array | None = None  # (variables,) weights of the Euclidean objective
    price: Array | None = None  # (rows,) of soft rows, infinite where a row is hard
    own: Array | None = None  # (systems, rows, variables) coefficients of each system, in place of ``matrix``
    way: str = "eager"  # or through a graph: "compiled", "exported"
    wide: bool = False  # the box is far wider than what the rows leave of it
    prior: Array | None = None  # (variables,) of KL
    alpha: float = 1.5  # of Tsallis
    P: Array | None = None  # (variables, variables) of the quadratic objective and the metric
    each: dict[str, Array] = field(default_factory=dict)  # (systems, ...) in place of numbers above
    call: bool = False  # all numbers come with the call, in place of others that the set has

    @property
    def infeasible(self) -> Array:
        """(systems,) bool, known from how the sides were made."""
        return np.array([point is None for point in self.points], dtype=bool)

    @property
    def hard(self) -> Array:
        """(rows,) bool: the rows that must hold."""
        return np.ones(len(self.senses), dtype=bool) if self.price is None else np.isinf(self.price)

    def matrix_of(self, system: int) -> Array:
        """The coefficients of one system, (rows, variables)."""
        return self.matrix if self.own is None else self.own[system]

    def alone(self, system: int) -> Case:
        """One system as a case without numbers of each: what formulas are about."""
        numbers = {name: values[system] for name, values in self.each.items()}
        sides, points = self.sides[[system]], [self.points[system]]
        return replace(self, matrix=self.matrix_of(system), sides=sides, points=points, own=None, each={}, **numbers)

    def arguments(self, keep: Array | None = None) -> dict[str, Any]:
        """Keyword arguments of linsat.Constraints; with ``keep``, those of some systems as a batch of one dimension."""
        sides = self.sides[0] if self.shared and keep is None else self._batched(self.sides, keep)
        own = None if self.own is None else self._batched(self.own, keep)
        made: dict[str, Any] = {"lower": self.number("lower", keep), "upper": self.number("upper", keep)}
        for sense, matrix, side in (("<=", "A", "b"), (">=", "C", "d"), ("==", "E", "f")):
            rows = [i for i, s in enumerate(self.senses) if s == sense]
            if rows:
                made |= {matrix: self._block(rows) if own is None else own[..., rows, :], side: sides[..., rows]}
        return made

    def number(self, name: str, keep: Array | None = None) -> Any:
        """One for all systems, or in their batch shape."""
        return self._batched(self.each[name], keep) if name in self.each else getattr(self, name)

    def _batched(self, values: Array, keep: Array | None) -> Array:
        batch = self.batch if keep is None else (len(keep),)
        return values[slice(None) if keep is None else keep].reshape(*batch, *values.shape[1:])

    def statement(self, library: Any, keep: Array | None = None) -> tuple[Any, dict[str, Any]]:
        """The set, soft rows included, and the numbers that come with the call."""
        arguments = self.arguments(keep)
        prices = self._soft_prices(keep)
        if not self.call:
            return _softened(library.Constraints(**arguments), *prices), {}
        first = self.alone(0)
        base = _softened(library.Constraints(**first.arguments(np.zeros(1, dtype=int))), *first._soft_prices(None))
        return base, arguments | ({"price": prices[1]} if len(prices[0]) else {})

    def constraints(self, library: Any) -> Any:
        """The set as it is after all numbers are in their places."""
        made, numbers = self.statement(library)
        price = numbers.pop("price", None)
        for change, names in (("with_coefficients", "ACE"), ("with_rhs", "bdf"), ("with_bounds", ("lower", "upper"))):
            given = {name: numbers[name] for name in names if name in numbers}
            made = getattr(made, change)(**given) if given else made
        return made if price is None else made.with_price(price)

    def _soft_prices(self, keep: Array | None) -> tuple[list[int], Any]:
        """Which rows of the set are soft, and their prices."""
        if self.price is None:
            return [], None
        price = self.number("price", keep)[..., self.order()]
        soft = np.flatnonzero(np.isfinite(self.price[self.order()]))
        return soft.tolist(), price[..., soft]

    def asked(self, library: Any, keep: Array | None = None) -> Any:
        """The objective."""
        tau = self.number("tau", keep)
        if self.objective == "euclidean":
            return library.Euclidean(self.number("metric", keep))
        if self.objective in ("quadratic", "metric"):
            P = self.number("P", keep)
            if self.sparse and P.ndim == 2:
                from scipy.sparse import csr_array

                P = csr_array(P)
            return library.Quadratic(P) if self.objective == "quadratic" else library.Euclidean(weights=P)
        if self.objective == "kl":
            return library.KL(tau, self.number("prior", keep))
        if self.objective == "tsallis":
            return library.Tsallis(self.number("alpha", keep), tau)
        return library.Entropy(tau, slack="none" if self.objective == "slack-free" else "entropic")

    def order(self) -> list[int]:
        """Position in ``matrix`` of every row of the constraint set, which lists <=, then >=, then ==."""
        return [i for sense in SENSES for i, s in enumerate(self.senses) if s == sense]

    def _block(self, pick: list[int]) -> Any:
        if not self.sparse:
            return self.matrix[pick]
        from scipy.sparse import csr_array

        return csr_array(self.matrix[pick])


def _softened(constraints: Any, rows: list[int], price: Any) -> Any:
    return constraints.soften(rows, price=price) if rows else constraints


def draw(seed: int, number: int) -> Case:
    """The random feasible case ``number`` of the run ``seed``: always the same."""
    rng = np.random.default_rng([seed, number, 1])
    names = list(FAMILIES)
    family = names[number % len(names)]
    if family in _HEAVY and (number // len(names)) % _HEAVY[family]:
        family = "signed"  # many times the work of the others
    return _feasible(rng, family, FAMILIES[family](rng), number, many=family != "many rows")


def draw_structured(seed: int, number: int) -> Case:
    """The structured feasible case ``number`` of the run ``seed``: always the same."""
    rng = np.random.default_rng([seed, number, 3])
    family = list(STRUCTURED)[number % len(STRUCTURED)]
    return _feasible(rng, family, STRUCTURED[family](rng), number, many=True)


def _feasible(rng: Rng, family: str, rows: Rows, number: int, *, many: bool) -> Case:
    shared = bool(rng.random() < 0.4)
    most = _TINY_SIDES if family == "tiny" else _MOST_SIDES
    systems = 1 if shared or not many else int(rng.integers(2, most + 1))
    own = None
    if many and not shared and not rows.exact and rng.random() < 0.15:
        own = rows.matrix * (1 + 0.2 * rng.uniform(-1, 1, (systems, *rows.matrix.shape)))
    points, sides = zip(
        *(feasible_sides(rng, rows, None if own is None else own[i]) for i in range(systems)), strict=True
    )
    wide = bool(rng.random() < 0.1)
    if wide:
        rows.lower, rows.upper = widen(rng, rows.lower, rows.upper)
    case = dress(rng, family, rows, list(points), np.stack(sides), shared)
    case.own, case.sparse, case.wide = own, case.sparse and own is None, wide
    if rng.random() < 0.25:
        soften(rng, case)
    if not shared and rng.random() < 0.35:
        differ(rng, case)
    case.call = not case.sparse and bool(rng.random() < 0.2)
    if number % _GRAPH_EVERY in (60, 110) and shared and case.scores.size:
        case.way = "compiled" if number % _GRAPH_EVERY == 60 else "exported"
    return case


def differ(rng: Rng, case: Case) -> None:
    """Give each system its own numbers of some kinds; known points stay in the box."""
    count, l = len(case.sides), len(case.lower)

    def some(name: str) -> bool:
        return getattr(case, name) is not None and bool(rng.random() < 0.6)

    def near(value: Any) -> Array:
        shape = (count, *np.shape(value))
        return value * np.exp(rng.uniform(-1, 1, shape))

    if case.objective in ("entropic", "slack-free", "kl", "tsallis") and some("tau"):
        case.each["tau"] = near(case.tau)
    if case.objective == "tsallis" and some("alpha"):
        case.each["alpha"] = rng.uniform(1.1, 3.0, count)
    case.each |= {name: near(getattr(case, name)) for name in ("metric", "prior", "price") if some(name)}
    if case.P is not None and rng.random() < 0.6:
        scale = np.exp(rng.uniform(-1, 1, (count, l, 1)))
        case.each["P"] = case.P * scale * scale.transpose(0, 2, 1)
    if rng.random() < 0.5:
        width = np.where(np.isfinite(case.upper - case.lower), case.upper - case.lower, 1.0)
        case.each["lower"] = case.lower - rng.uniform(0, 0.3, (count, l)) * width
        case.each["upper"] = case.upper + rng.uniform(0, 0.3, (count, l)) * width


def soften(rng: Rng, case: Case) -> None:
    """Make some rows soft, at prices of 0.01 to 1e6.

    In half of the cases their sides leave the known point, so that not all can hold.
    """
    soft = rng.random(len(case.senses)) < rng.choice([0.3, 0.7])
    soft[rng.integers(len(soft))] = True
    case.price = np.where(soft, 10.0 ** rng.uniform(-2, 6, len(soft)), np.inf)
    if rng.random() < 0.5:
        finite = np.where(np.isfinite(case.upper - case.lower), case.upper - case.lower, 1.0)
        reach = np.abs(case.matrix) @ finite
        tighter = [{"<=": -1.0, ">=": 1.0, "==": float(rng.choice([-1.0, 1.0]))}[s] for s in case.senses]
        case.sides = case.sides + soft * np.array(tighter) * rng.uniform(0.0, 0.5, case.sides.shape) * reach


def dress(rng: Rng, family: str, rows: Rows, points: list[Array | None], sides: Array, shared: bool) -> Case:
    """Objective, scores, dtype and layout for rows and right-hand sides."""
    batch = _SHARED_BATCHES[rng.integers(len(_SHARED_BATCHES))] if shared else _odd_shape(rng, len(sides))
    if shared and points[0] is None and 0 in batch:
        batch = (1,)  # of no instance at all nothing is said
    dtype = str(rng.choice(DTYPES, p=[0.1, 0.1, 0.3, 0.5]))
    l, kind = len(rows.lower), rng.random()
    spread = 0.0 if kind < 0.1 else 10.0 ** rng.uniform(-2, 4) if kind < 0.6 else 1.0
    direction = rng.uniform(-1, 1, (*batch, l))
    if rows.pull is not None and rng.random() < 0.7:
        direction = rows.pull + 1e-3 * rng.choice([0.0, 1.0]) * direction
    scores = spread * direction + (rng.normal() if rng.random() < 0.5 else 0.0)
    objective = str(rng.choice(OBJECTIVES, p=[0.25, 0.15, 0.2, 0.15, 0.1, 0.1, 0.05]))
    tau = float(10.0 ** rng.uniform(-3, 2))
    lower, upper = rows.lower, rows.upper
    P, singular = _matrix(rng, l, objective) if objective in ("quadratic", "metric") else (None, False)
    if objective in (*BOUNDLESS, *ABOVE_LOWER) and not singular and rng.random() < 0.4:
        low, high = open_box(rng, lower, upper)
        lower, upper = lower if objective in ABOVE_LOWER else low, high
        if objective == "kl":  # what no row and no bound holds is exp(y / tau)
            tau = max(tau, float(np.abs(scores).max(initial=0.0)) / 100.0)
    weighted = objective == "euclidean" and rng.random() < 0.4
    prior = 10.0 ** rng.uniform(-3, 2, l) if objective == "kl" and rng.random() < 0.5 else None
    return Case(
        family=family,
        matrix=rows.matrix,
        senses=rows.senses,
        sides=sides,
        lower=lower,
        upper=upper,
        scores=scores,
        batch=batch,
        shared=shared,
        tau=tau,
        dtype=dtype,
        layout=str(rng.choice(LAYOUTS)),
        sparse=bool(rng.random() < 0.2),
        points=points,
        objective=objective,
        metric=10.0 ** rng.uniform(-2, 2, l) if weighted else None,
        prior=prior,
        alpha=float(rng.choice([1.1, 1.3, 1.5, 2.0, 3.0])),
        P=P,
    )


def _matrix(rng: Rng, l: int, objective: str) -> tuple[Array, bool]:
    """A matrix of a quadratic form, and whether it is singular: full, sparse, or of low rank."""
    size = float(10.0 ** rng.uniform(-2, 2))
    kind = rng.random()
    if kind < 0.3 and objective == "quadratic":
        factor = rng.normal(size=(l, int(rng.integers(0, l))))
        return size * (factor @ factor.T) / max(l, 1), True
    factor = rng.normal(size=(l, l)) * (rng.random((l, l)) < (0.2 if kind < 0.5 else 1.0))
    return size * (factor @ factor.T / l + rng.uniform(0.01, 1.0) * np.eye(l)), False


def widen(rng: Rng, lower: Array, upper: Array) -> tuple[Array, Array]:
    """The box 100 to 1e6 times as wide, to at most 1e6, upwards or both ways, for all variables or half of them.

    One time in ten, up to 1e9.
    """
    most = 9.0 if rng.random() < 0.1 else 6.0
    width = upper - lower
    more = np.minimum(10.0 ** rng.uniform(2, most) * width, 10.0**most)
    more = more * (rng.random(len(lower)) < rng.choice([0.5, 1.0]))
    more = np.where(width > 0, more, 0.0)
    return lower - more * rng.choice([0.0, 0.5]), upper + more


def open_box(rng: Rng, lower: Array, upper: Array) -> tuple[Array, Array]:
    """The box with some bounds, or all, taken away."""
    share = float(rng.choice([0.3, 0.7, 1.0]))
    low, high = (rng.random(len(lower)) < share for _ in range(2))
    return np.where(low, -np.inf, lower), np.where(high, np.inf, upper)


def _odd_shape(rng: Rng, count: int) -> tuple[int, ...]:
    """A shape of one to three dimensions with so many instances."""
    factors = [n for n in range(1, count + 1) if count % n == 0]
    first = int(rng.choice(factors))
    return ((count,), (first, count // first), (first, 1, count // first))[rng.integers(3)]
