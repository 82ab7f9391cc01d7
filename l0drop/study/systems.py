"""What is evaluated: a model, which decodes, or a file with the outputs of one."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from l0drop.data.sparsity import SparsityMeter
from l0drop.data.text import CorpusError, file_stamp, read_lines
from l0drop.decoding.folder import fingerprint, places
from l0drop.decoding.offsets import Span
from l0drop.decoding.results import SourceToken
from l0drop.decoding.text import Source, TextModel, batches, load
from l0drop.recipe import Recipe, load_recipe
from l0drop.runs.provenance import provenance

Progress = Callable[[int], None]
BATCH_TOKENS = 8000
"""Padded source tokens decoded at once."""


@dataclass(frozen=True)
class SourcePiece:
    """A token of the source: where it stands in the text (start = end for EOS), and whether it was kept."""

    text: str
    start: int
    end: int
    kept: bool


@dataclass(frozen=True)
class Outputs:
    """One text per line of the source, blank for blank, and what the gates did.

    pieces: of each source; None without gates. cut: how many sources were too long for the model. without_source: what
    it says to an empty source, if it was asked. decoding: what it takes to repeat the outputs.
    """

    texts: list[str]
    pieces: list[list[SourcePiece]] | None = None
    cut: int = 0
    without_source: str | None = None
    decoding: dict[str, Any] | None = None

    @property
    def sparsity(self) -> float | None:
        """Dropped / real source tokens of all lines; None without gates."""
        if self.pieces is None:
            return None
        meter = SparsityMeter()
        for pieces in self.pieces:
            meter.add(np.array([float(piece.kept) for piece in pieces]), np.ones(len(pieces)))
        return meter.sparsity


@dataclass(frozen=True)
class System:
    """A run folder, a model folder, a name on the Hugging Face hub, or a text file of outputs.

    dtype: what a model decodes in, as in `load`; left out, that of its weights.
    """

    path: Path
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and not self.is_model:
            raise ValueError(f"dtype: {self.path} is a file of outputs, nothing is decoded")
        if not self.path.exists() and self.path.parent != Path() and self.path.parent.is_dir():
            raise CorpusError(f"{self.path}: there is no model folder and no file of outputs")
        if self.is_model:
            places(str(self.path))  # raises where there is none

    @property
    def is_model(self) -> bool:
        return not self.path.is_file()

    @property
    def folder(self) -> Path:
        """Of the model; a name on the hub is its own."""
        return places(str(self.path))[0] or self.path

    @property
    def run(self) -> Path | None:
        """The run that the model belongs to."""
        return places(str(self.path))[1] if self.is_model else None

    @property
    def recipe(self) -> Recipe | None:
        return None if self.run is None else load_recipe(self.run / "recipe.yaml")

    def as_json(self) -> dict[str, Any]:
        """What tells it from another one under the same name."""
        files = sorted(self.folder.glob("*.safetensors")) if self.is_model else [self.path]
        return {
            "name": str(self.path),
            "kind": "model" if self.is_model else "outputs",
            "files": [file_stamp(file) for file in files],
        }


def outputs_of(
    system: System,
    sources: Sequence[str],
    generation: Mapping[str, Any],
    *,
    device: str | None = None,
    empty_source: bool = False,
    progress: Progress | None = None,
) -> Outputs:
    """Decode, or read the file; with `empty_source` also what the model says when it gets nothing to read.

    `generation` is what `TextModel.generate` takes: settings, and `source_lang` and `target_lang`.
    """
    if system.is_model:
        return _decode(system, sources, generation, device, empty_source, progress)
    texts = list(read_lines(system.path))
    if len(texts) != len(sources):
        raise CorpusError(f"{system.path} has {len(texts)} lines but the source and its reference have {len(sources)}")
    return Outputs(texts)


def one_line(text: str) -> str:
    """An output as it stands in a file with one output per line."""
    return re.sub(r"[\r\n]+", " ", text).strip()


def _decode(
    system: System,
    sources: Sequence[str],
    generation: Mapping[str, Any],
    device: str | None,
    empty_source: bool,
    progress: Progress | None,
) -> Outputs:
    model = load(system.path, device, system.dtype)
    weights = fingerprint(model.name, model.model)
    spoken = {name: generation[name] for name in ("source_lang", "target_lang") if name in generation}
    given = {name: value for name, value in generation.items() if name not in spoken}
    settings = model.settings(spoken.get("target_lang"), given)
    encoded = model.encode(sources, source_lang=spoken.get("source_lang"))
    texts = [""] * len(sources)
    pieces: list[list[SourcePiece]] = [[] for _ in sources]
    if progress:
        progress(sum(source.is_blank for source in encoded))
    for batch in batches(encoded, BATCH_TOKENS):
        for place, result in zip(batch, model.decode([encoded[i] for i in batch], settings), strict=True):
            texts[place] = one_line(result.text)
            tokens = model.tokenizers.source.convert_ids_to_tokens(list(encoded[place].ids))
            pieces[place] = _pieces(tokens, encoded[place].spans, result.kept)
        if progress:
            progress(len(batch))
    nothing = [_nothing(model, spoken.get("source_lang"))] if empty_source else []
    return Outputs(
        texts,
        pieces if model.is_gated else None,
        sum(source.cut > 0 for source in encoded),
        one_line(model.decode(nothing, settings)[0].text) if nothing else None,
        {**settings, **spoken, "dtype": model.dtype, "weights": weights, **provenance(model.model.device)},
    )


def _pieces(tokens: Sequence[str], spans: Sequence[Span], kept: Sequence[SourceToken]) -> list[SourcePiece]:
    """All tokens of a source; those kept stand among them in the same order."""
    found, left = [], list(kept[::-1])
    for token, span in zip(tokens, spans, strict=True):
        start, end = span or (None, None)
        is_kept = bool(left) and left[-1] == SourceToken(token, start, end)
        if is_kept:
            left.pop()
        found.append(SourcePiece(token, start or 0, end or 0, is_kept))
    assert not left, left
    return found


def _nothing(model: TextModel, source_lang: str | None) -> Source:
    """A source without text: what the tokenizer adds to one, and the model's prefix."""
    (full,) = model.encode(["a"], source_lang=source_lang)
    added = [place for place, span in enumerate(full.spans) if span is None]
    if not added:
        raise ValueError(
            "controls: this model's tokenizer makes no token of an empty text, so there is no empty source"
        )
    hints = {name: [values[place] for place in added] for name, values in full.hints.items()}
    return Source("the empty source", [full.ids[place] for place in added], [None] * len(added), hints)
