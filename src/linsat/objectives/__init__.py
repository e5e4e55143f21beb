"""What a projection optimises: one file an objective, all behind `Objective`."""

from linsat.objectives.base import Objective
from linsat.objectives.entropy import Entropy
from linsat.objectives.euclidean import Euclidean
from linsat.objectives.kl import KL
from linsat.objectives.quadratic import Quadratic
from linsat.objectives.tsallis import Tsallis

__all__ = ["KL", "Entropy", "Euclidean", "Objective", "Quadratic", "Tsallis"]
