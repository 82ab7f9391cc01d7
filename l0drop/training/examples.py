"""The examples of a run's corpora, text or audio, in batches for the model."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from l0drop.data.batches import TokenBatches, collate
from l0drop.data.clip_batches import ClipBatches, ClipExample, TimedExamples
from l0drop.data.clips import ClipCorpus
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.tokenizer import TokenizerPair
from l0drop.decoding.clips import clip_batches, decode_clips
from l0drop.decoding.corpus import Decoded, decode_corpus, length_batches
from l0drop.decoding.folder import generation_of
from l0drop.recipe import Recipe

RunCorpus = TokenizedCorpus | ClipCorpus


def collated(
    corpus: RunCorpus, examples: Iterable[Any], pad_id: int, length: int | None = None, *, packed: bool = False
) -> dict[str, Any]:
    """Examples of a step as tensors: indices of sentences, or clips, several of which may be joined to one.

    packed: leave the padding of clips to `unpacked_windows`.
    """
    if isinstance(corpus, ClipCorpus):
        return corpus.collate([corpus.joined(parts, timed=timed) for parts, timed in examples], packed=packed)
    return collate([corpus[int(i)] for i in examples], pad_id, length=length)


def evaluation_batches(corpus: RunCorpus, count: int, budget: int, *, with_targets: bool = False) -> list[list[Any]]:
    """The first examples of a corpus in batches of similar length, for `collated`; `budget`: padded tokens of text."""
    if isinstance(corpus, ClipCorpus):
        return [[ClipExample((int(i),)) for i in batch] for batch in clip_batches(corpus.frames[:count])]
    lengths = corpus.source_lengths[:count]
    if with_targets and corpus.target_lengths is not None:
        lengths = np.maximum(lengths, corpus.target_lengths[:count])
    return [batch.tolist() for batch in length_batches(lengths, budget)]


def training_batches(
    recipe: Recipe, corpus: RunCorpus, *, processes: int, rank: int, multiple: int | None
) -> TokenBatches | ClipBatches:
    """The steps of a run."""
    train = recipe.train
    if isinstance(corpus, ClipCorpus):
        assert train.batch_clips is not None
        return ClipBatches(
            corpus.frames,
            corpus.target_lengths,
            train.batch_clips,
            seed=recipe.seed,
            join=recipe.data.join,
            join_steps=recipe.data.join_steps,
            window=corpus.window,
            max_tokens=recipe.data.max_target - 1,
            timed=_timed_examples(recipe, corpus),
            processes=processes,
            rank=rank,
            accumulation=train.accumulation,
        )
    return TokenBatches(
        corpus.source_lengths,
        corpus.target_lengths,
        train.batch_tokens,
        seed=recipe.seed,
        processes=processes,
        rank=rank,
        accumulation=train.accumulation,
        multiple=multiple,
    )


def _timed_examples(recipe: Recipe, corpus: ClipCorpus) -> TimedExamples | None:
    if not recipe.data.timestamps:
        return None
    return TimedExamples(recipe.data.timestamps, recipe.data.cut, corpus.timed_lengths, corpus.timed_tokens)


def decoded(
    recipe: Recipe,
    model: Any,
    corpus: RunCorpus,
    indices: Sequence[int],
    tokenizers: TokenizerPair,
    progress: Callable[[int], None],
) -> Decoded:
    """The model's outputs for these examples, with the recipe's settings."""
    generation = generation_of(recipe)
    if isinstance(corpus, ClipCorpus):
        generation |= corpus.generation
        return decode_clips(model, corpus, indices, tokenizers.target, generation=generation, progress=progress)
    return decode_corpus(
        model,
        corpus,
        indices,
        tokenizers.target,
        pad_id=int(tokenizers.source.pad_token_id),
        progress=progress,
        batch_tokens=recipe.evaluate.batch_tokens,
        generation=generation,
    )
