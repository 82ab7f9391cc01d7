"""Summaries of decoding jobs: keys stand in one object, as in older files, and broken files are named."""

import json
import re
from pathlib import Path

import pytest

from l0drop.runs.job import AudioTotals, LineTotals, SpeechSummary, TextSummary
from l0drop.runs.json_file import FileError, JsonFile

TEXT = TextSummary(
    totals=LineTotals(lines=3, source_tokens=10, kept_tokens=4), sparsity=0.6, seconds=1.5, processes=1, settings={}
)
SPEECH = SpeechSummary(
    totals=AudioTotals(files=2, seconds=3.5, covered=8, kept=2), sparsity=0.75, sparsity_of_all=None, wall_seconds=1.0,
    settings={"format": "txt"},
)  # fmt: skip


@pytest.mark.parametrize("summary", [TEXT, SPEECH], ids=["text", "speech"])
def test_totals_stand_beside_the_other_keys_and_files_without_a_version_are_read(
    summary: JsonFile, tmp_path: Path
) -> None:
    file = tmp_path / "out.jsonl.summary.json"
    summary.write(file)
    content = json.loads(file.read_text())
    assert "totals" not in content
    assert content.pop("version") == 1
    assert type(summary).read(file) == summary
    file.write_text(json.dumps(content))
    assert type(summary).read(file) == summary


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lines": "three"}, 'lines: expected a whole number, got "three"'),
        ({"settings": None}, "settings: expected an object, got null"),
        ({"version": 2}, "version 2, but this l0drop reads versions up to 1"),
    ],
)
def test_a_broken_summary_is_named(change: dict[str, object], message: str, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl.summary.json"
    TEXT.write(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(FileError, match=re.escape(f"{file}: {message}")):
        TextSummary.read(file)


def test_totals_add_up() -> None:
    whole = LineTotals(lines=1, halved=2)
    whole.add(LineTotals(lines=3, source_tokens=4, kept_tokens=1))
    assert (whole.lines, whole.halved, whole.sparsity) == (4, 2, 0.75)
    both = AudioTotals(files=1, rows=10).plus(AudioTotals(files=2, failed=1, rows=10, rows_kept=5))
    assert (both.files, both.failed, both.sparsity, both.sparsity_of_all) == (3, 1, None, 0.75)
