"""Whisper's windows: recordings of any length in windows of 30 seconds, with the engine inside.

Hugging Face's `WhisperGenerationMixin.generate` chooses prompts, languages, tasks, windows, segments and temperatures,
and calls the search of `GenerationMixin` for every window. `Windows` is such a generator without a model: its search is
the engine's. So the windows are Hugging Face's by construction, and the engine needs only the rules inside a window.

Shapes: B clips, N encoder rows of a window, P given tokens, T tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from l0drop.core.gates import Gates
from l0drop.decoding.search import Search, Timestamps
from l0drop.decoding.settings import resolve
from l0drop.models.families import positions_of
from l0drop.models.view import eval_view

ARGUMENTS = (
    *("language", "task", "is_multilingual", "return_timestamps", "prompt_ids", "prompt_condition_type"),
    *("condition_on_prev_tokens", "compression_ratio_threshold", "logprob_threshold", "num_segment_frames"),
    "monitor_progress",
)
"""Settings of Whisper's generate that choose windows and prompts, beside those of a search."""
REFUSED = ("no_speech_threshold", "return_token_timestamps", "assistant_model", "num_return_sequences")
"""Settings of Whisper's generate that need its model, or return other outputs."""
STORED = (
    *("alignment_heads", "lang_to_id", "task_to_id", "is_multilingual", "no_timestamps_token_id", "prev_sot_token_id"),
    *("max_initial_timestamp_index", "forced_decoder_ids", "median_filter_width", "num_frames", "input_stride"),
    *("return_token_timestamps", "force_unique_generate_call", "language", "task", "return_timestamps"),
    *("prompt_condition_type", "condition_on_prev_tokens", "compression_ratio_threshold", "logprob_threshold"),
    *("no_speech_threshold", "return_segments", "_detect_timestamp_from_logprob", "prompt_ids"),
)
"""Further entries of a Whisper's generation_config, which `Windows` reads."""


@dataclass(frozen=True, eq=False)
class Window:
    """One window of a clip.

    start: the feature frame where it begins. kept: its kept rows [N]. gates: if the model has any. tokens: its output
    up to EOS, which begins with `given` tokens of prompt, language and task.
    """

    clip: int
    start: int
    gates: Gates | None
    kept: Tensor
    tokens: Tensor
    given: int


@dataclass(frozen=True)
class TokenSegment:
    """A part of a clip with its times in seconds and its tokens, times included."""

    start: float
    end: float
    tokens: tuple[int, ...]


class _Found(NamedTuple):
    """The output of one window: tokens up to EOS, the number of given ones, and the log-probability of the others."""

    tokens: Tensor
    given: int
    total: float

    @property
    def new(self) -> int:
        return len(self.tokens) - self.given


class SearchSettings(dict[str, Any]):
    """The settings of a Whisper's generation_config that concern the search in a window."""

    def __init__(self, settings: GenerationConfig) -> None:
        super().__init__({name: value for name, value in settings.to_dict().items() if name not in STORED})

    def to_dict(self) -> dict[str, Any]:
        return self


class _EngineSearch(GenerationMixin):
    """The search that `WhisperGenerationMixin.generate` calls for a batch of windows."""

    engine: Any
    dial: Mapping[str, Any]

    def generate(  # type: ignore[override]
        self,
        inputs: Tensor,
        generation_config: Any,
        logits_processor: list[Any] | None,
        decoder_input_ids: Tensor,
        decoder_attention_mask: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """[B, P + T], the given tokens and the new ones, padded, as `GenerationMixin.generate` returns them."""
        encoded = self.engine.encode(inputs, **self.dial)
        longest = decoder_input_ids.shape[1]
        search = self._search(generation_config, logits_processor or [], longest)
        # clips whose earlier text is shorter are padded on the left; those of one length are searched together
        padding = torch.zeros(len(inputs), dtype=torch.long)
        if decoder_attention_mask is not None:
            padding = (~decoder_attention_mask.bool()).sum(1).cpu()
        sequences = decoder_input_ids.new_full((len(inputs), search.max_length), search.pad)
        found: dict[int, _Found] = {}
        for pad in padding.unique().tolist():
            chosen = (padding == pad).nonzero().flatten().to(decoder_input_ids.device)
            own = replace(search, given=longest - pad, max_length=search.max_length - pad)
            own = replace(own, min_length=max(0, search.min_length - pad))
            part = self.engine.run_search(encoded.take(chosen), own, decoder_input_ids[chosen, pad:])
            sequences[chosen, :pad] = decoder_input_ids[chosen, :pad]
            sequences[chosen, pad : pad + part.sequences.shape[1]] = part.sequences
            new = _new_tokens(part.sequences[:, own.given :], own)
            for row, clip in enumerate(chosen.tolist()):
                total = float(part.scores[row]) * new[row] ** own.length_penalty
                found[clip] = _Found(part.sequences[row, : own.given + new[row]], own.given, total)
        self.attempted(encoded, [found[clip] for clip in range(len(inputs))])
        return sequences[:, : longest + max(one.new for one in found.values())]

    def _search(self, settings: Any, processors: list[Any], given: int) -> Search:
        plain = SearchSettings(settings)
        most, least = plain.pop("max_new_tokens"), plain.pop("min_new_tokens")
        if most is not None:
            plain["max_length"] = given + most
        model = self.engine.model
        search = resolve(plain, {}, "hf", positions_of(model, "decoder"), model.config.vocab_size)
        search = replace(search, given=given, min_length=search.min_length if least is None else given + least)
        for processor in processors:
            if isinstance(processor, SuppressTokensAtBeginLogitsProcessor):
                search = replace(search, banned_first=tuple(processor.begin_suppress_tokens.tolist()))
            elif isinstance(processor, SuppressTokensLogitsProcessor):
                search = replace(search, suppressed=tuple(processor.suppress_tokens.tolist()))
            elif isinstance(processor, WhisperTimeStampLogitsProcessor):
                rules = Timestamps(
                    processor.timestamp_begin,
                    processor.no_timestamps_token_id,
                    processor.eos_token_id,
                    processor.max_initial_timestamp_index,
                )
                search = replace(search, timestamps=rules)
            else:
                raise ValueError(f"`logits_processor`: the engine does not support {type(processor).__name__}")
        return search

    def attempted(self, encoded: Any, found: list[_Found]) -> None:
        raise NotImplementedError


class Windows(WhisperGenerationMixin, _EngineSearch):  # type: ignore[misc]
    """One call of Whisper's generate with an engine, which collects the windows and their scores.

    dial: the dial's settings for `Engine.encode`.
    """

    def __init__(self, engine: Any, dial: Mapping[str, Any]) -> None:
        self.engine, self.dial = engine, dial
        own = engine.model
        self.model, self.config, self.generation_config = own.model, own.config, own.generation_config
        self.windows: list[Window] = []
        self.totals: dict[int, float] = {}
        self.lengths: dict[int, int] = {}
        # of the windows that are decoded now: their memories, their latest outputs, and the rows of the current and of
        # the next attempt at another temperature
        self._encoded: Any = None
        self._found: dict[int, _Found] = {}
        self._attempt: list[int] = []
        self._next: list[int] = []

    @property
    def device(self) -> torch.device:
        return self.engine.model.device

    def __call__(self, **inputs: Any) -> Any:
        """The model's forward, for the detection of a language."""
        view = eval_view(self.engine.model)
        if "input_features" in inputs:
            inputs["input_features"] = inputs["input_features"].to(self.device, view.dtype)
        return view(**inputs)

    def generate_with_fallback(self, **settings: Any) -> Any:  # type: ignore[override]
        """Hugging Face's own; notes the windows and their final outputs."""
        clips, seek = settings["batch_idx_map"], settings["seek"].tolist()
        self._encoded, self._found, self._next = None, {}, list(range(len(clips)))
        decoded = super().generate_with_fallback(**settings)
        gates, kept = self._encoded.gates, self._encoded.kept
        for row, clip in enumerate(clips):
            found = self._found[row]
            own = None if gates is None else Gates(*(None if t is None else t[row] for t in gates))  # type: ignore[arg-type]
            self.windows.append(Window(clip, seek[clip], own, kept[row], found.tokens, found.given))
            self.totals[clip] = self.totals.get(clip, 0.0) + found.total
            self.lengths[clip] = self.lengths.get(clip, 0) + found.new
        return decoded

    def attempted(self, encoded: Any, found: list[_Found]) -> None:
        self._encoded = self._encoded or encoded
        self._attempt, self._next = self._next, []
        self._found.update(zip(self._attempt, found, strict=True))

    def _need_fallback(
        self,
        seek_sequence: Tensor,
        seek_outputs: Any,
        index: int,
        logits_processor: Any,
        generation_config: Any,
        vocab_size: int,
        temperature: float | None,
    ) -> tuple[bool, bool]:
        """Hugging Face's rules on the engine's scores: too repetitive, or too unlikely."""
        ratio, least = generation_config.compression_ratio_threshold, generation_config.logprob_threshold
        again = ratio is not None and self._retrieve_compression_ratio(seek_sequence, vocab_size) > ratio
        found = self._found[self._attempt[index]]
        again = again or (least is not None and found.total / max(1, found.new) < least)
        if again:
            self._next.append(self._attempt[index])
        return again, False


def check_windows(generation: Mapping[str, Any]) -> None:
    """Raise ValueError for settings of Whisper's generate that the engine does not support."""
    for name in REFUSED:
        value = generation.get(name)
        if value and not (name == "num_return_sequences" and value == 1):
            raise ValueError(f"`{name}`: the engine does not support this for audio; use model.generate")
    if generation.get("logprob_threshold") is not None and (generation.get("num_beams") or 1) > 1:
        raise ValueError("`logprob_threshold`: the engine supports it with `num_beams=1` only; use model.generate")
    temperature = generation.get("temperature")
    if isinstance(temperature, (list, tuple)) and not temperature:
        raise ValueError("`temperature`: expected a number or a list of temperatures to try in turn, got an empty list")


def segments_of(found: list[dict[str, Any]]) -> tuple[TokenSegment, ...]:
    """Hugging Face's segments of one clip as plain numbers."""
    return tuple(
        TokenSegment(float(part["start"]), float(part["end"]), tuple(part["tokens"].tolist())) for part in found
    )


def _new_tokens(sequences_BT: Tensor, search: Search) -> list[int]:
    """The number of tokens of each output up to its first EOS, which counts."""
    ended = torch.isin(sequences_BT, torch.tensor(search.eos, device=sequences_BT.device))
    return (ended.cumsum(1) - ended.int() == 0).sum(1).tolist()
