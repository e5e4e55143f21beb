"""Small problems to start from, each with scores that make it interesting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A problem by name: its text, scores by variable, temperature and objective."""

    name: str
    about: str
    text: str
    scores: dict[str, float]
    tau: float = 0.1
    objective: str = "entropy"


PRESETS = (
    Preset(
        "polygon",
        "Two variables: watch the point walk to a corner as tau falls.",
        "# two variables: the feasible set is drawn\n"
        "a + b <= 1.2\n"
        "2*a + b <= 1.7\n"
        "at least: a + 3 b >= 0.6\n"
        "0 <= a <= 1\n"
        "0 <= b <= 1\n",
        {"a": 0.8, "b": 0.5},
    ),
    Preset(
        "top-k",
        "The two best of six, softly.",
        "# exactly two of six\nexactly two: a + b + c + d + e + f = 2\n",
        {"a": 1.0, "b": 0.6, "c": 0.4, "d": 0.0, "e": -0.5, "f": -1.0},
    ),
    Preset(
        "permutation",
        "Three items at three places: rows and columns sum to 1.",
        "# x_ij: item i at place j\n"
        "item 1: x11 + x12 + x13 = 1\n"
        "item 2: x21 + x22 + x23 = 1\n"
        "item 3: x31 + x32 + x33 = 1\n"
        "place 1: x11 + x21 + x31 = 1\n"
        "place 2: x12 + x22 + x32 = 1\n"
        "place 3: x13 + x23 + x33 = 1\n",
        {"x11": 1.2, "x12": 0.8, "x13": -0.4, "x21": 1.0, "x22": 0.1, "x31": -0.6, "x32": 0.3, "x33": 0.9},
    ),
    Preset(
        "portfolio",
        "Weights sum to 1, bonds and gold at least 30 %, no share above 40 %.",
        "# weights of five assets\n"
        "fully invested: gold + bonds + europe + asia + america = 1\n"
        "careful: bonds + gold >= 0.3\n"
        "spread: america - 2 asia <= 0.2\n"
        "0 <= europe <= 0.4\n"
        "0 <= asia <= 0.4\n"
        "0 <= america <= 0.4\n",
        {"gold": -0.2, "bonds": 0.1, "europe": 0.4, "asia": 0.7, "america": 1.0},
    ),
    Preset(
        "budget",
        "Projects with costs: choose what fits into 10.",
        "# what fits into the budget?\n"
        "budget: 3 bridge + road + 4 school + park + 5 clinic + 9 stadium <= 10\n"
        "one of both: school + clinic >= 1\n",
        {"bridge": 0.6, "road": 0.3, "school": 0.7, "park": 0.2, "clinic": 0.9, "stadium": 1.4},
    ),
    Preset(
        "soft rows",
        "Wishes that cannot all be met: each has a price, and the cheapest one to break is broken.",
        "# a row with a price may be broken\n"
        "opening hours: mon + tue + wed <= 2\n"
        "Ann: mon + tue >= 1.8, price 2\n"
        "Bob: tue + wed >= 1.6, price 0.3\n"
        "0 <= tue <= 0.9\n",
        {"mon": 0.2, "tue": 0.1, "wed": -0.05},
        objective="euclidean",
        tau=1.0,
    ),
    Preset(
        "infeasible",
        "Rows that cannot hold together: the page names a minimal set of them.",
        "# columns allow 2 in all, rows ask for 3\n"
        "first column: a + c <= 1\n"
        "second column: b + d <= 1\n"
        "first row: a + b >= 1.5\n"
        "second row: c + d >= 1.5\n"
        "harmless: a + d <= 1.8\n",
        {"a": 0.5, "b": 0.2, "c": -0.3, "d": 0.4},
    ),
)
