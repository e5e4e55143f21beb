"""What the page shows: sections with words, pictures, facts and tables; and those that could not be made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure, what it shows for those who cannot see it, and what to notice."""

    figure: Figure
    alternative: str
    caption: str
    wide: bool = True  # scrolls sideways on a narrow screen rather than shrinking out of sight


@dataclass(frozen=True)
class Section:
    """One part of the page; ``missing`` says why there is nothing to show, and how to change that."""

    anchor: str
    title: str
    words: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)  # value, what it is
    pictures: list[Picture] = field(default_factory=list)
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    ours: list[int] = field(default_factory=list)  # rows that stand out
    code: str = ""  # commands to try
    missing: str = ""


def or_missing(make: Callable[[], Section], anchor: str, title: str) -> Section:
    """The section; or one that says in a line what is missing: a package, a file, data."""
    try:
        return make()
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("linsat", "linsat_studies"):
            raise  # not a package that could be installed, but a mistake here
        text = str(error)
        if "pip install" not in text:
            text = f"{error.name or 'a package'} is not installed. Fix: pip install -e studies"
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
    return Section(anchor, title, missing=text)
