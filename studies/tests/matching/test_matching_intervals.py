"""Intervals of paired differences, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from linsat_studies.matching.intervals import paired_difference


def test_a_constant_difference_is_certain() -> None:
    other = np.random.default_rng(0).random((1, 60))
    found = paired_difference(other + 0.25, other, ["a"] * 50 + ["b"] * 10, draws=50)
    assert list(found.values()) == pytest.approx([0.25, 0.25, 0.25])


def test_interval_is_that_of_independent_means() -> None:
    """Oracle: mean over classes of means has variance sum s_k^2 / n_k / K^2; 95 % are 1.96 deviations."""
    random = np.random.default_rng(1)
    other = random.random((1, 500))
    ours = other + random.normal(0.02, 0.3, (1, 500))
    classes = np.array(["a"] * 400 + ["b"] * 100)
    found = paired_difference(ours, other, list(classes), draws=4000)
    difference = (ours - other)[0]
    parts = [difference[classes == name] for name in ("a", "b")]
    mean = np.mean([part.mean() for part in parts])
    reach = 1.96 * np.sqrt(sum(part.var() / len(part) for part in parts)) / 2
    assert found["mean"] == pytest.approx(mean)
    assert found["low"] == pytest.approx(mean - reach, abs=0.08 * reach)
    assert found["high"] == pytest.approx(mean + reach, abs=0.08 * reach)


def test_seeds_that_differ_widen_it() -> None:
    """Oracle: pairs all alike, so that only the draw of three seeds is left: variance s^2 / 3 of each technique."""
    ours, other = np.array([[0.5], [0.6], [0.7]]).repeat(20, 1), np.array([[0.4], [0.4], [0.4]]).repeat(20, 1)
    found = paired_difference(ours, other, ["a"] * 20, draws=4000)
    assert found["mean"] == pytest.approx(0.2)
    assert found["low"] == pytest.approx(0.1)  # all three draws the lowest seed: 1 of 27, more than 2.5 %
    assert found["high"] == pytest.approx(0.3)
