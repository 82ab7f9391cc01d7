"""A dense model to learn from: its outputs as targets, where there is only source text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from l0drop.data.text import Pair, ParallelText
from l0drop.data.tokenizer import TokenizerPair

CHUNK = 64  # sentences that the teacher decodes at once


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

    def inputs(self) -> list[dict[str, Any]]:
        decoding = {"beams": self.beams, "max_source": self.max_source, "max_new_tokens": self.max_new_tokens}
        return [*self.text.inputs(), {"teacher": self.identity, **decoding}]

    @torch.no_grad()
    def __iter__(self) -> Iterator[Pair]:
        model = self.load()  # only where its outputs are not there yet
        pairs = iter(self.text)
        while chunk := list(islice(pairs, CHUNK)):
            full = [pair for pair in chunk if pair.source.strip()]
            outputs = iter(self._translate(model, [pair.source for pair in full]) if full else [])
            for pair in chunk:
                yield pair._replace(target=next(outputs) if pair.source.strip() else "")

    def _translate(self, model: Any, sources: list[str]) -> list[str]:
        inputs = self.tokenizers.source(
            sources, padding=True, truncation=True, max_length=self.max_source, return_tensors="pt"
        )
        tokens = model.generate(
            input_ids=inputs["input_ids"].to(model.device),
            attention_mask=inputs["attention_mask"].to(model.device),
            num_beams=self.beams,
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
        )
        texts = self.tokenizers.target.batch_decode(tokens, skip_special_tokens=True)
        # an empty output would make the pair one-sided; the line is then skipped and counted like any such line
        return [" ".join(text.split()) for text in texts]
