"""The clips that a study of speech reads, and the decoding settings of a run's recipe."""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from l0drop.data.audio_list import open_audio
from l0drop.data.speech_targets import SpeechTargets
from l0drop.data.spoken import SpokenClip, read_spoken, recipe_clips
from l0drop.data.text import CorpusError
from l0drop.data.tokenizer import read_tokenizer
from l0drop.decoding.folder import generation_of
from l0drop.recipe import Recipe, load_recipe
from l0drop.runs.run import RunFolder


def audio_recipe(run: Path | None) -> Recipe | None:
    """The recipe of a run on audio; None without a run."""
    if run is None:
        return None
    recipe = load_recipe(RunFolder(run).recipe)
    if not recipe.is_audio:
        raise ValueError(f"{run}: is a run on text, and `audio` is for models that read audio")
    return recipe


def clips_to_score(run: Path | None, audio: Path | None) -> tuple[Path, list[SpokenClip]]:
    """A list of clips and its file: the one given, or the test clips of a run's recipe (validation without a test)."""
    if audio is not None:
        return audio, read_spoken(audio)
    recipe = audio_recipe(run)
    if recipe is None:
        raise ValueError("`audio` is needed: the model belongs to no run with test clips")
    split = "test" if "test" in recipe.data.splits else "valid"
    try:
        return open_audio(recipe.data, split).file, recipe_clips(recipe.data, split)
    except CorpusError as error:
        raise CorpusError(f"data.{split} of {run}: {error}; `audio` names another list") from error


def recipe_generation(run: Path | None) -> dict[str, Any]:
    """The settings that training decodes with: those of the recipe, its language, no timestamps."""
    recipe = audio_recipe(run)
    if recipe is None or run is None:
        return {}
    model = RunFolder(run).model
    settings = GenerationConfig.from_pretrained(model)
    targets = SpeechTargets.of(read_tokenizer(model), settings, recipe.data.language, str(model))
    return {**generation_of(recipe), **targets.generation}
