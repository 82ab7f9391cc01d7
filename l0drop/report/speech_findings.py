"""The content of a report on a run with audio, gathered from its files; nothing is measured here."""

from dataclasses import dataclass, replace
from pathlib import Path

from l0drop.data.text import read_lines
from l0drop.report.findings import SOFTWARE, software
from l0drop.report.speech_tables import names
from l0drop.runs.demo import is_demo_task
from l0drop.runs.evaluation import EvaluationFolder, check_margin
from l0drop.runs.json_file import Settings
from l0drop.runs.run import RunFolder, RunMetrics
from l0drop.runs.speech import (
    SPEECH_ANALYSIS,
    SPEECH_EVALUATION,
    ClipChange,
    ClipCounts,
    SpeechAnalysis,
    SpeechEvaluation,
    kind_of,
)
from l0drop.runs.sweep import SweepFolder
from l0drop.runs.table import Table
from l0drop.study.speech.evaluate import error_verdict

RATES = ("WER", "CER")


@dataclass(frozen=True)
class WorstClip:
    """A clip whose error rate rose, and the transcripts by the names of their models; none if they are not stored."""

    change: ClipChange
    transcripts: dict[str, str]


@dataclass(frozen=True)
class SpeechFindings:
    """The content of a report, except for the figures.

    margin: for the verdicts. missing: notes on missing parts, each with the command that adds it.
    """

    name: str
    evaluation: SpeechEvaluation | None
    analysis: SpeechAnalysis | None
    trained: RunMetrics | None
    recipe: str
    margin: float | None
    worst: list[WorstClip]
    missing: list[str]

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict on each system that was compared, by its name."""
        if self.evaluation is None:
            return {}
        named = zip(names(self.evaluation), self.evaluation.systems, strict=False)
        compared = {name: one.differences["wer"] for name, one in named if "wer" in one.differences}
        return {name: error_verdict(replace(one, margin=self.margin or one.margin)) for name, one in compared.items()}

    @property
    def summary(self) -> list[str]:
        """The verdict, tail risk, and what was scored."""
        evaluation = self.evaluation
        if evaluation is None:
            return [f"{self.name} has not been compared with a dense model yet.", *self._of_training()]
        first = evaluation.systems[0]
        name = names(evaluation)[0]
        drops = "" if first.sparsity is None else f"drops {first.sparsity:.1%} of the rows that audio covers and "
        scored = (
            f"{name} {drops}reaches {first.scores['wer'].value:.2f} WER and {first.scores['cer'].value:.2f} CER on "
            f"{evaluation.clips:,} clips, {evaluation.seconds / 60:.1f} minutes of audio."
        )
        if name not in self.verdicts or first.tail is None:
            return [scored, "It has not been compared with a dense model yet."]
        tail = (
            f"The word error rate of {first.tail.rising:,} clips rises by more than {first.tail.threshold:.0f} points "
            f"against {names(evaluation)[-1]}, that of {first.tail.falling:,} falls as much."
        )
        return [f"Compared with {names(evaluation)[-1]}: {self.verdicts[name]}", tail, scored]

    def _of_training(self) -> list[str]:
        last = None if self.trained is None else self.trained.last
        if last is None:
            return []
        drops = "" if last.sparsity is None else f"drops {last.sparsity:.1%} of the rows that audio covers and "
        against = "" if last.references is None else f", against {last.references}"
        scored = f"{last.score.value:.2f} {last.score.name} on {last.sentences:,} clips"
        return [f"After training it {drops}reaches {scored}{against}."]

    @property
    def signatures(self) -> dict[str, str]:
        """Of all scores, by name."""
        found = [] if self.trained is None else [one.score for one in (self.trained.valid, self.trained.test) if one]
        if self.evaluation is not None:
            found += self.evaluation.systems[0].scores.values()
        return {score.name: score.signature for score in found}

    @property
    def provenance(self) -> dict[str, Settings]:
        """Settings and software of training, evaluation, decoding and analysis."""
        found: dict[str, Settings] = {}
        if (trained := self.trained) is not None:
            settings = {"steps": trained.steps, "seed": trained.seed, "dtype": trained.dtype}
            found["training"] = {**settings, **software(trained.made_by)}
        if self.evaluation is not None:
            found["evaluation"] = software(self.evaluation.made_by)
            decoding = self.evaluation.systems[0].decoding or {}
            found["decoding"] = {key: value for key, value in decoding.items() if key not in SOFTWARE}
        if self.analysis is not None:
            found["analysis"] = software(self.analysis.made_by)
        return found


def is_audio(folder: Path) -> bool:
    """Whether a folder's files are about audio: an evaluation, an analysis, or a run scored by its error rate."""
    run = RunFolder(folder)
    kinds = kind_of(run.analysis), kind_of(EvaluationFolder(run.evaluation).metrics)
    if SPEECH_ANALYSIS in kinds or SPEECH_EVALUATION in kinds:
        return True
    trained = _trained(run)
    return trained is not None and trained.last is not None and trained.last.score.name in RATES


def gather_speech(folder: Path, margin: float | None = None) -> SpeechFindings:
    """The findings on a folder; `margin` replaces the margin of the evaluation."""
    if margin is not None:
        check_margin(margin)
    run, metrics = RunFolder(folder), EvaluationFolder(RunFolder(folder).evaluation).metrics
    trained = _trained(run)
    evaluation = SpeechEvaluation.read(metrics) if metrics.is_file() else None
    analysis = SpeechAnalysis.read(run.analysis) if run.analysis.is_file() else None
    missing = []
    if evaluation is None or evaluation.baseline is None:
        missing.append(f"Nothing was compared with a dense model: l0drop evaluate {folder} --baseline MODEL")
    if analysis is None:
        missing.append(f"Dropped rows were not analysed, and no spectrogram was drawn: l0drop analyze {folder}")
    else:
        missing += [f"{part[0].upper()}{part[1:]}: {why}" for part, why in analysis.left_out.items()]
    worst: list[WorstClip] = []
    if evaluation is not None and (tail := evaluation.systems[0].tail) is not None:
        texts = _transcripts(run.evaluation, evaluation)
        if tail.worst and not texts:
            missing.append(f"{run.evaluation}: the transcripts of its clips are gone, so none are shown")
        sides = (names(evaluation)[-1], names(evaluation)[0])
        worst = [
            WorstClip(one, dict(zip(sides, texts[one.line], strict=True)) if one.line in texts else {})
            for one in tail.worst
        ]
    return SpeechFindings(
        name=folder.resolve().name if trained is None else trained.name,
        evaluation=evaluation,
        analysis=analysis,
        trained=trained,
        recipe=run.recipe.read_text(encoding="utf-8") if run.recipe.is_file() else "",
        margin=margin,
        worst=worst,
        missing=missing,
    )


def training_table(trained: RunMetrics) -> Table:
    """What was trained, and how it scored then."""
    rows = [["training clips", f"{found.pairs:,}"] for split, found in trained.corpora.items() if split == "train"]
    rows += [["steps", f"{trained.steps:,}"], ["seed", str(trained.seed)]]
    if trained.lambda_ is not None:
        rows.append(["λ at the end", f"{trained.lambda_:.3g}"])
    if (found := trained.calibration) is not None:
        rows += [["target sparsity", f"{found.target:.1%}"], ["sparsity before calibration", f"{found.before:.1%}"]]
        rows.append(["sparsity after calibration", f"{found.after:.1%}"])
    for name, scored in (("validation", trained.valid), ("test", trained.test)):
        if scored is not None:
            against = "" if scored.references is None else f", against {scored.references}"
            rows.append(
                [f"{scored.score.name}, {scored.sentences:,} {name} clips{against}", f"{scored.score.value:.2f}"]
            )
            if scored.sparsity is not None:
                rows.append([f"sparsity of covered rows, {name} clips", f"{scored.sparsity:.1%}"])
    return Table(["training", "value"], rows)


def _trained(run: RunFolder) -> RunMetrics | None:
    if not run.is_finished or SweepFolder(run.path).is_sweep or is_demo_task(run.metrics):
        return None
    return RunMetrics.read(run.metrics)


def _transcripts(folder: Path, evaluation: SpeechEvaluation) -> dict[int, tuple[str, str]]:
    """The transcripts of the baseline and of the first system, by line of the list; empty if a file is gone."""
    assert evaluation.baseline is not None
    files = [folder / evaluation.baseline.transcripts, folder / evaluation.systems[0].transcripts]
    statistics = EvaluationFolder(folder).statistics
    if not all(file.is_file() for file in (*files, statistics)):
        return {}
    theirs, ours = (list(read_lines(file)) for file in files)
    return dict(zip(ClipCounts.read(statistics).lines, zip(theirs, ours, strict=True), strict=True))
