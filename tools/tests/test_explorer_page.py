"""The explorer in a browser: bars and sliders move x, infeasible rows turn red, nothing is fetched from elsewhere."""

from __future__ import annotations

import json
import math

import pytest

from tests.helpers.browser import headless_browser
from tests.helpers.explorer_server import running_explorer

pytest.importorskip("starlette", reason="starlette is not installed (extra explore)")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra explore)")

PATIENCE = 120  # seconds; the first answer waits for the solving process


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with headless_browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def address():
    with running_explorer() as port:
        yield f"http://127.0.0.1:{port}/"


class Page:
    """What a user does on the page, and sees."""

    def __init__(self, browser, address):
        self.browser = browser
        browser.get(address)
        self.wait_for_state("solved")

    def wait(self, condition):
        from selenium.common.exceptions import StaleElementReferenceException as Redrawn
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(self.browser, PATIENCE, poll_frequency=0.05, ignored_exceptions=[Redrawn])
        return waiting.until(lambda _: condition())

    def one(self, selector):
        return self.browser.find_element("css selector", selector)

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def wait_for_state(self, state):
        self.wait(lambda: self.one("body").get_attribute("data-state") == state)

    def write(self, text):
        """Paste over the rows, and wait for the answer."""
        self.put("#rows", text)
        self.settle()

    def settle(self):
        self.wait(lambda: self.one("body").get_attribute("data-busy") == "no")

    def put(self, selector, value):
        """Change a field and say so, as typing or dragging does."""
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}));"
        self.browser.execute_script(script, self.one(selector), str(value))

    def x(self, name):
        found = self.all(f'[data-x="{name}"]')
        return float(found[0].text) if found and found[0].text not in ("", "–") else None

    def wait_for_x(self, name, expected):
        self.wait(lambda: self.x(name) is not None and abs(self.x(name) - expected) < 1e-4)


@pytest.fixture
def page(browser, address):
    return Page(browser, address)


def _on_a_line(difference: float, tau: float) -> float:
    """x of a on a + b = 1: its odds are exp(difference of the scores / tau)."""
    return 1 / (1 + math.exp(-difference / (2 * tau)))


def test_typed_rows_are_solved(page):
    from selenium.webdriver.common.keys import Keys

    page.one("#rows").send_keys(Keys.CONTROL + "a")
    page.one("#rows").send_keys("u + v = 1")
    page.wait_for_x("u", 0.5)


def test_the_temperature_slider_changes_x(page):
    page.write("a + b = 1")
    page.put('[data-score="a"]', 0.6)
    page.put('[data-score="b"]', 0.2)
    page.put("#tau", 0)  # tau = 1
    page.wait_for_x("a", _on_a_line(0.4, 1.0))
    page.put("#tau", -1)
    page.wait_for_x("a", _on_a_line(0.4, 0.1))
    page.wait_for_x("b", 1 - _on_a_line(0.4, 0.1))
    assert page.one("#tau-value").text == "tau = 0.1"


def test_dragging_a_bar_changes_x(page):
    from selenium.webdriver.common.action_chains import ActionChains

    page.write("a + b = 1")
    page.put('[data-score="a"]', 0)
    page.put('[data-score="b"]', 0)
    page.wait_for_x("a", 0.5)
    bar = page.one('[data-score="a"]')
    ActionChains(page.browser).click_and_hold(bar).move_by_offset(bar.size["width"] // 4, 0).release().perform()
    score = float(bar.get_attribute("value"))
    assert 0.5 < score < 1.5  # a quarter of the bar of [-2, 2] is 1
    page.wait_for_x("a", _on_a_line(score, 0.1))


def test_dragging_the_arrow_turns_the_scores(page):
    from selenium.webdriver.common.action_chains import ActionChains

    page.write("a + b <= 1")
    page.wait(lambda: page.one("polygon").get_attribute("data-corners") == "3")
    tip = page.one("#plots .tip")
    ActionChains(page.browser).click_and_hold(tip).move_by_offset(-80, -60).release().perform()
    # The vertex (0, 1) is the best one now, and the cold end of the slider goes there.
    page.put("#tau", -3)
    page.wait_for_x("b", 1.0)
    page.wait_for_x("a", 0.0)


def test_an_infeasible_row_is_named_and_marked(page):
    page.write("a + b <= 1\nharmless: a <= 0.9\nwish: a + b >= 1.5")
    page.wait_for_state("infeasible")
    assert page.one("#status").text == "infeasible"
    message = page.one("#message").text
    assert "cannot hold together: line 1: a + b <= 1; wish: a + b >= 1.5" in message
    assert [line.text for line in page.all("#lines .bad")] == ["1", "3"]
    assert len(page.all("#row-table tr.bad")) == 2
    assert len(page.all("#plots line.bad")) == 2
    red = page.one("#lines .bad").value_of_css_property("color")
    assert red != page.one("#lines div:not(.bad)").value_of_css_property("color")
    page.write("a + b <= 1\nharmless: a <= 0.9\nwish: a + b >= 0.5")
    page.wait_for_state("solved")
    assert page.one("#message").text == ""
    assert page.all(".bad") == []


def test_a_mistake_is_shown_where_it_is(page):
    page.write("a + b <= 1\na * b <= 1")
    page.wait_for_state("error")
    assert "line 2, column 3: variables are multiplied" in page.one("#message").text
    assert [line.text for line in page.all("#lines .bad")] == ["2"]


def test_markup_in_a_name_stays_text(page):
    page.write("<img src=x onerror=document.title=1>: a + b >= 3")
    page.wait_for_state("infeasible")
    assert "<img src=x" in page.one("#message").text
    assert page.all("img") == []
    assert page.browser.title == "linsat explorer"


def test_every_preset_shows_rows_that_hold(page):
    from selenium.webdriver.support.ui import Select

    preset = Select(page.one("#preset"))
    names = [option.text for option in preset.options]
    assert len(names) >= 6
    for name in names:
        preset.select_by_visible_text(name)
        page.settle()
        if name == "infeasible":
            assert page.one("#status").text == "infeasible"
            continue
        if name == "soft rows":
            assert page.one("#status").text == "1 soft row broken"
            assert [cell.text for cell in page.all("#row-table tr.broken td:first-child")] == ["Bob\ntue + wed >= 1.6"]
            continue
        assert page.one("#status").text == "every row holds"
        script = "return Array.from(document.querySelectorAll('[data-violation]'), (cell) => Number(cell.textContent))"
        violations = page.browser.execute_script(script)
        text = page.one("#rows").get_attribute("value")
        rows = [line for line in text.split("\n") if line and line[0] not in "#0"]
        assert len(violations) == len(rows)
        assert max(violations) < 1e-6


def test_each_objective_has_its_answer_and_curves(page):
    page.write("a + b = 1")
    page.put('[data-score="a"]', 0.6)
    page.put('[data-score="b"]', 0.2)
    page.put("#tau", 0)  # tau = 1
    nearest, entropic = 0.5 + 0.4 / 2, _on_a_line(0.4, 1.0)
    page.wait_for_x("a", entropic)
    shown = {cell.get_attribute("data-answer"): cell.text for cell in page.all("[data-answer]")}
    assert float(shown["entropy a"]) == pytest.approx(entropic, abs=1e-4)
    assert float(shown["slack-free-entropy a"]) == pytest.approx(entropic, abs=1e-4)  # no inequality, no slack
    assert float(shown["kl a"]) == pytest.approx(1 / (1 + math.exp(-0.4)), abs=1e-4)  # softmax
    assert float(shown["euclidean a"]) == pytest.approx(nearest, abs=1e-4)
    assert [figure.get_attribute("data-curves") for figure in page.all("#plots figure")] == [
        "entropy",
        "slack-free-entropy",
        "kl",
        "tsallis",
        "euclidean",
    ]
    assert all(len(figure.find_elements("css selector", "polyline")) == 2 for figure in page.all("#plots figure"))
    page.one("[name=objective][value=euclidean]").click()
    page.wait_for_x("a", nearest)
    assert [figure.get_attribute("data-curves") for figure in page.all("#plots figure.chosen")] == ["euclidean"]
    page.one("#copy-python").click()
    assert "linsat.Euclidean()" in page.one("#exported").text
    page.put("#tau", -1)  # tau = 0.1: nearest to (6, 2), which is a corner
    page.wait_for_x("a", 1.0)


def test_a_price_makes_a_row_soft_and_is_written_into_its_line(page):
    page.write("limit: a + b <= 1\nwish: a + b >= 1.5 # mine")
    page.wait_for_state("infeasible")
    field = page.one('[data-price="wish"]')
    page.browser.execute_script("arguments[0].value = '2'; arguments[0].dispatchEvent(new Event('change'));", field)
    page.settle()
    assert page.one("#rows").get_attribute("value") == "limit: a + b <= 1\nwish: a + b >= 1.5, price 2 # mine"
    page.wait(lambda: page.one("#status").text == "1 soft row broken")
    assert float(page.one('[data-violation="wish"]').text) == pytest.approx(0.5, abs=1e-6)
    assert page.one("#message").text == ""
    field = page.one('[data-price="wish"]')
    page.browser.execute_script("arguments[0].value = ''; arguments[0].dispatchEvent(new Event('change'));", field)
    page.wait_for_state("infeasible")
    assert page.one("#rows").get_attribute("value") == "limit: a + b <= 1\nwish: a + b >= 1.5 # mine"


def test_nothing_said_of_the_problem_before_stays(page):
    from selenium.webdriver.support.ui import Select

    Select(page.one("#preset")).select_by_visible_text("infeasible")
    page.wait_for_state("infeasible")
    assert page.one("#about").text.startswith("Rows that cannot hold together")
    assert "No point satisfies all rows" in page.one("#caption").text
    page.one("#copy-json").click()
    page.write("a + b <= 1")
    page.wait_for_state("solved")
    assert page.one("#about").text == ""
    assert not page.one("#exported").is_displayed()
    page.write("a + b <= 1\na + b >= 1.5")
    page.wait_for_state("infeasible")
    assert len(page.all("#row-table .bad")) == 2
    page.write("a + b <=")  # cannot be read: neither the conflict nor its red rows are about this text
    page.wait_for_state("error")
    assert "No point" not in page.one("#caption").text
    assert page.all("#row-table .bad") == []
    assert not page.one("#copy-json").is_enabled()
    page.browser.execute_script("window.fetch = () => new Promise(() => {});")  # an answer that does not come
    page.put("#rows", "a + b <= 2")
    page.wait(lambda: page.one("#message").text == "" and page.one("#status").text == "solving")


def test_exports_are_shown(page):
    page.write("workers: a + 2 b <= 1")
    page.one("#copy-json").click()
    shown = json.loads(page.one("#exported").text)
    assert shown["A"] == [{"a": 1, "b": 2}]
    assert shown["names"] == ["workers"]
    page.one("#copy-python").click()
    assert "linsat.Constraints(" in page.one("#exported").text


def test_no_error_and_nothing_fetched_from_elsewhere(page, address):
    page.wait_for_state("solved")
    assert [entry for entry in page.browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    asked = []
    for entry in page.browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert address + "solve" in asked
    assert [url for url in asked if not url.startswith((address, "data:", "chrome"))] == []


def test_it_fits_a_narrow_screen(page):
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        wide = page.browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 390
        for table in ("#row-table", "#answers"):
            box = page.one(table).find_element("xpath", "..")
            inside = page.browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", box)
            assert inside, table
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
