"""The tables of the studies' pages, made from records: ``docs/routing.md``, ``matching.md`` and ``portfolio.md``.

A table stands between ``<!-- name -->`` and ``<!-- end of name -->``; the text around it is written by hand. Records of
a page lie in a folder of its name under ``docs/assets``, where charts of them are drawn, too. The tables are made by a
module ``document`` in each study: ``tables`` gives them by name, ``draw`` draws its charts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from linsat_studies.files import read_json, read_text, write_text

PAGES = {"routing": "tsp", "matching": "matching", "portfolio": "portfolio"}  # page -> package of its study


def write_documents(docs: Path) -> dict[str, list[str]]:
    """Fill the tables of every page in a folder from its records, and draw their charts; names of tables by page.

    Raises:
        ValueError: a page without records, or a table whose place its page does not have.
    """
    found = {}
    for page in PAGES:
        folder = docs / "assets" / page
        records = read_records(folder)
        study = import_module(f"linsat_studies.{PAGES[page]}.document")
        made = study.tables(records)
        write_text(docs / f"{page}.md", filled(read_text(docs / f"{page}.md"), made))
        study.draw(records, folder)
        found[page] = list(made)
    return found


def read_records(folder: Path) -> dict[str, Any]:
    """The records of a folder by name.

    Raises:
        ValueError: there is none.
    """
    found = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
    if not found:
        raise ValueError(f"{folder} holds no record. Fix: write one with --record of a study's report.")
    return found


def filled(text: str, tables: Mapping[str, str]) -> str:
    """A page's text with the tables in their places.

    Raises:
        ValueError: a table without a place.
    """
    for name, table in tables.items():
        place = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"the page has no place for {name}. Fix: add <!-- {name} --> and <!-- end of {name} -->.")
        text = place.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)  # type: ignore[misc]
    return text


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
