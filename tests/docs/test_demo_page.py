"""The demo's page: complete with and without the studies' packages, whole in a browser, fetching nothing."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path

import pytest

import linsat
from tests.helpers.browser import headless_browser

pytest.importorskip("LinSATNet", reason="LinSATNet is not installed (extra demo)")
pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra demo)")
pytest.importorskip("rich", reason="rich is not installed (extra demo)")

LAYER_SECTIONS = ("layer", "rows", "speed", "infeasible", "next")


@pytest.fixture(scope="module")
def demo():
    """The demo as a module; it needs the packages above."""
    import demo

    return demo


@pytest.fixture(scope="module")
def small(demo):
    """The demo with one small case and few tours: the same page, sooner."""
    rows = linsat.constraints.doubly_stochastic(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo.comparison, "cases", lambda: [demo.comparison.Case("doubly stochastic", rows, batch=2)])
        patch.setattr(demo.comparison, "SETTLED", (100,))
        patch.setattr(demo.studies, "TOURS", 4)
        yield demo


@pytest.fixture(scope="module")
def page(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    small.main(["--out", str(folder), "--iterations", "3"])
    return folder / "index.html"


def _sections(path: Path) -> dict[str, str]:
    text = path.read_text(encoding="utf-8")
    return dict(re.findall(r'<section id="(\w+)">\n(.*?)\n</section>', text, re.DOTALL))


def test_every_section_is_there(page):
    found = _sections(page)
    assert set(found) == {*LAYER_SECTIONS, "tours", "matching", "portfolios"}
    for name, content in found.items():
        assert "<h2>" in content
        pictures = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)">', content)
        shows_none = name in ("infeasible", "next") or 'class="missing"' in content
        assert bool(pictures) != shows_none
        for encoded, alternative in pictures:
            assert base64.b64decode(encoded)[:8] == b"\x89PNG\r\n\x1a\n"
            assert len(alternative) > 10
        assert content.count("<figcaption>") == len(pictures)


def test_the_page_needs_no_other_file(page):
    text = page.read_text(encoding="utf-8")
    addresses = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert addresses
    assert [a for a in addresses if not a.startswith(("data:", "#"))] == []
    assert "@import" not in text
    assert "url(" not in text
    assert "<script" not in text


def test_links_lead_to_sections(page):
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r'href="#(\w+)"', text)) == set(_sections(page))


def test_tours_on_the_page_are_measured_against_the_optimum(page):
    content = _sections(page)["tours"]
    rows = re.findall(r"<tr><td>([^<]+)</td><td>([\d.]+)</td><td>([\d.]+)</td><td>([\d.]+) %</td>", content)
    assert len(rows) == 2
    for _, mean, shortest, gap in rows:
        assert float(mean) >= float(shortest)
        # The gap is printed to 0.01 %, both lengths to 0.001 of about 4.
        assert float(gap) == pytest.approx(100 * (float(mean) / float(shortest) - 1), abs=0.04)


def test_a_picture_and_both_paths_are_printed(small, tmp_path, capsys):
    small.main(["--out", str(tmp_path / "new"), "--iterations", "2", "--layer-only"])
    printed = capsys.readouterr().out
    assert str(tmp_path / "new" / "demo.png") in printed
    assert str(tmp_path / "new" / "index.html") in printed
    assert set(_sections(tmp_path / "new" / "index.html")) == set(LAYER_SECTIONS)
    assert "[1/3] doubly stochastic, tau 0.1" in printed


def test_a_missing_package_is_named_with_its_fix(small, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "skfolio"] + ["skfolio"]:
        monkeypatch.setitem(sys.modules, name, None)
    section = small.or_missing(small.studies.portfolios, "portfolios", "Portfolios")
    assert section.pictures == []
    assert "skfolio" in section.missing
    assert "pip install" in section.missing
    assert "\n" not in section.missing
    assert "not shown" in small.in_words(section)


def test_a_missing_network_is_named(small, monkeypatch, tmp_path):
    from linsat_studies.tsp import shipped

    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    section = small.or_missing(small.studies.tours, "tours", "Tours")
    assert str(tmp_path) in section.missing
    path = tmp_path / "page.html"
    made = small.TourPage("title", "lead")
    made.add(section)
    made.write(path)
    assert f"Not shown here: {section.missing}" in path.read_text(encoding="utf-8")


def test_a_mistake_of_our_own_is_not_taken_for_a_missing_package(small):
    def broken():
        raise ImportError("no such name", name="linsat_studies.page")

    with pytest.raises(ImportError, match="no such name"):
        small.or_missing(broken, "a", "b")


def test_what_is_written_stays_text(small, tmp_path):
    from guided_tour.sections import Section

    made = small.TourPage("<b>", "<i>")
    made.add(
        Section("a", "<script>", words=["<u>"], facts=[("<v>", "<w>")], header=["<h>"], rows=[["<r>"]], code="<c>")
    )
    made.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for mark in ("<b>", "<i>", "<script>", "<u>", "<v>", "<w>", "<h>", "<r>", "<c>"):
        inside = text.partition("<body>")[2].replace("<b>&lt;v&gt;</b>", "")
        assert mark not in inside


@pytest.mark.parametrize("option", ["--threads", "--iterations"])
def test_counts_must_be_positive(demo, option, capsys):
    with pytest.raises(SystemExit) as stop:
        demo.main([option, "0"])
    assert stop.value.code == 2
    assert f"{option} is 0; expected a whole number of at least 1." in capsys.readouterr().err


def test_a_browser_shows_every_picture_and_asks_for_nothing(page, tmp_path):
    with headless_browser(tmp_path / "profile") as browser:
        browser.get(page.as_uri())
        widths = browser.execute_script(
            "return Promise.all(Array.from(document.images, (i) => i.decode().then(() => i.naturalWidth)))"
        )
        assert len(widths) == page.read_text(encoding="utf-8").count("<img ")
        assert len(widths) >= 5
        assert min(widths) > 400
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
        asked = []
        for entry in browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        assert page.as_uri() in asked
        assert [url for url in asked if not url.startswith((page.as_uri(), "data:", "chrome"))] == []
        for width in (1300, 390):
            size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
