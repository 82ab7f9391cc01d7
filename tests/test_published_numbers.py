"""Every decimal and percentage on README, the start page and the pages of results and speed is in a committed file.

Results are filled in by `scripts/results.py`: a table below its mark, or a single number between its marks
(`tests/study/test_results.py` checks their content). A setting, such as a target or a learning rate, may be written as
it is if a JSON file that the page links to has exactly this value. Rounded matches do not count: a file of results has
thousands of values, and one of them rounds to nearly any number.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import results
from l0drop.study.significance import LEVEL
from result_tables.files import ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("README.md", *(f"docs/{name}.md" for name in ("index", "results", "results/*", "speed", "speed/*")))
    for path in ROOT.glob(pattern)
)
NOT_TEXT = re.compile(
    r"```.*?```"  # code
    r"|`[^`\n]*`"
    r"|<!--.*?-->"
    r"|(?<=\])\([^)]*\)"  # targets of links
    r"|https?://\S+"
    r"|\b(?:Python|torch|transformers|CTranslate2|License|BY-SA|sacreBLEU)[ -]\d+(?:\.\d+)*\S*",  # versions
    re.DOTALL,
)
VALUE = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?) ?%|(?<![\w.,])(\d[\d,]*\.\d+)(?!\.?\d)")
LINKED = re.compile(r"\]\(([^)#\s]+\.json)\)")


def unexplained(page: str, folder: Path) -> list[str]:
    """Decimals and percentages that are neither generated nor exactly in a file that the page links to.

    folder: links start there."""
    known = {1 - LEVEL, *(abs(value) for link in LINKED.findall(page) for value in _values(_read(folder / link)))}
    text = NOT_TEXT.sub(" ", results.NUMBER.sub(" ", results.TABLE.sub(" ", page)))
    return [match[0] for match in VALUE.finditer(text) if not _is_known(match, known)]


def _is_known(match: re.Match[str], known: set[float]) -> bool:
    share, decimal = match.groups()
    value = float((share or decimal).replace(",", "")) / (100 if share else 1)
    return any(abs(value - one) < 1e-9 for one in known)


def _read(path: Path) -> object:
    content: object = json.loads(path.read_text(encoding="utf-8"))
    return content


def _values(content: object) -> Iterator[float]:
    """Every number in a JSON document."""
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        for one in content:
            yield from _values(one)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield float(content)


@pytest.mark.parametrize("name", PAGES)
def test_every_number_of_a_page_has_a_source(name: str) -> None:
    path = ROOT / name
    found = unexplained(path.read_text(encoding="utf-8"), path.parent)
    assert not found, (
        f"{name}: {', '.join(found)}: generate it (scripts/result_tables/numbers.py, then python scripts/results.py) "
        "or link to the JSON file with this setting"
    )


def test_all_pages_of_results_and_speed_are_filled_in() -> None:
    assert set(PAGES) == set(results.DOCUMENTS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "study.json").write_text('{"runs": [{"target": 0.47, "score": 39.618, "met": true}], "margin": -0.5}')
    return tmp_path


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("It has 39.62 BLEU ([file](study.json)).", ["39.62"]),  # rounded: a result must be generated
        ("It drops 47% and 46.8% ([file](study.json)).", ["46.8%"]),
        ("Targets 0.47 and 47%, margin -0.5 ([file](study.json)).", []),
        ("A target of 0.47.", ["0.47"]),  # no file is named
        ("| a |\n|---|\n| 1.01 |\n", ["1.01"]),  # a table without a mark
        ("<!-- table: a -->\n\n| a |\n|---|\n| 1.01 |\n\n† Of 46.8%.\n\nAnd 2.5 more.\n", ["2.5"]),
        ("<!-- number: a -->+0.37<!-- /number --> and +0.38", ["0.38"]),
        ("`keep=0.3`, torch 2.13.0+cpu, Python 3.11, [10.5](a-1.5.md)\n```\n--target 0.4\n```\n", ["10.5"]),
        ("95% intervals, 1,000 sentences, 2,048 tokens, 6 + 6 layers, commit 3dacbf3, 3e-4", []),
        ("100% of it, 1,234.5 times", ["100%", "1,234.5"]),
    ],
)
def test_the_check_finds_numbers_without_a_source(page: str, missing: list[str], folder: Path) -> None:
    assert unexplained(page, folder) == missing


def test_a_page_cannot_name_a_file_that_does_not_exist(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        unexplained("See [file](other.json).", folder)
