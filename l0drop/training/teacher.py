"""A dense model to learn from: its outputs as targets, where there is only source text or where they teach more."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from l0drop.data.text import Pair, ParallelText
from l0drop.data.tokenizer import TokenizerPair
from l0drop.decoding.text import BATCH_TOKENS, TextModel

WINDOW = 4096
"""Lines that are sorted by length and translated before the next are read."""


@dataclass(frozen=True)
class TeacherText:
    """Source text with the teacher's outputs as targets, made as they are read: one per line, blank for blank."""

    text: ParallelText
    load: Callable[[], Any]
    tokenizers: TokenizerPair
    identity: dict[str, Any]
    beams: int
    max_source: int
    max_new_tokens: int

    @property
    def source_only(self) -> bool:
        return False

    @property
    def prefix(self) -> str:
        """What stands before every source of the text."""
        return str(getattr(self.text, "prefix", ""))

    def inputs(self) -> list[dict[str, Any]]:
        decoding = {"beams": self.beams, "max_source": self.max_source, "max_new_tokens": self.max_new_tokens}
        return [*self.text.inputs(), {"teacher": self.identity, **decoding}]

    def __iter__(self) -> Iterator[Pair]:
        model = TextModel("train.teacher", self.load(), self.tokenizers)  # only where its outputs are not there yet
        pairs = iter(self.text)
        while window := list(islice(pairs, WINDOW)):
            # an empty output would make the pair one-sided; the line is then skipped and counted like any such line
            for pair, output in zip(window, self._translate(model, window), strict=True):
                yield pair._replace(target=" ".join(output.split()))

    def _translate(self, model: TextModel, window: list[Pair]) -> list[str]:
        generation = {"num_beams": self.beams, "max_new_tokens": self.max_new_tokens, "do_sample": False}
        settings = model.settings(None, generation)
        texts, lines = [pair.source for pair in window], [f"line {pair.line}" for pair in window]
        sources = model.encode(texts, max_source=self.max_source, names=lines.__getitem__)
        outputs = [""] * len(window)
        for batch in model.batches(sources, BATCH_TOKENS):
            for place, result in zip(batch, model.decode([sources[i] for i in batch], settings), strict=True):
                outputs[place] = result.text
        return outputs
