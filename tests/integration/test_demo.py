"""The demo: the whole of it in seconds with a few steps, and in minutes as users see it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from l0drop.app import demo_run as demo
from l0drop.app.demo import results_table, struck
from l0drop.recipe import Recipe


@pytest.mark.parametrize("task", ["translation", "documents"])
def test_a_short_demo_writes_what_it_promises(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = demo.demo_recipes

    def short(*arguments: Any) -> dict[str, Recipe]:
        recipes = real(*arguments)
        for name, recipe in recipes.items():
            corpora = {split: getattr(recipe.data, split) for split in ("train", "valid", "test")}
            few = {split: corpus.model_copy(update={"pairs": 60}) for split, corpus in corpora.items()}
            data = recipe.data.model_copy(update=few)
            train = recipe.train.model_copy(update={"steps": 3, "log_every": 1})
            tokenizer = recipe.tokenizer.model_copy(update={"vocab_size": recipe.tokenizer.vocab_size and 300})
            evaluate = recipe.evaluate.model_copy(update={"beams": 1, "sentences": 5, "max_new_tokens": 5})
            update = {"data": data, "train": train, "tokenizer": tokenizer, "evaluate": evaluate}
            recipes[name] = recipe.model_copy(update=update)
        return recipes

    monkeypatch.setattr(demo, "demo_recipes", short)
    titles: list[str] = []
    metrics = demo.run_demo(tmp_path, task, "weight", 0.45, 1, Console(quiet=True), titles.append)
    assert len(titles) == 4
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "trained-on" in page
    assert "<svg" in page
    assert json.loads((tmp_path / "metrics.json").read_text())["task"] == task
    assert metrics["outputs_equal_short_and_dense"] <= 60
    assert set(metrics["dropped_by_class"]) <= set(demo.CLASSES)
    assert (tmp_path / "sentences.svg").read_text().startswith("<svg")
    assert results_table(metrics).row_count == 5
    for words in metrics["sentences"]:
        assert struck(words).plain.split()[0] == words[0]["text"]
    for name in demo.SYSTEMS:
        assert (tmp_path / name / "model" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("gating", "seed"), [("zero", 1), ("zero", 2), ("mask", 1), ("weight", 1)])
def test_the_demo_keeps_its_promise(gating: str, seed: int, tmp_path: Path) -> None:
    """At least 40% of the encodings dropped, within 1 BLEU of the baseline trained on for as long."""
    command = [
        sys.executable,
        "-m",
        "l0drop",
        "demo",
        "--gating",
        gating,
        "--seed",
        str(seed),
        "--folder",
        str(tmp_path),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["sparsity"] >= 0.40
    assert metrics["difference_to_trained_on"] >= -1.0
