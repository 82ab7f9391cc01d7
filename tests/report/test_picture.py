"""The picture at the top of the README, and the script that draws it."""

import re
from pathlib import Path

import pytest

import picture
from l0drop.report.picture import WIDTH, PicturedSentence, sentences_svg
from tests.decoding import folders

SHORT, LONG = [("word", False, True)] * 8, [("word", True, True)] * 60


def width_of(svg: str) -> int:
    return int(re.findall(r'<svg [^>]*width="(\d+)"', svg)[0])


def test_a_card_is_as_wide_as_its_longest_line() -> None:
    short = width_of(sentences_svg([PicturedSentence(SHORT, {"output": "one two"})]))
    longer = width_of(sentences_svg([PicturedSentence(SHORT, {"output": "word " * 10})]))
    assert short < longer < WIDTH
    assert longer < width_of(sentences_svg([PicturedSentence(SHORT), PicturedSentence(LONG)])) <= WIDTH
    assert short < width_of(sentences_svg([PicturedSentence(SHORT, label="a long label " * 6)])) < WIDTH


def test_the_script_draws_a_sentence_through_a_model(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folders.sparse(baseline, tmp_path / "sparse" / "model").parent
    drawn = tmp_path / "sentences.svg"
    monkeypatch.setattr("sys.argv", ["picture.py", str(run), str(drawn)])
    picture.main()
    text = re.sub(r"<[^>]*>", "", drawn.read_text(encoding="utf-8"))
    assert picture.SENTENCES[0] in text
    assert "output on the short memory" in text
