"""Partial matching of keypoints with outliers on both sides: rows, columns and the total number of matches bounded."""
