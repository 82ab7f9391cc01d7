"""A list of audio files with or without texts, whose errors name the line."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from l0drop import recipe as r
from l0drop.data.audio import Audio, AudioError, read_audio
from l0drop.data.held_out import open_split
from l0drop.data.text import CorpusError, JsonlFile, Pair, ParallelText, TsvFile


def open_audio(data: r.Data, split: str) -> "AudioList":
    """The audio of a split of a recipe."""
    corpus = data.origin(split)[0]
    assert isinstance(corpus, (r.TsvCorpus, r.JsonlCorpus))
    file = corpus.tsv if isinstance(corpus, r.TsvCorpus) else corpus.jsonl
    return AudioList(Path(file), open_split(data, split), further_text(corpus, "timed"))


def further_text(corpus: r.Corpus, what: Literal["speaker", "timed"]) -> TsvFile | JsonlFile | None:
    """A list with its speakers, or its texts with times, as targets; None if the recipe names no column for them."""
    if isinstance(corpus, r.TsvCorpus):
        column = corpus.speaker_column if what == "speaker" else corpus.timed_column
        return None if column is None else TsvFile(corpus.tsv, corpus.source_column, column)
    if isinstance(corpus, r.JsonlCorpus):
        field = corpus.speaker_field if what == "speaker" else corpus.timed_field
        return None if field is None else JsonlFile(corpus.jsonl, corpus.source_field, field)
    return None


@dataclass(frozen=True)
class AudioList:
    """Pairs of an audio file, relative to the folder of the list, and its text; None where the list has no texts.

    times: the same list with texts that have times, if there are any.
    """

    file: Path
    text: ParallelText
    times: ParallelText | None = None

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.text)

    def path(self, pair: Pair) -> Path:
        return self.file.parent / pair.source.strip()

    def read(self, pair: Pair, most_seconds: float) -> Audio:
        """The audio of one line; CorpusError names the line if it cannot be used."""
        try:
            audio = read_audio(self.path(pair))
        except AudioError as error:
            raise CorpusError(f"{self.file}, line {pair.line}: {error}") from error
        if not len(audio.samples):
            raise CorpusError(f"{self.file}, line {pair.line}: {audio.name}: has no samples; remove the line")
        if audio.seconds > most_seconds:
            raise CorpusError(
                f"{self.file}, line {pair.line}: {audio.name}: has {audio.seconds:.1f} seconds, more than a window of "
                f"{most_seconds:g}; cut it into shorter clips, or remove the line"
            )
        return audio

    def timed(self, pair: Pair) -> str:
        """The text with times of a line; blank if they are not known."""
        return self._timed.get(pair.line, "")

    @cached_property
    def _timed(self) -> dict[int, str]:
        return {pair.line: pair.target or "" for pair in self.times or ()}

    def inputs(self) -> list[dict[str, Any]]:
        """A description of the list and of the audio, detailed enough to detect a change."""
        digest = hashlib.sha256()
        for pair in self:
            if pair.source.strip():
                try:
                    with self.path(pair).open("rb") as file:
                        digest.update(hashlib.file_digest(file, "sha256").digest())
                except OSError as error:
                    problem = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
                    raise CorpusError(f"{self.file}, line {pair.line}: {self.path(pair)}: {problem}") from error
        times = [] if self.times is None else self.times.inputs()
        return [*self.text.inputs(), *times, {"audio": digest.hexdigest()}]
