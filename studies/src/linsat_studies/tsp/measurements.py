"""Everything the report states, measured part by part; each part is a dictionary that goes to disk as JSON.

A part names what it was measured on, so that an interrupted report continues where it stopped, and so that changed
settings are measured again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from linsat_studies.checkpoints import CheckpointError
from linsat_studies.files import read_json, write_json
from linsat_studies.progress import Progress
from linsat_studies.tsp import ablation as tables_6
from linsat_studies.tsp.attention import attention_tours, load_attention
from linsat_studies.tsp.classical import Solve, heuristics, judge_solved, measure, restarts, slow_solvers
from linsat_studies.tsp.data import Instances, Task, random_instances, test_instances
from linsat_studies.tsp.evaluate import Settings, evaluate_network
from linsat_studies.tsp.exact import optimal_tours
from linsat_studies.tsp.optimum import optima
from linsat_studies.tsp.shipped import load_network
from linsat_studies.tsp.tours import lengths

TAUS = (0.1, 0.05, 0.01, 0.005)
LINSAT = {
    "beam": Settings.default("beam"),
    "small beam + one descent": Settings.default("search"),
    "beam 2,048 + one descent": Settings.default("search").replace(width=2048),
}
SEARCH_WIDTHS = (1, 4, 16, 64, 256)
EXAMPLES = 3
TIMED = 20
LKH_COUNT = 1_000


@dataclass(frozen=True)
class Scope:
    """What to measure on: the first ``count`` test instances, or others by ``seed``; slow methods see fewer.

    Args:
        task: ``"se"`` or ``"pri"``.
        count: instances of every fast method.
        trained: instances of the trained matrix of table 6.
        slow: instances of each integer programming solver and time limit.
        seed: None for the test set.
    """

    task: Task
    count: int = 10_000
    trained: int = 1_000
    slow: int = 5
    seed: int | None = None

    def instances(self) -> Instances:
        """The instances of the fast methods."""
        if self.seed is None:
            return test_instances(self.task, self.count)
        return random_instances(self.task, self.count, seed=self.seed)


class Measured:
    """The parts measured so far, in a folder; ``part`` measures what is missing.

    Args:
        scope: what to measure on.
        folder: where the JSON files are.
        note: told what could not be measured and why.
    """

    def __init__(self, scope: Scope, folder: Path, note: Callable[[str], None] = lambda text: None) -> None:
        self.scope, self.folder, self.note = scope, folder, note
        self.instances = scope.instances()

    def part(self, name: str, progress: Progress | None = None) -> dict[str, Any] | None:
        """The part called ``name``, from disk or measured now; None where something it needs is missing."""
        path = self.folder / f"{self.scope.task}_{name}.json"
        wanted = {"scope": asdict(self.scope)}
        found = read_json(path)
        if found is not None and {key: found.get(key) for key in wanted} == wanted:
            return found
        try:
            measured = PARTS[name](self, progress)
        except (ImportError, CheckpointError) as error:
            self.note(f"{name} ({self.scope.task}) left out: {error}")
            return None
        write_json(path, wanted | measured)
        return wanted | measured

    def optimal_tours(self, progress: Progress | None = None) -> np.ndarray:
        """Shortest tours of all instances, from the cache where known."""
        return optima(self.instances, progress=progress)

    def measured_rows(self, methods: dict[str, Solve], progress: Progress | None) -> dict[str, Any]:
        """Every method on all instances."""
        rows, best = {}, self.optimal_tours()
        for number, (name, solve) in enumerate(methods.items()):
            rows[name] = measure(solve, self.instances, best)
            if progress is not None:
                progress(number + 1, len(methods))
        return {"rows": rows}


def _optimum(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    # Known optima are read from disk, so the time of finding one is measured apart, on a few.
    few = measured.instances[:TIMED]
    row = measure(optimal_tours, few, None)
    found = {"mean_length": float(lengths(measured.instances.coords, measured.optimal_tours(progress)).mean())}
    return found | {"seconds_each": row["seconds"] / len(few), "timed": len(few)}


def _heuristics(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    return measured.measured_rows(heuristics(), progress)


def _restarts(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    return measured.measured_rows(restarts(), progress)


def _solvers(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    rows = {}
    for name, solve in slow_solvers(measured.scope.task).items():
        few = measured.instances[: LKH_COUNT if name == "LKH" else measured.scope.slow]
        if not len(few):
            continue
        try:
            rows[name] = judge_solved(few, solve(few, progress=progress), measured.optimal_tours()[: len(few)])
        except (ImportError, RuntimeError) as error:  # RuntimeError: no licence
            measured.note(f"{name} ({measured.scope.task}) left out: {error}")
    return {"rows": rows}


def _attention(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    model = load_attention()
    methods: dict[str, Solve] = {
        "greedy": lambda instances: attention_tours(model, instances),
        "best of 128 samples": lambda instances: attention_tours(model, instances, samples=128),
    }
    return measured.measured_rows(methods, progress)


def _linsat(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    network = load_network(measured.scope.task)
    best = measured.optimal_tours()
    rows = {}
    for name, settings in LINSAT.items():
        rows[name] = evaluate_network(network, measured.instances, settings, progress=progress).summary(best)
    return {"rows": rows}


def _rounding(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    network = load_network(measured.scope.task)
    best, rows = measured.optimal_tours(), {}
    for number, tau in enumerate(TAUS):
        result = evaluate_network(network, measured.instances, Settings.default("round").replace(tau=tau))
        rows[str(tau)] = result.summary(best)
        if progress is not None:
            progress(number + 1, len(TAUS))
    return {"rows": rows}


def _equal_time(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    network = load_network(measured.scope.task)
    best, rows = measured.optimal_tours(), {}
    for number, width in enumerate(SEARCH_WIDTHS):
        settings = Settings.default("search").replace(width=width, views=1)
        rows[str(width)] = evaluate_network(network, measured.instances, settings).summary(best)
        if progress is not None:
            progress(number + 1, len(SEARCH_WIDTHS))
    return {"rows": rows}


def _ablation(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    canonical = tables_6.canonical(measured.instances)
    few = canonical[: measured.scope.trained]
    rows: dict[str, Any] = {"random": tables_6.ablation(canonical, tables_6.random_matrices(canonical))}
    rows["random"]["count"] = len(canonical)
    begin = perf_counter()
    scores = tables_6.trained_matrices(few, progress=progress)
    training = perf_counter() - begin
    rows["trained"] = tables_6.ablation(few, scores)
    rows["trained"]["seconds"] += training
    rows["trained"]["count"] = len(few)
    network = load_network(measured.scope.task)
    coords = torch.as_tensor(canonical.coords, dtype=torch.float32)
    with torch.no_grad():
        scores = torch.cat([network(part, canonical.task) for part in coords.split(500)])
    rows["network"] = tables_6.ablation(canonical, scores)
    rows["network"]["count"] = len(canonical)
    return {"rows": rows}


def _examples(measured: Measured, progress: Progress | None) -> dict[str, Any]:
    few = measured.instances[:EXAMPLES]
    network = load_network(measured.scope.task)
    tours = {
        "shortest": optima(few),
        "Attention Model": attention_tours(load_attention(), few),
        "linsat, beam": evaluate_network(network, few, LINSAT["beam"]).tours,
        "linsat, beam + descent": evaluate_network(network, few, LINSAT["beam 2,048 + one descent"]).tours,
    }
    return {"tours": {name: found.tolist() for name, found in tours.items()}}


PARTS: dict[str, Callable[[Measured, Progress | None], dict[str, Any]]] = {
    "optimum": _optimum,
    "heuristics": _heuristics,
    "restarts": _restarts,
    "solvers": _solvers,
    "attention": _attention,
    "linsat": _linsat,
    "rounding": _rounding,
    "equal_time": _equal_time,
    "ablation": _ablation,
    "examples": _examples,
}
