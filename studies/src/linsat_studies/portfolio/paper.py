"""The figures of the LinSATNet paper (ICML 2023) that the report prints beside ours."""

from __future__ import annotations

# Table 3: (predictor, technique) -> mean Sharpe ratio. Its two-stage technique solves the program with Gurobi.
TABLE_3 = {
    ("lstm", "softmax"): 2.15,
    ("lstm", "two-stage"): 2.08,
    ("lstm", "layer"): 2.27,
    ("stemgnn", "softmax"): 2.11,
    ("stemgnn", "two-stage"): 2.00,
    ("stemgnn", "layer"): 2.42,
}
# Table 9: share of inference time, in per cent.
TABLE_9 = {"network": 20.1, "layer": 79.9}
