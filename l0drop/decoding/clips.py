"""Decode a corpus of clips with the engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from l0drop.data.clips import ClipCorpus
from l0drop.data.sparsity import SparsityMeter
from l0drop.decoding.corpus import Decoded
from l0drop.decoding.engine import Engine
from l0drop.decoding.speech import BATCH_CLIPS
from l0drop.models.whisper import FRAMES_PER_ROW


def clip_batches(frames: np.ndarray) -> list[np.ndarray]:
    """Indices of clips, longest first, in batches to decode together."""
    order = np.argsort(-frames, kind="stable")
    return [order[start : start + BATCH_CLIPS] for start in range(0, len(order), BATCH_CLIPS)]


def decode_clips(
    model: Any,
    corpus: ClipCorpus,
    indices: Sequence[int],
    tokenizer: Any,
    *,
    generation: Mapping[str, Any],
    progress: Callable[[int], None] | None = None,
) -> Decoded:
    """The model's transcripts of these clips, in order; the meter counts the rows that audio covers."""
    engine = Engine(model)
    texts, meter = [""] * len(indices), SparsityMeter()
    for chosen in clip_batches(corpus.frames[np.asarray(indices, dtype=np.int64)]):
        batch = corpus.collate([corpus[int(indices[i])] for i in chosen])
        result = engine.generate(batch["input_features"], batch["attention_mask"], **generation)
        if result.gates is not None:
            covered_BN = batch["attention_mask"][:, ::FRAMES_PER_ROW].to(result.kept.device)
            meter.add(result.gates.values, covered_BN, result.gates.open_probability)
        found = tokenizer.batch_decode(result.sequences, skip_special_tokens=True)
        for index, text in zip(chosen, found, strict=True):
            texts[int(index)] = text.strip()
        if progress:
            progress(len(chosen))
    return Decoded(texts, meter)
