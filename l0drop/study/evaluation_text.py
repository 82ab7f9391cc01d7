"""The text of an evaluation: sources and references, from files, from a run's recipe, or from a dense model."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from l0drop.data.held_out import open_split
from l0drop.data.prepare import usable_pairs
from l0drop.data.text import CorpusError, Pair, TextFiles
from l0drop.data.tokenizer import load_tokenizers
from l0drop.recipe import load_recipe
from l0drop.runs.evaluation import SystemRecord
from l0drop.runs.json_file import Settings
from l0drop.runs.run import RunFolder
from l0drop.study.systems import Advance, System, outputs_of

ENOUGH_DOCUMENTS = 10
"""With fewer documents, a stray blank line is more likely than real documents."""


@dataclass(frozen=True)
class EvaluationText:
    """Sources and references. Lines that are blank on both sides are not scored; they end documents.

    references: None for source text alone, until `with_dense_outputs` fills them in. dense: the model whose outputs
    they are then.
    """

    sources: list[str]
    references: list[str] | None
    scored: list[int]
    """Lines, counted from 0."""
    documents: list[int]
    """Of each scored line."""
    one_sided: int
    inputs: Sequence[Settings]
    dense: SystemRecord | None = None

    def of_scored(self, texts: Sequence[str] | None) -> list[str]:
        assert texts is not None, "with_dense_outputs was not called"
        return [texts[line] for line in self.scored]


def has_documents(text: EvaluationText) -> bool:
    """Whether blank lines divide the text into enough documents to resample them."""
    return text.documents[-1] + 1 >= ENOUGH_DOCUMENTS


def read_text(pairs: Iterable[Pair], name: str, inputs: Sequence[Settings]) -> EvaluationText:
    """A whole parallel text, or source text; `name` stands for it in errors, `inputs` says where it was read from."""
    sources: list[str] = []
    references: list[str] = []
    scored, documents = [], []
    one_sided, document, ended = 0, -1, True
    for line, pair in enumerate(pairs):
        sources.append(pair.source)
        if pair.target is not None:
            references.append(pair.target)
        if pair.is_blank:
            ended = True
            continue
        document, ended = document + ended, False
        scored.append(line)
        documents.append(document)
        one_sided += pair.is_one_sided
    if not scored:
        raise CorpusError(f"{name}: all of its {len(sources)} lines are blank")
    return EvaluationText(sources, references or None, scored, documents, one_sided, inputs)


def read_files(source: Path, reference: Path | None) -> EvaluationText:
    """Two files with the same number of lines, or source text alone."""
    text = TextFiles(source, reference)
    return read_text(text, str(source if reference is None else reference), text.inputs())


def read_test_text(run: Path) -> EvaluationText:
    """The test text of a run's recipe, cut into examples as in training."""
    file = RunFolder(run).recipe
    recipe = load_recipe(file).for_text()
    if "test" not in recipe.data.splits:
        raise CorpusError(f"{file}: data.test is missing; give `source` and `reference`")
    text, prefix = open_split(recipe.data, "test"), recipe.data.source_prefix
    pairs: Iterable[Pair] = text
    if recipe.data.documents:
        limits = {"max_source": recipe.data.max_source, "max_target": recipe.data.max_target}
        joined = usable_pairs(
            open_split(recipe.data, "test", prefix), load_tokenizers(run), **limits, documents=True
        )  # the prefix takes room when lines are joined; the model adds it again by itself
        pairs = (pair._replace(source=pair.source.removeprefix(prefix)) for pair in joined)
    return read_text(pairs, f"{file}: data.test", text.inputs())


def with_dense_outputs(
    text: EvaluationText,
    dense: System,
    generation: Settings,
    *,
    prefix: str = "",
    device: str | None = None,
    progress: Callable[[System], Advance] | None = None,
) -> EvaluationText:
    """Source text with a dense model's outputs as references; `prefix` is put before every source."""
    shown = progress(dense) if progress and dense.is_model else None
    sources = [prefix + source if source.strip() else source for source in text.sources]
    outputs = outputs_of(dense, sources, generation, device=device, progress=shown)
    if outputs.pieces is not None:
        raise ValueError(f"{dense.path}: this model has gates; without references, scores need a dense model's outputs")
    return replace(text, references=outputs.texts, dense=replace(dense.record(), decoding=outputs.decoding))
