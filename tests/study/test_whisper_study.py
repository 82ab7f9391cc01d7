"""The study of Whisper tiny.en: its plans, the recipes of its models, and the settings of its lists."""

from argparse import Namespace
from pathlib import Path

import pytest

import whisper_study as study


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
