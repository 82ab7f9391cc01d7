"""Clips with their speakers and reference texts, to score transcripts: from a list, or from a recipe.

TSV: file, text; or file, speaker, text. JSON lines: objects with `file`, `text` and, if known, `speaker`. Files are
relative to the folder of the list. A clip whose speaker is not known has a blank one. A blank text is
that of a clip in which nobody speaks.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from l0drop import recipe as r
from l0drop.data.audio_list import further_text, open_audio
from l0drop.data.text import CorpusError, read_lines

ClipRow = tuple[int, str, str, str]
"""Line, file, speaker, text."""


@dataclass(frozen=True)
class SpokenClip:
    """One line of a list, counted from 1. name: the file as the list writes it."""

    name: str
    file: Path
    speaker: str
    text: str
    line: int


def read_spoken(path: Path | str) -> list[SpokenClip]:
    """All clips of a list; CorpusError names the line at fault."""
    path = Path(path)
    return _clips(path, _json_rows(path) if path.suffix == ".jsonl" else _tsv_rows(path))


def recipe_clips(data: r.Data, split: str) -> list[SpokenClip]:
    """All clips of a recipe's split, with the speakers that its list names."""
    audio = open_audio(data, split)
    if audio.text.source_only:
        raise CorpusError(f"{audio.file}: has no texts to score against")
    speakers = _speakers(data.origin(split)[0])
    rows = (
        (pair.line, pair.source.strip(), speakers.get(pair.line, ""), pair.target or "")
        for pair in audio
        if not pair.is_blank
    )
    return _clips(audio.file, rows)


def _speakers(corpus: r.Corpus) -> dict[int, str]:
    """The speaker of each line of a list; empty if the recipe names no column for them."""
    text = further_text(corpus, "speaker")
    return {} if text is None else {pair.line: (pair.target or "").strip() for pair in text}


def _clips(path: Path, rows: Iterable[ClipRow]) -> list[SpokenClip]:
    clips = []
    for number, name, speaker, text in rows:
        file = path.parent / name
        if not file.is_file():
            raise CorpusError(f"{path}, line {number}: {file}: there is no such file")
        clips.append(SpokenClip(name, file, speaker, text, number))
    if not clips:
        raise CorpusError(f"{path}: all of its lines are blank")
    if not any(clip.text.strip() for clip in clips):
        raise CorpusError(f"{path}: none of its lines has a text to score against")
    return clips


def _tsv_rows(path: Path) -> Iterator[ClipRow]:
    expected: tuple[int, ...] = (2, 3)
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) not in expected:
            wanted = "3: file, speaker, text; or 2: file, text" if len(expected) > 1 else f"{expected[0]} as before"
            raise CorpusError(f"{path}, line {number}: {len(columns)} tab-separated columns, expected {wanted}")
        expected = (len(columns),)
        yield number, columns[0], columns[1] if len(columns) == 3 else "", columns[-1]


def _json_rows(path: Path) -> Iterator[ClipRow]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}, line {number}: not JSON ({error})") from error
        found = {"speaker": "", **row} if isinstance(row, dict) else {}
        file, speaker, text = (found.get(key) for key in ("file", "speaker", "text"))
        if not isinstance(file, str) or not isinstance(speaker, str) or not isinstance(text, str):
            raise CorpusError(f"{path}, line {number}: expected an object with texts `file`, `text` and `speaker`")
        yield number, file, speaker, text
