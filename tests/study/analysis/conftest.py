"""Sparse runs without training: the tiny baseline with a gate that closes about half of its encodings."""

from pathlib import Path

import pytest
import torch

from l0drop import L0DropConfig, sparsify
from l0drop.data.tokenizer import load_tokenizers
from l0drop.decoding.folder import load_model
from l0drop.models.entmax import with_entmax
from l0drop.recipe import dump_recipe, parse_recipe
from tests.models import zoo
from tests.training import tiny


def write_run(folder: Path, baseline: Path, name: str, model, **changes) -> Path:
    """A run folder as training leaves it; `changes` are sections of its recipe."""
    values = tiny.sparse(folder / "text", str(baseline), name, **changes)
    run = folder / name
    model.save_pretrained(run / "model")
    (run / "tokenizer").symlink_to(baseline / "tokenizer", target_is_directory=True)
    (run / "recipe.yaml").write_text(dump_recipe(parse_recipe(values, "test")), encoding="utf-8")
    return run


def sparse_model(baseline: Path, gating: str = "zero", closed: float = 0.5):
    """The baseline with an untrained gate that drops about this share of some sentences' encodings."""
    base = load_model(str(baseline), baseline / "model", torch.float32)
    model = sparsify(base, L0DropConfig(gating=gating)).eval()
    sentences = ["the dog sees a cat the stone .", "a bird finds the road .", "the river knows a house a tree ."]
    batch = load_tokenizers(baseline).source(sentences, padding=True, return_tensors="pt")
    return zoo.spread_gates(model, closed, batch={name: batch[name] for name in ("input_ids", "attention_mask")})


@pytest.fixture(scope="session")
def runs(baseline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs sparse, mask and entmax, all made from the baseline."""
    folder = tmp_path_factory.mktemp("runs")
    for name, gating in (("sparse", "zero"), ("mask", "mask")):
        write_run(folder, baseline, name, sparse_model(baseline, gating), l0drop={"gating": gating, "lambda_": 0.3})
    base = load_model(str(baseline), baseline / "model", torch.float32)
    write_run(folder, baseline, "entmax", with_entmax(base))
    return folder
