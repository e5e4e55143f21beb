"""Can the rows of a set hold: a point, a proof of the contrary, and which rows conflict. Plain numpy, no framework."""

from linsat.verdict.certificate import Certificate, exact_gap
from linsat.verdict.conflicts import Conflict, minimal_conflict, other_conflicts
from linsat.verdict.feasibility import Verdict, judge
from linsat.verdict.system import Deadline, LinearSystem

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
