"""Loads the subject of an analysis: a run with its baseline, and the text to measure on."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import LEDForConditionalGeneration

from l0drop.data.held_out import open_split
from l0drop.data.prepare import prepare_corpus, usable_pairs
from l0drop.data.sources import open_text
from l0drop.data.tagger import PRETAGGED
from l0drop.data.text import Pair, ParallelText
from l0drop.data.tokenizer import TokenizerPair
from l0drop.decoding.corpus import decode_corpus
from l0drop.decoding.folder import fingerprint, generation_settings, load_model, load_pair, locate_model
from l0drop.models.entmax import EntmaxModel
from l0drop.models.families import positions_of
from l0drop.models.modeling import L0DropModel
from l0drop.recipe import Evaluate, Recipe, TextCorpus, load_recipe
from l0drop.runs.analysis import AnalysedText, TaggingRecord
from l0drop.runs.run import RunFolder
from l0drop.study.analysis.annotate import Tagging, annotator_for
from l0drop.study.analysis.material import Material

LONGEST = 512
"""The longest source and target, in tokens, if neither recipe nor config says."""


@dataclass(frozen=True)
class Reading:
    """The text to analyse: files, or the recipe's test set (its validation set if there is no test set).

    sentences: the number of sentences, from the start; None for all. language: of the source, for the tagger.
    """

    source: Path | None = None
    reference: Path | None = None
    sentences: int | None = None
    language: str | None = None


@dataclass(frozen=True, eq=False)
class Subject:
    """Models and text of an analysis.

    models: `sparse` or `baseline` or both, and `entmax` if one was given. names: their folders.
    missing: unavailable requirements with the reasons; parts that need them are omitted.
    """

    models: dict[str, Any]
    names: dict[str, str]
    material: Material
    text: AnalysedText
    missing: dict[str, str]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Identifies the weights, even if the folders change later."""
        return {role: fingerprint(name, self.models[role]) for role, name in self.names.items()}


def load(name: str, device: torch.device) -> Any:
    model: Any = load_model(name, locate_model(name)[0], torch.float32)
    return model.to(device)


def find_baseline(name: str, recipe: Recipe | None, given: str | None) -> tuple[str | None, str]:
    """The baseline, or None and the reason."""
    if given is not None:
        return given, ""
    if recipe is None:
        return None, f"{name} has no recipe that names its baseline; give `baseline`"
    start = recipe.model.init or recipe.model.pretrained
    if start is None:
        return None, f"{name} was trained from scratch, so it has no baseline; give `baseline`"
    if recipe.model.init is not None and not Path(start).exists():
        return None, f"the baseline {start} of {name} does not exist; give `baseline`"
    return start, ""


@contextmanager
def opened(
    name: str,
    reading: Reading,
    *,
    baseline: str | None = None,
    entmax: str | None = None,
    device: torch.device | None = None,
) -> Iterator[Subject]:
    """Load models and text; the tokenized text is deleted afterwards."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder, run = locate_model(name)
    recipe = None if run is None else load_recipe(RunFolder(run).recipe).for_text()
    model = load(name, device)
    models, names, missing = _roles(name, model, recipe, baseline, entmax, device)
    tokenizers = load_pair(name, folder, run, model)
    vocabulary = model.get_input_embeddings().num_embeddings
    for role, other in models.items():
        if other.get_input_embeddings().num_embeddings != vocabulary:
            raise ValueError(f"{role}: {names[role]} has another vocabulary than {name}; both must use the same tokens")
    with TemporaryDirectory() as temporary:
        material, text, not_grouped = read_material(Path(temporary), models, recipe, tokenizers, reading, name)
        missing |= not_grouped | impossible(model, material)
        yield Subject(models, names, material, text, missing)


def impossible(model: Any, material: Material) -> dict[str, str]:
    """Requirements that this model or text cannot meet, with the reasons."""
    found = {}
    if isinstance(model, LEDForConditionalGeneration):
        found["self-attention"] = "LED's encoder attends within windows, so its entropies cannot be compared"
    if isinstance(model, L0DropModel) and model.config.l0drop.layerwise:
        found["single gate"] = "gates between layers would close further rows; interventions need a single gate"
    if len(material) < 2:
        found["other sources"] = "the text has one sentence, so there is no other source to try"
    elif not material.tokenizers.source("")["input_ids"]:
        found["other sources"] = "the tokenizer makes no token from an empty text, so there is no empty source to try"
    return found


def _roles(
    name: str, model: Any, recipe: Recipe | None, baseline: str | None, entmax: str | None, device: torch.device
) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The models by role, their folders, and the reasons for missing ones."""
    if isinstance(model, EntmaxModel):
        raise ValueError(f"{name}: has sparse attention and is only compared with others; give it as `entmax`")
    models, names, missing = {}, {}, {}
    if isinstance(model, L0DropModel) and model.shortener is not None:
        raise ValueError(
            f"{name}: its memory comes from a shortener, {type(model.shortener).__name__}; analyses are of gates, so "
            "analyse a run with a gate"
        )
    if isinstance(model, L0DropModel):
        models["sparse"], names["sparse"] = model, name
        found, why = find_baseline(name, recipe, baseline)
        if found is None:
            missing["baseline"] = why
        else:
            models["baseline"], names["baseline"] = load(found, device), found
            if isinstance(models["baseline"], L0DropModel | EntmaxModel):
                raise ValueError(f"`baseline`: {found} should be a plain model without gates")
    else:
        if baseline is not None:
            raise ValueError(f"`baseline`: {name} has no gates, so it is a baseline itself; remove `baseline`")
        models["baseline"], names["baseline"] = model, name
        missing["sparse"] = f"{name} has no gates; give a run that was trained with l0drop"
    if entmax is None:
        missing["entmax"] = "no run with sparse attention was given (`entmax`)"
    else:
        models["entmax"], names["entmax"] = load(entmax, device), entmax
        if not isinstance(models["entmax"], EntmaxModel):
            raise ValueError(f"`entmax`: {entmax} does not have sparse attention (l0drop.models.entmax makes it)")
    return models, names, missing


@dataclass(frozen=True)
class Chosen:
    """The first usable pairs of a text as a text, joined to documents if the recipe says so."""

    text: ParallelText
    tokenizers: TokenizerPair
    limits: dict[str, Any]
    count: int | None
    outputs: list[str] | None = None
    """Targets for source-only text."""

    @property
    def source_only(self) -> bool:
        return self.text.source_only and self.outputs is None

    def __iter__(self) -> Iterator[Pair]:
        pairs = itertools.islice(usable_pairs(self.text, self.tokenizers, **self.limits), self.count)
        if self.outputs is None:
            yield from pairs
            return
        for pair, output in zip(pairs, self.outputs, strict=True):
            yield pair._replace(target=output)

    def inputs(self) -> list[dict[str, Any]]:
        return self.text.inputs()


def read_material(
    folder: Path, models: dict[str, Any], recipe: Recipe | None, tokenizers: TokenizerPair, reading: Reading, name: str
) -> tuple[Material, AnalysedText, dict[str, str]]:
    """Tokenize and annotate the text in `folder`; without references, the first model's outputs are the targets.

    Also returns a description of the text, and missing requirements.
    """
    text, described_as = text_of(recipe, reading, name)
    model = next(iter(models.values()))
    limits: dict[str, Any] = (
        {
            "max_source": positions_of(model, "encoder") or LONGEST,
            "max_target": positions_of(model, "decoder") or LONGEST,
        }
        if recipe is None
        else {
            "max_source": recipe.data.max_source,
            "max_target": recipe.data.max_target,
            "documents": recipe.data.documents and reading.source is None,
        }
    )
    evaluate = Evaluate() if recipe is None else recipe.evaluate
    longest = {key: limits[key] for key in ("max_source", "max_target")}
    chosen = Chosen(text, tokenizers, limits, reading.sentences)
    sources = (pair.source for pair in chosen)
    tagging = tagging_of(recipe, reading)
    annotator, not_grouped = annotator_for(locate_model(name)[0] or name, tokenizers.source, tagging, sources)
    corpus = prepare_corpus(chosen, tokenizers, folder / "text", annotator=annotator, **longest)
    generation = generation_settings(evaluate, limits["max_target"])
    target, target_of = "reference", None
    if chosen.source_only:
        target_of = next(iter(models))
        target = f"output of {target_of}"
        outputs = decode_corpus(
            model, corpus, range(len(corpus)), tokenizers.target, pad_id=int(tokenizers.source.pad_token_id),
            batch_tokens=evaluate.batch_tokens, generation=generation,
        ).texts  # fmt: skip
        chosen = Chosen(text, tokenizers, limits, reading.sentences, outputs)
        corpus = prepare_corpus(chosen, tokenizers, folder / "with outputs", annotator=annotator, **longest)
    references = [pair.target or "" for pair in chosen if not pair.is_one_sided]
    tagged = not_grouped is None
    material = Material(corpus, references, tokenizers, evaluate, generation, target, tagged, target_of)
    described = AnalysedText(
        name=described_as,
        inputs=list(text.inputs()),
        target=target,
        sentences=len(material),
        source_tokens=corpus.summary.source_tokens,
        target_tokens=corpus.summary.target_tokens,
        source_cut=corpus.summary.truncated_source,
        tagging=None if not_grouped else TaggingRecord(tagging.tagger, tagging.language),
    )
    return material, described, {} if not_grouped is None else {"groups": not_grouped}


def tagging_of(recipe: Recipe | None, reading: Reading) -> Tagging:
    """The tagging of source words: from the options, else from the recipe."""
    if recipe is None:
        return Tagging(language=reading.language or "en", assumed=reading.language is None)
    if recipe.data.is_tagged and reading.source is None:
        return Tagging(PRETAGGED, recipe.data.language, assumed=False)
    return Tagging(recipe.data.tagger, reading.language or recipe.data.language, assumed=reading.language is None)


def text_of(recipe: Recipe | None, reading: Reading, name: str) -> tuple[ParallelText, str]:
    """The text to read, and its name."""
    if reading.source is not None:
        target = None if reading.reference is None else str(reading.reference)
        prefix = "" if recipe is None else recipe.data.source_prefix
        return open_text(TextCorpus(source=str(reading.source), target=target), prefix), str(reading.source)
    if reading.reference is not None:
        raise ValueError("`reference`: needs `source`, whose lines it translates")
    if recipe is None:
        raise ValueError(f"`source`: missing, and {name} has no recipe with a test set")
    split = recipe.data.splits[-1]
    return open_split(recipe.data, split, recipe.data.source_prefix), f"data.{split} of the recipe"
