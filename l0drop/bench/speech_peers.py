"""Systems that decode the same Whisper: our engine, Hugging Face's generate, CTranslate2 (which faster-whisper runs).

All decode clips of one window, from features to token ids, without timestamps. They return the new tokens of each clip,
up to and including the end token.
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from l0drop.bench.peers import (
    CTranslate2Peer,
    EnginePeer,
    HuggingFacePeer,
    Peer,
    Tokens,
    base_of,
    ctranslate2_library,
)
from l0drop.bench.timing import Stopwatch
from l0drop.decoding.engine import Encoded, Engine, Generation
from l0drop.models.modeling import L0DropModel
from l0drop.models.whisper import FRAMES_PER_ROW
from l0drop.runs.benchmark import Seconds


@dataclass(frozen=True, eq=False)
class Clips:
    """Features of clips, one window each, [B, mels, frames], and where audio covers them, [B, frames]."""

    features: Tensor
    attention_mask: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, row: int) -> "Clips":
        """One clip."""
        return Clips(self.features[row : row + 1], self.attention_mask[row : row + 1])

    @property
    def positions(self) -> int:
        """Encoder rows of a window."""
        return self.features.shape[2] // FRAMES_PER_ROW

    def to(self, device: torch.device, dtype: torch.dtype) -> "Clips":
        """The clips on a device, features in this type."""
        return Clips(self.features.to(device, dtype), self.attention_mask.to(device))

    @property
    def encoder_inputs(self) -> dict[str, Any]:
        """Arguments of the model's encoder."""
        return {"input_features": self.features, "attention_mask": self.attention_mask}


def prompt_of(settings: GenerationConfig, language: str | None = None) -> list[int]:
    """The tokens that Whisper's outputs begin with: start, language and task if it has several, no timestamps."""
    own: Any = settings
    tokens = [own.decoder_start_token_id]
    if getattr(own, "is_multilingual", False):
        name = f"<|{language}|>"
        if name not in own.lang_to_id:
            known = ", ".join(sorted(one.strip("<|>") for one in own.lang_to_id))
            raise ValueError(f"`language`: a multilingual Whisper needs one of {known}, got {language!r}")
        tokens += [own.lang_to_id[name], own.task_to_id["transcribe"]]
    return [*tokens, own.no_timestamps_token_id]


def plain_whisper(model: Any) -> None:
    """Reduce a Whisper's generation_config to its tokens: no times, no settings of the search."""
    names = (
        "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "is_multilingual", "lang_to_id",
        "task_to_id", "no_timestamps_token_id", "suppress_tokens", "begin_suppress_tokens",
    )  # fmt: skip
    own = model.generation_config
    found = {name: getattr(own, name) for name in names if getattr(own, name, None) is not None}
    model.generation_config = GenerationConfig(**{"is_multilingual": False, **found}, return_timestamps=False)


class _EngineInParts(Engine):
    """An engine whose `generate` takes a memory that was encoded before, so that both parts can be timed.

    watch: the time in searches, without Whisper's handling of prompts and windows.
    """

    prepared: Encoded | None = None

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self.watch = Stopwatch(model.device)

    def run_search(self, *args: Any, **kwargs: Any) -> Generation:
        with self.watch:
            return super().run_search(*args, **kwargs)

    def encode(self, *args: Any, **kwargs: Any) -> Encoded:
        ready, self.prepared = self.prepared, None
        return super().encode(*args, **kwargs) if ready is None else ready


class EngineSpeechPeer(EnginePeer):
    """Our engine, with Whisper's own handling of prompts and windows around it."""

    def __init__(self, model: L0DropModel, dense: bool, int8: bool = False, **generation: Any) -> None:
        Peer.__init__(self, model, **generation)
        self.dense = dense
        self.engine: _EngineInParts = _EngineInParts(model, dtype="int8" if int8 else None)

    @property
    def searching(self) -> Seconds:  # type: ignore[override]
        return self.engine.watch.seconds

    def encode(self, batch: Any) -> Any:
        return batch, self.engine.encode(batch.features, batch.attention_mask, dense=self.dense)

    def decode(self, memory: Any, **changes: Any) -> Tokens:
        batch, self.engine.prepared = memory
        wanted = {**self.generation, **changes}
        found = self.engine.generate(batch.features, batch.attention_mask, dense=self.dense, **wanted)
        return [window.tokens[window.given :].tolist() for window in sorted(found.windows, key=lambda one: one.clip)]


class HuggingFaceSpeechPeer(HuggingFacePeer):
    """Whisper's own generate."""

    def encode(self, batch: Any) -> Any:
        return super().encode(batch.to(self.model.device, self.model.dtype))

    def decode(self, memory: Any, **changes: Any) -> Tokens:
        most = {**self.generation, **changes}["max_new_tokens"]
        return ended(self._generate(memory, **changes).tolist(), self.model, most)

    def cross_bytes(self, batch: Any) -> int | None:
        """generate's beams each have a copy of the memory's keys and values; Whisper's does not return them."""
        rows = self.encode(batch).last_hidden_state.shape[1]
        config = self.model.config
        numbers = 2 * config.decoder_layers * config.d_model * rows * len(batch) * self.generation["num_beams"]
        return numbers * self.model.dtype.itemsize


class CTranslate2SpeechPeer(CTranslate2Peer):
    """CTranslate2's Whisper on the base model's weights.

    It normalises probabilities after suppressing tokens, and generate's beam search before, so that beams may differ.
    converted: a folder that `convert_whisper` has written for this model; by default the model is converted here.
    """

    apart = True
    settings = CTranslate2Peer.settings | {"language"}

    def __init__(
        self,
        model: L0DropModel,
        compute_type: str,
        threads: int,
        device: str = "cpu",
        converted: Path | None = None,
        **generation: Any,
    ) -> None:
        self.model = model
        self.generation = self._checked(model.generation_config, generation)
        self.exact = compute_type == "float32" and generation["num_beams"] == 1
        library = ctranslate2_library()
        options = {"device": device, "compute_type": compute_type, "inter_threads": 1, "intra_threads": threads}
        with TemporaryDirectory() as name:
            folder = converted or Path(name)
            if converted is None:
                convert_whisper(model, folder, compute_type)
            self._weight_bytes = (folder / "model.bin").stat().st_size
            self._whisper = library.models.Whisper(str(folder), **options)
        self._view = library.StorageView.from_array
        self._prompt = prompt_of(model.generation_config, generation.get("language"))

    def encode(self, batch: Any) -> Any:
        return self._whisper.encode(self._view(np.ascontiguousarray(batch.features.numpy())))

    def decode(self, memory: Any, **changes: Any) -> Tokens:
        wanted = {**self.generation, **changes}
        most, least = wanted["max_new_tokens"], wanted.get("min_new_tokens") or 0
        settings: Any = self.model.generation_config
        never = list(settings.suppress_tokens or ())
        if least not in (0, most):
            raise ValueError(
                "`min_new_tokens`: CTranslate2's Whisper supports it only if it is equal to `max_new_tokens`"
            )
        results = self._whisper.generate(
            memory,
            [self._prompt] * memory.shape[0],
            beam_size=wanted["num_beams"],
            length_penalty=wanted.get("length_penalty", 1.0),
            max_length=2 * max(most, len(self._prompt)),  # half of it is for new tokens
            suppress_tokens=[*never, *_ends(self.model)] if least else never,
            suppress_blank=bool(settings.begin_suppress_tokens),
        )
        return ended([result.sequences_ids[0][:most] for result in results], self.model, most)

    def generate(self, batch: Any, **changes: Any) -> Tokens:
        return self.decode(self.encode(batch), **changes)


def build_speech_peer(
    name: str, model: L0DropModel, threads: int = 1, converted: Path | None = None, **generation: Any
) -> Peer:
    """The system of that name on a Whisper whose generation_config is `plain_whisper`'s, on its device.

    converted: its folder for CTranslate2, if there is one.
    """
    kind, *_, which = name.split("-")
    if kind == "ct2":
        return CTranslate2SpeechPeer(model, which, threads, model.device.type, converted, **generation)
    if kind == "hf":
        return HuggingFaceSpeechPeer(model, which == "dense", **generation)
    return EngineSpeechPeer(model, which == "dense", "int8" in name, **generation)


def ended(rows: list[list[int]], model: L0DropModel, most: int) -> Tokens:
    """New tokens up to and including the end token, which Whisper's outputs lack and are padded with."""
    end = _ends(model)[0]
    found = [row[: row.index(end)] if end in row else row for row in rows]
    return [row if len(row) == most else [*row, end] for row in found]


def _ends(model: L0DropModel) -> list[int]:
    settings: Any = model.generation_config
    ends = settings.eos_token_id
    return [ends] if isinstance(ends, int) else list(ends)


@torch.no_grad()
def convert_whisper(model: L0DropModel, folder: Path, compute_type: str = "float32") -> None:
    """Write the base model for CTranslate2's Whisper into `folder`."""
    ctranslate2_library()
    from ctranslate2.converters.transformers import WhisperLoader

    base = base_of(model)
    if base.device.type != "cpu":  # the converter reads the memory of tensors
        base = copy.deepcopy(base).cpu()
    settings: Any = model.generation_config
    spec = WhisperLoader().get_model_spec(base)
    names = {
        "<|endoftext|>": settings.eos_token_id,
        "<|startoftranscript|>": settings.decoder_start_token_id,
        "<|notimestamps|>": settings.no_timestamps_token_id,
    }
    vocabulary = [str(token) for token in range(base.config.vocab_size)]
    for name, token in names.items():
        vocabulary[token] = name
    free = next(i for i in reversed(range(settings.no_timestamps_token_id)) if i not in names.values())
    vocabulary[free] = "<|nospeech|>"  # required; its probability is not asked for
    spec.register_vocabulary(vocabulary)
    spec.config.suppress_ids = list(settings.suppress_tokens or ())
    spec.config.suppress_ids_begin = list(settings.begin_suppress_tokens or ())
    spec.config.alignment_heads = [(base.config.decoder_layers - 1, 0)]  # for times of words, which are not asked for
    spec.config.lang_ids = sorted((getattr(settings, "lang_to_id", None) or {}).values())
    spec.validate()
    spec.optimize(quantization=None if compute_type == "float32" else compute_type)
    spec.save(str(folder))
    extractor = {"feature_size": base.config.num_mel_bins}
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor), encoding="utf-8")
