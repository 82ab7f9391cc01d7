"""The dial on a trained run: how good its outputs are when more or fewer encodings are kept than it chose."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM

from l0drop.decoding.corpus import decode_corpus
from l0drop.models.modeling import L0DropModel
from l0drop.provenance import provenance
from l0drop.recipe import load_recipe
from l0drop.training.assemble import references
from l0drop.training.run import prepare
from l0drop.training.trainer import decoding, scored


def dial_curve(run: Path, keeps: Sequence[float], progress: Callable[[str], None]) -> dict[str, Any]:
    """Score the run's test text, else its validation text, as trained and at each share kept."""
    if not (run / "metrics.json").exists():
        raise ValueError(f"{run}: no finished run (expected metrics.json and model/ in it)")
    recipe = load_recipe(run / "recipe.yaml")
    _, tokenizers, corpora = prepare(recipe, run.parent, Console(quiet=True))
    split = "test" if "test" in corpora else "valid"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForSeq2SeqLM.from_pretrained(run / "model").to(device).eval()
    if not isinstance(model, L0DropModel):
        raise ValueError(f"{run}: this model has no gate, so there is no dial to turn")
    texts = references(recipe, tokenizers, split)
    rows = []
    for keep in (None, *keeps):
        progress("as trained" if keep is None else f"keep {keep:g}")
        start = time.process_time()
        with model.dial(keep=keep):
            decoded = decode_corpus(
                model, corpora[split], range(len(texts)), tokenizers.target, pad_id=tokenizers.source.pad_token_id,
                **decoding(recipe),
            )  # fmt: skip
        seconds = time.process_time() - start
        score = scored(decoded.texts, texts, recipe.evaluate)
        rows.append(
            {"keep": keep, "sparsity": decoded.meter.sparsity, "score": score.as_json(), "cpu_seconds": seconds}
        )
    return {
        "run": recipe.name,
        "split": split,
        "sentences": len(texts),
        "rows": rows,
        "seed": recipe.seed,
        "decoding": decoding(recipe),
        **provenance(model.device),
    }
