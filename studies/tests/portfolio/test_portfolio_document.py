"""The page of the study: its tables are those of its records."""

from linsat_studies.portfolio.charts import differences_chart
from linsat_studies.portfolio.document import draw, walk_forward_tables


def small_record():
    def ratio(value, low, high):
        return {"value": value, "low": low, "high": high, "level": 0.95}

    row = {"sharpe": ratio(1.234, 0.5, 2.0), "preferred_share": 0.5, "assets": 9.87, "violation": 3e-14}
    plain = {"sharpe": ratio(1.0, -0.5, 2.0), "preferred_share": 0.012, "assets": 20.0}
    pair = {"of": "layer", "less": "equal weight"}
    return {
        "scope": {
            "assets": 20,
            "preferred": ["AAPL"],
            "protocol": {"cuts": 1, "seeds": 2},
            "cuts": ["2019-01-02"],
            "windows": 7,
            "days": ["2019-01-02", "2020-01-02"],
        },
        "bootstrap": {"days": 1250},
        "rows": {"two-stage": {**row, "fallbacks": 3, "programs": 14}, "equal weight": plain},
        "differences": [{**pair, **ratio(0.234, 0.1, 0.4)}, {"of": "a", "less": "b", **ratio(-0.1, -0.4, 0.2)}],
        "placebo": {"sets": 50, "luck": 0.9, "differences": [{**pair, **ratio(0.05, -0.1, 0.2), "ahead": 0.6}]},
    }


def test_figures_by_hand():
    text = walk_forward_tables(small_record())
    assert "| two-stage | 1.23 | 0.50 to 2.00 | 50.0% | 9.9 | 3e-14 |" in text
    assert "| equal weight | 1.00 | -0.50 to +2.00 | 1.2% | 20.0 |  |" in text
    assert "| layer - equal weight | **+0.23** | 0.10 to 0.40 | +0.05 | -0.10 to +0.20 | 60% |" in text
    assert "| a - b | -0.10 | -0.40 to +0.20 |  |  |  |" in text
    assert "no excess return in 3 of 14 windows" in text


def test_the_differences_are_drawn(tmp_path):
    axes = differences_chart({"20 assets": small_record()}).axes[0]
    dots = sorted(line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o")
    assert dots == [-0.1, 0.05, 0.234]  # two of the study's names, one of random sets
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layer \u2212 equal weight", "a \u2212 b"]
    draw({"one": small_record()}, tmp_path)
    assert (tmp_path / "differences.png").read_bytes().startswith(b"\x89PNG")
