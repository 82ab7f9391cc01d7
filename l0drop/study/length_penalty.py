"""A finished run at several length penalties: chosen on the validation text, then used once on the test text."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from l0drop.data.text import one_line
from l0drop.data.whole import write_whole
from l0drop.decoding.corpus import described_decoding
from l0drop.runs.provenance import provenance
from l0drop.runs.run import GateRates, LengthPenaltyCurve, LengthPenaltyRow, RunFolder, RunMetrics, Scored
from l0drop.study.finished import FinishedRun


def length_penalty_curve(run: Path, penalties: Sequence[float]) -> LengthPenaltyCurve:
    """Score the validation text of a run at each length penalty; writes nothing."""
    opened = FinishedRun(run)
    texts = opened.references("valid")
    with opened.corpus("valid") as corpus:
        decoded = [opened.decode(corpus, len(texts), length_penalty=penalty).texts for penalty in penalties]
    return LengthPenaltyCurve(
        run=run.absolute().name,
        rows=[
            LengthPenaltyRow(penalty, opened.score(outputs, texts).value)
            for penalty, outputs in zip(penalties, decoded, strict=True)
        ],
        seed=opened.recipe.seed,
        decoding=described_decoding(opened.recipe.evaluate.batch_tokens, opened.generation),
        made_by=provenance(opened.model.device),
    )


def decode_test(run: Path, length_penalty: float, text: Sequence[str] = ()) -> None:
    """Decode the test text of a run that was trained without it; writes the outputs, then their score.

    text: overrides of the recipe that name the test text. Does nothing if the run has decoded a test text before.
    """
    folder = RunFolder(run)
    metrics = RunMetrics.read(folder.metrics)
    if metrics.test is not None:
        return
    opened = FinishedRun(run, text)
    references = opened.references("test")
    with opened.corpus("test") as corpus:
        decoded = opened.decode(corpus, len(references), length_penalty=length_penalty)
    outputs = [one_line(output) for output in decoded.texts]
    write_whole(folder.outputs_on("test"), "".join(f"{output}\n" for output in outputs))
    meter = decoded.meter
    rates = (meter.expected_open_rate, meter.exactly_zero, meter.exactly_one, meter.between) if meter.tokens else None
    scored = Scored(
        opened.score(decoded.texts, references),
        len(references),
        length_penalty=length_penalty,
        gates=None if rates is None else GateRates(meter.sparsity, *rates),
    )
    replace(metrics, test=scored).write(folder.metrics)
