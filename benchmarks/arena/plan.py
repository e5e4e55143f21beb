"""The units of the arena: each a name and a function without arguments, run in a separate process."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from arena import decisions, experts, filters, machine, matching, mixing, reconciliation, records, routing
from arena.quadratic import PUBLISHED

Unit = Callable[[], Any]
SEEDS = (0, 1)
RATES = (3e-3, 1e-2, 3e-2)  # of learning, one is chosen on validation instances with another seed
CHOOSING_SEED = 100
DRAWS = {"shortest path": decisions.DRAWS, "knapsack": decisions.DRAWS[:2]}
SLOW = ("RFWO",)  # once, on the first draw
WAYS = tuple(decisions.MAKERS)
TASKS = {
    "shortest path": decisions.Task("shortest path"),
    "knapsack": decisions.Task("knapsack"),
}
SECONDS = 100.0  # of training with a layer that takes seconds a step
LARGE = (1000, 500, 500, 1024)
# Instances that the slower layers get; the page says per 1,024 what that would be.
FEW = {"large": {"Moreau": 2, "cvxpylayers": 2, "qpth": 16, "ProxQP": 16}, "small": {"cvxpylayers": 128}}


def units(quick: bool = False) -> dict[str, Unit]:
    """Every unit by name, in the order of running: what others take longest for comes last."""
    found: dict[str, Unit] = {"machine": machine.describe}
    for router in routing.ROUTERS:
        found[f"routing/{router}"] = functools.partial(_route, router, quick)
    for part in (experts, mixing, filters, reconciliation, matching):
        found |= part.units(quick)
    for task in TASKS:
        found[f"decisions/choose/{task}"] = functools.partial(_choose, task, quick)
        for seed in DRAWS[task][: 1 if quick else None]:
            found[f"decisions/draw/{task}/{seed}"] = functools.partial(_draw, task, seed, quick)
    found["decisions/slow/shortest path"] = functools.partial(_slow, quick)
    found["quadratic/optimum"] = functools.partial(_optimum, quick)
    for kind in ("convex", "non-convex"):
        for rate in RATES[: 1 if quick else None]:
            found[f"quadratic/choose/{kind}/{rate}"] = functools.partial(_choose_rate, kind, rate, quick)
        for seed in SEEDS[: 1 if quick else None]:
            found[f"quadratic/train/{kind}/linsat/{seed}"] = functools.partial(_train_linsat, kind, seed, quick)
            for how in ("its settings", "our recipe")[seed > 0 :]:  # the first is slow
                name = f"quadratic/train/{kind}/Pinet, {how}/{seed}"
                found[name] = functools.partial(_train_pinet, kind, how, seed, quick)
    found["quadratic/train/convex/Moreau/0"] = functools.partial(_train_moreau, quick)
    for layer in ("linsat", "Pinet, defaults", "Pinet, its settings", "Moreau", "cvxpylayers", "qpth", "ProxQP"):
        found[f"quadratic/time/small/{layer}"] = functools.partial(_time, layer, False, quick)
    for layer in ("linsat", "Pinet, defaults", "Moreau", "cvxpylayers", "qpth", "ProxQP"):
        found[f"quadratic/time/large/{layer}"] = functools.partial(_time, layer, True, quick)
    return found


# ------------------------------------------------------------------ DC3's family


def _family(quick: bool, large: bool = False) -> Any:
    from arena import quadratic

    if quick:
        return quadratic.family(20, 10, 10, 300)
    return quadratic.family(*LARGE) if large else quadratic.family()


def _recipe(rate: float, quick: bool) -> Any:
    from arena.quadratic import Recipe

    return Recipe(rate=rate, batch=64, epochs=2, look_every=2) if quick else Recipe(rate=rate)


def _choose_rate(kind: str, rate: float, quick: bool) -> float:
    """The objective on validation instances; those of the test are not looked at."""
    from arena import quadratic

    problem, recipe = _family(quick), _recipe(rate, quick)
    project = quadratic.linsat_projection(problem)
    settings = {"seed": CHOOSING_SEED, "goal": _goal(kind, quick), "judged_on": "valid"}
    return quadratic.train(problem, kind, project, recipe, **settings)["objective"]


def _chosen_recipe(kind: str, quick: bool) -> Any:
    found = records.load(records.file(quick))
    rates = {rate: found.get(f"quadratic/choose/{kind}/{rate}", {}).get("result", math.inf) for rate in RATES}
    return _recipe(min(rates, key=lambda rate: rates[rate]), quick)


def _goal(kind: str, quick: bool) -> float:
    """The validation objective that is within 1 % of the optimum, or of IPOPT's as published."""
    if kind == "convex":
        return 0.99 * records.load(records.file(quick))["quadratic/optimum"]["result"]["valid"]
    return 0.99 * PUBLISHED[kind]["IPOPT"]


def _optimum(quick: bool) -> dict[str, float]:
    from arena import quadratic

    problem = _family(quick)
    return {part: float(quadratic.optima(problem, problem.splits[part]).mean()) for part in ("valid", "test")}


def _train_linsat(kind: str, seed: int, quick: bool) -> dict[str, Any]:
    from arena import quadratic

    problem = _family(quick)
    project = quadratic.linsat_projection(problem)
    return quadratic.train(problem, kind, project, _chosen_recipe(kind, quick), seed=seed, goal=_goal(kind, quick))


def _train_moreau(quick: bool) -> dict[str, Any]:
    from arena import quadratic, quadratic_rivals

    problem, recipe = _family(quick), _chosen_recipe("convex", quick)
    project = quadratic_rivals.any_batch(functools.partial(quadratic_rivals.moreau_projection, problem))
    goal = _goal("convex", quick)
    train = functools.partial(quadratic.train, seed=0, goal=goal, stop_at_goal=True, within=SECONDS)
    return train(problem, "convex", project, recipe)


def _train_pinet(kind: str, how: str, seed: int, quick: bool) -> dict[str, Any]:
    from arena import quadratic, quadratic_rivals

    recipe = _chosen_recipe(kind, quick)
    if how == "its settings" and not quick:
        recipe = quadratic.Recipe(batch=2048, rate=1e-2, epochs=25, look_every=1)  # as its authors publish
    settings = quadratic_rivals.PINET_PUBLISHED
    return quadratic_rivals.train_pinet(_family(quick), kind, settings, recipe, seed=seed, goal=_goal(kind, quick))


def _time(layer: str, large: bool, quick: bool) -> dict[str, float]:
    from arena import quadratic, quadratic_rivals

    problem = _family(quick, large)
    batch = 32 if quick else FEW["large" if large else "small"].get(layer, 1024)
    repeats = 1 if large else 3
    if layer.startswith("Pinet"):
        defaults = layer == "Pinet, defaults"
        settings = quadratic_rivals.PinetSettings() if defaults else quadratic_rivals.PINET_PUBLISHED
        return {"batch": batch, **quadratic_rivals.time_pinet(problem, settings, batch, repeats)}
    if layer == "linsat":
        project = quadratic.linsat_projection(problem)
        quadratic_rivals.time_layer(problem, project, 2, 1)  # compiled, as Pinet is before its clock starts
    else:
        project = quadratic_rivals.QP_LAYERS[layer](problem, batch)
    return {"batch": batch, **quadratic_rivals.time_layer(problem, project, batch, repeats)}


# ------------------------------------------------------------------ PyEPO's problems


def _task(name: str, quick: bool) -> decisions.Task:
    task = TASKS[name]
    return decisions.Task(name, train=32, test=16, epochs=1, grid=(3, 3), items=6) if quick else task


def _choose(name: str, quick: bool) -> list[dict[str, Any]]:
    task = decisions.smaller_test(_task(name, quick))
    return decisions.choose(task, decisions.CHOOSING_DRAW, temperatures=(0.1,) if quick else None)


def chosen(name: str, quick: bool) -> dict[str, tuple[str, float]]:
    """For each way to use linsat and objective the temperature of the least regret on the choosing draw."""
    runs = records.load(records.file(quick))[f"decisions/choose/{name}"]["result"]
    best: dict[str, tuple[str, float]] = {}
    for way in WAYS:
        for objective in ("entropy", "Euclidean"):
            of_way = [run for run in runs if run["kind"] == way and run["objective"] == objective]
            best[f"{way}, {objective}"] = (objective, min(of_way, key=lambda run: run["regret"])["tau"])
    return best


def _draw(name: str, seed: int, quick: bool) -> dict[str, dict[str, float]]:
    task = _task(name, quick)
    parts = decisions.parts_of(task, seed)
    found: dict[str, dict[str, float]] = {}
    for label, (objective, tau) in chosen(name, quick).items():
        maker = decisions.MAKERS[label.rsplit(", ", 1)[0]]
        found[f"linsat: {label}"] = {"tau": tau, **decisions.train(task, maker(objective, tau), parts, seed=seed)}
    for rival, make in decisions.RIVALS.items():
        if rival not in SLOW and not (quick and rival == "AI-MLE"):
            found[rival] = decisions.train(task, make, parts, seed=seed)
    return found


def _slow(quick: bool) -> dict[str, dict[str, float]]:
    task = _task("shortest path", quick)
    seed = decisions.DRAWS[0]
    parts = decisions.parts_of(task, seed)
    return {rival: decisions.train(task, decisions.RIVALS[rival], parts, seed=seed) for rival in SLOW}


def _route(router: str, quick: bool) -> dict[str, Any]:
    size = routing.Size(32, 64, 8, 32, 4, 3) if quick else routing.Size()
    return routing.run(router, size)
