"""The same call through the other doors: numpy; JAX traced, mapped and differentiated. All agree with torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import linsat
from fuzz.families import Array
from fuzz.systems import Case
from fuzz.verdict import Verdict

_APART = 1e-7  # relative to the size of x: other sums may round differently, and steps end at 1e-9


def judge_doors(case: Case, statuses: list[str], points: Array, verdict: Verdict, library: Any = linsat) -> None:
    """Statuses and points of numpy and JAX against those of torch; half precision is torch's alone."""
    if case.dtype not in ("float32", "float64") or case.sparse:
        return
    _compare("numpy", case, by_numpy(case, library), (statuses, points), verdict)
    if not case.shared or case.batch != (0,):
        answer = by_jax(case, "solve")
        _compare("JAX", case, answer, (statuses, points), verdict)
        _judge_jax_gradient(case, [*statuses, *answer[0]], verdict)


def by_numpy(case: Case, library: Any = linsat) -> tuple[list[str], Array]:
    """Statuses and x by the numpy door."""
    cons, numbers = case.statement(library)
    y = case.scores.astype(case.dtype)
    solution = library.solve(y, cons, objective=case.asked(library), on_failure="ignore", **numbers)
    return [str(s) for s in solution.status.ravel()], solution.x.reshape(-1, y.shape[-1])


def by_jax(case: Case, way: str) -> Any:
    """Statuses and x inside jax.jit; with ``"gradient"``, x and the gradient of its weighted sum to the scores."""
    import jax
    import jax.numpy as jnp

    import linsat.jax

    with jax.enable_x64(True):
        cons, numbers = case.statement(linsat)
        for name, sense in (("A", "<="), ("C", ">="), ("E", "==")):
            if name in numbers:  # a traced matrix has numbers where the set has them
                places = case.matrix_of(0)[[s == sense for s in case.senses]] != 0
                numbers[name] = numbers[name][..., places]
        names = list(numbers)
        given = [jnp.asarray(numbers[name]) for name in names]
        y = jnp.asarray(case.scores.astype(case.dtype))

        def options(values: list[Any]) -> dict[str, Any]:
            given = dict(zip(names, values, strict=True))
            return {"objective": case.asked(linsat), "on_failure": "ignore", **given}

        def solve(y: Any, *values: Any) -> tuple[Any, Any]:
            solution = linsat.jax.solve(y, cons, **options(list(values)))
            return solution.status, solution.x

        def total(y: Any, *values: Any) -> Any:
            x = linsat.jax.project(y, cons, **options(list(values)))
            return (x * jnp.linspace(-1, 1, x.shape[-1], dtype=x.dtype)).sum()

        if way == "gradient":
            return np.asarray(jax.jit(jax.grad(total))(y, *given))
        if way == "mapped":  # shared numbers, one score vector at a time
            flat = y.reshape(-1, y.shape[-1])
            return np.asarray(jax.jit(jax.vmap(lambda one: solve(one, *given)[1]))(flat))
        codes, x = jax.jit(solve)(y, *given)
        words = [str(linsat.status.Status.of(int(code))) for code in np.asarray(codes).ravel()]
        return words, np.asarray(x).reshape(-1, y.shape[-1])


def _compare(
    door: str, case: Case, answer: tuple[list[str], Array], torchs: tuple[list[str], Array], verdict: Verdict
) -> None:
    verdict.checks[door] += 1
    words, points = answer
    pairs = {(a, b) for a, b in zip(words, torchs[0], strict=True) if a != b}
    # Of these the host's interior-point method, or its judge of an x that ran off, solves more (docs/jax.md).
    if door == "JAX" and case.objective in ("tsallis", "kl", "quadratic", "metric"):
        verdict.checks["JAX, reported where the host solves"] += len(pairs)
        pairs -= {("step_limit", "converged"), ("stalled", "converged")}
    if pairs:
        verdict.find("doors", f"{door}: {', '.join(f'{a} for {b}' for a, b in sorted(pairs))}")
        return
    held = np.array([word == "converged" for word in words], dtype=bool)
    apart = distance(points[held], torchs[1][held], case)
    if not apart <= _APART:
        verdict.find("doors", f"{door}: x is {apart:.1e} from torch's")


def distance(one: Array, other: Array, case: Case) -> float:
    """The largest, relative to max(1, |x|), beyond what the dtype cannot tell apart."""
    eps = np.finfo(case.dtype).eps if case.dtype != "float64" else 0.0
    other = other.astype(np.float64)
    finite = (np.where(np.isfinite(case.number(n)), np.abs(case.number(n)), 0.0) for n in ("lower", "upper"))
    size = np.maximum(1.0, np.abs(other))
    rounding = 4 * eps * np.maximum(size, np.broadcast_to(np.maximum(*finite).max(initial=0.0), other.shape))
    return float(((np.abs(one - other) - rounding) / size).max(initial=0.0))


def _judge_jax_gradient(case: Case, statuses: list[str], verdict: Verdict) -> None:
    """jax.grad inside jax.jit against torch's, where all instances of both have one; and jax.vmap against the batch."""
    if set(statuses) != {"converged"} or case.dtype != "float64":
        return
    cons, numbers = case.statement(linsat)
    y = torch.from_numpy(case.scores).requires_grad_()
    x = linsat.project(y, cons, objective=case.asked(linsat), on_failure="ignore", **numbers)
    (expected,) = torch.autograd.grad((x * torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)).sum(), y)
    gradient = by_jax(case, "gradient")
    verdict.checks["JAX, gradients"] += 1
    apart = np.abs(gradient - expected.numpy()).max(initial=0.0) / (1.0 + np.abs(expected.numpy()).max(initial=0.0))
    if not apart <= 1e-6:
        verdict.find("doors", f"JAX: the gradient is {apart:.1e} from torch's")
    if case.shared and not case.each:
        verdict.checks["JAX, mapped"] += 1
        mapped = by_jax(case, "mapped")
        apart = distance(mapped, x.detach().numpy().reshape(mapped.shape), case)
        if not apart <= _APART:
            verdict.find("doors", f"JAX: mapped, x is {apart:.1e} from torch's")
