"""Real linear programs as constraint sets: ``python -m fuzz.real_systems [--data FOLDER] [--out FILE]``.

FOLDER (default: the one LINSAT_DATA names) holds lp/netlib, lp/miplib3 and lp/infeasible with *.mps.gz. Every feasible
set is solved for normal scores under each objective, and judged outside the library: violation and duality gap are
computed by tests/helpers/real_systems.py, and HiGHS is asked whether variables without finite duals are forced. Of the
infeasible ones the certificate is checked in fractions. Prints a table in Markdown, then what is left; FILE gets every
solve as JSON, and the same command goes on from it. ``--page FILE`` writes the table of docs/reliability.md from such a
file, without solving anything.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import linsat
from fuzz.conflicts import exact_gap
from tests.helpers.real_systems import Program, random_curvature, read
from tests.helpers.time_limit import time_limit

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
COLLECTIONS = {"netlib": "Netlib", "miplib3": "MIPLIB 3", "infeasible": "infeasible"}
HOLDS = 1e-8  # violation and gap of a converged solve
MOVES = 1e-6  # in shares of the box: what can move by less is forced, to the tolerance of HiGHS
_MOST_VARIABLES = 2_000  # of the sets in other units: a sample is enough


def solve(program: Program, objective: linsat.Objective, seconds: float) -> dict[str, Any]:
    """One solve with what an outsider measures."""
    scores = np.random.default_rng(0).normal(size=program.shape[1])
    began = time.process_time()
    try:
        with time_limit(seconds):
            cons = linsat.Constraints(**program.arguments())
            found = linsat.solve(scores, cons, objective=objective, on_failure="ignore")
    except TimeoutError:
        return {"status": "too slow", "seconds": seconds}
    seconds = round(time.process_time() - began, 2)
    gap = room = None
    if isinstance(objective, linsat.Euclidean):
        gap = float(program.euclidean_gap(scores, found.x, found.duals))
    elif isinstance(objective, linsat.Quadratic):
        gap = program.quadratic_gap(objective.P, scores, found.x, found.duals)
    elif isinstance(objective, linsat.KL):
        gap, odd = program.kl_gap(scores, found.x, found.duals, float(objective.tau))
        room = program.room(odd, found.x) if len(odd) and found.status.item() == "converged" else 0.0
    elif not objective.entropic_slack:
        gap, room = entropic_gap(program, scores, found, float(objective.temperature))
    return {
        "status": str(found.status.item()),
        "solved_by": str(np.asarray(found.solved_by).item()),
        "violation": program.violation(found.x),
        "gap": gap,
        "room": room,
        "seconds": seconds,
    }


def entropic_gap(program: Program, scores: np.ndarray, found: linsat.Solution, tau: float) -> tuple[float, float]:
    """The gap, and how far variables that it leaves out can move, by HiGHS.

    Where duals are too large for their gap to say anything, a linear program bounds it: no point has a larger <y, x>
    than its optimum, nor an entropy above log 2 a variable.
    """
    x = np.asarray(found.x)
    gap, odd = program.entropic_gap(scores, x, np.asarray(found.duals), tau)
    if gap > HOLDS and found.status.item() == "converged":
        bound = program.most(scores) + tau * len(x) * np.log(2) - float(scores @ x)
        gap = min(gap, bound / (1 + abs(float(scores @ x))))
    return float(gap), program.room(odd, x) if len(odd) and found.status.item() == "converged" else 0.0


def verdict(program: Program, seconds: float) -> dict[str, Any]:
    """Whether a set that cannot hold is rejected, with a certificate that proves it in fractions."""
    cons = linsat.Constraints(**program.arguments())
    began = time.process_time()
    try:
        with time_limit(seconds):
            cons.check()
    except TimeoutError:
        return {"status": "too slow", "seconds": seconds}
    except linsat.InfeasibleError as error:
        took = round(time.process_time() - began, 2)
        named = list(error.indices)
        rows, senses = program.matrix[named].toarray(), [str(s) for s in program.senses[named]]
        gap = exact_gap(rows, program.rhs[named], senses, (program.lower, program.upper), error.certificate)
        return {"status": "proved" if gap > 0 else "wrong proof", "rows": len(named), "seconds": took}
    return {"status": "not rejected", "seconds": round(time.process_time() - began, 2)}


def cases(program: Program, boxed: Program) -> dict[str, tuple[Program, linsat.Objective]]:
    """What is asked of one file: within its own bounds, in other units, and in a finite box."""
    rng = np.random.default_rng(1)
    found: dict[str, tuple[Program, linsat.Objective]] = {"nearest point": (program, linsat.Euclidean())}
    if program.shape[1] <= _MOST_VARIABLES:
        units = (10.0 ** rng.uniform(-4, 4, size) for size in program.shape)
        found["nearest point, rows and columns rescaled by 1e-4 to 1e4"] = (program.scaled(*units), linsat.Euclidean())
    for tau in (0.1, 0.01):
        found[f"entropy, tau {tau}"] = (boxed, linsat.Entropy(tau))
        found[f"entropy without slack, tau {tau}"] = (boxed, linsat.Entropy(tau, slack="none"))
        found[f"KL, tau {tau}"] = (boxed, linsat.KL(tau))
    found["quadratic"] = (boxed, linsat.Quadratic(random_curvature(boxed.shape[1])))
    return found


def table(results: list[dict[str, Any]]) -> str:
    """One line for each collection and question, then what is left by name."""
    rejected = [r for r in results if r["asked"] == "verdict"]
    results = [r for r in results if r["asked"] != "verdict"]
    lines = ["| sets | asked | files | converged | not converged | too slow | worst violation | worst gap |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for key in dict.fromkeys((r["collection"], r["asked"]) for r in results):
        part = [r for r in results if (r["collection"], r["asked"]) == key]
        done = [r for r in part if r["status"] == "converged"]
        slow = sum(r["status"] == "too slow" for r in part)
        worst = [max((r[name] for r in done if r[name] is not None), default=None) for name in ("violation", "gap")]
        shown = ["" if value is None else f"{value:.0e}" for value in worst]
        counts = (len(part), len(done), len(part) - len(done) - slow, slow)
        lines.append(f"| {' | '.join([*key, *map(str, counts), *shown])} |")
    left = [r for r in results if r["status"] != "converged"] + [r for r in rejected if r["status"] != "proved"]
    proved = [r["seconds"] for r in rejected if r["status"] == "proved"]
    lines += ["", f"Of {len(rejected)} infeasible sets {len(proved)} are rejected with a certificate that is right in "]
    lines[-1] += f"fractions, the slowest in {max(proved, default=0.0):.1f} s."
    named: dict[tuple[str, str], list[str]] = {}
    for r in left:
        named.setdefault((r["asked"], r["status"]), []).append(r["name"])
    lines += ["", "Left: " + "; ".join(f"{', '.join(names)} ({', '.join(key)})" for key, names in named.items()) + "."]
    return "\n".join(lines if left else [*lines[:-1], "Nothing is left."])


def filled(page: str, results: list[dict[str, Any]]) -> str:
    """The page with the table in its place."""
    block = re.compile(r"(<!-- real -->\n).*?(<!-- end -->)", re.DOTALL)
    page, count = block.subn(lambda found: f"{found[1]}{table(results)}\n{found[2]}", page)
    if count != 1:
        raise ValueError(f"{PAGE} has {count} places for the table; expected one, between <!-- real --> and end.")
    return page


def answers(
    collection: str, program: Program, seconds: float, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything wanted that is asked of one file."""
    if collection == "infeasible":
        if wanted("verdict"):
            yield "verdict", verdict(program, seconds)
        return
    for asked, (part, objective) in cases(program, program.boxed()[0]).items():
        if wanted(asked):
            yield asked, solve(part, objective, seconds)


def files(folder: Path, only: str) -> list[tuple[str, Path]]:
    """Every file whose name contains ``only``, with the name of its collection."""
    return [
        (title, path)
        for name, title in COLLECTIONS.items()
        for path in sorted((folder / name).glob("*.mps.gz"))
        if only in path.name
    ]


def main() -> int:
    """Exit code 0: everything called converged holds and is optimal; 1: something is not; 2: no data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("LINSAT_DATA"), help="folder with lp/netlib")
    parser.add_argument("--out", type=Path, help="JSON file for every solve")
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time for one solve (default 60)")
    parser.add_argument("--only", default="", help="part of the name of the files to take")
    parser.add_argument("--asked", default="", help="part of what to ask, such as rescaled or KL; default everything")
    parser.add_argument("--page", type=Path, help="JSON file of an earlier run to write the page from")
    options = parser.parse_args()
    if options.page:
        results = json.loads(options.page.read_text(encoding="utf-8"))
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
        return 0
    if options.data is None or not (options.data / "lp").is_dir():
        print(f"--data is {options.data}; expected a folder with lp/netlib, or LINSAT_DATA set to one", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    results = json.loads(options.out.read_text(encoding="utf-8")) if options.out and options.out.exists() else []
    done = {(r["collection"], r["name"], r["asked"]) for r in results}
    for collection, path in files(options.data / "lp", options.only):
        name = path.name.removesuffix(".mps.gz")

        def wanted(asked: str, of: tuple[str, str] = (collection, name)) -> bool:
            return options.asked in asked and (*of, asked) not in done

        for asked, found in answers(collection, read(path), options.seconds, wanted):
            results.append({"collection": collection, "name": name, "asked": asked} | found)
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
        if options.out:
            whole = options.out.with_suffix(".part")
            whole.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            whole.replace(options.out)
    print(table(results))
    converged = [r for r in results if r["status"] == "converged"]
    wrong = [r for r in converged if max(r["violation"], r["gap"] or 0.0) > HOLDS or (r["room"] or 0.0) > MOVES]
    for result in wrong:
        print(f"WRONG: {result}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
