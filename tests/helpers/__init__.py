"""Oracles and drawn problems that tests, fuzz and benchmarks share."""
