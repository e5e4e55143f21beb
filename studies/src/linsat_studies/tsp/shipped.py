"""The trained networks that come with the package, and how to load them or one's own."""

from __future__ import annotations

from pathlib import Path

from linsat_studies.checkpoints import CheckpointError, load_weights, read_run
from linsat_studies.settings import from_dict
from linsat_studies.tsp.config import NetworkConfig
from linsat_studies.tsp.model import TourNet

SHIPPED = Path(__file__).parent / "checkpoints"
# The file of each task; one file may serve both.
_FILES = {"se": "tour_se.pt", "pri": "tour_pri.pt"}


def load_network(task: str, path: str | Path | None = None) -> TourNet:
    """The trained network of a task, ready for evaluation.

    Args:
        task: ``"se"`` or ``"pri"``.
        path: a training checkpoint or exported file; None for the network shipped with the package.
    """
    if task not in _FILES:
        raise CheckpointError(f'task is {task!r}; expected "se" (start and end) or "pri" (also a priority city).')
    path = SHIPPED / _FILES[task] if path is None else Path(path)
    config = read_run(path, "tasks", "network")["config"]
    if task not in tuple(config["tasks"]):
        raise CheckpointError(f"{path} was trained for {config['tasks']}; expected a network that knows {task!r}.")
    network = TourNet(from_dict(NetworkConfig, config["network"]))
    load_weights(network, path)
    return network.eval()
