"""Sequence-level distillation: a dense teacher's outputs as targets, for source text without references."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from l0drop.data.text import Pair, ParallelText, one_line
from l0drop.data.tokenizer import TokenizerPair
from l0drop.decoding.sources import BATCH_TOKENS
from l0drop.decoding.text import TextModel

WINDOW = 4096
"""The number of lines that are sorted by length and translated before more are read."""


@dataclass(frozen=True)
class TeacherText:
    """Source text with the teacher's outputs as targets, one per line (blank for a blank line), made while reading."""

    text: ParallelText
    load: Callable[[], Any]
    tokenizers: TokenizerPair
    identity: dict[str, Any]
    beams: int
    max_source: int
    max_new_tokens: int
    translated: Callable[[int], None] = lambda lines: None
    """Called with the number of lines translated so far."""

    @property
    def source_only(self) -> bool:
        return False

    @property
    def prefix(self) -> str:
        """The text before every source."""
        return str(getattr(self.text, "prefix", ""))

    def inputs(self) -> list[dict[str, Any]]:
        decoding = {"beams": self.beams, "max_source": self.max_source, "max_new_tokens": self.max_new_tokens}
        return [*self.text.inputs(), {"teacher": self.identity, **decoding}]

    def __iter__(self) -> Iterator[Pair]:
        model = TextModel("train.teacher", self.load(), self.tokenizers)  # loaded only if outputs are missing
        pairs, done = iter(self.text), 0
        while window := list(islice(pairs, WINDOW)):
            # an empty output makes the pair one-sided, so the line is skipped and counted like any such line
            for pair, output in zip(window, self._translate(model, window, done), strict=True):
                yield pair._replace(target=one_line(output))
            done += len(window)

    def _translate(self, model: TextModel, window: list[Pair], done: int) -> list[str]:
        generation = {"num_beams": self.beams, "max_new_tokens": self.max_new_tokens, "do_sample": False}
        settings = model.settings(None, generation)
        texts, lines = [pair.source for pair in window], [f"line {pair.line}" for pair in window]
        sources = model.encode(texts, max_source=self.max_source, names=lines.__getitem__)
        outputs = [""] * len(window)
        for batch in model.batches(sources, BATCH_TOKENS):
            for index, result in zip(batch, model.decode([sources[i] for i in batch], settings), strict=True):
                outputs[index] = result.text
            done += len(batch)
            self.translated(done)
        return outputs
