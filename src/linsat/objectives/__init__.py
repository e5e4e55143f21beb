"""What a projection optimises: one file an objective, all behind `Objective`."""

from linsat.objectives.base import Objective
from linsat.objectives.entropy import Entropy
from linsat.objectives.euclidean import Euclidean
from linsat.objectives.kl import KL
from linsat.objectives.tsallis import Tsallis

# As the command line and the explorer call them.
NAMED: dict[str, Objective] = {
    "entropy": Entropy(),
    "slack-free-entropy": Entropy(slack="none"),
    "kl": KL(),
    "tsallis": Tsallis(),
    "euclidean": Euclidean(),
}

__all__ = ["KL", "NAMED", "Entropy", "Euclidean", "Objective", "Tsallis"]
