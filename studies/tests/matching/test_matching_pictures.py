"""Pictures say the truth: colours of lines and dots follow what is right, wrong, rejected and missed."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex

from linsat_studies.figures import new_figure
from linsat_studies.matching import charts
from linsat_studies.matching.data import KeypointObject, pair
from linsat_studies.matching.pictures import GAP, REJECTED, RIGHT, SIDE, WRONG, Drawn, draw_matching, matching_grid


@pytest.fixture
def two():
    """a and b are common; c is on the left alone, d on the right alone."""
    left = KeypointObject("1", "cat", "test", ("a", "b", "c"), np.array([[10, 20], [60, 30], [40, 90]], np.float32))
    right = KeypointObject("2", "cat", "test", ("b", "d", "a"), np.array([[12, 25], [80, 33], [44, 91]], np.float32))
    return pair(left, right)


def drawn(two, matches):
    axes = new_figure(4, 3).subplots()
    images = (np.zeros((256, 256, 3), np.uint8), np.full((256, 256, 3), 255, np.uint8))
    draw_matching(axes, Drawn(two, np.array(matches).reshape(-1, 2), images))
    lines = {tuple(map(float, line.get_xydata().ravel())): to_hex(line.get_color()) for line in axes.lines}
    dots = {
        tuple(map(float, dots.get_offsets()[0])): (to_hex(dots.get_facecolor()[0]), to_hex(dots.get_edgecolor()[0]))
        for dots in axes.collections
    }
    return lines, dots


def test_lines_are_green_where_right_and_red_where_wrong(two):
    lines, dots = drawn(two, [[0, 2], [2, 1]])  # a-a is right, c-d joins two outliers
    away = SIDE + GAP
    assert lines == {(10, 20, away + 44, 91): RIGHT, (40, 90, away + 80, 33): WRONG}
    assert dots[10, 20][0] == dots[away + 44, 91][0] == RIGHT
    assert dots[40, 90][0] == dots[away + 80, 33][0] == WRONG
    assert dots[60, 30] == dots[away + 12, 25] == ("#ffffff", REJECTED)  # b has a partner and was missed


def test_rejected_outliers_are_full_and_grey(two):
    lines, dots = drawn(two, [[0, 2], [1, 0]])
    assert set(lines.values()) == {RIGHT}
    assert dots[40, 90] == dots[SIDE + GAP + 80, 33] == (REJECTED, "#ffffff")


def test_nothing_matched_is_no_line(two):
    lines, dots = drawn(two, [])
    assert lines == {}
    assert len(dots) == 6


def test_grid_has_a_panel_for_each_method_and_pair(two):
    one = Drawn(two, two.truth, None, "here")
    figure = matching_grid([{"first": one, "second": one}, {"first": one, "second": one}])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["first\nhere", "second\nhere", "here", "here"]


def test_technique_chart_marks_the_means_and_the_papers_figures():
    rows = {"mine": [1.0, 3.0], "other": [5.0], "unknown to the paper": [4.0]}
    axes = charts.technique_chart(rows, {"mine": 7.0, "other": 8.0}, ours="mine").axes[0]
    bars = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "None"]
    assert bars == [2.0, 5.0, 4.0]
    crosses = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "x"]
    assert crosses == [[[7.0, 0.0]], [[8.0, 1.0]]]


def test_class_chart_is_ordered_by_ours():
    rows = {"mine": {"cat": 3.0, "dog": 1.0, "cow": 2.0}, "other": {"cat": 5.0, "dog": 6.0, "cow": 4.0}}
    axes = charts.class_chart(rows, ours="mine").axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["dog", "cow", "cat"]
    assert [list(line.get_xdata()) for line in axes.lines] == [[1.0, 2.0, 3.0], [6.0, 4.0, 5.0]]


def test_phi_chart_shows_shares_of_each_true_number():
    axes = charts.phi_chart(np.array([1, 1, 2, 2]), np.array([1.2, 1.9, 2.4, -3.0])).axes[0]
    shares = np.asarray(axes.images[0].get_array())  # [estimated, true]
    assert shares[:, 1].tolist() == [0.0, 0.5, 0.5]
    assert shares[:, 2].tolist() == [0.5, 0.0, 0.5]


def test_rounding_chart_draws_both():
    ours, stated = {0.1: (60.0, 50.0), 0.01: (99.0, 55.0)}, {0.1: (56.8, 47.6)}
    first, second = charts.rounding_chart(ours, stated, 61.0).axes
    assert list(first.lines[0].get_ydata()) == [99.0, 60.0]
    assert list(second.lines[1].get_ydata()) == [47.6]


def test_learning_chart_gives_runs_of_a_kind_one_colour():
    point = [{"step": 1, "validation": 2.0}, {"step": 2, "validation": 1.0}]
    axes = charts.learning_chart({"mine 0": point, "mine 1": point, "other 0": point}, ours="mine").axes[0]
    colours = [line.get_color() for line in axes.lines]
    assert colours[0] == colours[1] == charts.OURS
    assert colours[2] != charts.OURS
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["mine", "other"]
