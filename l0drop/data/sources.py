"""The text that a recipe names, as a stream of pairs."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from l0drop import recipe as r
from l0drop.data import toy
from l0drop.data.tagger import TaggedText
from l0drop.data.text import CorpusError, HubDataset, JsonlFile, Pair, ParallelText, TextFiles, TsvFile


def open_text(corpus: r.Corpus, prefix: str = "") -> ParallelText:
    """The reader for a corpus of a recipe; `prefix` is put before every source that is not blank."""
    text = _reader(corpus)
    return Prefixed(text, prefix) if prefix else text


def _reader(corpus: r.Corpus) -> ParallelText:
    match corpus:
        case r.TextCorpus():
            text = TextFiles(corpus.source, corpus.target)
            return Tagged(text) if corpus.tagged else text
        case r.TsvCorpus():
            return TsvFile(corpus.tsv, corpus.source_column, corpus.target_column)
        case r.JsonlCorpus():
            return JsonlFile(corpus.jsonl, corpus.source_field, corpus.target_field)
        case r.HubCorpus():
            return HubDataset(corpus.hub, corpus.source_field, corpus.target_field, corpus.split, corpus.config)
        case r.ToyCorpus():
            return ToyText(corpus)


@dataclass(frozen=True)
class Prefixed:
    """A text with a prefix before every source, as T5 needs it."""

    text: ParallelText
    prefix: str

    @property
    def source_only(self) -> bool:
        return self.text.source_only

    def __iter__(self) -> Iterator[Pair]:
        for pair in self.text:
            yield pair._replace(source=self.prefix + pair.source) if pair.source.strip() else pair

    def inputs(self) -> list[dict[str, Any]]:
        return [*self.text.inputs(), {"prefix": self.prefix}]


@dataclass(frozen=True)
class Tagged:
    """Text files whose source is written as word_TAG: the sources are plain text that carries its tags."""

    text: TextFiles

    @property
    def source_only(self) -> bool:
        return self.text.source_only

    def __iter__(self) -> Iterator[Pair]:
        for pair in self.text:
            try:
                yield pair._replace(source=TaggedText.read(pair.source))
            except ValueError as error:
                raise CorpusError(f"{self.text.source}, line {pair.line}: {error}") from error

    def inputs(self) -> list[dict[str, Any]]:
        return [*self.text.inputs(), {"tagged": True}]


@dataclass(frozen=True)
class ToyText:
    """The generated toy corpora, as parallel text."""

    corpus: r.ToyCorpus

    @property
    def source_only(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Pair]:
        for number, pair in enumerate(self.pairs(), 1):
            yield Pair(pair.source, pair.target, number)

    def pairs(self) -> Iterator[toy.ToyPair]:
        """The pairs with the word classes that the grammar knows."""
        corpus = self.corpus
        if corpus.toy == "translation":
            return toy.translation_split(corpus.split, corpus.pairs, corpus.seed, small=corpus.small)
        return toy.documents_split(
            corpus.split, corpus.pairs, corpus.seed, reports=corpus.reports, min_reports=corpus.min_reports
        )

    def inputs(self) -> list[dict[str, Any]]:
        # a change of the grammar changes the first pairs
        first = [pair.source + pair.target for pair, _ in zip(self.pairs(), range(50), strict=False)]
        digest = hashlib.sha256("\n".join(first).encode()).hexdigest()
        return [{"toy": self.corpus.model_dump(exclude_none=True), "sha256 of the first pairs": digest}]
