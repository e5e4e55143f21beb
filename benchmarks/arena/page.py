"""docs/arena.md from the records: every figure with what it shows and what it does not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from arena import decisions, experts, filters, matching, mixing, plan, quadratic, reconciliation, records, routing
from arena.tables import bars, interval, mean, table

FILE = records.ROOT / "docs" / "arena.md"
Results = dict[str, Any]


def write(path: Path = FILE, source: Path = records.KEPT) -> Path:
    """Write the page from the records; each section ends in what it lacks."""
    found = {unit: record for unit, record in records.load(source).items() if unit in plan.units()}
    results = {unit: record["result"] for unit, record in found.items() if not records.failed(record)}
    sections = [_opening(found)]
    for prefix, make in SECTIONS:
        parts = [part.strip() for part in make(results) if part.strip()]
        lacking = [_why(unit, found) for unit in plan.units() if unit.startswith(prefix) and unit not in results]
        parts += [f"**Not measured**: {'; '.join(lacking)}."] if lacking else []
        sections.append("\n\n".join(parts))
    path.write_text("\n\n".join([*sections, _closing().strip()]) + "\n", encoding="utf-8")
    return path


def _why(unit: str, found: dict[str, Results]) -> str:
    why = found[unit]["result"]["error"] if unit in found else "not run yet"
    return f"`{unit}` ({why})"


def _opening(found: dict[str, Results]) -> str:
    machine = found.get("machine", {}).get("result", {})
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
    runs = sorted({record["run"] for record in found.values()})
    commits = sorted({record.get("commit", machine.get("commit", "unknown")) for record in found.values()})
    minutes = sum(record["seconds"] for record in found.values()) / 60
    one = "in one run, begun on" if len(runs) == 1 else "**not in one run**, but in those begun on"
    busy = [record["others_cores"] for record in found.values() if record.get("others_cores") is not None]
    others = f" Other programs kept {mean(busy):.1f} cores busy meanwhile." if busy else ""
    return f"""
# The arena

Problems as other projects publish them, with linsat beside those projects. The page is written by `make arena` from its
records; nothing on it is typed by hand. All of it was measured {one} {", ".join(runs)} (UTC), in {minutes:.0f} minutes,
each unit on one core of {machine.get("cpu", "an unnamed processor")}.{others}

linsat at commit {", ".join(commits) or "unknown"}, Python {machine.get("python", "unknown")}, {versions}.

What is compared is a layer or a loss inside somebody else's benchmark, and what people use today for some things that
linsat is for. Every section says what it does not show.
""".strip()


# ------------------------------------------------------------------ DC3's family


def _quadratic(results: Results) -> list[str]:
    best = results.get("quadratic/optimum", {}).get("test", math.nan)
    parts = [
        """
## Quadratic programs (DC3, HardNet, Pinet)

100 variables, 50 equalities with a right-hand side per instance, 50 inequalities, no box, 10,000 instances, seed 17:
the draw of DC3's code. A network (two layers of 200) sees the right-hand sides, its output is projected onto the
rows, and the objective is the loss. The first two columns are over the 833 test instances.
"""
    ]
    parts += [_training(results, kind, best) for kind in ("convex", "non-convex")]
    parts += [
        _timing(results, "small", "100 variables, 50 + 50 rows"),
        _timing(results, "large", "1,000 variables, 500 + 500 rows"),
    ]
    rates = ", ".join(f"{rate:g}" for rate in plan.RATES)
    return [
        *parts,
        f"""
**What this shows.** What an exact projection with an exact gradient costs and gains as the last layer of a network that
learns to solve this family, next to layers that stop earlier or solve each instance with a general solver.

**What it does not show.** That a network is a good way to solve this family: in its own metric the convex problem
*is* a projection, and `linsat.project(-p / q, constraints, objective=linsat.Euclidean(weights=q))` gives the optimum
of every instance without any network. The learning rate of linsat and of "our recipe" is the best of {rates} on
validation instances, for linsat and with another seed; batch size and number of epochs were set by hand. Pinet stops
after a fixed number of iterations, which trades violation for time: more iterations would lower the violation and the
speed. JAX compiles before the clock starts.
""",
    ]


def _training(results: Results, kind: str, optimum: float) -> str:
    published = quadratic.PUBLISHED[kind]
    rows = []
    runs: dict[str, list[Results]] = {}
    for unit, result in results.items():
        if unit.startswith(f"quadratic/train/{kind}/"):
            runs.setdefault(unit.split("/")[3], []).append(result)
    for name, good in runs.items():
        if any(run.get("stopped") for run in good):
            name = f"{name}, ended after {min(run['steps'] for run in good)} steps"
        goals = [run["seconds to goal"] for run in good if run["seconds to goal"] is not None]
        rows.append(
            (
                name,
                f"{mean(run['objective'] for run in good):.3f}",
                f"{max(run['violation'] for run in good):.0e}",
                f"{mean(goals):.2f}" + ("" if len(goals) == len(good) else f" ({len(goals)} of {len(good)} runs)")
                if goals
                else "never",
                f"{mean(run['seconds'] for run in good):.1f}",
                f"{1024 / 833 * 1e3 * mean(run['inference seconds'] for run in good):.0f}",
                str(len(good)),
            )
        )
    reference = optimum if kind == "convex" else published["IPOPT"]
    solver = "the optimum (Clarabel)" if kind == "convex" else "IPOPT as published"
    head = (
        "",
        "objective",
        "worst violation",
        "seconds to within 1 %",
        "seconds of training",
        "ms per 1,024 at test",
        "runs",
    )
    known = ", ".join(f"{name} {value}" for name, value in published.items())
    lead = (
        f"**{kind.capitalize()}**; {solver} {reference:.3f}; published on this draw: {known}. "
        f"Within 1 % means {0.99 * reference:.3f}, reached on validation instances."
    )
    return f"{lead}\n\n{table(head, rows)}"


def _timing(results: Results, size: str, words: str) -> str:
    rows = []
    for unit, result in results.items():
        if not unit.startswith(f"quadratic/time/{size}/"):
            continue
        name = unit.split("/")[3]
        scaled = result["seconds"] * 1024 / result["batch"]
        note = "" if result["batch"] == 1024 else f" (from {result['batch']})"
        rows.append((name, f"{scaled:.3g}{note}", f"{result['violation']:.0e}"))
    head = ("", "seconds for 1,024 instances, forward and backward", "worst violation")
    return f"**One projection**, {words}, standard normal scores.\n\n{table(head, rows)}"


# ------------------------------------------------------------------ PyEPO's problems


def _decisions(results: Results) -> list[str]:
    parts = [
        """
## Predict, then decide (PyEPO)

A linear predictor of costs, trained by different losses; the regret is what deciding by the predicted costs loses
against deciding by the true ones, relative to the latter, on 1,000 test instances. Data, models, rivals' losses and
the regret are PyEPO's, with OR-Tools as the solver. Batches of 32, 20 epochs, Adam 1e-2. linsat's objective and
temperature were chosen on another draw. *Fenchel-Young* is `linsat.fenchel_young_loss(-costs, best_decision,
constraints)`; *at 2p - c* puts it where SPO+ asks its solver; *layer, regret* is the true cost of
`linsat.project(-costs, constraints)`.
"""
    ]
    for task in plan.TASKS:
        draws = [r for unit, r in results.items() if unit.startswith(f"decisions/draw/{task}/")]
        if draws:
            parts.append(_draws(task, draws, results))
    published = ", ".join(f"{name} {regret} % in {s:,} s" for name, (regret, s) in decisions.PUBLISHED.items())
    parts.append(
        f"""
Published in PyEPO's notebook for draw 42, with Gurobi on its machine: {published}.
PFYL and AI-MLE have 3 samples and sigma 1 here, RFWO at most {decisions.FRANK_WOLFE} steps of Frank and Wolfe.

**What this shows.** What losses from a batched projection are worth against losses from solver calls, and what each
takes, on draws that all losses share.

**What it does not show.** Wall time depends on the solver behind PyEPO: Gurobi, or a dynamic program for the grid,
would change the rivals' seconds. All losses train on the linear relaxation, which is exact for shortest paths and not
for knapsacks.
"""
    )
    return parts


def _draws(task: str, draws: list[Results], results: Results) -> str:
    names = list(draws[0])
    rows = []
    for name in names:
        regrets = [100 * draw[name]["regret"] for draw in draws]
        tau = draws[0][name].get("tau")
        label = name if tau is None else f"{name}, tau {tau:g}"
        rows.append((label, interval(regrets), f"{mean(draw[name]['seconds'] for draw in draws):.1f}"))
    slow = results.get(f"decisions/slow/{task}", {})
    rows += [(f"{n}, draw 42 only", f"{100 * r['regret']:.2f}", f"{r['seconds']:.1f}") for n, r in slow.items()]
    rows.sort(key=lambda row: float(row[1].split()[0]))
    ours = min((n for n in names if n.startswith("linsat")), key=lambda n: mean(d[n]["regret"] for d in draws))
    rival = min((n for n in names if not n.startswith("linsat")), key=lambda n: mean(d[n]["regret"] for d in draws))
    paired = [100 * (draw[ours]["regret"] - draw[rival]["regret"]) for draw in draws]
    ratio = mean(d[ours]["seconds"] for d in draws) / mean(d[rival]["seconds"] for d in draws)
    drawn = table(("", "regret, % (mean, standard error)", "seconds of training"), rows)
    return f"""
**{task.capitalize()}**, {len(draws)} draws, the same for every loss.

{drawn}

The best of linsat's less the best rival ({rival}), paired: {interval(paired)} points, in {ratio:.2f} of its time.
"""


# ------------------------------------------------------------------ mixtures of experts


def _routing(results: Results) -> list[str]:
    found = {name: results[f"routing/{name}"] for name in routing.ROUTERS if f"routing/{name}" in results}
    rows = []
    for name, r in found.items():
        rows.append(
            (
                name,
                f"{r['batch loss']:.3f}",
                f"{r['inference loss']:.3f}",
                f"{100 * r['dropped']:.1f} ({100 * r['worst dropped']:.1f})",
                f"{r['largest load']:.2f} ({r['worst largest load']:.2f})",
                f"{r['inference largest load']:.2f}",
                f"{r['following largest load']:.2f}" if "following largest load" in r else "",
                f"{1e3 * r['step']:.0f}",
                f"{100 * r['forward'] / r['step']:.1f}" if "forward" in r else "",
            )
        )
    head = (
        "router",
        "held-out loss, batch",
        "held-out loss, inference",
        "places empty, % (worst)",
        "largest load (worst)",
        "at inference",
        "following",
        "ms a step",
        "of it the balancer, %",
    )
    size = routing.Size()
    text = f"""
## Mixture-of-experts routing

A byte-level language model (width {size.width}, one attention block, {size.experts} experts of {size.width} ->
{size.hidden:,} -> {size.width}, top-{size.k}, {size.tokens:,} tokens a step) on the language reference that ships with
Python, {size.steps} steps. Loads are in units of the even share. *Batch*: routed as in training, with the whole batch
in view. *Inference*: every token by itself, without a capacity, by the bias that training has left (linsat: the
duals). *Following*: by the bias that the held-out batch before it would have wanted. Expert choice has no such modes.
`linsat`: one token in {routing.SAMPLED} is in the projection, whose duals give every token its shares and, by
`equal_loads`, its experts; all tokens are in that of the other row.
"""
    parts = [text, table(head, rows)]
    ours = found.get("linsat")
    for name in ("linsat", "linsat, all tokens"):
        if name in found:
            parts.append(_steps(name, found[name]))
    if ours:
        if "linsat, all tokens" in found:
            parts.append(_sample(ours, found["linsat, all tokens"]))
        kept, hindsight = ours["inference largest load"], ours["text largest load"]
        parts.append(
            bars([("largest load at inference by the kept bias below 1.5", f"{kept:.2f}", kept < 1.5)])
            + "\n\nWhy: held-out text is other text, and the tokens of 16 sequences are far from independent. One bias "
            f"made of the held-out batches themselves leaves {hindsight:.2f} in the worst of them; one made of each "
            f"batch alone leaves {ours['own largest load']:.2f}. No bias that is fixed before the text is seen can be "
            "below the former, but by chance."
        )
    parts.append(
        """
**What this shows.** How evenly each router uses its experts, how many places it leaves empty, and what it takes.

**What it does not show.** That the loss of a large model improves: so few steps of a small one are too few to rank
routers by their losses. The held-out text is the end of an alphabet of topics, which is further from the rest than
text usually is. Quantile Balancing and the sign rule are restated by us; the sign rule cannot arrive in so few steps.
"""
    )
    return parts


def _steps(name: str, of: Results) -> str:
    shares = {part: 100 * of[part] / of["step"] for part in ("forward", "backward", "decision")}
    words = ", ".join(f"{share:.1f} % {part}" for part, share in shares.items())
    spent = 1e3 * sum(of[part] for part in shares)
    return f"Of a step with `{name}` the layer takes {words} ({spent:.0f} ms together)."


def _sample(part: Results, whole: Results) -> str:
    """What it costs that a part of the tokens is in the projection."""

    def both(name: str, digits: int) -> str:
        return f"{part[name]:.{digits}f} instead of {whole[name]:.{digits}f}"

    return (
        f"**What the sample costs.** The best {routing.Size().k} by the duals alone would load an expert by "
        f"{both('largest load by the bias', 2)} even shares, on average over the steps, which the decision makes even "
        f"in both; by the kept bias the largest load at inference is {both('inference largest load', 2)}. The loss is "
        f"{both('train loss', 3)} in the last ten steps of training, {both('batch loss', 3)} held out and routed as in "
        f"training, {both('inference loss', 3)} at inference: one run of each, with one seed."
    )


def _closing() -> str:
    return """
## Run it

    make arena                        # within an hour on two cores; goes on where it was stopped
    make arena ARENA="--only mixing"  # the units of one section
    make arena ARENA=--page           # this page again from the records

The programs are in `benchmarks/arena`; the records, one a unit, in `docs/assets/arena/records.jsonl`.
"""


SECTIONS = (  # each with what the names of its units begin with
    ("experts/", experts.section),
    ("mixing/", mixing.section),
    ("filters/", filters.section),
    ("reconciliation/", reconciliation.section),
    ("matching/", matching.section),
    ("quadratic/", _quadratic),
    ("decisions/", _decisions),
    ("routing/", _routing),
)
