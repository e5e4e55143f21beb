"""What a training run is made of: the network's sizes, what it learns from, and the plan of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from linsat_studies.settings import Plan, expect, from_file


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of `TourNet`; the paper's shape (3 layers, 8 heads, 3-layer head) is the default."""

    cities: int = 20  # n, also the number of steps
    width: int = 128
    layers: int = 3
    heads: int = 8
    hidden: int = 256  # inner width of each layer's feed-forward part
    refine: bool = True  # project after every layer and let the next one read the soft tour

    def __post_init__(self) -> None:
        expect(self.cities >= 4, "cities", self.cities, "at least 4 (start, priority, another, end)")
        expect(self.layers >= 1, "layers", self.layers, "at least 1")
        expect(self.hidden >= 1, "hidden", self.hidden, "at least 1")
        expect(self.heads >= 1 and self.width % self.heads == 0, "width", self.width, f"a multiple of {self.heads}")


@dataclass(frozen=True)
class TourConfig:
    """A run of `train`: one network for the given tasks, on instances drawn afresh at every step.

    Two signals can be weighted against each other:

    - the expected length of the soft tour, the paper's unsupervised loss (alone with ``teacher_weight=0`` and
      ``length_weight=1``). It is loose while the soft tour is undecided, and learns slowly;
    - the cross-entropy to a tour that a local search found for the fresh instance in about 0.1 ms: supervised, though
      without any stored solutions, and a far stronger signal per instance.

    The shipped networks come from two runs, whose settings are beside them: ``learn.json``, the defaults here, one
    network for both tasks from the teacher alone; then ``sharpen_se.json`` and ``sharpen_pri.json``, one network each
    from its weights, on the expected length with a little of the teacher. The second run is at a higher temperature
    (0.3) than tours are decoded at, so the network learns scores that are decided even there, and rounding at 0.01
    gives whole tours.
    """

    network: NetworkConfig = field(default_factory=NetworkConfig)
    plan: Plan = field(default_factory=lambda: Plan(minutes=40.0))
    tasks: tuple[str, ...] = ("se", "pri")
    batch: int = 128  # instances a step over all processes, shared equally by the tasks
    tau: float = 0.1  # temperature of the layer at the start of the run ...
    tau_end: float = 0.1  # ... and at its end, with a geometric path between them
    teacher_weight: float = 1.0  # of the cross-entropy to a local search's tour
    teacher_starts: int = 6  # random starts of that local search
    length_weight: float = 0.0  # of the expected length of the soft tour
    validation: int = 256  # instances of each task, decoded with `beam` beams
    beam: int = 64

    def __post_init__(self) -> None:
        tasks = tuple(self.tasks)
        object.__setattr__(self, "tasks", tasks)
        expect(bool(tasks) and set(tasks) <= {"se", "pri"}, "tasks", tasks, "'se', 'pri' or both")
        expect(self.batch >= len(tasks), "batch", self.batch, "at least one instance a task")
        expect(self.tau > 0 and self.tau_end > 0, "(tau, tau_end)", (self.tau, self.tau_end), "positive numbers")
        expect(self.teacher_weight >= 0, "teacher_weight", self.teacher_weight, "a number of at least 0")
        expect(self.length_weight >= 0, "length_weight", self.length_weight, "a number of at least 0")
        expect(self.teacher_weight + self.length_weight > 0, "teacher_weight + length_weight", 0, "something to learn")
        expect(self.teacher_starts >= 1, "teacher_starts", self.teacher_starts, "at least 1")


def read_config(path: str | Path) -> TourConfig:
    """The `TourConfig` in a JSON file."""
    return from_file(TourConfig, path)
