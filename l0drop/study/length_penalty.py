"""Scores of a finished run at several length penalties, to choose one on the validation text."""

from collections.abc import Sequence
from pathlib import Path

from l0drop.decoding.corpus import described_decoding
from l0drop.runs.provenance import provenance
from l0drop.runs.run import LengthPenaltyCurve, LengthPenaltyRow, Split
from l0drop.study.finished import FinishedRun


def length_penalty_curve(run: Path, penalties: Sequence[float]) -> LengthPenaltyCurve:
    """Score the validation and the test text of a run at each length penalty; writes nothing."""
    opened = FinishedRun(run)

    def scores(split: Split) -> list[float]:
        texts = opened.references(split)
        with opened.corpus(split) as corpus:
            decoded = [opened.decode(corpus, len(texts), length_penalty=penalty).texts for penalty in penalties]
        return [opened.score(outputs, texts).value for outputs in decoded]

    rows = [LengthPenaltyRow(*row) for row in zip(penalties, scores("valid"), scores("test"), strict=True)]
    return LengthPenaltyCurve(
        run=run.absolute().name,
        rows=rows,
        seed=opened.recipe.seed,
        decoding=described_decoding(opened.recipe.evaluate.batch_tokens, opened.generation),
        made_by=provenance(opened.model.device),
    )
