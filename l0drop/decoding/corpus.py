"""Decode a tokenized corpus with the engine, sorted by length, in batches of limited size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from l0drop.data.batches import collate
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.sparsity import SparsityMeter
from l0drop.decoding.engine import Engine
from l0drop.decoding.languages import is_multilingual, target_language_setting


@dataclass
class Decoded:
    """Output texts in corpus order, and statistics of the gates."""

    texts: list[str]
    meter: SparsityMeter


def described_decoding(batch_tokens: int, generation: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that outputs depend on, for JSON."""
    return {
        "batch_tokens": batch_tokens,
        "beams": generation["num_beams"],
        "length_penalty": generation["length_penalty"],
        "max_new_tokens": generation["max_new_tokens"],
    }


def length_batches(lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """Indices of `lengths`, longest first, in batches with at most `budget` tokens after padding."""
    order = np.argsort(-lengths, kind="stable")
    batches: list[list[int]] = []
    for index in order.tolist():
        if not batches or (len(batches[-1]) + 1) * int(lengths[batches[-1][0]]) > budget:
            batches.append([])
        batches[-1].append(index)
    return [np.array(batch) for batch in batches]


def encoder_inputs(batch: dict[str, Any], device: torch.device, with_hints: bool) -> dict[str, Any]:
    """The encoder's inputs from a collated batch, on the model's device."""
    names = ("input_ids", "input_features", "attention_mask")
    inputs: dict[str, Any] = {name: batch[name].to(device) for name in names if name in batch}
    if with_hints and batch["hints"]:
        inputs["hints"] = {name: tensor.to(device) for name, tensor in batch["hints"].items()}
    return inputs


def decode_corpus(
    model: Any,
    corpus: TokenizedCorpus,
    indices: Sequence[int],
    tokenizer: Any,
    *,
    pad_id: int,
    batch_tokens: int,
    generation: Mapping[str, Any],
    progress: Callable[[int], None] | None = None,
) -> Decoded:
    """The model's outputs for these sentences, in order; `tokenizer` is the target's, with its language set if it is
    multilingual."""
    engine = Engine(model)
    language = getattr(tokenizer, "tgt_lang", None) if is_multilingual(tokenizer) else None
    language_setting: dict[str, Any] = {}
    if language is not None:
        start = model.generation_config.decoder_start_token_id
        language_setting = target_language_setting(tokenizer, language, start)
    texts: list[str] = [""] * len(indices)
    meter = SparsityMeter()
    lengths = corpus.source_lengths[np.asarray(indices, dtype=np.int64)]
    for chosen in length_batches(lengths, batch_tokens):
        batch = collate([corpus[int(indices[i])] for i in chosen], pad_id)
        result = engine.generate(
            batch["input_ids"], batch["attention_mask"], hints=batch["hints"] or None, **generation, **language_setting,
        )  # fmt: skip
        if result.gates is not None:
            mask = batch["attention_mask"].to(result.kept.device)
            meter.add(result.gates.values, mask, result.gates.open_probability)
        for index, text in zip(chosen, tokenizer.batch_decode(result.sequences, skip_special_tokens=True), strict=True):
            texts[int(index)] = text
        if progress:
            progress(len(chosen))
    return Decoded(texts, meter)
