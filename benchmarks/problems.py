"""Cases: rows in every form a method may want, an objective, a batch and seeded scores.

The rows come from `rows`, the `linsat.Constraints` from the library's families. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

import linsat
import rows
from rows import Rows

ENTROPY, EUCLIDEAN = "entropy", "Euclidean"
HEADLINE, BATCH_SWEEP, SIZE_SWEEP, TAU_SWEEP, EXTRA = "headline", "batch", "size", "tau", "extra"
COLD_START = "cold start"  # a fresh process, measured by `cold_start`
LARGE = "large"  # single large instances, timed also from a new constraint set to x
BATCHES = (16, 64, 256, 1024)
SIZES = (10, 20, 30, 50, 70, 100)
TAUS = (1.0, 0.1, 0.03, 0.01, 0.003, 0.001)
# Dense rows above this are never built: those of the million-variable case would take 16 GB.
LARGEST_DENSE_GB = 0.1


@dataclass(frozen=True, eq=False)
class Problem:
    """One case: rows, objective and batch. Rows are built on first use: some cases are very large."""

    key: str  # short name of the rows
    label: str  # the same for a reader
    family: str
    size: int  # n of the matrix, or the number of assets
    shape: tuple[int, int]  # rows and variables, known without building them
    batch: int
    tau: float | None  # temperature; None: Euclidean
    make_rows: Callable[[], Rows]
    make_constraints: Callable[[], linsat.Constraints]
    groups: tuple[str, ...] = (EXTRA,)
    iterations: int = 100  # of the methods that take a fixed number of sweeps; 100 is LinSATNet's default
    draw: Callable[[int, int, torch.Generator], torch.Tensor] | None = None  # scores; default: uniform in [0, 1]

    @property
    def objective(self) -> str:
        return EUCLIDEAN if self.tau is None else ENTROPY

    @property
    def name(self) -> str:
        suffix = "-cold" if COLD_START in self.groups else f"-it{self.iterations}" if self.iterations > 100 else ""
        return f"{self.key}-b{self.batch}-" + ("euclidean" if self.tau is None else f"t{self.tau:g}") + suffix

    @property
    def title(self) -> str:
        return f"{self.label}, batch {self.batch}, " + ("Euclidean" if self.tau is None else f"tau {self.tau:g}")

    @cached_property
    def rows(self) -> Rows:
        return self.make_rows()

    @cached_property
    def constraints(self) -> linsat.Constraints:
        return self.make_constraints()

    @property
    def l(self) -> int:  # noqa: E743 - the letter of the paper
        return self.shape[1]

    @property
    def dense_gigabytes(self) -> float:
        return 8.0 * self.shape[0] * self.shape[1] / 1e9

    def scores(self, seed: int) -> torch.Tensor:
        """(batch, l), float32; float64 for Euclidean cases, whose rows are to hold to 1e-9."""
        generator = torch.Generator().manual_seed(seed)
        y = (self.draw or _uniform)(self.batch, self.l, generator)
        return y.double() if self.objective == EUCLIDEAN else y

    def weights(self, seed: int) -> torch.Tensor:
        """(batch, l) gradient handed to the backward pass; normal, because a constant one gives zero."""
        return torch.randn(self.batch, self.l, generator=torch.Generator().manual_seed(seed + 1))

    def euclidean(self, *groups: str) -> Problem:
        """The same rows, batch and scores with the Euclidean objective."""
        return replace(self, tau=None, iterations=100, groups=groups or self.groups)


def _uniform(batch: int, width: int, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(batch, width, generator=generator)


def _normal(batch: int, width: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(batch, width, generator=generator)


def _popular(bins: int, batch: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """Uniform scores plus a popularity of each bin, so that capacities bind, as a router's do."""
    popularity = torch.rand(bins, generator=generator).repeat(width // bins)
    return torch.rand(batch, width, generator=generator) + popularity


# ------------------------------------------------------------------ cases


def doubly_stochastic(n: int, batch: int, tau: float, *groups: str, iterations: int = 100) -> Problem:
    return Problem(
        key=f"ds{n}",
        label=f"doubly stochastic {n}x{n}",
        family="doubly stochastic",
        size=n,
        shape=(2 * n, n * n),
        batch=batch,
        tau=tau,
        make_rows=partial(rows.doubly_stochastic, n),
        make_constraints=partial(linsat.constraints.doubly_stochastic, n),
        groups=groups or (EXTRA,),
        iterations=iterations,
    )


def assignment(n: int, tau: float) -> Problem:
    named = {"key": f"assignment{n}", "label": f"assignment {n}x{n}"}
    return replace(doubly_stochastic(n, 1, tau, HEADLINE, LARGE), **named)


def tour(n: int, batch: int, tau: float) -> Problem:
    """The cities are arbitrary; the priority city comes within 5 steps, as in the paper.

    LinSATNet 0.1.3 takes the right-hand side 1 here: it adds 1e-7 to zero marginals, and 0.999 changes neither its
    time nor its violation noticeably (0.029 either way after 50 iterations). All methods get the same rows.
    """
    cities = {"start": 0, "end": 1, "priority": 2, "within": 5}
    return Problem(
        key=f"tsp{n}",
        label=f"TSP-PRI rows n = {n}",
        family="TSP-PRI",
        size=n,
        shape=(2 * n + 3, n * n),
        batch=batch,
        tau=tau,
        make_rows=partial(rows.tour, n, **cities),
        make_constraints=partial(linsat.constraints.tour, n, cities["start"], cities["end"], priority=2, within=5),
        groups=(HEADLINE,),
        iterations=50,
    )


def matching(n: int, at_most: int, batch: int, tau: float) -> Problem:
    return Problem(
        key=f"matching{n}",
        label=f"matching {n}x{n}, at most {at_most}",
        family="matching",
        size=n,
        shape=(2 * n + 1, n * n),
        batch=batch,
        tau=tau,
        make_rows=partial(rows.matching, n, n, at_most),
        make_constraints=partial(linsat.constraints.matching, n, n, at_most=at_most),
        groups=(HEADLINE,),
    )


def portfolio(n: int, batch: int, tau: float) -> Problem:
    """Six preferred assets hold at least half, as in the paper."""
    preferred = list(range(6))
    return Problem(
        key=f"portfolio{n}",
        label=f"portfolio {n} assets",
        family="portfolio",
        size=n,
        shape=(2, n),
        batch=batch,
        tau=tau,
        make_rows=partial(rows.portfolio, n, preferred, 0.5),
        make_constraints=partial(linsat.constraints.portfolio, n, preferred, 0.5),
        groups=(HEADLINE,),
    )


def simplex(n: int, batch: int) -> Problem:
    return Problem(
        key=f"simplex{n}",
        label=f"simplex {n}",
        family="simplex",
        size=n,
        shape=(1, n),
        batch=batch,
        tau=None,
        make_rows=partial(rows.simplex, n),
        make_constraints=partial(linsat.constraints.simplex, n),
        groups=(HEADLINE,),
    )


def experts(tokens: int, bins: int, batch: int, tau: float, *groups: str) -> Problem:
    """Mixture of experts: capacity 1.25 times the even share, and some experts more popular than others."""
    capacity = 1.25 * tokens / bins
    return Problem(
        key=f"moe{tokens}x{bins}",
        label=f"experts {tokens:,} x {bins}, capacity {capacity:g}",
        family="experts",
        size=tokens,
        shape=(tokens + bins, tokens * bins),
        batch=batch,
        tau=tau,
        make_rows=partial(rows.experts, tokens, bins, capacity),
        make_constraints=partial(linsat.constraints.capacity_assignment, tokens, bins, capacity),
        groups=(HEADLINE, *groups),
        draw=partial(_popular, bins),
    )


def random_dense(n: int, equalities: int, inequalities: int, batch: int) -> Problem:
    """The shape of DC3's experiments, projected from normal scores."""
    make = partial(rows.random_dense, n, equalities, inequalities)
    return Problem(
        key=f"dense{n}",
        label=f"random dense {n:,} variables, {equalities} = and {inequalities} <=, no box",
        family="random dense",
        size=n,
        shape=(equalities + inequalities, n),
        batch=batch,
        tau=None,
        make_rows=make,
        make_constraints=lambda: make().dense_constraints(),
        groups=(HEADLINE,),
        draw=_normal,
    )


FIRST = doubly_stochastic(20, 64, 0.1, HEADLINE, BATCH_SWEEP, TAU_SWEEP)
COLD = doubly_stochastic(20, 64, 0.01, HEADLINE, iterations=1000)
TOUR = tour(20, 256, 0.1)
MATCHING = matching(20, 12, 8, 0.05)
PORTFOLIO = portfolio(493, 32, 0.01)
LATENCY = doubly_stochastic(3, 1, 0.1, HEADLINE)
EXPERTS = experts(256, 16, 8, 0.1)
MANY_EXPERTS = experts(4096, 64, 1, 0.1, LARGE)
ASSIGNMENTS = {n: assignment(n, 0.01) for n in (300, 1000, 2000)}
FIRST_EUCLIDEAN = FIRST.euclidean(HEADLINE, BATCH_SWEEP)
DENSE = random_dense(100, 50, 50, 1024)
LARGE_DENSE = random_dense(1000, 500, 500, 64)
SIMPLEX = simplex(1000, 64)
COLD_STARTS = tuple(replace(case, groups=(COLD_START,)) for case in (FIRST, FIRST_EUCLIDEAN))
TINY = doubly_stochastic(3, 2, 0.1, EXTRA)

# A tiny problem of each family: what a process warms its libraries up on.
WARM_UPS = {
    case.family: case
    for case in (
        TINY,
        tour(8, 2, 0.1),
        matching(4, 2, 2, 0.1),
        portfolio(9, 2, 0.1),
        experts(6, 2, 2, 0.1),
        simplex(5, 2),
        random_dense(6, 2, 2, 2),
    )
}


def warm_up(problem: Problem) -> Problem:
    """The tiny problem of the same family and objective."""
    tiny = WARM_UPS[problem.family]
    return tiny.euclidean() if problem.objective == EUCLIDEAN else tiny


def all_problems() -> dict[str, Problem]:
    """Every case by name: the headline first, then the sweeps and the cold starts."""
    entropic = [FIRST, COLD, TOUR, MATCHING, PORTFOLIO, LATENCY, EXPERTS, MANY_EXPERTS, *ASSIGNMENTS.values()]
    euclidean = [case.euclidean() for case in (TOUR, MATCHING, PORTFOLIO, LATENCY, EXPERTS, MANY_EXPERTS)]
    cases = [*entropic, FIRST_EUCLIDEAN, *euclidean, DENSE, LARGE_DENSE, SIMPLEX, TINY, TINY.euclidean()]
    shared = (BATCH_SWEEP, SIZE_SWEEP)  # batch 16 at n = 20 is a point of both sweeps
    by_batch = [
        doubly_stochastic(20, batch, 0.1, *(shared if batch == 16 else (BATCH_SWEEP,)))
        for batch in BATCHES
        if batch != FIRST.batch
    ]
    cases += [*by_batch, *(case.euclidean(BATCH_SWEEP) for case in by_batch)]
    cases += [doubly_stochastic(n, 16, 0.1, SIZE_SWEEP) for n in SIZES if n != 20]
    cases += [doubly_stochastic(20, 64, tau, TAU_SWEEP) for tau in TAUS if tau != FIRST.tau]
    return {case.name: case for case in [*cases, *COLD_STARTS]}
