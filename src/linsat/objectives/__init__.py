"""What a projection optimises: one file an objective, all behind `Objective`."""

from linsat.objectives.base import Objective
from linsat.objectives.entropy import Entropy
from linsat.objectives.euclidean import Euclidean

__all__ = ["Entropy", "Euclidean", "Objective"]
