"""Workloads of the decoding benchmark for Whisper: random weights of a given size, or recordings on a model.

RandomWhisper: clips with random features, outputs of one length, a set share of rows dropped
AudioFiles:    real clips of at most one window, outputs of natural length; a dense model and a rival beside
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from l0drop.bench.peers import SYSTEMS
from l0drop.bench.random_models import Share, sharpen
from l0drop.bench.speech_peers import Clips, plain_whisper
from l0drop.data.audio import log_mel, read_audio
from l0drop.data.text import file_stamp, read_lines
from l0drop.decoding.speech import load_speech
from l0drop.models.config import L0DropConfig
from l0drop.models.modeling import L0DropModel
from l0drop.models.sparsify import sparsify
from l0drop.models.whisper import FRAMES_PER_ROW
from l0drop.runs.benchmark import Shape, WorkloadRecord
from l0drop.runs.evaluation import FileStamp

EOS, START, NO_TIMESTAMPS = 50257, 50258, 50363
"""Special tokens of multilingual Whispers; with random weights their meaning does not matter."""


def _size(width: int, encoder: int, decoder: int, mels: int = 80, vocabulary: int = 51_865) -> dict[str, int]:
    heads = width // 64
    return {
        "d_model": width, "encoder_layers": encoder, "decoder_layers": decoder, "encoder_attention_heads": heads,
        "decoder_attention_heads": heads, "encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width,
        "num_mel_bins": mels, "vocab_size": vocabulary,
    }  # fmt: skip


SIZES = {
    "tiny": _size(384, 4, 4),
    "small": _size(768, 12, 12),
    "large-v3": _size(1280, 32, 32, mels=128, vocabulary=51_866),
    "turbo": _size(1280, 32, 4, mels=128, vocabulary=51_866),
}
"""OpenAI's models, by the entries of their configs."""
WHISPER_SHAPES = {f"whisper-{name}": Shape(batch=8, source=1500, target=40, dropped=0.75) for name in SIZES}
"""One window of 30 seconds per clip, and about as many tokens as in 12 seconds of speech."""
INSIDE = (0, 1)
"""Where rows are removed inside the encoder: behind the convolutions, behind the first layer."""
RANDOM_SYSTEMS = (
    *SYSTEMS[:2], *(f"engine-inside-{layer}" for layer in INSIDE),
    *SYSTEMS[2:4], *(f"engine-int8-inside-{layer}" for layer in INSIDE), *SYSTEMS[4:],
)  # fmt: skip


@dataclass(frozen=True)
class RandomWhisper:
    """One batch of clips on a Whisper with random weights; all outputs have the same length.

    `engine-short` has its gates behind the encoder. `engine-inside-L` has the same weights, drops the same share of
    rows behind layer L (0: behind the convolutions), and runs the other layers on the rows that are left. `changes`
    override the model's config.
    """

    size: str
    shape: Shape
    beams: int = 5
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def systems(self) -> tuple[str, ...]:
        return RANDOM_SYSTEMS

    def variant(self, system: str) -> str:
        return system.partition("inside-")[2]

    def load(self, variant: str = "") -> tuple[L0DropModel, list[Clips]]:
        model, batch = self.on(self.base(), variant)
        return model, [batch]

    def base(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> hf.WhisperForConditionalGeneration:
        """The Whisper without gates, its weights drawn on the device."""
        config = {**SIZES[self.size], "max_source_positions": self.shape.source, **self.changes}
        return _random_whisper(config, device, dtype)

    def on(self, base: hf.WhisperForConditionalGeneration, variant: str = "") -> tuple[L0DropModel, Clips]:
        """The gated model and the batch on this base, whose weights several shapes may share."""
        kept = (round((1 - self.shape.dropped) * self.shape.source) + 0.01) / self.shape.source
        if variant:
            model = sparsify(base, L0DropConfig(gating="mask", layerwise=[int(variant)])).eval()
            model.inner_gates[0], model.gate = Share(kept), Share(1.0)
        else:
            model = sparsify(base, L0DropConfig(gating="zero")).eval()
            model.gate = Share(kept)
        frames = FRAMES_PER_ROW * self.shape.source
        size = (self.shape.batch, base.config.num_mel_bins, frames)
        features = torch.randn(size, generator=torch.Generator().manual_seed(1))
        return model, Clips(features, torch.ones(self.shape.batch, frames, dtype=torch.long))

    @property
    def generation(self) -> dict[str, Any]:
        length = {"min_new_tokens": self.shape.target, "max_new_tokens": self.shape.target}
        return {"num_beams": self.beams, "length_penalty": 1.0, "early_stopping": self.beams > 1, **length}

    def describe(self) -> WorkloadRecord:
        what = f"one batch of clips on Whisper {self.size} with random weights, float32, outputs of one length"
        return WorkloadRecord(what, self.shape, dict(self.changes), "zero", whisper=self.size)


def _random_whisper(config: Mapping[str, Any], device: str, dtype: torch.dtype) -> hf.WhisperForConditionalGeneration:
    """A Whisper whose attention and token choices are peaked, as in a trained model."""
    torch.manual_seed(0)
    tokens = {"pad_token_id": EOS, "bos_token_id": EOS, "eos_token_id": EOS, "decoder_start_token_id": START}
    settings = hf.WhisperConfig(**{"dropout": 0.0, **tokens, **config})
    with torch.device(device):  # large models take minutes on a CPU
        model: Any = hf.AutoModelForSpeechSeq2Seq.from_config(settings, dtype=dtype).eval()
    with torch.no_grad():
        sharpen(model)
        for convolution in (model.model.encoder.conv1, model.model.encoder.conv2):
            convolution.weight.normal_(0, 1.5 / convolution.weight[0].numel() ** 0.5)
        model.model.decoder.embed_tokens.weight.normal_(0, 5 / model.config.d_model**0.5)
    model.generation_config = hf.GenerationConfig(**tokens, no_timestamps_token_id=NO_TIMESTAMPS)
    plain_whisper(model)
    return model


@dataclass(frozen=True)
class AudioFiles:
    """The first clips of a list of audio files, decoded by a Whisper (a folder, a name on the Hugging Face hub).

    audio: a text file with one audio file per line, up to the first tab; relative names start at its folder. Clips of
    more than one window are refused. baseline: a dense model, which CTranslate2 decodes too. rival: another sparse
    model. A model without a gate decodes with every gate open.
    """

    model: str
    audio: Path
    clips: int = 100
    batch: int = 8
    max_new_tokens: int = 128
    beams: int = 5
    language: str | None = None
    baseline: str | None = None
    rival: str | None = None

    def __post_init__(self) -> None:
        for name in ("clips", "batch", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`: expected at least 1, got {getattr(self, name)}")

    @property
    def systems(self) -> tuple[str, ...]:
        others = [name for name in ("baseline", "rival") if getattr(self, name) is not None]
        return (*SYSTEMS, *(f"engine-{name}" for name in others), *(f"engine-int8-{name}" for name in others))

    def variant(self, system: str) -> str:
        if system.startswith("ct2"):
            return "baseline" if self.baseline else ""
        which = system.rpartition("-")[2]
        return which if which in ("baseline", "rival") else ""

    def load(self, variant: str = "") -> tuple[L0DropModel, list[Clips]]:
        speech = load_speech(getattr(self, variant) if variant else self.model, device="cpu", dtype="float32")
        clips = [read_audio(file) for file in self.files()]
        for clip in clips:
            if speech.is_long(clip) or clip.is_silent:
                wrong = "is silent" if clip.is_silent else "is longer than one window"
                raise ValueError(f"{self.audio}: {clip.name} {wrong}; the benchmark takes short clips of speech")
        clips.sort(key=lambda clip: -len(clip.samples))
        model: Any = speech.model
        plain_whisper(model)
        sparse = model if isinstance(model, L0DropModel) else sparsify(model)
        hop, frames = speech.extractor.hop_length, speech.window_frames
        batches = []
        for start in range(0, len(clips), self.batch):
            part = clips[start : start + self.batch]
            features = torch.stack([log_mel(clip.samples, speech.extractor, padded=True) for clip in part])
            covered = torch.tensor([max(1, len(clip.samples) // hop) for clip in part])
            batches.append(Clips(features, (torch.arange(frames) < covered[:, None]).long()))
        return sparse.eval(), batches

    def files(self) -> list[Path]:
        """The audio files to decode."""
        lines = (line.split("\t")[0].strip() for line in read_lines(self.audio))
        names = [name for name in lines if name][: self.clips]
        if not names:
            raise ValueError(f"{self.audio}: names no audio file; write one per line")
        return [self.audio.parent / name for name in names]

    @property
    def generation(self) -> dict[str, Any]:
        # CTranslate2 always stops as generate does with early_stopping
        search = {"num_beams": self.beams, "length_penalty": 1.0, "early_stopping": self.beams > 1}
        language = {} if self.language is None else {"language": self.language}
        return {**search, "max_new_tokens": self.max_new_tokens, **language}

    def describe(self) -> WorkloadRecord:
        return WorkloadRecord(
            "recordings, float32, outputs of natural length",
            model=self.model,
            input=FileStamp(**file_stamp(self.audio)),
            batch=self.batch,
            seconds_of_audio=sum(read_audio(file).seconds for file in self.files()),
            baseline=self.baseline,
            rival=self.rival,
        )
