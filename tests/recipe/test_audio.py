"""Recipes for audio: their keys, and the keys that are refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from l0drop.recipe import RecipeError, dump_recipe, load_recipe, parse_recipe

SPEECH: dict[str, Any] = {
    "name": "speech",
    "task": "transcription",
    "data": {"train": {"tsv": "a.tsv"}, "valid": {"jsonl": "b.jsonl", "source_field": "audio", "target_field": "text"}},
    "model": {"pretrained": "whisper"},
    "train": {"steps": 10, "batch_clips": 8},
    "evaluate": {"metric": "wer"},
}


def faults(path: str, value: Any, base: dict[str, Any] = SPEECH) -> dict[str, str]:
    """Key paths and messages of the errors of a recipe with one key changed."""
    values = copy.deepcopy(base)
    *above, last = path.split(".")
    section = values
    for name in above:
        section = section.setdefault(name, {})
    section[last] = value
    with pytest.raises(RecipeError) as error:
        parse_recipe(values, "r.yaml")
    return dict(line.removeprefix("r.yaml: ").split(": ", 1) for line in str(error.value).splitlines())  # type: ignore[misc]


def test_a_recipe_for_audio_survives_being_written() -> None:
    recipe = parse_recipe({**SPEECH, "l0drop": {"lambda_": 0.1, "cut_padding": 0.5}}, "r.yaml")
    assert recipe.is_audio
    assert parse_recipe(yaml.safe_load(dump_recipe(recipe)), "again") == recipe
    with pytest.raises(ValueError, match="speech: is a run on audio"):
        recipe.for_text()


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("train.batch_tokens", 5, "is for text"),
        ("train.fast", True, "is for text"),
        ("train.capture", False, "is for text"),
        ("data.source_prefix", "x", "is for text"),
        ("data.max_source", 100, "is for text"),
        ("evaluate.tokenize", "zh", "is for text"),
        ("evaluate.metric", "bleu", "should be wer or cer for audio, not bleu"),
        ("train.batch_clips", None, "is missing: the number of clips of a step"),
        ("data.valid", {"source": "a", "target": "b"}, "audio is listed in a tsv or jsonl file"),
        ("l0drop.gate", "pos", "pos is a rule for text"),
        ("l0drop.shortener", "merge", "merge is for text"),
        ("data.join", 1.5, "should be less than or equal to 1"),
        ("train.teacher.top", 0, "should be greater than or equal to 1"),
        ("data.timestamps", 0.5, "needs times: set train.targets: teacher, or name data.train.timed_column"),
        ("data.timestamps", -0.1, "should be greater than or equal to 0"),
        ("data.cut", 0.5, "needs join and timestamps"),
        ("data.train.timed_column", 2, "has no effect, because data.timestamps is 0"),
        ("data.train.target_column", None, "is missing; only train.targets: teacher works without targets"),
    ],
)
def test_what_audio_refuses(path: str, value: Any, problem: str) -> None:
    assert faults(path, value)[path].startswith(problem)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("data.join", 0.5),
        ("data.timestamps", 0.5),
        ("data.train.timed_column", 2),
        ("train.batch_clips", 8),
        ("train.teacher.top", 8),
        ("evaluate.metric", "cer"),
        ("l0drop.cut_padding", 1),
    ],
)
def test_what_text_refuses(path: str, value: Any) -> None:
    text = {
        "name": "text",
        "data": {"train": {"tsv": "a.tsv"}, "valid": {"tsv": "b.tsv"}},
        "model": {"pretrained": "marian"},
        "l0drop": {"lambda_": 0.1},
        "train": {"steps": 10},
    }
    assert "is for audio; remove it, or set task: transcription" in faults(path, value, text)[path]


def test_faults_name_their_line(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump({**SPEECH, "train": {"batch_clips": 8, "compile": True, "steps": 3}}))
    with pytest.raises(RecipeError, match=r"r\.yaml, line \d+: train\.compile: is for text"):
        load_recipe(file)


def test_an_encoder_with_random_weights_is_trained() -> None:
    values = {**SPEECH, "task": "translation", "model": {"transformer": {}}, "tokenizer": {"vocab_size": 90}}
    values |= {"train": {"steps": 3, "freeze": "encoder"}, "evaluate": {}}
    values["data"] = {"train": {"tsv": "a.tsv"}}
    with pytest.raises(RecipeError, match=r"train\.freeze: encoder needs a trained model"):
        parse_recipe(values, "r.yaml")


def test_stored_distributions_need_a_weight() -> None:
    base = {**SPEECH, "train": {**SPEECH["train"], "targets": "teacher", "teacher": {"weight": 0}}}
    assert faults("train.teacher.top", 8, base)["train.teacher.top"].startswith("has no effect")


def test_a_list_with_times_needs_no_teacher() -> None:
    data = {**SPEECH["data"], "train": {"tsv": "a.tsv", "timed_column": 2}, "timestamps": 0.5}
    assert parse_recipe({**SPEECH, "data": data}, "r.yaml").data.timestamps == 0.5
    taught = {**SPEECH, "data": data, "train": {**SPEECH["train"], "targets": "teacher", "teacher": {}}}
    with pytest.raises(RecipeError, match=r"data\.train\.timed_column: has no effect, because train\.targets"):
        parse_recipe(taught, "r.yaml")
