"""The documentation as a site: it builds without a warning, nothing leads nowhere, and pages fit their screens."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.browser import headless_browser

ROOT = Path(__file__).parents[2]
LINKS = runpy.run_path(str(ROOT / "scripts" / "check_links.py"))
WIDTHS = (1440, 390)
# What a reader would see: a page that scrolls sideways, pictures that are missing, boxes that leave their column by
# more than the theme's own margin of 16 pixels, and, where there is room, code that must be scrolled.
FAULTS = """
const wide = document.documentElement.clientWidth > 600, faults = [];
if (document.documentElement.scrollWidth > document.documentElement.clientWidth + 1) faults.push("scrolls sideways");
for (const image of document.images)
  if (!image.complete || image.naturalWidth === 0) faults.push("picture " + image.src);
const right = document.querySelector(".md-content__inner").getBoundingClientRect().right;
for (const box of document.querySelectorAll(".md-typeset pre, .md-typeset table, .md-typeset img")) {
  const outer = box.closest(".md-typeset__scrollwrap") || box;
  if (outer.getBoundingClientRect().right > right + 17) faults.push("past the column: " + box.textContent.slice(0, 60));
}
for (const code of document.querySelectorAll(".md-typeset pre > code"))
  if (wide && code.scrollWidth > code.clientWidth + 1) faults.push("wide code: " + code.textContent.slice(0, 60));
return faults;
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without executing the notebooks, which `make docs` does."""
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def pages(site: Path) -> list[Path]:
    return [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]


def test_every_link_and_anchor_leads_somewhere(site):
    assert len(pages(site)) > 30
    assert LINKS["broken"](site) == []


def test_nothing_is_fetched_from_elsewhere(site):
    pattern = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\" >]+)")
    assert {path.name: pattern.findall(path.read_text(encoding="utf-8")) for path in pages(site)} == {
        path.name: [] for path in pages(site)
    }


def test_the_link_check_finds_what_is_missing(tmp_path):
    (tmp_path / "index.html").write_text('<a href="b.html#here">b</a><a href="c.html">c</a><img src="d.png">')
    (tmp_path / "b.html").write_text('<p id="there"></p><a href="#there">up</a><a href="https://example.org">out</a>')
    assert LINKS["broken"](tmp_path.resolve()) == [
        "index.html: b.html#here: no such anchor",
        "index.html: c.html: no such file",
        "index.html: d.png: no such file",
    ]


def faults(site: Path, shown: list[Path], profile: Path) -> list[str]:
    """Of the pages at both widths, and errors in the browser's console."""
    found = []
    with headless_browser(profile) as browser:
        for width in WIDTHS:
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            for path in shown:
                browser.get(path.as_uri())
                said = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
                found += [
                    f"{path.relative_to(site)}, {width}: {line}" for line in browser.execute_script(FAULTS) + said
                ]
    return found


@pytest.mark.slow
def test_pages_fit_a_desktop_and_a_phone(site, tmp_path):
    names = ("index", "quickstart", "from-cvxpylayers", "tutorials/roster", "api", "performance")
    assert faults(site, [site / f"{name}.html" for name in names], tmp_path) == []


@pytest.mark.slow
def test_all_pages_fit_a_desktop_and_a_phone(site, tmp_path):
    assert faults(site, pages(site), tmp_path) == []


def test_pages_opened_from_a_folder_can_be_searched(site, tmp_path):
    with headless_browser(tmp_path) as browser:
        from selenium.webdriver.common.by import By
        from selenium.webdriver.support.ui import WebDriverWait

        browser.set_window_size(1440, 900)
        browser.get((site / "quickstart.html").as_uri())
        box = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
        box.click()
        box.send_keys("soften")
        results = WebDriverWait(browser, 20).until(
            lambda driver: [
                e.get_attribute("href") for e in driver.find_elements(By.CSS_SELECTOR, ".md-search-result a")
            ]
        )
        assert any("constraints.html" in result for result in results)
