"""Every recipe of the project runs: a few steps, on a tiny corpus with the same keys, with tiny sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset, DatasetDict
from rich.console import Console

from l0drop.recipe import parse_recipe
from l0drop.runs.json_file import as_json
from l0drop.training.run import train as trained_run
from tests.models import whispers
from tests.snippets import ROOT
from tests.training import tiny, tiny_speech

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"), key=lambda path: ("base" not in path.name, path.name))
SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "heads": 2, "ffn": 64}


def train(*arguments: Any, **options: Any) -> dict[str, Any]:
    """The content of metrics.json."""
    return as_json(trained_run(*arguments, **options))


def nested(path: str, value: str) -> Any:
    head, _, rest = path.partition(".")
    return {head: nested(rest, value) if rest else value}


def merged(one: Any, other: Any) -> Any:
    return {**one, **other, **{k: merged(one[k], other[k]) for k in one.keys() & other.keys()}}


def stand_in(corpus: dict[str, Any], folder: Path, seed: int, lines: int) -> dict[str, Any]:
    """A small corpus with the keys and the format of a recipe's corpus."""
    if "toy" in corpus:
        return {**corpus, "pairs": lines}
    folder.mkdir(parents=True, exist_ok=True)
    files = tiny.write_text(folder, "text", lines, seed)
    sides = {side: Path(file).read_text(encoding="utf-8").splitlines() for side, file in files.items()}
    if "source" in corpus:
        return {key: files[key] for key in corpus}
    fields = {"source": corpus["source_field"], "target": corpus.get("target_field")}
    rows = [
        merged(nested(fields["source"], source), nested(fields["target"], target) if fields["target"] else {})
        for source, target in zip(sides["source"], sides["target"], strict=True)
    ]
    if "jsonl" in corpus:
        file = folder / "text.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return {**corpus, "jsonl": str(file)}
    DatasetDict({corpus["split"]: Dataset.from_list(rows)}).save_to_disk(str(folder / "hub"))
    return {k: v for k, v in {**corpus, "hub": str(folder / "hub")}.items() if k != "config"}


def audio_stand_in(corpus: dict[str, Any], folder: Path, seed: int, clips: int) -> dict[str, Any]:
    """A small list of audio files with the keys of a recipe's corpus."""
    file = Path(tiny_speech.write_audio(folder.parent, folder.name, clips, seed))
    columns = (line.split("\t") for line in file.read_text().splitlines())
    file.write_text("".join(f"{name}\t{text}\n" for name, _, text in columns))
    return {**corpus, "tsv": str(file)}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, baseline: Path) -> Path:
    return tmp_path_factory.mktemp("recipes")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path: Path, workplace: Path, baseline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)  # recipes name runs/... relative to the working directory
    run_recipe(path, workplace, baseline)


def run_recipe(path: Path, workplace: Path, baseline: Path) -> None:
    """Train a recipe with tiny sizes, and before it the recipe of the run that it starts from, if that is missing."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if (start := values["model"].get("init")) is not None and not Path(start).exists():
        run_recipe(path.with_name(f"{Path(start).name}.yaml"), workplace, baseline)
    lines = 40 if "valid" in values["data"] else 120  # enough to hold some out
    for split, seed in {"train": 1, "valid": 2, "test": 3}.items():
        if split in values["data"]:
            corpus = values["data"][split]
            audio = "tsv" in corpus
            values["data"][split] = (audio_stand_in if audio else stand_in)(
                corpus, workplace / path.stem / split, seed, 8 if audio else lines
            )
    is_audio = values.get("task") == "transcription"
    if "transformer" in values["model"]:
        values["model"]["transformer"] = {**(values["model"]["transformer"] or {}), **SIZES}
        is_trained = "pretrained" not in values["tokenizer"]
        values["tokenizer"] |= {"vocab_size": 90} if is_trained else {"pretrained": str(baseline / "tokenizer")}
    if is_audio:
        folder = workplace / "whisper"
        values["model"]["pretrained"] = str(
            folder if folder.exists() else whispers.save(whispers.build(multilingual=False), folder)
        )
        values["data"]["max_target"] = 20
        if values["train"].get("teacher"):  # a random teacher never ends, and longer texts with times are left out
            values["train"]["teacher"]["max_new_tokens"] = 12
    elif "pretrained" in values["model"]:
        values["model"]["pretrained"] = str(baseline / "model")
        values["data"] |= {"max_source": 64, "max_target": 64}  # the positions of the small model
    changes = {"steps": 2, "save_every": 2, "eval_every": 2, "log_every": 1, "warmup": 1}
    changes |= {"batch_clips": 4} if is_audio else {"batch_tokens": 20_000}
    values["train"] = {**values["train"], **changes, "average": 1}
    values["evaluate"] = {**values.get("evaluate", {}), "beams": 1, "sentences": 4, "max_new_tokens": 6}
    metrics = train(parse_recipe(values, path.name), Path("runs"), Console(quiet=True))
    assert metrics["steps"] == 2
    assert ("sparsity" in metrics["valid"]) == ("l0drop" in values)
    gated = json.loads(Path("runs", values["name"], "model", "config.json").read_text()).get("l0drop")
    if gated is not None:
        assert gated["lambda_"] == values["l0drop"].get("lambda_")
    if "valid" not in values["data"]:
        assert metrics["held_out"] == {"valid": 6, "test": 6, "removed_from_training": metrics_removed(metrics)}
    references = {metrics[split].get("references") for split in ("valid", "test") if split in metrics}
    source_only = set(values["data"]["train"]) == {"source"}
    assert references == ({f"outputs of {baseline / 'model'}"} if source_only else {None})


def metrics_removed(metrics: dict[str, Any]) -> int:
    return 120 - metrics["corpora"]["train"]["lines"]
