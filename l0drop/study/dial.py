"""The dial on a trained run: scores when it keeps more or fewer encodings than it chose by itself."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForSeq2SeqLM

from l0drop.data.hints import annotator_for
from l0drop.data.metrics import scorer_of
from l0drop.data.prepare import prepare_corpus
from l0drop.data.tokenizer import load_tokenizers
from l0drop.decoding.corpus import Decoded, decode_corpus, described_decoding
from l0drop.decoding.folder import generation_of
from l0drop.models.modeling import L0DropModel
from l0drop.models.quiet import quiet_libraries
from l0drop.recipe import load_recipe
from l0drop.runs.provenance import provenance
from l0drop.runs.run import DialCurve, DialRow, RunFolder, RunMetrics
from l0drop.training.corpora import references, split_text


def dial_curve(run: Path, keeps: Sequence[float], progress: Callable[[str], None]) -> DialCurve:
    """Score the run's test text, else its validation text, as trained and at each share kept; writes nothing."""
    folder = RunFolder(run)
    if not folder.is_finished:
        raise ValueError(f"{run}: not a finished run (expected metrics.json and model/ in it)")
    quiet_libraries()
    recipe = load_recipe(folder.recipe).for_text()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder.model).to(device).eval()
    if not isinstance(model, L0DropModel):
        raise ValueError(f"{run}: this model has no gate, so there is no dial to turn")
    data, tokenizers, generation = recipe.data, load_tokenizers(run), generation_of(recipe)
    split = data.splits[-1]
    texts = references(recipe, tokenizers, split)
    trained = RunMetrics.read(folder.metrics)
    scored_there = trained.test if split == "test" else trained.valid
    rows = []
    with TemporaryDirectory() as temporary:
        corpus = prepare_corpus(
            split_text(recipe, split, tokenizers),
            tokenizers,
            Path(temporary) / split,
            max_source=data.max_source,
            max_target=data.max_target,
            documents=data.documents,
            annotator=annotator_for(run, tokenizers.source),
            instead=folder.data / split,
        )

        def decode(keep: float | None) -> Decoded:
            with model.dial(keep=keep):
                return decode_corpus(
                    model, corpus, range(len(texts)), tokenizers.target, pad_id=tokenizers.source.pad_token_id,
                    batch_tokens=recipe.evaluate.batch_tokens, generation=generation,
                )  # fmt: skip

        progress("warming up")
        decode(None)
        for keep in (None, *keeps):
            progress("as trained" if keep is None else f"keep {keep:g}")
            start = time.process_time()
            decoded = decode(keep)
            seconds = time.process_time() - start
            score = scorer_of(recipe.evaluate)(decoded.texts, texts)
            rows.append(DialRow(keep, decoded.meter.sparsity, score, seconds))
    return DialCurve(
        run=run.absolute().name,
        split=split,
        sentences=len(texts),
        references=None if scored_there is None else scored_there.references,
        rows=rows,
        seed=recipe.seed,
        decoding=described_decoding(recipe.evaluate.batch_tokens, generation),
        made_by=provenance(model.device),
    )
