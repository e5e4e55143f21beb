"""What follows from a set: standard form and presolve on arrays of any library; in numpy, whether its rows can hold."""

from linsat.compile.certificate import Certificate, exact_gap
from linsat.compile.conflicts import Conflict, minimal_conflict, other_conflicts
from linsat.compile.feasibility import Verdict, judge
from linsat.compile.system import Deadline, LinearSystem

__all__ = [
    "Certificate",
    "Conflict",
    "Deadline",
    "LinearSystem",
    "Verdict",
    "exact_gap",
    "judge",
    "minimal_conflict",
    "other_conflicts",
]
