"""Sets with maxima in their rows, where JAX traces: the choice of pieces by a callback, the rest as any other rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from linsat import formulas
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import flatten
from linsat.constraints.plain_rows import PlainRows, Selection, Stated, stated_numbers
from linsat.jax.call import Array, check, floating, slots_of_call
from linsat.objectives import Objective
from linsat.request import Request, read_start
from linsat.status import Status


def with_formulas(y: Any, request: Request) -> Any:
    """A set with maxima in its rows, traced: which pieces count is asked of the host, in a callback without gradients;
    the linear rows that they come down to are solved as any others."""
    from linsat.jax.projection import solve_request

    check(request)
    constraints, given, objective, options, start = request
    rows, terms = PlainRows.of(constraints, objective.entropic_slack), constraints._terms
    width, layout = constraints.num_variables, constraints._layout
    assert terms is not None
    assert width is not None
    scores, arrangement = flatten("y", y, layout, width, lambda _, part: jnp.asarray(part))
    stated = _stated(constraints, given, width)
    batch = np.broadcast_shapes(scores.shape[:-1], constraints.batch_shape, *(n.shape[:-1] for n in stated))
    objective = objective.read(layout, batch, width)
    start = _start(start, batch, constraints)
    begin = None if start is None else rows.start(start)
    codes, selection = None, None
    if len(rows.joint):
        codes, selection = _asked(rows, constraints, stated, scores, objective, request.solver, batch, start)
        if begin is not None:  # a formula that does not bind has no multiplier
            binds = selection.masks[..., 1 : 1 + len(rows.joint)]
            begin = begin.at[..., np.flatnonzero(rows.is_joint)].multiply(binds)
    plain = rows.numbers(terms, stated, selection)
    numbers = rows.given(plain)
    if constraints._soft_mask().any():
        numbers["price"] = plain.price
    own = options if codes is None else options._replace(on_failure="ignore")
    solution = solve_request(scores, Request(rows.template(constraints), numbers, objective, own, begin))
    x, status, violation = solution.x, solution.status, solution.violation
    if codes is not None and selection is not None:
        chosen = codes == Status.CONVERGED.code
        status, violation = jnp.where(chosen, status, codes), jnp.where(chosen, violation, jnp.nan)
        x = rows.put(terms, stated, selection, x)
        if options.on_failure not in ("warn", "ignore"):
            x = jnp.where((status != Status.CONVERGED.code)[..., None], jnp.nan, x)
    if layout is not None and arrangement != "flat":
        x = layout.restored(x, arrangement)
    return solution._replace(x=x, status=status, duals=rows.duals(solution.duals), violation=violation)


def _stated(constraints: Constraints, given: Any, width: int) -> Stated:
    """The numbers of a set with those of the call in their places, (batch..., .) in the precision of JAX."""
    own = stated_numbers(constraints)
    numbers = {name: floating(name, value) for name, value in given.items()}
    inner = {name: numbers.pop(name) for name in ("T", "t") if name in numbers}
    slots = slots_of_call(constraints, numbers, width)
    parts = own._replace(**slots, **inner)
    return Stated(*(jnp.asarray(part, jnp.zeros(0).dtype) for part in parts))


def _start(start: Any, batch: tuple[int, ...], constraints: Constraints) -> Array | None:
    """Multipliers of the rows to begin with, (batch..., rows); 0 for rows that are not named."""
    begun = read_start(start, batch, constraints, lambda value: floating("start", value), look=False)
    if begun is None:
        return None
    known = jax.lax.stop_gradient(begun)
    return jnp.where(jnp.isfinite(known), known, 0.0).reshape(*batch, len(constraints))


def _asked(
    rows: PlainRows,
    constraints: Constraints,
    stated: Stated,
    scores: Array,
    objective: Objective,
    solver: Any,
    batch: tuple[int, ...],
    start: Array | None,
) -> tuple[Array, Selection]:
    """Status, and what the right choice selects, by a callback to the host; ``start`` are multipliers of the rows."""
    terms, width = constraints._terms, scores.shape[-1]
    assert terms is not None
    count = int(np.prod(batch))
    parameters = objective.spread(batch, width).parameters()
    names = tuple(parameters)

    def ask(scores: Any, numbers: Any, own: Any, begun: Any) -> tuple[np.ndarray, ...]:
        lead = scores.shape[:-1]
        parts = scores, *numbers, *own, *begun
        flat = [np.asarray(part, np.float64).reshape(-1, part.shape[-1]) for part in parts]
        begin = flat.pop() if begun else None
        own_numbers = dict(zip(names, flat[1 + len(numbers) :], strict=True))
        spread = replace(objective, **own_numbers) if names else objective  # type: ignore[type-var]
        numbers = Stated(*flat[1 : 1 + len(stated)])
        chosen = formulas.choose(constraints, numbers, flat[0], spread, solver, begin)
        selection = rows.selection(terms, chosen.choice, width, lead)
        return chosen.counts[0].reshape(lead).astype(np.int8), *(part.astype(np.int8) for part in selection)

    # Whole numbers: the thread of a callback does not know whether JAX has 64 bits here.
    sizes = ((), (rows.num_masks,), (len(rows.bound),), (width,))
    shapes = tuple(jax.ShapeDtypeStruct((*batch, *size), np.int8) for size in sizes)
    full = [jnp.broadcast_to(part, (*batch, part.shape[-1])) for part in stated]
    own = [jnp.broadcast_to(n, (count, n.shape[-1])).reshape(*batch, n.shape[-1]) for n in parameters.values()]
    begun = [] if start is None else [start]
    operands = jax.lax.stop_gradient((jnp.broadcast_to(scores, (*batch, width)), full, own, begun))
    codes, *selected = jax.pure_callback(ask, shapes, *operands, vmap_method="broadcast_all")
    return codes.astype(np.int32), Selection(*selected)
