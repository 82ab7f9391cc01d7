"""The page is self-contained, makes no requests, and shows text from data as text."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from l0drop.report import write_report
from l0drop.report.findings import gather
from l0drop.report.page import page
from l0drop.runs.escape import html as text
from tests.report import folders
from tests.report.folders import HOSTILE
from tests.study.test_significance import GOOD

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Reader(HTMLParser):
    """Collects tags with their attributes and the text outside of style, and checks that every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = folders.sweep(tmp_path_factory.mktemp("sweep"), rules=True)
    folders.bench(folder / "target-0.5", 1.25)
    html, _ = write_report(folder)
    return html.read_text(encoding="utf-8")


def test_hostile_text_is_text(report: str) -> None:
    found = read(report)
    words = "".join(found.words)
    assert words.count(HOSTILE) >= 20, "in the sources of examples, and in the recipe"
    drawing = {"svg", "g", "path", "use", "defs", "text", "tspan", "rect", "clippath", "image", "desc", "line"}
    page_tags = (
        "html head meta title style body header main section h1 h2 h3 p div span table thead tbody tr th td ul li code "
        "pre figure figcaption article dl dt dd del details summary strong nav a"
    )
    assert {tag for tag, _ in found.tags} <= drawing | set(page_tags.split())
    for tag, attributes in found.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "action"), (tag, name)
            assert name != "href" or (value or "").startswith("#"), (tag, value)
            if name == "xlink:href":
                assert value is not None
                assert value.startswith(("#", "data:image/png")), value
    assert "a <sweep>" in words


def test_the_page_asks_for_nothing_and_runs_nothing(report: str) -> None:
    policy = next(a for tag, a in read(report).tags if tag == "meta" and "http-equiv" in a)
    # attention maps hold their pixels as data
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    outside = [found for found in re.findall(r"https?://[^\s\"'<)]+", report) if "w3.org" not in found]
    assert set(outside) == {"http://x"}, "that of the hostile text"
    assert "@import" not in report
    assert "url(http" not in report


def test_sections_contents_and_examples(report: str) -> None:
    words = " ".join("".join(read(report).words).split())
    assert "target-0.5, 52.0% dropped, compared with dense, continued: non-inferior at 10" in words
    titles = re.findall(r"<h2>(.*?)</h2>", report)
    assert titles == [
        "Verdict", "Quality, sparsity and speed", "Examples", "Comparison with the dense model", "Tail risk",
        "Rules and the learned gate", "Settings", "Not in this report", "Background",
    ]  # fmt: skip
    assert re.findall(r'<a href="#[^"]+">(.*?)</a>', report) == titles, "the list of contents"
    links, ids = (set(re.findall(pattern, report)) for pattern in (r'<a href="#([^"]+)"', r'<section id="([^"]+)"'))
    assert links == ids
    assert "Difference to the dense model against sparsity" in words
    assert report.count("<article>") == 20
    assert report.count('class="marked"') == 1
    assert "<del>source</del>" in report
    assert '<span class="cut"' in report
    assert "nrefs:1|&lt;i&gt;" in report
    assert "prefers-color-scheme: dark" in report


def test_sections_without_content_are_omitted(tmp_path: Path) -> None:
    folders.finished(tmp_path / "run", 0.4)
    html = page(gather(tmp_path / "run"), [])
    read(html)
    for title in ("Examples", "Rules", "Comparison", "Tail risk", "Background"):
        assert title not in html


def test_characters_that_a_page_cannot_hold_are_replaced() -> None:
    assert text("a\x00b\x1b[31m\x85\ud800\tc\n") == "a\ufffdb\ufffd[31m\ufffd\ufffd\tc\n"


def test_the_same_files_give_the_same_report(tmp_path: Path) -> None:
    folders.sweep(tmp_path)
    first = [file.read_bytes() for file in write_report(tmp_path)]
    assert first == [file.read_bytes() for file in write_report(tmp_path)]


def test_analysis_parts_without_a_figure_are_tables(tmp_path: Path) -> None:
    folders.finished(tmp_path, 0.4)
    rows = [{"closed": HOSTILE, "share": 0.5, "sparsity": 0.25, "cross_entropy": 1.5}]
    gates = {"layers": [{"sparsity": 0.0}, {"sparsity": 0.4}]}
    folders.analysed(
        tmp_path,
        {"sparsity": 0.4, "gates": gates, "interventions": {"systems": {"sparse": rows}}},
    )
    html, _ = write_report(tmp_path)
    shown = read(html.read_text(encoding="utf-8")).words
    assert "Gates closed manually" in shown
    assert HOSTILE in shown
    layers = shown.index("gates after layer")
    assert shown.index("Sparsity by layer") < layers < shown.index("40.0%", layers)


def source_use(own: float, empty: float) -> dict[str, object]:
    """The analysis of a run that scores `own` with the right sources and `empty` with an empty one."""
    scores = {"own_source": own, "shuffled_source": 0.1, "no_source": empty}
    measured = {
        name: {"score": {**folders.SCORE, "value": value}, "cross_entropy": 3.0} for name, value in scores.items()
    }
    return {"sparsity": 0.4, "source": {"what": "scores with other sources", **measured}}


def test_a_model_that_ignores_its_source_is_warned_about_at_the_top(tmp_path: Path) -> None:
    folders.finished(tmp_path, 0.4)
    folders.analysed(tmp_path, source_use(own=0.46, empty=0.58))
    pages = [file.read_text(encoding="utf-8") for file in write_report(tmp_path)]
    for shown in pages:
        warning = shown.index("the model hardly uses its source: it scores 0.46 BLEU")
        assert warning < shown.index("drops 40.0% of its encodings")
        assert warning < shown.index("Does the task need the source?") < shown.index("Scores with other sources.")
    folders.analysed(tmp_path, source_use(own=30.0, empty=0.58))
    for file in write_report(tmp_path):
        shown = file.read_text(encoding="utf-8")
        assert "hardly uses" not in shown
        assert shown.count("Does the task need the source?") == 1


def test_controls_of_an_evaluation_are_in_both_reports(tmp_path: Path) -> None:
    folders.finished(tmp_path / "run", 0.4)
    folders.evaluated(tmp_path / "run", GOOD, GOOD, 0.4, controls=True)
    for file in write_report(tmp_path / "run"):
        assert "Does the task need the source?" in file.read_text(encoding="utf-8")
