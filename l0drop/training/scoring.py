"""Evaluation of a model in training: its gates, its cross-entropy, and the recipe's metric of what it decodes."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from l0drop.data.metrics import scorer_of
from l0drop.data.score import Score
from l0drop.data.sparsity import SparsityMeter
from l0drop.data.tokenizer import TokenizerPair
from l0drop.decoding.corpus import encoder_inputs
from l0drop.models.modeling import L0DropModel
from l0drop.models.view import evaluating
from l0drop.recipe import Recipe
from l0drop.training.bars import Bars
from l0drop.training.examples import RunCorpus, collated, decoded, evaluation_batches
from l0drop.training.objective import cross_entropy_sum, decoder_inputs
from l0drop.training.ragged import any_shape


class Scoring:
    """Measurements on the corpora of a run. Sentences are divided among the processes; all get the same results."""

    def __init__(
        self,
        recipe: Recipe,
        model: Any,
        corpora: Mapping[str, RunCorpus],
        tokenizers: TokenizerPair,
        processes: Accelerator,
        bars: Bars,
    ) -> None:
        self.recipe, self.model, self.corpora, self.tokenizers = recipe, model, corpora, tokenizers
        self.processes, self.bars = processes, bars
        self.gated = isinstance(model, L0DropModel)
        self.pad_id = int(tokenizers.source.pad_token_id or 0)  # clips have no padding tokens

    @torch.no_grad()
    def validation_sparsity(self) -> float:
        """The sparsity on the first validation sentences, without dropout; only the encoder runs."""
        meter = SparsityMeter()
        with evaluating(self.model):
            for inputs in self.encoder_batches(self.corpora["valid"], self.recipe.evaluate.sentences):
                gates = self.model.get_encoder()(**inputs).gates
                _, counted = self.model.source_rows(inputs["attention_mask"], gates.values)
                meter.add(gates.values, counted, gates.open_probability)
        return meter.sparsity

    def encoder_batches(self, corpus: RunCorpus, sentences: int) -> Iterator[dict[str, Any]]:
        """The first sentences of a corpus, in batches of similar length."""
        for examples in evaluation_batches(corpus, sentences, self.recipe.evaluate.batch_tokens):
            yield encoder_inputs(collated(corpus, examples, self.pad_id), self.model.device, self.gated)

    @torch.no_grad()
    def validation_loss(self, count: int) -> float:
        """Cross-entropy per token of the first validation sentences; NaN if they have no targets."""
        corpus = self.corpora["valid"]
        if corpus.target_lengths is None:
            return math.nan
        total = torch.zeros(2, dtype=torch.float64)
        batches = evaluation_batches(corpus, count, self.recipe.evaluate.batch_tokens, with_targets=True)
        for examples in self._own(batches):
            batch = collated(corpus, examples, self.pad_id)
            labels = batch["labels"].to(self.model.device)
            inputs = encoder_inputs(batch, self.model.device, self.gated)
            given = decoder_inputs(self.model, labels, batch.get("decoder_input_ids"))
            logits = self.model(**inputs, **given).logits
            total += torch.tensor([cross_entropy_sum(logits, labels, 0.0).item(), (labels != -100).sum().item()])
        total = self.processes.reduce(total.to(self.processes.device), "sum")
        return float(total[0] / total[1])

    def score(self, split: str, references: list[str]) -> tuple[Score, SparsityMeter, list[str]]:
        """Decode as many sentences of a corpus as there are references, and score all outputs, which are returned."""
        count = len(references)
        own = self._own(list(range(count)))
        done = 0

        def add(sentences: int) -> None:
            nonlocal done
            done += sentences
            update(done)

        with any_shape(self.processes.device), self.bars.phase(f"{split}: sentences decoded", len(own)) as update:
            update(0)
            done_here = decoded(self.recipe, self.model, self.corpora[split], own, self.tokenizers, add)
        texts = [""] * count
        meter = SparsityMeter()
        for indices, part in gather_object([(own, (done_here.texts, vars(done_here.meter)))]):
            for index, text in zip(indices, part[0], strict=True):
                texts[index] = text
            for name, value in part[1].items():
                setattr(meter, name, getattr(meter, name) + value)
        return scorer_of(self.recipe.evaluate)(texts, references), meter, texts

    def _own(self, items: list[Any]) -> list[Any]:
        return items[self.processes.process_index :: self.processes.num_processes]
