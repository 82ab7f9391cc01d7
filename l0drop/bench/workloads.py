"""Workloads of the decoding benchmark: a batch of a given shape on random weights, or lines of text on a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import transformers as hf

from l0drop.bench.peers import SYSTEMS, Batch, plain_generation
from l0drop.bench.random_models import Share, sharpen, transformer_base
from l0drop.bench.speech_workloads import WHISPER_SHAPES, AudioFiles, RandomWhisper
from l0drop.data.batches import collate
from l0drop.data.text import file_stamp, read_lines
from l0drop.decoding.sources import Source, examples
from l0drop.decoding.text import load
from l0drop.models.config import L0DropConfig
from l0drop.models.modeling import L0DropModel
from l0drop.models.sparsify import sparsify
from l0drop.runs.benchmark import Shape, WorkloadRecord
from l0drop.runs.evaluation import FileStamp

LENGTH_PENALTY = 0.6
GATING: Literal["zero"] = "zero"

SHAPES = {
    "wikisum": Shape(batch=10, source=2048, target=160, dropped=0.715),
    "cnndm": Shape(batch=10, source=400, target=64, dropped=0.476),
    "mt": Shape(batch=32, source=30, target=30, dropped=0.467),
}
"""Sizes and sparsities of the paper's tasks."""
GPU_SHAPES = {
    "b1-n400": Shape(batch=1, source=400, target=64, dropped=0.476),
    "b32-n30": Shape(batch=32, source=30, target=30, dropped=0.467),
    "b10-n400": Shape(batch=10, source=400, target=64, dropped=0.476),
    "b10-n2048": Shape(batch=10, source=2048, target=64, dropped=0.715),
    "b64-n2048": Shape(batch=64, source=2048, target=64, dropped=0.715),
    "b256-n2048": Shape(batch=256, source=2048, target=64, dropped=0.715),
}
"""Shapes for a GPU, the smallest first: sentences in a batch, and source tokens."""
POSITIONS = 4096
"""Of a random model, unless its shape needs more."""


class Workload(Protocol):
    """The input and the search settings of all systems; small enough to be sent to another process."""

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems that can decode it."""

    def variant(self, system: str) -> str:
        """The name of the model that a system decodes; blank for the workload's own."""

    def load(self, variant: str = "") -> tuple[L0DropModel, list[Any]]:
        """The model, in eval mode and float32, and the batches, longest first."""

    @property
    def generation(self) -> dict[str, Any]:
        """Settings of the search, by generation_config's names."""

    def describe(self) -> WorkloadRecord:
        """Everything needed to build the same workload again."""


def peaked_base(**changes: Any) -> hf.MarianMTModel:
    """A Transformer base with random weights whose attention and token choices are peaked, as in a trained model."""
    base = transformer_base(**{"dropout": 0.0, **changes}).eval()
    with torch.no_grad():
        sharpen(base)
        # with nearly equal hypotheses, rounding would decide
        base.model.shared.weight.normal_(0, 5 / base.config.d_model**0.5)
        base.model.shared.weight[base.config.pad_token_id] = 0
    plain_generation(base)
    return base


@dataclass(frozen=True)
class RandomModel:
    """One batch of a given shape on a Transformer base with random weights; all outputs have the same length.

    `changes` override the model's config: `vocabulary`, `d_model` and so on.
    """

    shape: Shape
    beams: int = 4
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def systems(self) -> tuple[str, ...]:
        return SYSTEMS

    def variant(self, system: str) -> str:
        return ""

    def load(self, variant: str = "") -> tuple[L0DropModel, list[Batch]]:
        positions = max(POSITIONS, self.shape.source, self.shape.target + 1)
        model, batch = self.on(peaked_base(**{"max_position_embeddings": positions, **self.changes}))
        return model, [batch]

    def on(self, base: hf.MarianMTModel) -> tuple[L0DropModel, Batch]:
        """The gated model and the batch on this base, whose weights several shapes may share."""
        model = sparsify(base, L0DropConfig(gating=GATING)).eval()
        kept = round((1 - self.shape.dropped) * self.shape.source)
        model.gate = Share((kept + 0.01) / self.shape.source)  # slightly more, because it rounds down
        generator = torch.Generator().manual_seed(1)
        size = (self.shape.batch, self.shape.source)
        input_ids = torch.randint(3, base.config.vocab_size, size, generator=generator)
        return model, Batch(input_ids, torch.ones_like(input_ids))

    @property
    def generation(self) -> dict[str, Any]:
        length = {"min_new_tokens": self.shape.target, "max_new_tokens": self.shape.target}
        return {"num_beams": self.beams, "length_penalty": LENGTH_PENALTY, "early_stopping": self.beams > 1, **length}

    def describe(self) -> WorkloadRecord:
        what = "one batch on a Transformer base with random weights, float32, outputs of one length"
        return WorkloadRecord(what, self.shape, dict(self.changes), GATING)


@dataclass(frozen=True)
class TextFile:
    """The first lines of a text file, decoded by a model (a run folder, a model folder, a name on the Hugging Face hub)
    in batches of similar length. Blank lines are skipped.

    A model without a gate decodes with every gate open.
    """

    model: str
    file: Path
    sentences: int = 100
    batch: int = 32
    max_new_tokens: int = 128
    beams: int = 4

    def __post_init__(self) -> None:
        for name in ("sentences", "batch", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}`: expected at least 1, got {getattr(self, name)}")

    @property
    def systems(self) -> tuple[str, ...]:
        return SYSTEMS

    def variant(self, system: str) -> str:
        return ""

    def load(self, variant: str = "") -> tuple[L0DropModel, list[Batch]]:
        text = load(self.model, device="cpu", dtype="float32")
        sources = sorted((s for s in text.encode(self.lines()) if not s.is_blank), key=lambda s: -len(s.ids))
        model = text.model
        plain_generation(model)
        sparse = model if isinstance(model, L0DropModel) else sparsify(model)
        pad = model.generation_config.pad_token_id
        parts = (sources[start : start + self.batch] for start in range(0, len(sources), self.batch))
        return sparse.eval(), [batch_of(part, pad) for part in parts]

    def lines(self) -> list[str]:
        """The lines to decode, blank ones included."""
        lines = [line for line, _ in zip(read_lines(self.file), range(self.sentences), strict=False)]
        if not any(map(str.strip, lines)):
            raise ValueError(f"{self.file}: its first {self.sentences} lines are blank")
        return lines

    @property
    def generation(self) -> dict[str, Any]:
        # CTranslate2 always stops as generate does with early_stopping
        return {
            "num_beams": self.beams,
            "length_penalty": LENGTH_PENALTY,
            "early_stopping": self.beams > 1,
            "max_new_tokens": self.max_new_tokens,
        }

    def describe(self) -> WorkloadRecord:
        what = "lines of text, float32, outputs of natural length"
        return WorkloadRecord(what, model=self.model, input=FileStamp(**file_stamp(self.file)), batch=self.batch)


def batch_of(sources: Sequence[Source], pad: int) -> Batch:
    """A batch of tokenized texts that are not blank."""
    batch = collate(examples(sources), pad)
    return Batch(batch["input_ids"], batch["attention_mask"], batch["hints"] or None)


def chosen_workloads(
    model: str | None,
    file: Path | None = None,
    shapes: Sequence[str] | None = None,
    *,
    beams: int = 4,
    sizes: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    audio: Path | None = None,
    speech: Mapping[str, Any] | None = None,
) -> dict[str, Workload]:
    """The workloads by name: text or audio for a model, or without one the batches of these shapes on random weights.

    shapes: of `SHAPES` or `WHISPER_SHAPES`; default: cnndm. sizes: numbers that replace those of a `Shape`; a model
    takes `batch` alone. limits: `sentences` (or clips) and `max_new_tokens` of `TextFile` or `AudioFiles`. speech:
    `language`, `baseline` and `rival` of `AudioFiles`.
    """
    sizes, limits, speech = sizes or {}, limits or {}, speech or {}
    if audio is None:
        for name in speech:
            raise ValueError(f"`{name}`: needs `audio`, a list of audio files")
    if model is None:
        inputs = {"input": file, "audio": audio}
        for name in (*(name for name, given in inputs.items() if given is not None), *limits):
            raise ValueError(f"`{name}`: needs a model folder")
        known = {**SHAPES, **WHISPER_SHAPES}
        for name in shapes or ():
            if name not in known:
                raise ValueError(f"`shape`: expected some of {', '.join(known)}, got {name!r}")
        return {name: _random(name, replace(known[name], **sizes), beams) for name in shapes or ("cnndm",)}
    for name in (*(name for name in sizes if name != "batch"), *(["shape"] if shapes is not None else [])):
        raise ValueError(f"`{name}`: is for random weights; a model decodes text of natural length")
    if audio is not None:
        if file is not None:
            raise ValueError("`input`: is for text; `audio` names the recordings")
        clips = {"clips" if name == "sentences" else name: value for name, value in limits.items()}
        return {"audio": AudioFiles(model, audio, beams=beams, **sizes, **clips, **speech)}
    if file is None:
        raise ValueError("`input`: missing; name a text file to decode, or with `audio` a list of audio files")
    return {"text": TextFile(model, file, beams=beams, **sizes, **limits)}


def chosen_gpu_shapes(names: Sequence[str], sizes: Mapping[str, Any] | None = None) -> dict[str, Shape]:
    """Shapes of `GPU_SHAPES` by name; `gpu` is all of them. sizes: numbers that replace those of a `Shape`."""
    chosen: dict[str, Shape] = {}
    for name in names:
        if name not in (*GPU_SHAPES, "gpu"):
            raise ValueError(f"`shape`: expected gpu or some of {', '.join(GPU_SHAPES)}, got {name!r}")
        chosen |= GPU_SHAPES if name == "gpu" else {name: GPU_SHAPES[name]}
    return {name: replace(shape, **(sizes or {})) for name, shape in chosen.items()}


def _random(name: str, shape: Shape, beams: int) -> Workload:
    if name in SHAPES:
        return RandomModel(shape, beams)
    return RandomWhisper(name.removeprefix("whisper-"), shape, beams)
