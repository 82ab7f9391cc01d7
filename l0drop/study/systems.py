"""Systems to evaluate: a model, which decodes, or a file with a model's outputs."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from l0drop.data.offsets import Span
from l0drop.data.sparsity import SparsityMeter
from l0drop.data.text import CorpusError, file_stamp, one_line, read_lines
from l0drop.decoding.folder import fingerprint, locate_model
from l0drop.decoding.results import SourceToken
from l0drop.decoding.sources import Source, batches
from l0drop.decoding.text import TextModel, load
from l0drop.recipe import Recipe, load_recipe
from l0drop.runs.evaluation import FileStamp, SystemRecord
from l0drop.runs.json_file import Settings
from l0drop.runs.provenance import provenance
from l0drop.runs.run import RunFolder

Advance = Callable[[int], None]
"""Moves a progress bar by a number of sentences."""
BATCH_TOKENS = 8000
"""Padded source tokens per batch."""


@dataclass(frozen=True)
class SourcePiece:
    """A source token: its position in the text (start = end for EOS), and whether it was kept."""

    text: str
    start: int
    end: int
    kept: bool


@dataclass(frozen=True)
class Outputs:
    """One output per source line, blank for a blank line, and the gates' decisions.

    pieces: the tokens of each source; None without gates. cut: the number of sources that were too long for the model.
    without_source: the output for an empty source, if requested. decoding: the settings that reproduce the outputs.
    """

    texts: list[str]
    pieces: list[list[SourcePiece]] | None = None
    cut: int = 0
    without_source: str | None = None
    decoding: Settings | None = None

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

    dtype: the data type for decoding, as in `load`. Default: that of the weights.
    """

    path: Path
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and not self.is_model:
            raise ValueError(f"dtype: {self.path} is a file of outputs; nothing is decoded")
        if not self.path.exists() and self.path.parent != Path() and self.path.parent.is_dir():
            raise CorpusError(f"{self.path}: no model folder and no file of outputs here")
        if self.is_model:
            locate_model(str(self.path))  # raises if there is no model

    @property
    def is_model(self) -> bool:
        return not self.path.is_file()

    @property
    def folder(self) -> Path:
        """The model's folder; a name on the hub stands for itself."""
        return locate_model(str(self.path))[0] or self.path

    @property
    def run(self) -> Path | None:
        """The run that the model belongs to, if any."""
        return locate_model(str(self.path))[1] if self.is_model else None

    @property
    def recipe(self) -> Recipe | None:
        return None if self.run is None else load_recipe(RunFolder(self.run).recipe).for_text()

    @property
    def start(self) -> str:
        """Identifies the dense model at the start of its fine-tuning: a hash of the weights, or a name on the hub.

        Runs with the same start are not independent. A run trained from scratch, a model without a recipe and a file
        of outputs are their own start.
        """
        start, seen = self, {self.path}
        while start.recipe is not None:
            name = start.recipe.model.init or start.recipe.model.pretrained
            if name is None or Path(name) in seen:
                break
            if start.recipe.model.init is not None and not Path(name).exists():
                return name
            start = System(Path(name))
            seen.add(start.path)
        stamps = [stamp.sha256 for stamp in start.record().files]
        return hashlib.sha256(" ".join(stamps).encode()).hexdigest() if stamps else str(start.path)

    def record(self) -> SystemRecord:
        """Its name, and hashes of its files."""
        files = sorted(self.folder.glob("*.safetensors")) if self.is_model else [self.path]
        stamps = [FileStamp(**file_stamp(file)) for file in files]
        return SystemRecord(str(self.path), "model" if self.is_model else "outputs", stamps)


def outputs_of(
    system: System,
    sources: Sequence[str],
    generation: Settings,
    *,
    device: str | None = None,
    empty_source: bool = False,
    progress: Advance | None = None,
) -> Outputs:
    """Decode, or read the file; with `empty_source` also decode an empty source.

    generation: arguments of `TextModel.generate`: settings, `source_lang` and `target_lang`.
    """
    if not system.is_model:
        texts = list(read_lines(system.path))
        if len(texts) != len(sources):
            raise CorpusError(f"{system.path} has {len(texts)} lines but the source has {len(sources)}")
        return Outputs(texts)
    model = load(system.path, device, system.dtype)
    weights = fingerprint(model.name, model.model)
    languages = {name: generation[name] for name in ("source_lang", "target_lang") if name in generation}
    given = {name: value for name, value in generation.items() if name not in languages}
    settings = model.settings(languages.get("target_lang"), given)
    encoded = model.encode(sources, source_lang=languages.get("source_lang"))
    texts = [""] * len(sources)
    pieces: list[list[SourcePiece]] = [[] for _ in sources]
    if progress:
        progress(sum(source.is_blank for source in encoded))
    for batch in batches(encoded, BATCH_TOKENS):
        for line, result in zip(batch, model.decode([encoded[i] for i in batch], settings), strict=True):
            texts[line] = one_line(result.text)
            tokens = model.tokenizers.source.convert_ids_to_tokens(list(encoded[line].ids))
            pieces[line] = _pieces(tokens, encoded[line].spans, result.kept)
        if progress:
            progress(len(batch))
    empty = [_empty_source(model, languages.get("source_lang"))] if empty_source else []
    return Outputs(
        texts,
        pieces if model.is_gated else None,
        sum(source.cut > 0 for source in encoded),
        one_line(model.decode(empty, settings)[0].text) if empty else None,
        {**settings, **languages, "dtype": model.dtype, "weights": weights, **asdict(provenance(model.model.device))},
    )


def _pieces(tokens: Sequence[str], spans: Sequence[Span | None], kept: Sequence[SourceToken]) -> list[SourcePiece]:
    """All tokens of a source, marked as kept or dropped; kept tokens are in the same order."""
    found, left = [], list(kept[::-1])
    for token, span in zip(tokens, spans, strict=True):
        start, end = span or (None, None)
        is_kept = bool(left) and left[-1] == SourceToken(token, start, end)
        if is_kept:
            left.pop()
        found.append(SourcePiece(token, start or 0, end or 0, is_kept))
    assert not left, left
    return found


def _empty_source(model: TextModel, source_lang: str | None) -> Source:
    """A source without text: only the tokens that the tokenizer adds, and the model's prefix."""
    (full,) = model.encode(["a"], source_lang=source_lang)
    added = [index for index, span in enumerate(full.spans) if span is None]
    if not added:
        raise ValueError(
            "controls: this model's tokenizer makes no token from an empty text, so there is no empty source"
        )
    hints = {name: [values[index] for index in added] for name, values in full.hints.items()}
    return Source("the empty source", [full.ids[index] for index in added], [None] * len(added), hints)
