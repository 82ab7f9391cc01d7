"""A list of audio files with or without texts, whose errors name the line."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l0drop import recipe as r
from l0drop.data.audio import Audio, AudioError, read_audio
from l0drop.data.held_out import open_split
from l0drop.data.text import CorpusError, Pair, ParallelText


def open_audio(data: r.Data, split: str) -> "AudioList":
    """The audio of a split of a recipe."""
    corpus = data.origin(split)[0]
    assert isinstance(corpus, (r.TsvCorpus, r.JsonlCorpus))
    file = corpus.tsv if isinstance(corpus, r.TsvCorpus) else corpus.jsonl
    return AudioList(Path(file), open_split(data, split))


@dataclass(frozen=True)
class AudioList:
    """Pairs of an audio file, relative to the folder of the list, and its text; None where the list has no texts."""

    file: Path
    text: ParallelText

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
        return [*self.text.inputs(), {"audio": digest.hexdigest()}]
