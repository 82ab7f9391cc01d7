"""The text of an analysis: tokenized, with targets and annotations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0drop.data.batches import collate
from l0drop.data.corpus import Example, TokenizedCorpus
from l0drop.data.metrics import Score, scorer_of
from l0drop.data.sparsity import SparsityMeter
from l0drop.data.tokenizer import TokenizerPair
from l0drop.decoding.corpus import decode_corpus, described_decoding, encoder_inputs, length_batches
from l0drop.models.modeling import L0DropModel
from l0drop.recipe import Evaluate
from l0drop.study.systems import Advance
from l0drop.training.objective import cross_entropy_sum, decoder_inputs

CHUNK = 1_000
"""Sentences per sorting by length."""


@dataclass(frozen=True, eq=False)
class Material:
    """Text to measure on, and the settings of decoding it (`generation`) and scoring the outputs (`evaluate`).

    references: the target texts, one per example of the corpus. target: their description, such as "reference".
    tagged: whether the hint `label` has part-of-speech tags. target_of: the role of the model whose outputs are the
    targets; None for human references.
    """

    corpus: TokenizedCorpus
    references: Sequence[str]
    tokenizers: TokenizerPair
    evaluate: Evaluate
    generation: dict[str, Any]
    target: str
    tagged: bool
    target_of: str | None = None

    def __len__(self) -> int:
        return len(self.references)

    @property
    def described_target(self) -> str:
        if self.target_of is None:
            return "human references"
        return f"the outputs of the {self.target_of} model: they measure agreement, not quality"

    @property
    def pad_id(self) -> int:
        return int(self.tokenizers.source.pad_token_id)

    @property
    def decoding(self) -> dict[str, Any]:
        """The decoding settings, for JSON."""
        return described_decoding(self.evaluate.batch_tokens, self.generation)

    def batches(self, cost: Callable[[int, int], int], budget: int) -> Iterator[dict[str, Any]]:
        """The examples in batches of similar length: sentences × the cost of the longest stays within the budget, or
        the batch has one sentence."""
        assert self.corpus.target_lengths is not None
        for first in range(0, len(self), CHUNK):
            part = slice(first, min(first + CHUNK, len(self)))
            lengths = zip(self.corpus.source_lengths[part], self.corpus.target_lengths[part], strict=True)
            costs = np.array([cost(int(source), int(target)) for source, target in lengths])
            for chosen in length_batches(costs, budget):
                yield collate([self.corpus[first + int(index)] for index in chosen], self.pad_id)

    def score(self, texts: list[str]) -> Score:
        return scorer_of(self.evaluate)(texts, self.references)

    def decode(self, model: Any, progress: Advance | None = None) -> tuple[list[str], SparsityMeter]:
        """The model's outputs, one per reference."""
        decoded = decode_corpus(
            model, self.corpus, range(len(self)), self.tokenizers.target, pad_id=self.pad_id, progress=progress,
            batch_tokens=self.evaluate.batch_tokens, generation=self.generation,
        )  # fmt: skip
        return decoded.texts, decoded.meter


def longer(source: int, target: int) -> int:
    """The cost of a sentence in padded tokens."""
    return max(source, target)


def inputs_of(batch: dict[str, Any], model: Any) -> tuple[dict[str, Any], Tensor]:
    """A model's inputs from a collated batch, and the labels, on its device."""
    return encoder_inputs(batch, model.device, isinstance(model, L0DropModel)), batch["labels"].to(model.device)


@torch.no_grad()
def forced_cross_entropy(
    model: Any,
    material: Material,
    change: Callable[[Example], Example] | None = None,
    progress: Advance | None = None,
) -> float:
    """Cross-entropy of the targets in nats per token, without label smoothing; `change` may replace an example's
    source."""
    total = tokens = 0.0
    for batch in material.batches(longer, material.evaluate.batch_tokens):
        if change is not None:
            batch = collate([change(material.corpus[int(i)]) for i in batch["index"]], material.pad_id)
        inputs, labels = inputs_of(batch, model)
        logits = model(**inputs, **decoder_inputs(model, labels)).logits
        total += float(cross_entropy_sum(logits, labels, 0.0))
        tokens += int((labels != -100).sum())
        if progress:
            progress(len(labels))
    return total / tokens
