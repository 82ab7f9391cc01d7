"""The page in a real browser: Debian's chromium and chromium-driver."""

import base64
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from l0drop import L0DropConfig, load, sparsify
from l0drop.app.serve.guard import LOCAL, Access
from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.data.hints import TextAnnotator
from l0drop.decoding.speech import SpeechModel
from l0drop.decoding.text import TextModel
from tests.app.serve.running import Running, running
from tests.decoding import folders
from tests.models import whispers

TEXT = "the dog sees a cat . <script>alert(1)</script>"
SMALL, PHONE, DESKTOP = (320, 640), (390, 844), (1280, 1000)
HEBREW = "\u05d4\u05db\u05dc\u05d1 \u05e8\u05d5\u05d0\u05d4 \u05d7\u05ea\u05d5\u05dc"


def test_the_policy_allows_only_the_page_itself(service: Running) -> None:
    answer = service.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall(r"'sha256-[^']+'", policy)) == 2
    assert not re.findall(r"(?:src|href)=\"(?!data:,)", answer.text), "no external resource"
    assert not re.findall(r"\son\w+=|\sstyle=", answer.text), "the policy would block it"
    assert "innerHTML" not in answer.text
    assert not re.findall("animation|transition|keyframes|scroll-behavior", answer.text), "nothing moves"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium or chromedriver here: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    microphone = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]  # it beeps
    for flag in (*flags, *microphone):
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
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size != DESKTOP}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(url)

    def __getitem__(self, name: str) -> Any:
        return self.browser.find_element("id", name)

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def content(self, name: str) -> str:
        """The text of an element with all its white space."""
        return str(self[name].get_property("textContent"))

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

    def paste(self, text: str) -> None:
        """Decode a text that would take long to type."""
        self.browser.execute_script("document.getElementById('text').value = arguments[0]", text)
        self["go"].click()
        self.done()

    def open(self, document: Path) -> None:
        self["file"].send_keys(str(document))

    def choose(self, model: str) -> None:
        self.browser.execute_script(
            "const m = document.getElementById('model'); m.value = arguments[0]; m.dispatchEvent(new Event('change'))",
            model,
        )

    def grey_columns(self) -> list[bool]:
        """Whether each column of the spectrogram is drawn without colour, from its pixels."""
        pixels = self.browser.execute_script(
            "const c = document.getElementById('spectrogram');"
            "const copy = new OffscreenCanvas(c.width, c.height).getContext('2d'); copy.drawImage(c, 0, 0);"
            "return [c.width, ...copy.getImageData(0, 0, c.width, c.height).data]"
        )
        colours_HWC = np.reshape(pixels[1:], (-1, pixels[0], 4))[..., :3]
        return [bool(grey) for grey in (np.ptp(colours_HWC, axis=2) == 0).all(0)]

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
        """Keep a picture of the whole page where L0DROP_SCREENSHOTS says, to be looked at."""
        folder = os.environ.get("L0DROP_SCREENSHOTS")
        if folder:
            shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
            (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE, SMALL], ids=["desktop", "phone", "small"])
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
    assert page.violations() == [], "marked tokens can be read"
    page["own"].click()
    page.done()
    page["show-dense"].click()
    page.done()
    page.check()
    page.picture(f"dense-{size[0]}-{theme}")


def test_a_model_without_gates_says_so(browser: Any, service: Running) -> None:
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page.choose("plain")
    assert not page["dial"].is_displayed()
    page.decode(TEXT)
    assert page["no-gates"].is_displayed()
    assert not page["compare-title"].is_displayed()
    assert not page["about"].is_displayed(), "it speaks of dropped tokens"
    assert page.all("#source del") == []
    page.check()


@pytest.mark.parametrize("memory", ["short", "dense"])
def test_a_text_beyond_the_positions_has_one_output(browser: Any, service: Running, memory: str) -> None:
    text = ("the dog sees a cat . " * 20).strip()
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    browser.execute_script(f"document.getElementById('show-{memory}').checked = true")
    page.paste(text)
    answer = service.post("/v1/generate", {"text": text, "dense": memory == "dense"}).json()["results"][0]
    assert answer["pieces"] > 1
    assert page.content("output") == page.content(f"{memory}-text") == answer["text"]
    assert f"decoded in {answer['pieces']} pieces" in page["attention"].text
    assert page.all("#output .word") == [], "no attention to show"

    assert page.content("source") == text
    struck = browser.execute_script(
        "let at = 0; const found = [];"
        "for (const node of document.getElementById('source').childNodes) {"
        "  if (node.tagName === 'DEL') for (let i = 0; i < node.textContent.length; i++) found.push(at + i);"
        "  at += node.textContent.length;"
        "} return found"
    )
    kept = {i for token in answer["kept"] if token["start"] is not None for i in range(token["start"], token["end"])}
    assert struck == [i for i, letter in enumerate(text) if i not in kept and not letter.isspace()]
    assert 0 < len(struck) < len(text)
    assert f"{len(answer['kept'])} of {answer['source_tokens']} tokens kept" in page["counts"].text
    page.check()
    page.picture(f"long-{memory}")
    page.paste(TEXT)
    assert page.all("#output .word"), "attention again"


def test_a_long_text_without_gates_is_not_struck(browser: Any, service: Running) -> None:
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page.choose("plain")
    page.paste("the dog sees a cat . " * 20)
    assert page.all("#source del") == []
    assert page["counts"].text.endswith("tokens, none dropped")
    page.check()


def test_attention_that_is_too_large_is_not_shown(
    browser: Any, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("l0drop.app.serve.native.MOST_WEIGHTS", 1)
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page.paste(TEXT)
    assert "too large" in page["attention"].text
    assert page["output"].text.split() == page["short-text"].text.split() != []
    assert page["error"].text == ""
    browser.get_log("browser")  # the refused request is in it


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [SMALL, PHONE], ids=["small", "phone"])
def test_long_words_fit_a_phone(browser: Any, service: Running, size: tuple[int, int], theme: str) -> None:
    word = "https://example.org/" + 90 * "w"
    page = Page(browser, service.url, size, theme)
    page.ready()
    page.paste(f"the dog {word} sees")
    for name in ("short", "dense"):
        browser.execute_script("document.getElementById(arguments[0]).textContent = arguments[1]", f"{name}-text", word)
    browser.execute_script(
        "drawOutput({text: arguments[0], output: [], source: [], attention: [], dropped_attention: []})", word
    )
    outside = browser.execute_script(
        "return [...document.querySelectorAll('.card')].filter(c => c.scrollWidth > c.clientWidth).map(c => c.id)"
    )
    assert outside == [], "everything is inside its card"
    page.check()
    page.picture(f"words-{size[0]}-{theme}")


def test_text_from_right_to_left(browser: Any, service: Running) -> None:
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page.paste(HEBREW)
    assert browser.execute_script("return getComputedStyle(document.getElementById('text')).direction") == "rtl"
    assert page["source"].text.startswith(HEBREW)
    mixed = f"the dog {HEBREW}"  # the first word of a paragraph sets its direction, and a word has its own
    parts = [(0, 3), (4, 5), (5, 7), (8, 10), (10, 12)]
    source = [{"text": mixed[a:b], "start": a, "end": b, "kept": True, "gate": 1} for a, b in parts]
    borders = browser.execute_script(
        "drawSource(arguments[0], {source: arguments[1], kept_tokens: 5});"
        "drawOutput({text: arguments[0], source: [], output: [], attention: [], dropped_attention: []});"
        "return [...document.querySelectorAll('#source .part')].map(part => {"
        "  const style = getComputedStyle(part); return [style.borderLeftStyle, style.borderRightStyle]; })",
        mixed, source,
    )  # fmt: skip
    assert borders == [["dotted", "none"], ["none", "dotted"]]
    words = page.all("#source .whole")
    assert [word.text for word in words] == mixed.split()[:3]
    assert words[0].location["x"] < words[1].location["x"] < words[2].location["x"], "its first word is English"
    lefts = browser.execute_script(
        "return [...document.querySelectorAll('#output .word')].map(w => w.getBoundingClientRect().left)"
    )
    assert lefts[0] < lefts[1] < lefts[4] < lefts[3] < lefts[2], "Hebrew words stand from right to left"
    page.check()
    page.picture("hebrew")


def test_a_gate_that_is_a_rule_has_no_slider(browser: Any, baseline: Path, tmp_path: Path) -> None:
    folder = folders.sparse(baseline, tmp_path / "rule", gate="pos")
    TextAnnotator(("label",), AutoTokenizer.from_pretrained(folder)).save(folder)
    with running([Served("rule", load(folder, "cpu", "float64"))]) as service:
        page = Page(browser, service.url, DESKTOP)
        page.ready()
        assert not page["dial"].is_displayed()
        assert "is a rule" in page["no-dial"].text
        page.decode(TEXT)
        page.check()
        refused = service.post("/v1/generate", {"text": "x", "keep": 0.5})
        assert (refused.status_code, "is a rule" in refused.json()["error"]) == (400, True)


@pytest.mark.parametrize("text", [TEXT, "the dog sees a cat . " * 20], ids=["short", "long"])
def test_a_memory_from_a_shortener_has_an_output(browser: Any, baseline: Path, tmp_path: Path, text: str) -> None:
    base = AutoModelForSeq2SeqLM.from_pretrained(baseline / "model")
    merged = sparsify(base, L0DropConfig(shortener="merge", shortener_args={"keep": 0.5}))
    folder = folders.saved(merged, AutoTokenizer.from_pretrained(baseline / "model"), tmp_path / "merged")
    model = load(folder, "cpu", "float64")
    with running([Served("merged", model)]) as service:
        page = Page(browser, service.url, DESKTOP)
        page.ready()
        assert "no gates" in page["no-dial"].text
        browser.execute_script("document.getElementById('show-dense').checked = true")  # left from another model
        page.paste(text)
        wanted = service.post("/v1/generate", {"text": text}).json()["results"][0]
        assert page.content("output") == wanted["text"]
        assert page["counts"].text == f"{wanted['source_tokens']} tokens, {len(wanted['kept'])} memory rows"
        assert page.all("#source del") == []
        assert "shortened by Merge" in page["no-gates"].text
        assert not page["compare-title"].is_displayed()
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_error_takes_the_place_of_results(browser: Any, service: Running, theme: str) -> None:
    page = Page(browser, service.url, PHONE, theme)
    page.ready()
    page.paste(TEXT)
    browser.execute_script("document.getElementById('text').value = ' \\n '")
    page["go"].click()
    assert page["error"].text == "Type or paste a text first."
    assert page["status"].text == ""
    assert not page["results"].is_displayed()
    page.check()
    page.paste(TEXT)
    assert page["error"].text == ""
    assert page["results"].is_displayed()
    browser.execute_script("document.getElementById('text').value = 'x '.repeat(30000)")
    page["go"].click()
    page.wait("document.getElementById('error').textContent.includes('60,000 characters')")
    assert not page["results"].is_displayed()
    page.picture(f"error-{theme}")
    browser.get_log("browser")  # the refused request is in it


def test_the_keyboard_is_enough(browser: Any, service: Running) -> None:
    from selenium.webdriver import ActionChains, Keys

    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page["text"].send_keys(TEXT)
    ActionChains(browser).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.done()
    reached = []
    for _ in range(14):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        name, outline = browser.execute_script(
            "const at = document.activeElement;"
            "return [at.id || at.className, at === document.body ? 'solid' : getComputedStyle(at).outlineStyle]"
        )
        assert outline == "solid", f"{name}: the focus is visible"
        reached.append(name)
    assert reached[:5] == ["file", "model", "keep", "own", "go"]
    assert reached[5] == "word"
    assert "show-short" in reached


def test_controls_have_names(browser: Any, service: Running) -> None:
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page.decode(TEXT)
    assert page["keep"].accessible_name == "Keep"
    assert page["keep"].get_attribute("aria-valuetext") == "the model's choice"
    page.set_slider(30)
    assert page["keep"].get_attribute("aria-valuetext") == "30% of the tokens"
    table = page.all("#results table")[-1]
    assert (table.aria_role, table.accessible_name) == ("table", "Short and dense")
    assert {name: page[name].accessible_name for name in ("text", "file", "model")} == {
        "text": "Text",
        "file": "Document",
        "model": "Model",
    }


def test_a_document_is_read(browser: Any, service: Running, tmp_path: Path) -> None:
    (tmp_path / "document.txt").write_text("the road .")
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page.open(tmp_path / "document.txt")
    page.done()
    assert page["source"].text.startswith("the road .")
    page.check()


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_document_in_another_encoding_is_refused(
    browser: Any, service: Running, tmp_path: Path, encoding: str
) -> None:
    document = tmp_path / "document.txt"
    document.write_text("Stra\N{LATIN SMALL LETTER SHARP S}e", encoding)
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page.open(document)
    page.wait("document.getElementById('error').textContent.includes('document.txt is not UTF-8 text')")
    assert page["text"].get_attribute("value") == ""
    document.write_text("\ufeffthe road .", "utf-8")
    page.open(document)
    page.done()
    assert page["error"].text == ""
    assert page["text"].get_attribute("value") == "the road ."
    page.check()


def test_characters_beyond_16_bits_move_nothing(browser: Any, service: Running, tmp_path: Path) -> None:
    text = "\N{GRINNING FACE} the dog \N{GRINNING FACE}\N{GRINNING FACE} sees a cat ."
    (tmp_path / "document.txt").write_text(text, "utf-8")
    page = Page(browser, service.url, DESKTOP)
    page.ready()
    page.open(tmp_path / "document.txt")
    page.done()
    assert [word.text for word in page.all("#source .whole")] == text.split()

    found = {
        "text": "\N{GRINNING FACE}\N{GRINNING FACE} a b",
        "output": [{"start": 0, "end": 2}, {"start": 2, "end": 4}, {"start": 4, "end": 6}],
        "source": [{"text": "one"}, {"text": "two"}, {"text": "three"}],
        "attention": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "dropped_attention": [0, 0, 0],
    }
    attended = browser.execute_script(
        "drawOutput(arguments[0]);"
        "return [...document.querySelectorAll('#output .word')].map(word => {"
        "  word.dispatchEvent(new Event('pointerenter'));"
        "  return document.getElementById('attention').textContent;"
        "})",
        found,
    )
    assert len(attended) == 3
    assert all(f"{source} 100%" in text for source, text in zip(("one", "two", "three"), attended, strict=True))
    page.check()


@pytest.fixture(scope="module")
def spoken(whisper: SpeechModel, sparse: TextModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    plain = load(whispers.save(whispers.build(multilingual=False), tmp_path_factory.mktemp("plain")), dtype="float64")
    models = [ServedSpeech("tiny", whisper), ServedSpeech("plain", plain), Served("sparse", sparse)]
    with running(models) as service:
        yield service


@pytest.fixture
def sound(tmp_path: Path) -> str:
    (tmp_path / "speech.wav").write_bytes(whispers.wav(1.7))
    return str(tmp_path / "speech.wav")


def dropped_columns(whisper: SpeechModel, seconds: float, **dial: float) -> list[bool]:
    """Whether no kept frame covers each column of 10 ms, from the model itself."""
    (wanted,) = whisper.transcribe([whispers.tone(seconds)], return_timestamps=True, **dial)
    middles = 0.01 * np.arange(round(100 * seconds)) + 0.005
    return [not any(start < middle < end for start, end in wanted.kept) for middle in middles]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_listener_sees_what_was_dropped(
    browser: Any, spoken: Running, whisper: SpeechModel, sound: str, size: tuple[int, int], theme: str
) -> None:
    page = Page(browser, spoken.url, size, theme)
    page.ready()
    assert not page["text"].is_displayed()
    page["audio"].send_keys(sound)
    page.done()
    (wanted,) = whisper.transcribe([whispers.tone(1.7)], return_timestamps=True)
    assert page["output"].text.split() == wanted.text.split()
    segments = [row.text for row in page.all("#segment-rows td:last-child")]
    assert [text.split() for text in segments] == [part.text.split() for part in wanted.segments]
    assert page.all("#segment-rows td.number")[0].text == f"{wanted.segments[0].start:.2f} s"
    grey = page.grey_columns()
    assert 0 < sum(grey) < len(grey)
    assert grey == dropped_columns(whisper, 1.7)
    shares = page["shares"].text
    assert f"{len(wanted.kept)} of the {wanted.covered} rows that audio covers" in shares
    assert f"{wanted.rows_kept} of all {wanted.rows} rows" in shares
    assert page["short-text"].text == page["dense-text"].text
    assert "ms" in page["dense-time"].text
    page.picture(f"audio-{size[0]}-{theme}")

    page.set_slider(10)
    assert page["keep-value"].text == "10% of the rows"
    assert page.grey_columns() == dropped_columns(whisper, 1.7, keep=0.1)
    assert sum(page.grey_columns()) > sum(grey)
    page.check()


def test_a_whisper_without_gates_says_so(browser: Any, spoken: Running, sound: str) -> None:
    page = Page(browser, spoken.url, DESKTOP)
    page.ready()
    page.choose("plain")
    assert not page["dial"].is_displayed()
    assert "no gates" in page["no-dial"].text
    page["go"].click()
    page.wait("document.getElementById('error').textContent.includes('Choose a sound file')")
    page["audio"].send_keys(sound)
    page.done()
    assert not any(page.grey_columns())
    assert page["no-gates"].is_displayed()
    assert not page["compare-title"].is_displayed()
    page.check()
    page.choose("sparse")
    assert page["text"].is_displayed()
    assert not page["audio"].is_displayed()
    page.decode(TEXT)
    assert page.all("#source del")
    page.check()


def test_the_microphone_is_recorded(browser: Any, spoken: Running) -> None:
    page = Page(browser, spoken.url, DESKTOP)
    page.ready()
    page["record"].click()
    page.wait("document.getElementById('record').textContent === 'Stop'")
    time.sleep(1.2)  # the microphone beeps every second
    page["record"].click()
    page.done()
    assert page["record"].text == "Record"
    assert any(page.grey_columns())
    assert "rows that audio covers" in page["shares"].text
    page.check()


def test_sound_that_nobody_can_read_is_an_error(browser: Any, spoken: Running, tmp_path: Path) -> None:
    (tmp_path / "speech.webm").write_bytes(b"no sound")
    page = Page(browser, spoken.url, DESKTOP)
    page.ready()
    page["audio"].send_keys(str(tmp_path / "speech.webm"))
    page.wait("document.getElementById('error').textContent.includes('cannot read the sound')")
    assert not page["results"].is_displayed()
    page.check()
