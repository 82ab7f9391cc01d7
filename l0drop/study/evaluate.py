"""Scores of outputs with their signatures, the difference to a baseline with a verdict, and tail risk.

Several systems, each with its own baseline, are one system with several seeds: there is one verdict over all of them.
Text without references is scored against a dense model's outputs (dense.txt): that measures agreement, not quality.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from l0drop.data.metrics import Scorer, bleu, scorer
from l0drop.data.score import METRICS, MetricName, Score
from l0drop.data.whole import write_whole
from l0drop.runs.evaluation import (
    Agreement,
    Difference,
    DifferenceOverBaselines,
    EvaluatedRun,
    Evaluation,
    EvaluationFolder,
    ExampleSentence,
    Judging,
    SystemRecord,
    Tail,
    is_evaluation,
    write_examples,
)
from l0drop.runs.json_file import Settings
from l0drop.runs.provenance import provenance
from l0drop.runs.run import RunFolder
from l0drop.study import significance
from l0drop.study.evaluation_text import EvaluationText
from l0drop.study.examples import chosen, segments
from l0drop.study.sentence_statistics import (
    SentenceStatistics,
    Statistics,
    counted_metrics,
    sentence_chrf,
    statistics,
)
from l0drop.study.systems import Advance, Outputs, System, outputs_of
from l0drop.study.tail import tail_risk
from l0drop.study.verdict import verdict

AGREEMENT = "scores against a dense model's outputs measure agreement with that model, not quality"


@dataclass(frozen=True)
class Judged:
    """One system's outputs with everything that is computed from them alone."""

    system: System
    outputs: Outputs
    statistics: dict[MetricName, Statistics]
    scores: dict[MetricName, Score]
    controls: dict[str, Score] = field(default_factory=dict)

    def record(self) -> SystemRecord:
        return replace(
            self.system.record(),
            scores=self.scores,
            decoding=self.outputs.decoding,
            sources_cut=None if self.outputs.decoding is None else self.outputs.cut,
            sparsity=self.outputs.sparsity,
            controls=self.controls,
        )


@dataclass(frozen=True)
class Evaluated:
    """An evaluation with its other files: outputs by file name, sentences to look at, per-sentence counts."""

    metrics: Evaluation
    texts: dict[str, list[str]]
    examples: list[ExampleSentence]
    statistics: SentenceStatistics

    def write(self, folder: Path) -> None:
        """Write the folder; metrics.json comes last, so if it exists, all files do."""
        check_folder(folder)
        paths = EvaluationFolder(folder)
        if paths.metrics.exists():
            paths.metrics.unlink()
            for file in paths.texts:
                if file.name not in self.texts:
                    file.unlink()
        for name, lines in self.texts.items():
            write_whole(folder / name, "".join(line + "\n" for line in lines))
        write_examples(self.examples, paths.examples)
        write_whole(paths.statistics, self.statistics.counts.as_bytes())
        self.metrics.write(paths.metrics)


def evaluate(
    systems: Sequence[System],
    baselines: Sequence[System],
    text: EvaluationText,
    judging: Judging,
    generation: Settings,
    *,
    starts: Sequence[str] | None = None,
    device: str | None = None,
    progress: Callable[[System], Advance] | None = None,
    known: dict[System, Judged] | None = None,
) -> Evaluated:
    """Decode, score and compare.

    Without baselines there are only scores; otherwise each system has its own baseline. starts: the model that each
    pair started from; pairs with the same start are not independent. Default: from the baselines' recipes. known:
    results of earlier calls with the same text; new results are added to it.
    """
    if baselines and len(baselines) != len(systems):
        raise ValueError(
            f"{len(systems)} systems but {len(baselines)} baselines: each needs one, the baseline with its seed "
            "(the same one may be named again)"
        )
    if starts is not None and len(starts) != len(systems):
        raise ValueError(f"{len(systems)} systems but {len(starts)} starts: name the start of each")
    if judging.documents and text.documents[-1] == 0:
        raise ValueError("documents: there is only one document; a blank line on both sides ends a document")
    known = {} if known is None else known
    for system in sorted((*systems, *baselines), key=lambda system: system.is_model):  # errors in files come early
        if system not in known:
            outputs = outputs_of(
                system, text.sources, generation, device=device, empty_source=judging.controls,
                progress=progress(system) if progress and system.is_model else None,
            )  # fmt: skip
            known[system] = judge(system, outputs, text, judging)
    pairs = [(known[system], known[baseline]) for system, baseline in zip(systems, baselines, strict=False)]
    runs: list[EvaluatedRun] = []
    texts: dict[str, list[str]] = {}
    for number, system in enumerate(systems, 1):
        ours, theirs = known[system], pairs[number - 1][1] if pairs else None
        ending = f"-{number}" if len(systems) > 1 else ""
        texts[f"hypotheses{ending}.txt"] = ours.outputs.texts
        run = EvaluatedRun(f"hypotheses{ending}.txt", ours.record())
        if theirs is not None:
            texts[f"baseline{ending}.txt"] = theirs.outputs.texts
            run = compared(run, ours, theirs, text, judging)
        runs.append(run if text.dense is None else replace(run, agreement=agreement(ours, text, judging)))
    metrics = Evaluation(
        inputs=list(text.inputs),
        lines=len(text.sources),
        scored=len(text.scored),
        one_sided=text.one_sided,
        documents=text.documents[-1] + 1,
        judging=judging,
        generation=generation,
        statistics=EvaluationFolder(Path()).statistics.name,
        runs=runs,
        made_by=provenance(),
    )
    if text.dense is not None:
        assert text.references is not None
        metrics = replace(metrics, references=f"outputs of {text.dense.name}", meaning=AGREEMENT, dense=text.dense)
        texts["dense.txt"] = text.references
    if len(pairs) > 1:
        starts = [baseline.start for baseline in baselines] if starts is None else starts
        metrics = replace(metrics, over_seeds=over_baselines(pairs, starts, text, judging))
    if (difference := metrics.difference) is not None:
        metrics = replace(metrics, verdict=verdict(difference, metrics.score_name).sentence)
    first = known[systems[0]]
    return Evaluated(
        metrics,
        texts,
        examples(first, pairs[0][1] if pairs else None, text, runs[0].tail, judging.seed),
        sentence_statistics([known[system] for system in systems], pairs, text),
    )


def judge(system: System, outputs: Outputs, text: EvaluationText, judging: Judging) -> Judged:
    """Scores and statistics of a system's outputs."""
    hyps, refs = text.of_scored(outputs.texts), text.of_scored(text.references)
    controls = {}
    if judging.controls:
        controls = control_scores(hyps, refs, outputs.without_source, scorer(judging.metric, judging.tokenize))
    return Judged(
        system,
        outputs,
        {metric: statistics(metric, hyps, refs, judging.tokenize) for metric in METRICS},
        {metric: scorer(metric, judging.tokenize)(hyps, refs) for metric in METRICS},
        controls,
    )


def control_scores(
    hyps: Sequence[str], refs: Sequence[str], without_source: str | None, score: Scorer = bleu
) -> dict[str, Score]:
    """The model's scores without the right source: what it can do without its encoder.

    `shuffled_source`: each reference with the output for another source, never its own; decoding depends on the source
    alone, so outputs are shuffled. `no_source`: every reference with the output for an empty source; omitted if that is
    not known.
    """
    if len(hyps) < 2:
        raise ValueError(f"{len(hyps)} outputs: controls need at least two, to compare each with another's reference")
    order = np.random.default_rng(1).permutation(len(hyps))
    shuffled = [""] * len(hyps)
    for index, other in zip(order, np.roll(order, 1), strict=True):
        shuffled[index] = hyps[other]
    scores = {"shuffled_source": score(shuffled, refs)}
    if without_source is not None:
        scores["no_source"] = score([without_source] * len(refs), refs)
    return scores


def compared(run: EvaluatedRun, ours: Judged, theirs: Judged, text: EvaluationText, judging: Judging) -> EvaluatedRun:
    """A run with its baseline: differences, equal outputs and tail risk."""
    outputs, outputs_baseline = text.of_scored(ours.outputs.texts), text.of_scored(theirs.outputs.texts)
    differences: dict[MetricName, Difference] = {
        metric: significance.compare(
            *_resampled_units((ours.statistics[metric], theirs.statistics[metric]), text, judging), judging.margin,
            **_resampling(judging),
        )
        for metric in METRICS
    }  # fmt: skip
    tail = _tail(ours, outputs_baseline, sentence_chrf(theirs.statistics["chrf"]), text, judging)
    same = _same(outputs, outputs_baseline)
    return replace(run, baseline=theirs.record(), differences=differences, same_outputs=same, tail=tail)


def agreement(ours: Judged, text: EvaluationText, judging: Judging) -> Agreement:
    """How far a system's outputs agree with the dense outputs that stand in for references.

    In `tail`, baseline and reference are these outputs, and `losing` is the share of sentences below 100 - 20 chrF.
    """
    dense = text.of_scored(text.references)
    perfect = np.full(len(dense), 100.0)
    same = _same(text.of_scored(ours.outputs.texts), dense)
    return Agreement(same, _tail(ours, dense, perfect, text, judging))


def _same(outputs: Sequence[str], others: Sequence[str]) -> int:
    return sum(mine == other for mine, other in zip(outputs, others, strict=True))


def _tail(ours: Judged, others: Sequence[str], chrf_others: np.ndarray, text: EvaluationText, judging: Judging) -> Tail:
    return tail_risk(
        text.of_scored(text.sources), text.of_scored(text.references), text.of_scored(ours.outputs.texts), others,
        sentence_chrf(ours.statistics["chrf"]), chrf_others, judging.languages, [line + 1 for line in text.scored],
    )  # fmt: skip


def over_baselines(
    pairs: Sequence[tuple[Judged, Judged]], starts: Sequence[str], text: EvaluationText, judging: Judging
) -> dict[MetricName, DifferenceOverBaselines]:
    """The difference over all pairs of runs, per metric; pairs with the same start count as one."""
    found: dict[MetricName, DifferenceOverBaselines] = {}
    for metric in METRICS:
        both = [
            _resampled_units((ours.statistics[metric], theirs.statistics[metric]), text, judging)
            for ours, theirs in pairs
        ]
        found[metric] = significance.compare_over_baselines(both, starts, judging.margin, **_resampling(judging))
    return found


def sentence_statistics(
    systems: Sequence[Judged], pairs: Sequence[tuple[Judged, Judged]], text: EvaluationText
) -> SentenceStatistics:
    """The statistics of all systems and baselines, as `system-1`, `baseline-1` and so on."""
    labelled = {f"system-{number}": judged.statistics for number, judged in enumerate(systems, 1)}
    labelled |= {f"baseline-{number}": theirs.statistics for number, (_, theirs) in enumerate(pairs, 1)}
    lines = [line + 1 for line in text.scored]
    return SentenceStatistics(labelled, counted_metrics(systems[0].scores), lines, list(text.documents))


@dataclass(frozen=True)
class Recomputed:
    """The numbers of an evaluation: scores by system and metric, differences of each pair, and over all pairs."""

    scores: dict[str, dict[MetricName, float]]
    differences: list[dict[MetricName, Difference]]
    over_seeds: dict[MetricName, DifferenceOverBaselines]


def recomputed(folder: Path) -> Recomputed:
    """The scores, differences and intervals of an evaluation, from its statistics file alone.

    Settings, such as the margin and which pairs share a start, are read from metrics.json; its numbers are not.
    """
    paths = EvaluationFolder(folder)
    metrics = Evaluation.read(paths.metrics)
    judging = metrics.judging
    found = SentenceStatistics.read(paths.statistics)
    numbers = range(1, 1 + sum(label.startswith("baseline-") for label in found.systems))

    def units(metric: MetricName, number: int) -> tuple[Statistics, Statistics]:
        ours, theirs = (found.systems[f"{side}-{number}"][metric] for side in ("system", "baseline"))
        if not judging.documents:
            return ours, theirs
        return ours.by_document(found.documents), theirs.by_document(found.documents)

    def over(metric: MetricName, before: DifferenceOverBaselines) -> DifferenceOverBaselines:
        starts = before.baseline_of or range(before.seeds)  # an older file: each pair is its own
        pairs = [units(metric, number) for number in numbers]
        return significance.compare_over_baselines(pairs, starts, judging.margin, **_resampling(judging))

    return Recomputed(
        scores={
            label: {metric: one.score for metric, one in by_metric.items()}
            for label, by_metric in found.systems.items()
        },
        differences=[
            {m: significance.compare(*units(m, n), judging.margin, **_resampling(judging)) for m in METRICS}
            for n in numbers
        ],
        over_seeds={metric: over(metric, before) for metric, before in metrics.over_seeds.items()},
    )


def _resampled_units(
    pair: tuple[Statistics, Statistics], text: EvaluationText, judging: Judging
) -> tuple[Statistics, Statistics]:
    if not judging.documents:
        return pair
    return pair[0].by_document(text.documents), pair[1].by_document(text.documents)


def _resampling(judging: Judging) -> dict[str, Any]:
    unit = "document" if judging.documents else "sentence"
    return {"unit": unit, "resamples": judging.resamples, "seed": judging.seed}


def examples(
    ours: Judged, theirs: Judged | None, text: EvaluationText, tail: Tail | None, seed: int
) -> list[ExampleSentence]:
    """Sentences to look at, with the dropped parts of their sources.

    Dense outputs in place of references are shown as `baseline` if there is no other, and never as `reference`.
    """
    worst = [entry.line - 1 for entry in tail.chrf.worst] if tail else []
    pieces = ours.outputs.pieces
    assert text.references is not None
    dense_outputs = [None] * len(text.sources) if text.dense is None else text.references
    return [
        ExampleSentence(
            line=line + 1,
            why=why,
            source=segments(text.sources[line], pieces[line]) if pieces else [(text.sources[line], "")],
            reference=text.references[line] if text.dense is None else None,
            baseline=theirs.outputs.texts[line] if theirs else dense_outputs[line],
            system=ours.outputs.texts[line],
        )
        for line, why in chosen(text.scored, worst, seed)
    ]


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something other than an evaluation."""
    file = EvaluationFolder(folder).metrics
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`output` {folder}: is a file; name a folder")
    if RunFolder(folder).recipe.exists():
        raise ValueError(f"`output` {folder}: is a run, whose {file.name} comes from training; name another folder")
    if file.exists() and not is_evaluation(file):
        raise ValueError(f"`output` {folder}: its {file.name} is not from an evaluation; name another folder")
