"""The dial on a trained run: scores when it keeps more or fewer encodings than it chose by itself."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from l0drop.decoding.corpus import described_decoding
from l0drop.models.modeling import L0DropModel
from l0drop.runs.provenance import provenance
from l0drop.runs.run import DialCurve, DialRow, RunFolder, RunMetrics
from l0drop.study.finished import FinishedRun


def dial_curve(run: Path, keeps: Sequence[float], say: Callable[[str], None]) -> DialCurve:
    """Score the run's test text, else its validation text, as trained and at each share kept; writes nothing."""
    opened = FinishedRun(run)
    if not isinstance(opened.model, L0DropModel):
        raise ValueError(f"{run}: this model has no gate, so there is no dial to turn")
    recipe = opened.recipe
    split = recipe.data.splits[-1]
    texts = opened.references(split)
    trained = RunMetrics.read(RunFolder(run).metrics)
    scored_there = trained.test if split == "test" else trained.valid
    rows = []
    with opened.corpus(split) as corpus:
        say("warming up")
        opened.decode(corpus, len(texts))
        for keep in (None, *keeps):
            say("as trained" if keep is None else f"keep {keep:g}")
            start = time.process_time()
            with opened.model.dial(keep=keep):
                decoded = opened.decode(corpus, len(texts))
            seconds = time.process_time() - start
            rows.append(DialRow(keep, decoded.meter.sparsity, opened.score(decoded.texts, texts), seconds))
    return DialCurve(
        run=run.absolute().name,
        split=split,
        sentences=len(texts),
        references=None if scored_there is None else scored_there.references,
        rows=rows,
        seed=recipe.seed,
        decoding=described_decoding(recipe.evaluate.batch_tokens, opened.generation),
        made_by=provenance(opened.model.device),
    )
