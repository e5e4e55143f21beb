"""The studies' pages: every table is that of a record."""

import re
from pathlib import Path

import pytest

from linsat_studies.document import PAGES, filled, read_records, table, write_documents

DOCS = Path(__file__).parents[2] / "docs"


def test_only_the_places_of_tables_change(tmp_path):
    page = "before\n<!-- one -->\nold\n<!-- end of one -->\nafter\n"
    made = filled(page, {"one": table(("a", "b"), [("1", "2")])})
    assert made == "before\n<!-- one -->\n| a | b |\n|---|---|\n| 1 | 2 |\n<!-- end of one -->\nafter\n"
    assert filled(made, {"one": "| a | b |\n|---|---|\n| 1 | 2 |"}) == made
    with pytest.raises(ValueError, match="no place for two"):
        filled(page, {"two": ""})
    with pytest.raises(ValueError, match="holds no record"):
        read_records(tmp_path)


@pytest.mark.skipif(not DOCS.is_dir(), reason="the pages are those of a checkout")
def test_every_table_of_the_pages_is_that_of_a_record(tmp_path):
    for page in PAGES:
        text = (DOCS / f"{page}.md").read_text()
        (tmp_path / "assets" / page).mkdir(parents=True)
        for record in (DOCS / "assets" / page).glob("*.json"):
            (tmp_path / "assets" / page / record.name).write_bytes(record.read_bytes())
        places = re.findall(r"<!-- (?!end of )(.*?) -->\n", text)
        (tmp_path / f"{page}.md").write_text(re.sub(r"(?m)^\|.*\n", "", text))
        assert not re.search(r"(?m)^\|", re.sub(r"(?s)<!-- (\S+) -->.*?<!-- end of \1 -->", "", text)), page
        assert places, page
    found = write_documents(tmp_path)
    for page in PAGES:
        text = (DOCS / f"{page}.md").read_text()
        assert set(found[page]) == set(re.findall(r"<!-- (?!end of )(.*?) -->\n", text))
        assert (tmp_path / f"{page}.md").read_text() == text
        drawn = {path.name for path in (tmp_path / "assets" / page).glob("*.png")}
        assert all(f"assets/{page}/{name}" in text for name in drawn)
