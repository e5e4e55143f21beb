"""Diagnosis of constraint sets: can the rows hold, which of them conflict, and a proof. Plain numpy, no framework."""

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
