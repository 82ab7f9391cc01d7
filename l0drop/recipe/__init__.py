"""One experiment as typed, validated data.

A recipe is a YAML file with the sections of `Recipe`; `load_recipe` reads it and reports all of its errors at once.
Relative paths in a recipe are relative to the working directory, not to the recipe.

This package imports neither torch nor transformers, so that an invalid recipe fails immediately.

checks.py     the base class of sections, and their errors
data.py       text and tokenizer
model.py      the model and its gates
training.py   training and scoring
audio.py      keys for audio, keys for text
recipe.py     the whole recipe
reading.py    from YAML and back
reference.py  the page of all keys
"""

from l0drop.recipe.checks import RecipeError, Section
from l0drop.recipe.data import (
    Corpus,
    Data,
    HubCorpus,
    JsonlCorpus,
    TextCorpus,
    Tokenizer,
    ToyCorpus,
    TsvCorpus,
)
from l0drop.recipe.model import L0Drop, Model, Ramp, Transformer
from l0drop.recipe.reading import dump_recipe, load_recipe, override_recipe, parse_recipe
from l0drop.recipe.recipe import Recipe
from l0drop.recipe.training import Evaluate, Teacher, Train

__all__ = [
    "Corpus",
    "Data",
    "Evaluate",
    "HubCorpus",
    "JsonlCorpus",
    "L0Drop",
    "Model",
    "Ramp",
    "Recipe",
    "RecipeError",
    "Section",
    "Teacher",
    "TextCorpus",
    "Tokenizer",
    "ToyCorpus",
    "Train",
    "Transformer",
    "TsvCorpus",
    "dump_recipe",
    "load_recipe",
    "override_recipe",
    "parse_recipe",
]
