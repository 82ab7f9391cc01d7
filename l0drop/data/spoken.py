"""A list of clips with their speakers and reference texts, to score transcripts: TSV or JSON lines.

TSV: file, speaker, text. JSON lines: objects with `file`, `text` and, if known, `speaker`. Files are relative to the
folder of the list.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from l0drop.data.text import CorpusError, read_lines


@dataclass(frozen=True)
class SpokenClip:
    """One line of a list, counted from 1. name: the file as the list writes it."""

    name: str
    file: Path
    speaker: str
    text: str
    line: int


def read_spoken(path: Path | str) -> list[SpokenClip]:
    """All clips of a list; CorpusError names the line of one without a file or a text."""
    path = Path(path)
    rows = _json_rows(path) if path.suffix == ".jsonl" else _tsv_rows(path)
    clips = []
    for number, (name, speaker, text) in rows:
        file = path.parent / name
        if not text.strip():
            raise CorpusError(f"{path}, line {number}: {name} has no text to score against; remove the line")
        if not file.is_file():
            raise CorpusError(f"{path}, line {number}: {file}: there is no such file")
        clips.append(SpokenClip(name, file, speaker, text, number))
    if not clips:
        raise CorpusError(f"{path}: all of its lines are blank")
    return clips


def _tsv_rows(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) != 3:
            raise CorpusError(
                f"{path}, line {number}: {len(columns)} tab-separated columns, expected three: file, speaker, text"
            )
        yield number, (columns[0], columns[1], columns[2])


def _json_rows(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}, line {number}: not JSON ({error})") from error
        fields = (
            [row.get(key, default) for key, default in (("file", None), ("speaker", ""), ("text", None))]
            if (isinstance(row, dict))
            else []
        )
        if not fields or not all(isinstance(field, str) for field in fields):
            raise CorpusError(f"{path}, line {number}: expected an object with texts `file`, `text` and `speaker`")
        yield number, (fields[0], fields[1], fields[2])
