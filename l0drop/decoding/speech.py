"""Audio in, text out: a Whisper with its feature extractor and tokenizer, and the frames it keeps.

    model = load("tiny-en-sparse")
    result = model.transcribe(["speech.wav"])[0]
    result.text, result.segments, result.score, result.kept

Shapes: N encoder rows of a window, K memory rows, T output tokens, L decoder layers, H heads.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, WhisperFeatureExtractor

from l0drop.data.audio import RATE, Audio, as_audio, log_mel, read_audio
from l0drop.data.tokenizer import read_tokenizer
from l0drop.decoding.eager import cross_attention, eager_twin
from l0drop.decoding.engine import Engine, Generation
from l0drop.decoding.folder import OtherInputError, dtype_of, first_line, load_model, locate_model, place
from l0drop.decoding.settings import check_names
from l0drop.decoding.windows import ARGUMENTS, REFUSED, TokenSegment, Window
from l0drop.models.families import family_of
from l0drop.models.whisper import FRAMES_PER_ROW

BATCH_CLIPS = 8
"""Clips of at most one window decoded at once."""
BATCH_FRAMES = 180_000
"""Feature frames of longer recordings decoded at once, half an hour, unless one recording is longer."""
DIAL = ("keep", "max_memory", "shift", "dense")
FRAME_SECONDS = 0.01
ROW_SECONDS = FRAMES_PER_ROW * FRAME_SECONDS


class Frame(NamedTuple):
    """The seconds of audio that one encoder row stands for."""

    start: float
    end: float


@dataclass(frozen=True)
class Segment:
    """A part of a transcript and its times in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """The text of one recording; silence has a blank text, without score and rows.

    score: the mean log-probability of a token, or with another length penalty the score of `generate`. segments:
    without timestamps, one for the whole recording. kept: the kept frames that audio covers. seconds: of audio.
    windows: windows of 30 seconds that were decoded. rows, rows_kept: encoder rows of all windows, and those in the
    memory. covered: rows that audio covers; where windows overlap, each moment counts once.
    """

    text: str
    segments: tuple[Segment, ...] = ()
    score: float | None = None
    kept: tuple[Frame, ...] = ()
    seconds: float = 0.0
    windows: int = 0
    rows: int = 0
    rows_kept: int = 0
    covered: int = 0

    @property
    def sparsity(self) -> float:
        """The share of rows dropped among those that audio covers."""
        return 1 - len(self.kept) / self.covered if self.covered else 0.0

    @property
    def sparsity_of_all(self) -> float:
        """The share of rows dropped among all rows, with those of silence after the end of the audio."""
        return 1 - self.rows_kept / self.rows if self.rows else 0.0


@dataclass(frozen=True, eq=False)
class ExplainedAudio:
    """The transcript of one clip of at most 30 seconds, with gates and attention.

    gates, log_alpha: [N]; log_alpha is None for a rule, both are None without gates. kept: kept rows. covered: the
    number of rows that audio covers, which are the first ones. output: tokens with EOS. attentions: [L, H, T, N], from
    output tokens to rows, 0 on dropped ones. zero_row: [L, H, T], attention to the row for all dropped ones.
    """

    transcript: Transcript
    gates: Tensor | None
    log_alpha: Tensor | None
    kept: list[int]
    covered: int
    output: list[str]
    attentions: Tensor
    zero_row: Tensor

    @property
    def text(self) -> str:
        return self.transcript.text


class SpeechModel:
    """A Whisper with its feature extractor and tokenizer, returned by `load`.

    Any number of threads may share it, each with its own settings; see `Engine`.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        extractor: Any,
        tokenizer: PreTrainedTokenizerBase,
        int8: bool = False,
    ) -> None:
        self.name, self.model, self.extractor, self.tokenizer = name, model, extractor, tokenizer
        self.engine = Engine(model, dtype="int8" if int8 else None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {type(self.model).__name__}, dtype={self.dtype!r})"

    @property
    def is_gated(self) -> bool:
        return self.engine.is_gated

    @property
    def dtype(self) -> str:
        """The type it computes in: int8, or the type of its weights."""
        return self.engine.dtype

    @property
    def window_frames(self) -> int:
        """Feature frames of one window."""
        return self.model.config.max_source_positions * FRAMES_PER_ROW

    def is_long(self, clip: Audio) -> bool:
        """Whether a clip has more than one window; such clips are decoded apart from the others."""
        return self._frames(clip) > self.window_frames

    def covered_rows(self, clip: Audio) -> int:
        """The number of encoder rows that a clip covers; they are the first rows of its windows."""
        return _rows(self._frames(clip))

    # --- from audio to transcripts -------------------------------------------------------------------------------

    def transcribe(
        self,
        audio: Sequence[str | Path | np.ndarray | Tensor],
        *,
        sampling_rate: int = RATE,
        batch_size: int = BATCH_CLIPS,
        **generation: Any,
    ) -> list[Transcript]:
        """One transcript per file or array of samples, in order.

        sampling_rate: of arrays; files have their own. batch_size: clips of at most 30 seconds decoded at once.
        `generation` takes the settings of `Engine.generate`, those of Whisper's `generate` included: `language`,
        `task`, `return_timestamps`, `prompt_ids`, `num_beams`, `keep`, ... A list as `language` has one language per
        recording. Recordings of more than 30 seconds are decoded window by window, always with timestamps. Segments
        that begin after the end of the audio are left out.
        """
        if isinstance(audio, (str, Path)) or (isinstance(audio, (np.ndarray, Tensor)) and audio.ndim == 1):
            raise ValueError("audio: expected a list of files or arrays, got one; put it into a list")
        languages = generation.get("language")
        if isinstance(languages, (list, tuple)):
            if len(languages) != len(audio):
                raise ValueError(
                    f"`language`: {len(languages)} languages for {len(audio)} recordings; give one for each"
                )
            del generation["language"]
        else:
            languages = None
        settings = self.settings(generation)
        clips = [self.read(item, f"audio[{index}]", sampling_rate) for index, item in enumerate(audio)]
        results = [Transcript("", seconds=clip.seconds) for clip in clips]
        for batch in self.batches(clips, batch_size):
            own = {} if languages is None else {"language": [languages[i] for i in batch]}
            for index, result in zip(batch, self.decode([clips[i] for i in batch], settings | own), strict=True):
                results[index] = result
        return results

    def read(self, item: str | Path | np.ndarray | Tensor, name: str, sampling_rate: int = RATE) -> Audio:
        """The audio of a file, or of an array with this name in messages."""
        return read_audio(item) if isinstance(item, (str, Path)) else as_audio(item, name, sampling_rate)

    def settings(self, generation: Mapping[str, Any]) -> dict[str, Any]:
        """Checked settings for `decode`, the same for all recordings."""
        if isinstance(generation.get("language"), (list, tuple)):
            raise ValueError("`language`: expected one language; `SpeechModel.transcribe` takes one for each recording")
        others = {*self.engine.argument_names, *ARGUMENTS, *REFUSED}.difference(("inputs", "attention_mask"))
        check_names(generation, self.model.generation_config, others)
        self.engine.search_of_windows({name: value for name, value in generation.items() if name not in DIAL})
        return dict(generation)

    def prompt_ids(self, text: str) -> Tensor:
        """The `prompt_ids` of a text that comes before the audio; of a long one, its end, as in OpenAI's Whisper."""
        ids = self.tokenizer(" " + text.strip(), add_special_tokens=False)["input_ids"]
        special = [token for token in ids if token >= min(self.tokenizer.all_special_ids)]
        if special:
            raise ValueError(f"prompt: {self.tokenizer.convert_ids_to_tokens(special[0])} is not a word; leave it out")
        most = self.model.config.max_target_positions // 2 - 1
        return torch.tensor([self.tokenizer.convert_tokens_to_ids("<|startofprev|>"), *ids[-most:]])

    def batches(self, clips: Sequence[Audio], batch_size: int = BATCH_CLIPS) -> list[list[int]]:
        """Indices of the clips that are not silent, in batches to decode together; the longest first."""
        if batch_size < 1:
            raise ValueError(f"`batch_size`: expected a whole number, at least 1, got {batch_size}")
        order = sorted((i for i, clip in enumerate(clips) if not clip.is_silent), key=lambda i: -len(clips[i].samples))
        long = [i for i in order if self.is_long(clips[i])]
        short = order[len(long) :]
        found: list[list[int]] = []
        for index in long:
            longest = self._frames(clips[found[-1][0]]) if found else 0
            full = not found or len(found[-1]) >= batch_size or longest * (len(found[-1]) + 1) > BATCH_FRAMES
            found.append([index]) if full else found[-1].append(index)
        return found + [short[i : i + batch_size] for i in range(0, len(short), batch_size)]

    def decode(self, clips: Sequence[Audio], settings: Mapping[str, Any]) -> list[Transcript]:
        """Transcripts of one batch: clips of at most one window, or longer ones."""
        return self._decode(clips, settings)[0]

    def _decode(self, clips: Sequence[Audio], settings: Mapping[str, Any]) -> tuple[list[Transcript], Generation]:
        is_long = self.is_long(clips[0])
        lengths = torch.tensor([self._frames(clip) for clip in clips])
        longest = int(lengths.max()) if is_long else self.window_frames
        batch = torch.zeros(len(clips), self.extractor.feature_size, longest)
        for row, one in zip(batch, clips, strict=True):
            part = log_mel(one.samples, self.extractor, padded=not is_long)
            row[:, : part.shape[1]] = part
        mask = torch.arange(longest) < lengths[:, None]
        if is_long:
            settings = {**settings, "return_timestamps": True}
        found = self.engine.generate(batch, mask.long(), **settings)
        results = []
        for clip, audio in enumerate(clips):
            windows = [window for window in found.windows if window.clip == clip]
            results.append(self._transcript(audio, found.segments[clip], windows, float(found.scores[clip])))
        return results, found

    def explain(
        self, audio: str | Path | np.ndarray | Tensor, *, sampling_rate: int = RATE, **generation: Any
    ) -> ExplainedAudio:
        """The transcript of one clip of at most 30 seconds, with gates and cross-attention."""
        clip = self.read(audio, "audio", sampling_rate)
        if clip.is_silent:
            raise ValueError(f"{clip.name}: is silent, there is nothing to explain")
        if self.is_long(clip):
            longest = self.window_frames * FRAME_SECONDS
            raise ValueError(f"{clip.name}: has {clip.seconds:.0f} seconds; explain takes one window, {longest:.0f}")
        settings = self.settings(generation)
        (transcript,), found = self._decode([clip], settings)
        dial = {name: settings[name] for name in DIAL if name in settings}
        encoded = self.engine.encode(log_mel(clip.samples, self.extractor, padded=True)[None], **dial)
        window = found.windows[0]
        attentions_LHTK = cross_attention(self._eager, encoded.memory, window.tokens)[:, :, window.given - 1 :]
        index_K, rows = encoded.memory.index[0], encoded.kept.shape[1]
        attentions_LHTN = attentions_LHTK.new_zeros(*attentions_LHTK.shape[:3], rows)
        attentions_LHTN[..., index_K[index_K >= 0]] = attentions_LHTK[..., index_K >= 0]
        gates = encoded.gates
        return ExplainedAudio(
            transcript,
            gates=None if gates is None else gates.values[0],
            log_alpha=None if gates is None or gates.log_alpha is None else gates.log_alpha[0],
            kept=encoded.kept[0].nonzero().flatten().tolist(),
            covered=self.covered_rows(clip),
            output=[*self.tokenizer.convert_ids_to_tokens(window.tokens[window.given :].tolist())],
            attentions=attentions_LHTN,
            zero_row=attentions_LHTK[..., index_K < 0].sum(-1),
        )

    @cached_property
    def _eager(self) -> PreTrainedModel:
        return eager_twin(self.model)

    def _frames(self, clip: Audio) -> int:
        return max(1, len(clip.samples) // self.extractor.hop_length)

    def _transcript(
        self, clip: Audio, segments: Sequence[TokenSegment], windows: Sequence[Window], score: float
    ) -> Transcript:
        parts = [
            Segment(part.start, min(part.end, clip.seconds), self._text(part.tokens))
            for part in segments
            if part.start < clip.seconds
        ]
        kept: list[Frame] = []
        covered = 0
        ordered = sorted(windows, key=lambda window: window.start)
        for window, following in zip(ordered, [*ordered[1:], None], strict=True):
            end = min(self._frames(clip), self._frames(clip) if following is None else following.start)
            own = min(len(window.kept), _rows(max(0, end - window.start)))
            covered += own
            begin = window.start * FRAME_SECONDS
            for row in window.kept[:own].nonzero().flatten().tolist():
                kept.append(Frame(begin + row * ROW_SECONDS, begin + (row + 1) * ROW_SECONDS))
        return Transcript(
            text="".join(part.text for part in parts).strip(),
            segments=tuple(Segment(part.start, part.end, part.text.strip()) for part in parts),
            score=score,
            kept=tuple(kept),
            seconds=clip.seconds,
            windows=len(windows),
            rows=sum(len(window.kept) for window in windows),
            rows_kept=sum(int(window.kept.sum()) for window in windows),
            covered=covered,
        )

    def _text(self, tokens: Sequence[int]) -> str:
        """The text of these tokens, without timestamps and special tokens."""
        first_time = getattr(self.model.generation_config, "no_timestamps_token_id", self.model.config.vocab_size)
        return str(self.tokenizer.decode([t for t in tokens if t < first_time], skip_special_tokens=True))


def _rows(frames: int) -> int:
    """The rows that cover these feature frames."""
    return math.ceil(frames / FRAMES_PER_ROW)


def load_speech(
    dir_or_name: str | Path, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
) -> SpeechModel:
    """Load a Whisper with its feature extractor and tokenizer. On a CPU, weights stored in float16 become float32."""
    name = str(dir_or_name)
    folder, _ = locate_model(name)
    int8 = dtype == "int8"
    model = load_model(name, folder, dtype_of("float32" if int8 else dtype))
    if not family_of(type(model)).reads_audio:
        raise OtherInputError(f"{name}: is a text model; use `l0drop.load`", "translate")
    try:
        extractor = WhisperFeatureExtractor.from_pretrained(folder or name)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: no feature extractor in the model's folder ({first_line(error)})") from error
    tokenizer = read_tokenizer(folder or name)
    place(model, name, "cpu" if int8 and device is None else device)
    if dtype is None and model.dtype == torch.float16 and model.device.type == "cpu":
        model.float()
    return SpeechModel(name, model, extractor, tokenizer, int8)
