"""The checks of recipes that train on audio, and of those that do not: each refuses the keys of the other."""

from typing import Any

from l0drop.recipe.checks import Faults, Section
from l0drop.recipe.data import CORPORA, Data, JsonlCorpus, Tokenizer, TsvCorpus
from l0drop.recipe.model import L0Drop, Model
from l0drop.recipe.training import Evaluate, Train

SECTIONS: dict[str, type[Section]] = {
    "data": Data, "tokenizer": Tokenizer, "model": Model, "l0drop": L0Drop, "train": Train, "evaluate": Evaluate,
}  # fmt: skip
METRICS = ("wer", "cer")
TEXT_KEYS = (
    *("data.documents", "data.max_source", "data.source_prefix", "data.source_lang", "data.target_lang"),
    *("data.tagger", "tokenizer.vocab_size", "tokenizer.pretrained", "tokenizer.shared", "model.transformer"),
    *("train.batch_tokens", "train.fast", "train.compile", "train.capture", "train.length_multiple"),
    *("evaluate.tokenize", "evaluate.batch_tokens", "l0drop.always_keep"),
)
AUDIO_KEYS = (
    *("data.join", "data.join_steps", "data.timestamps", "data.cut", "train.batch_clips", "l0drop.cut_padding"),
)
AUDIO_COLUMNS = ("speaker_column", "speaker_field", "timed_column", "timed_field")


def faults(recipe: Any) -> Faults:
    """The faults of a recipe with `task: transcription`."""
    for name in ("train", "valid", "test"):
        corpus = getattr(recipe.data, name, None)
        if isinstance(corpus, CORPORA) and not isinstance(corpus, (TsvCorpus, JsonlCorpus)):
            yield f"data.{name}", "audio is listed in a tsv or jsonl file (task: transcription)"
    for path in _changed(recipe, TEXT_KEYS):
        yield path, "is for text; remove it, or change task: transcription"
    if recipe.train.batch_clips is None:
        yield "train.batch_clips", "is missing: the number of clips of a step (task: transcription)"
    yield from _times(recipe)
    if recipe.evaluate.metric not in METRICS:
        yield "evaluate.metric", f"should be wer or cer for audio, not {recipe.evaluate.metric}"
    if recipe.l0drop is not None and recipe.l0drop.gate not in ("learned", "open", "norm", "group"):
        yield "l0drop.gate", f"{recipe.l0drop.gate} is a rule for text; use learned or open"
    if recipe.l0drop is not None and recipe.l0drop.shortener is not None:
        yield "l0drop.shortener", f"{recipe.l0drop.shortener} is for text; use a gate"


def _times(recipe: Any) -> Faults:
    """Times are known to a teacher, or written in the list; the texts of a list have none."""
    train = recipe.data.train
    if not isinstance(train, (TsvCorpus, JsonlCorpus)):
        return
    key = "timed_column" if isinstance(train, TsvCorpus) else "timed_field"
    written, by_teacher = getattr(train, key) is not None, recipe.train.targets == "teacher"
    if recipe.data.timestamps and not (written or by_teacher):
        yield "data.timestamps", f"needs times: set train.targets: teacher, or name data.train.{key}; texts have none"
    if written and by_teacher:
        yield f"data.train.{key}", "has no effect, because train.targets is teacher; remove it"
    elif written and not recipe.data.timestamps:
        yield f"data.train.{key}", "has no effect, because data.timestamps is 0; remove it"


def text_faults(recipe: Any) -> Faults:
    """The faults of a recipe for text."""
    for path in _changed(recipe, AUDIO_KEYS):
        yield path, "is for audio; remove it, or set task: transcription"
    if getattr(getattr(recipe.train, "teacher", None), "top", None) is not None:
        yield "train.teacher.top", "is for audio; remove it, or set task: transcription"
    for name in ("train", "valid", "test"):
        for key in AUDIO_COLUMNS:
            if getattr(getattr(recipe.data, name, None), key, None) is not None:
                yield f"data.{name}.{key}", "is for audio; remove it, or set task: transcription"
    if recipe.evaluate.metric in METRICS:
        yield "evaluate.metric", f"{recipe.evaluate.metric} is for audio; remove it, or set task: transcription"


def _changed(recipe: Any, paths: tuple[str, ...]) -> list[str]:
    """Those of the keys whose values are not their defaults: a recipe that was written out names all of them."""
    found = []
    for path in paths:
        section, name = path.split(".")
        values = getattr(recipe, section, None)
        if values is None or not hasattr(values, name):
            continue
        if getattr(values, name) != SECTIONS[section].model_fields[name].get_default(call_default_factory=True):
            found.append(path)
    return found
