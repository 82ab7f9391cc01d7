"""The study of Whisper tiny.en: its plans, the recipes of its models, and the settings of its lists."""

from argparse import Namespace
from pathlib import Path

import pytest
import soundfile

import whisper_study as study
from l0drop import load
from tests.models import whispers


@pytest.mark.parametrize("plan", study.PLANS)
def test_a_plan_names_models_with_valid_recipes(plan: str, tmp_path: Path) -> None:
    models = study.PLANS[plan]
    assert len(models) == 5, "what fits on one GPU side by side"
    for name in models:
        recipe = study.recipe_of(Namespace(root=tmp_path), name, 100)
        assert (recipe.name, recipe.train.steps) == (name, 100)
        assert recipe.data.timestamps > 0
        assert (recipe.l0drop is None) == name.startswith(study.REFERENCE)


def test_every_model_is_trained_once() -> None:
    trained = [name for plan in study.PLANS.values() for name in plan]
    assert len(trained) == len(set(trained))
    assert study.REFERENCE in study.PLANS["first"], "which all others are compared with"
    assert set(study.MODELS) <= set(trained)
    assert set(study.BRING) <= set(trained)


def test_seeds_differ_in_nothing_else(tmp_path: Path) -> None:
    first, second = (study.recipe_of(Namespace(root=tmp_path), f"zero-50{end}", 100) for end in ("", "-seed-2"))
    assert (first.seed, second.seed) == (1, 2)
    assert second.model_copy(update={"seed": 1, "name": first.name}) == first
    whole = study.recipe_of(Namespace(root=tmp_path), "zero-50-whole", 100)
    assert (first.data.cut, whole.data.cut) == (0.7, 0.0)
    assert whole.l0drop == first.l0drop


def test_long_windows_have_room_for_times() -> None:
    settings = {"num_beams": 1, "max_new_tokens": 200}
    assert study.LISTS["pooled"].settings(settings) == settings
    assert study.LISTS["long"].settings(settings) == {"num_beams": 1}
    assert study.LISTS["timed"].settings(settings) == {"num_beams": 1, "return_timestamps": True}


def test_the_teacher_writes_both_transcripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "MOST_TOKENS", 12)
    whispers.save(whispers.build(multilingual=False), tmp_path / "whisper-tiny")
    for part in ("train", "audio_only"):
        (tmp_path / "speech" / part).mkdir(parents=True)
        soundfile.write(tmp_path / "speech" / part / "a.wav", whispers.tone(0.3, len(part)), 16_000)
        (tmp_path / "speech" / part / "transcripts.tsv").write_text("a.wav\tspeaker\t\n")
    study.teach(Namespace(root=tmp_path))
    lines = [line.split("\t") for line in (tmp_path / "teacher.tsv").read_text().splitlines()]
    assert [file for file, _, _ in lines] == ["train/a.wav", "audio_only/a.wav"]
    model = load(tmp_path / "whisper-tiny")
    for file, text, timed in lines:
        assert text == model.transcribe([tmp_path / "speech" / file], max_new_tokens=12)[0].text
        assert timed.startswith("<|0.")
        assert text != timed
