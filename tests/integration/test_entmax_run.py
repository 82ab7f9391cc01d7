"""Fine-tuning a baseline with sparse attention, as the docstring of l0drop.models.entmax describes."""

import shutil
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM

from l0drop.models.entmax import EntmaxModel, with_entmax
from l0drop.recipe import parse_recipe
from l0drop.runs.json_file import as_json
from l0drop.training.run import train as trained_run
from tests.training import tiny


def train(*arguments: Any, **options: Any) -> dict[str, Any]:
    """The content of metrics.json."""
    return as_json(trained_run(*arguments, **options))


def test_sparse_attention_is_trained_scored_and_saved(baseline: Path, tmp_path: Path) -> None:
    start = tmp_path / "base-entmax"
    with_entmax(AutoModelForSeq2SeqLM.from_pretrained(baseline / "model")).save_pretrained(start / "model")
    shutil.copytree(baseline / "tokenizer", start / "tokenizer")
    values = tiny.recipe(tmp_path / "text", "entmax", model={"init": str(start)}, train={"steps": 6, "warmup": 1})
    del values["tokenizer"]
    metrics = train(parse_recipe(values, "test"), tmp_path / "runs", Console(quiet=True))
    assert metrics["test"]["sentences"] == 24
    models = [AutoModelForSeq2SeqLM.from_pretrained(f / "model") for f in (start, tmp_path / "runs" / "entmax")]
    assert all(isinstance(model, EntmaxModel) for model in models)
    name = "model.decoder.layers.0.encoder_attn.q_proj.weight"
    before, after = (model.state_dict()[name] for model in models)
    assert not torch.equal(before, after)
