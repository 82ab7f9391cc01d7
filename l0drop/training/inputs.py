"""Check that the files and models that a recipe names exist, before a run writes anything."""

from collections.abc import Iterator
from pathlib import Path

from l0drop.data.text import CorpusError
from l0drop.decoding.folder import check_exists
from l0drop.recipe import JsonlCorpus, Recipe, TextCorpus, TsvCorpus
from l0drop.runs.run import RunFolder

FILE_KEYS: dict[type, tuple[str, ...]] = {
    TextCorpus: ("source", "target"),
    TsvCorpus: ("tsv",),
    JsonlCorpus: ("jsonl",),
}
"""For each kind of corpus, the keys that name files."""


def check_inputs(recipe: Recipe, folder: Path) -> None:
    """Raise an error that names the key if a text file is missing, or a model that a new run in `folder` starts from.

    A run with a tokenizer has started from its model, which later steps may not need.
    """
    for key, path in text_files(recipe):
        if not Path(path).is_file():
            problem = "is not a file" if Path(path).exists() else "there is no such file"
            raise CorpusError(f"{path}: {problem} ({key} in the recipe {recipe.name})")
    if RunFolder(folder).tokenizer.is_dir():
        return
    if recipe.model.init is not None and not Path(recipe.model.init).is_dir():
        raise ValueError(f"{recipe.model.init}: there is no such folder (model.init); train its recipe first")
    check_named("model.pretrained", recipe.model.pretrained, "config.json")
    check_named("tokenizer.pretrained", recipe.tokenizer.pretrained, "tokenizer_config.json")
    teacher = recipe.train.teacher
    if recipe.train.targets == "teacher" and teacher is not None and teacher.model != "init":
        check_named("train.teacher.model", teacher.model, "config.json")


def text_files(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The text files of a recipe, each with its key."""
    for split in ("train", "valid", "test"):
        corpus = getattr(recipe.data, split)
        for field in FILE_KEYS.get(type(corpus), ()):
            if (path := getattr(corpus, field)) is not None:
                yield f"data.{split}.{field}", path


def check_named(key: str, name: str | None, file: str) -> None:
    """Check a key that names a local folder or a repository on the hub that has `file`."""
    if name is None:
        return
    try:
        check_exists(name, file)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
