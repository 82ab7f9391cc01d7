"""A finished run, opened to decode its text again with other settings than it was scored with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM

from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.hints import annotator_for
from l0drop.data.metrics import scorer_of
from l0drop.data.prepare import prepare_corpus
from l0drop.data.score import Score
from l0drop.data.tokenizer import load_tokenizers
from l0drop.decoding.corpus import Decoded, decode_corpus
from l0drop.decoding.folder import generation_of
from l0drop.models.quiet import quiet_libraries
from l0drop.recipe import load_recipe
from l0drop.runs.run import RunFolder
from l0drop.training.corpora import references, split_text


class FinishedRun:
    """The model, the tokenizers and the recipe of a finished run. Nothing is written into its folder.

    overrides: of its recipe, such as a text that it was trained without.
    """

    def __init__(self, path: Path, overrides: Sequence[str] = ()) -> None:
        folder = RunFolder(path)
        if not folder.is_finished:
            raise ValueError(f"{path}: not a finished run (expected metrics.json and model/ in it)")
        quiet_libraries()
        self.path = path
        self.recipe = load_recipe(folder.recipe, overrides).for_text()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder.model).to(device).eval()
        self.tokenizers = load_tokenizers(path)
        self.generation = generation_of(self.recipe)

    def references(self, split: str) -> list[str]:
        return references(self.recipe, self.tokenizers, split)

    @contextmanager
    def corpus(self, split: str) -> Iterator[TokenizedCorpus]:
        """The tokenized text of a split: the run's own, or made again in a temporary folder."""
        data = self.recipe.data
        with TemporaryDirectory() as temporary:
            yield prepare_corpus(
                split_text(self.recipe, split, self.tokenizers),
                self.tokenizers,
                Path(temporary) / split,
                max_source=data.max_source,
                max_target=data.max_target,
                documents=data.documents,
                annotator=annotator_for(self.path, self.tokenizers.source),
                instead=RunFolder(self.path).data / split,
            )

    def decode(self, corpus: TokenizedCorpus, count: int, **generation: Any) -> Decoded:
        """The outputs for the first sentences, with the run's settings except for those given."""
        return decode_corpus(
            self.model, corpus, range(count), self.tokenizers.target, pad_id=self.tokenizers.source.pad_token_id,
            batch_tokens=self.recipe.evaluate.batch_tokens, generation={**self.generation, **generation},
        )  # fmt: skip

    def score(self, outputs: Sequence[str], truth: Sequence[str]) -> Score:
        """In the run's metric."""
        return scorer_of(self.recipe.evaluate)(outputs, truth)
