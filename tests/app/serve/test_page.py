"""The page in a real browser: Debian's chromium and chromium-driver."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from l0drop.app.serve.guard import LOCAL, Access
from l0drop.app.serve.models import Served
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running

TEXT = "the dog sees a cat . <script>alert(1)</script>"
PHONE, DESKTOP = (390, 844), (1280, 1000)


def test_the_policy_allows_only_the_page_itself(service: Running) -> None:
    answer = service.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall(r"'sha256-[^']+'", policy)) == 2
    assert not re.findall(r"(?:src|href)=\"(?!data:,)", answer.text), "no external resource"
    assert not re.findall(r"\son\w+=|\sstyle=", answer.text), "the policy would block it"
    assert "innerHTML" not in answer.text


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium or chromedriver here: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


class Page:
    """The page as its reader uses it."""

    def __init__(self, browser: Any, url: str, size: tuple[int, int], theme: str = "light") -> None:
        self.browser, self.url = browser, url
        browser.get_log("browser")
        browser.get_log("performance")
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(url)

    def __getitem__(self, name: str) -> Any:
        return self.browser.find_element("id", name)

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def wait(self, what: str) -> None:
        """Wait until a JavaScript expression is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 20, 0.05).until(lambda browser: browser.execute_script(f"return {what}"))

    def ready(self) -> None:
        self.wait("document.getElementById('model').options.length > 0")

    def done(self) -> None:
        self.wait("document.getElementById('status').textContent === 'Done.'")

    def decode(self, text: str) -> None:
        self["text"].clear()
        self["text"].send_keys(text)
        self["go"].click()
        self.done()

    def set_slider(self, value: int) -> None:
        self.browser.execute_script(
            "const s = document.getElementById('keep'); s.value = arguments[0];"
            "document.getElementById('status').textContent = '';"
            "s.dispatchEvent(new Event('input'))",
            value,
        )
        self.done()

    def violations(self) -> list[dict[str, Any]]:
        from axe_core_python.selenium import Axe

        found = Axe().run(self.browser)["violations"]
        return [{"rule": one["id"], "nodes": [node["html"] for node in one["nodes"]]} for one in found]

    def check(self) -> None:
        """No console message, no request to another place, nothing that axe-core finds."""
        assert self.browser.get_log("browser") == []
        events = (json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance"))
        urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        assert urls
        assert all(url.startswith((self.url, "data:,")) for url in urls), urls
        assert self.violations() == []
        wide = self.browser.execute_script("return document.documentElement.scrollWidth > window.innerWidth")
        assert not wide, "no scrolling sideways"

    def picture(self, name: str) -> None:
        """Keep a screenshot where L0DROP_SCREENSHOTS says, to be looked at."""
        folder = os.environ.get("L0DROP_SCREENSHOTS")
        if folder:
            self.browser.save_screenshot(str(Path(folder) / f"{name}.png"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_reader_sees_what_was_dropped(
    browser: Any, service: Running, sparse: TextModel, size: tuple[int, int], theme: str
) -> None:
    page = Page(browser, service.url, size, theme)
    page.ready()
    page.picture(f"empty-{size[0]}-{theme}")
    page.decode(TEXT)
    wanted = sparse.explain(TEXT)
    assert page["output"].text.split() == wanted.text.split()
    struck = page.all("#source del")
    assert len(struck) > 0
    assert f"{len(wanted.kept)} of {len(wanted.source)} tokens kept" in page["counts"].text
    assert "<script>" in page["source"].text, "tags are text"
    assert page.all("#source .part"), "split words are visible"
    assert page["short-text"].text == page["dense-text"].text
    assert "ms" in page["dense-time"].text

    page.set_slider(100)
    assert page.all("#source del") == []
    page.set_slider(10)
    assert len(page.all("#source del")) > len(struck)
    assert page["keep-value"].text == "10% of the tokens"

    word = page.all("#output .word")[0]
    browser.execute_script("arguments[0].focus()", word)
    page.wait("document.getElementById('attention').textContent.includes('attends to')")
    assert browser.execute_script(
        "return [...document.querySelectorAll('#source .token')].some(t => t.style.getPropertyValue('--weight') > 0)"
    )
    page.picture(f"attention-{size[0]}-{theme}")
    page["own"].click()
    page.done()
    page["show-dense"].click()
    page.done()
    page.check()
    page.picture(f"dense-{size[0]}-{theme}")


def test_a_model_without_gates_says_so(browser: Any, service: Running) -> None:
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    browser.execute_script(
        "const m = document.getElementById('model'); m.value = 'plain'; m.dispatchEvent(new Event('change'))"
    )
    assert not page["dial"].is_displayed()
    page.decode(TEXT)
    assert page["no-gates"].is_displayed()
    assert not page["compare-title"].is_displayed()
    assert page.all("#source del") == []
    page.check()


def test_errors_are_shown_and_keys_are_asked_for(browser: Any, sparse: TextModel) -> None:
    with running([Served("sparse", sparse)], Access(["secret-key"], LOCAL)) as locked:
        page = Page(browser, locked.url, DESKTOP)
        page.wait("!document.getElementById('key-entry').hidden")
        page["text"].send_keys("x")
        page["go"].click()
        page.wait("document.getElementById('error').textContent.includes('a valid key is needed')")
        page["key"].send_keys("secret-key\t")
        page.ready()
        page["go"].click()
        page.done()
        assert page["error"].text == ""
        browser.get_log("browser")  # the refused request is in it


def test_the_keyboard_is_enough(browser: Any, service: Running) -> None:
    from selenium.webdriver import ActionChains, Keys

    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page["text"].send_keys(TEXT)
    ActionChains(browser).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.done()
    reached = set()
    for _ in range(30):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        reached.add(browser.execute_script("return document.activeElement.id || document.activeElement.className"))
    assert {"file", "model", "keep", "own", "go", "word"} <= reached


def test_a_document_is_read(browser: Any, service: Running, tmp_path: Path) -> None:
    (tmp_path / "document.txt").write_text("the road .")
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page["file"].send_keys(str(tmp_path / "document.txt"))
    page.done()
    assert page["source"].text.startswith("the road .")
    page.check()
