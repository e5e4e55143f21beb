"""The figures of the LinSATNet paper (ICML 2023) that the report prints beside ours; times are those it states."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One row of table 1: the method, mean length and total time for 10,000 instances, per task."""

    group: str
    method: str
    se: float | None
    se_time: str
    pri: float | None
    pri_time: str


TABLE_1 = (
    Row("MIP", "Gurobi, quadratic form, 2 s", 4.608, "5h34m", 4.720, "5h34m"),
    Row("MIP", "Gurobi, quadratic form, 10 s", 4.010, "27h44m", 4.148, "27h45m"),
    Row("Heuristic", "Nearest neighbour", 4.367, "0s", 4.674, "0s"),
    Row("Heuristic", "Nearest insertion", 4.070, "9s", 4.349, "9s"),
    Row("Heuristic", "Farthest insertion", 3.772, "11s", 4.403, "10s"),
    Row("Heuristic", "Random insertion", 3.853, "5s", 4.469, "4s"),
    Row("Standard solver", "Gurobi (MTZ)", 3.648, "1h2m", None, ""),
    Row("Standard solver", "Concorde", 3.648, "9m28s", None, ""),
    Row("Standard solver", "LKH3", 3.648, "2m44s", None, ""),
    Row("Neural", "Attention Model", 3.677, "4m39s", 4.008, "4m43s"),
    Row("Neural", "LinSAT, beam 2,048", 3.811, "19s", 3.943, "18s"),
)

# Table 4: temperature -> (feasible share, mean length of the feasible) for each task, entries rounded at 0.5.
TABLE_4 = {
    "se": {0.1: (0.0119, 3.897), 0.05: (0.2095, 3.904), 0.01: (0.8669, 3.964), 0.005: (0.8935, 3.969)},
    "pri": {0.1: (0.0152, 3.997), 0.05: (0.2326, 4.063), 0.01: (0.8532, 4.102), 0.005: (0.8363, 4.108)},
}
BEAM = {"se": 3.811, "pri": 3.943}

# Table 6: what is projected and searched -> mean length and time for each task.
TABLE_6 = {
    "random": {"se": (7.414, "19s"), "pri": (7.426, "18s")},
    "trained": {"se": (5.546, "26m51s"), "pri": (5.646, "27m37s")},
    "network": {"se": (3.811, "19s"), "pri": (3.943, "18s")},
}

# Table 7: share of the time of network, layer and beam search, in per cent.
TABLE_7 = {"se": (0.3, 12.4, 87.3), "pri": (0.3, 12.6, 87.1)}
