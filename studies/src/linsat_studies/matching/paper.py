"""The figures of the LinSATNet paper (ICML 2023) that the report prints beside ours."""

from __future__ import annotations

# Table 2: row of `measurements.ROWS` -> mean F1 in per cent on Pascal VOC Keypoint, unfiltered, fine-tuned VGG16.
TABLE_2 = {
    "PCA-GM, Sinkhorn": 48.6,
    "BBGM, black box": 51.9,
    "NGMv2, Sinkhorn": 58.8,
    "BBGM, black box, partial": 59.0,
    "NGMv2, Sinkhorn + top-phi": 60.7,
    "NGMv2, layer": 61.2,
}
# Table 5: tau -> (share of pairs whose rounded matching is feasible, mean F1 of those), both in per cent.
TABLE_5 = {0.1: (56.78, 47.56), 0.05: (83.99, 55.47), 0.02: (95.21, 57.48), 0.01: (96.20, 56.73)}
HUNGARIAN = (0.05, 61.18)  # the same table's last line: tau, and mean F1 in per cent of Hungarian with the phi highest
# Table 8: share of inference time, in per cent.
TABLE_8 = {"network": 17.1, "layer": 81.4, "decoder": 1.5}
