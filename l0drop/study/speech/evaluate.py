"""Error rates of transcripts, per speaker too, and their differences to a baseline with a verdict.

Intervals are a paired bootstrap over clips within their speaker: speakers differ more than clips, and the list decides
which speakers there are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from l0drop.data.score import Score
from l0drop.data.speech_metrics import ClipErrors, Unit, cer, clip_errors, wer
from l0drop.data.spoken import SpokenClip
from l0drop.data.text import CorpusError, file_stamp
from l0drop.data.whole import write_whole
from l0drop.decoding.speech import BATCH_CLIPS
from l0drop.runs.evaluation import EvaluationFolder, FileStamp
from l0drop.runs.json_file import Settings
from l0drop.runs.provenance import provenance
from l0drop.runs.run import DialRow, RunFolder
from l0drop.runs.speech import (
    COLUMNS,
    ERROR_RATES,
    SPEECH_EVALUATION,
    ClipCounts,
    ErrorDifference,
    ErrorRate,
    SpeakerErrors,
    SpeechEvaluation,
    SpeechJudging,
    SpeechSystem,
    kind_of,
)
from l0drop.study.significance import LEVEL, quantiles, resampled
from l0drop.study.speech.source import clips_to_score, recipe_generation
from l0drop.study.speech.tail import speech_tail
from l0drop.study.speech.transcripts import Advance, Transcribed, transcribed
from l0drop.study.systems import System
from l0drop.study.verdict import judged

UNITS: dict[ErrorRate, Unit] = {"wer": "word", "cer": "character"}


@dataclass(frozen=True)
class ClipStatistics:
    """Counts per clip, in the order of `COLUMNS`; the rate of their sum is the error rate of the list."""

    rows: np.ndarray

    @staticmethod
    def score_of(sums: np.ndarray) -> float:
        """Errors per 100 words or characters of the references."""
        return 100 * float(sums[:3].sum() / sums[3])

    @property
    def score(self) -> float:
        return self.score_of(self.rows.sum(0))

    @classmethod
    def of(cls, clips: Sequence[ClipErrors]) -> "ClipStatistics":
        return cls(np.array([[getattr(clip, column) for column in COLUMNS] for clip in clips], dtype=np.float64))


def compare_errors(
    metric: ErrorRate,
    system: ClipStatistics,
    baseline: ClipStatistics,
    speakers: Sequence[str],
    judging: SpeechJudging,
) -> ErrorDifference:
    """The difference of two systems on the same clips, resampled within their speakers."""
    if len(system.rows) < 2:
        raise ValueError("there is only one clip, so there is nothing to resample")
    ours, theirs = resampled([system, baseline], judging.resamples, judging.seed, speakers)
    differences = ours - theirs
    p = (1 + int((differences >= judging.margin).sum())) / (judging.resamples + 1)
    lower, upper = quantiles(differences, LEVEL)
    return ErrorDifference(
        metric, system.score, baseline.score, system.score - baseline.score, lower=lower, upper=upper,
        interval=quantiles(differences, LEVEL / 2), margin=judging.margin, p=p, non_inferior=p <= LEVEL,
        clips=len(speakers), speakers=len({*speakers} - {""}), resamples=judging.resamples, seed=judging.seed,
    )  # fmt: skip


def error_verdict(found: ErrorDifference) -> str:
    """The verdict in a sentence; a rise of the error rate is a loss."""
    kind, label = judged(-found.upper, -found.lower, found.margin)
    name = found.metric.upper()
    shown = f"not shown: the loss may exceed {found.margin:g} {name}" if kind == "not shown" else f"{label} {name}"
    return (
        f"{shown}, for this pair of models only. The difference is {found.difference:+.2f} {name}; 95% bounds "
        f"{found.lower:+.2f} and {found.upper:+.2f}, over {found.clips:,} clips{within_speakers(found)}."
    )


def within_speakers(found: ErrorDifference) -> str:
    """How clips were resampled, after their number."""
    if not found.speakers:
        return ", whose speakers are not known"
    return f" within {found.speakers} speaker{'s' if found.speakers > 1 else ''}"


@dataclass(frozen=True)
class SpeechJob:
    """What to evaluate, on which list of clips, and how.

    models: runs, model folders, or files with one transcript per clip; each is compared with `baseline`. audio: a list
    of clips (default: the test clips of the first model's recipe). generation: settings of `SpeechModel.transcribe`;
    others come from the first model's recipe. keep: shares of rows to keep, at which the first model is scored too.
    dtype: for the models, not the baseline. output: default: evaluation/ in
    the first model's folder.
    """

    models: Sequence[Path]
    audio: Path | None = None
    baseline: Path | None = None
    judging: SpeechJudging = field(default_factory=SpeechJudging)
    generation: Settings = field(default_factory=dict)
    keep: Sequence[float] = ()
    batch_size: int = BATCH_CLIPS
    output: Path | None = None
    device: str | None = None
    dtype: str | None = None

    def run(self, progress: Callable[[System, int], Advance] | None = None) -> tuple[Path, SpeechEvaluation]:
        """Transcribe, score, compare, and write the folder."""
        systems = [System(path, self.dtype if path.is_dir() else None) for path in self.models]
        baseline = None if self.baseline is None else System(self.baseline)
        folder = _output_folder(systems[0], self.output)
        audio, clips = clips_to_score(systems[0].run, self.audio)
        generation = {**recipe_generation(systems[0].run), **self.generation}
        if self.keep and not systems[0].is_model:
            raise ValueError(f"`keep`: {systems[0].path} is a file of transcripts; the dial needs a gated model")

        def transcripts(system: System, settings: Settings) -> Transcribed:
            advance = progress(system, len(clips)) if progress and system.is_model else None
            return transcribed(
                system, clips, settings, trim=self.judging.trim, batch_size=self.batch_size, device=self.device,
                progress=advance,
            )  # fmt: skip

        sides = [*systems, *([] if baseline is None else [baseline])]
        _check_clips(audio, clips, heard=any(side.is_model for side in sides), compared=baseline is not None)
        outputs = [transcripts(system, generation) for system in sides]
        if self.keep and outputs[0].sparsity is None:
            raise ValueError(f"`keep`: {systems[0].path} has no gates to open or close")
        dialled = {keep: transcripts(systems[0], {**generation, "keep": keep}) for keep in self.keep}
        theirs = None if baseline is None else outputs.pop()
        stamp = FileStamp(**file_stamp(audio))
        evaluation, counts = evaluate_transcripts(systems, outputs, baseline, theirs, clips, self.judging, stamp)
        references = [clip.text for clip in clips]
        curve = [_dial_row(keep, found, references) for keep, found in dialled.items()]
        evaluation = replace(evaluation, curve=curve)
        texts = {one.transcripts: found.texts for one, found in zip(evaluation.systems, outputs, strict=True)}
        if evaluation.baseline is not None and theirs is not None:
            texts[evaluation.baseline.transcripts] = theirs.texts
        _write(folder, evaluation, counts, texts)
        return folder, evaluation


def _check_clips(file: Path, clips: Sequence[SpokenClip], *, heard: bool, compared: bool) -> None:
    """Refuse, before hours of decoding, what would end them. heard: some system is a model."""
    if compared and len(clips) < 2:
        raise ValueError(
            f"{file}: has one clip, and the interval of a difference needs two or more; add clips, or omit `baseline`"
        )
    missing = [clip for clip in clips if heard and not clip.file.is_file()]
    if missing:
        more = f" ({len(missing)} of {len(clips)} clips are missing)" if len(missing) > 1 else ""
        raise CorpusError(f"{file}, line {missing[0].line}: {missing[0].file}: there is no such file{more}")


def evaluate_transcripts(
    systems: Sequence[System],
    outputs: Sequence[Transcribed],
    baseline: System | None,
    theirs: Transcribed | None,
    clips: Sequence[SpokenClip],
    judging: SpeechJudging,
    audio: FileStamp,
) -> tuple[SpeechEvaluation, ClipCounts]:
    """Scores, differences and tail risk of transcripts."""
    references, speakers = [clip.text for clip in clips], [clip.speaker for clip in clips]
    other = None if theirs is None else _Judged(theirs, references)
    records, counts = [], {}
    for number, (system, found) in enumerate(zip(systems, outputs, strict=True), 1):
        ours = _Judged(found, references)
        counts[f"system-{number}"] = ours.counts()
        record = _record(system, ours, speakers, f"transcripts-{number}.txt")
        records.append(record if other is None else _compared(record, ours, other, clips, judging))
    if other is not None:
        counts["baseline"] = other.counts()
    timed = next((one for one in (*outputs, theirs) if one is not None and one.decoding is not None), outputs[0])
    signatures: dict[ErrorRate, str] = {metric: score.signature for metric, score in records[0].scores.items()}
    evaluation = SpeechEvaluation(
        audio=audio,
        clips=len(clips),
        seconds=timed.seconds,
        silent=timed.silent,
        long=timed.long or None,
        judging=judging,
        systems=records,
        baseline=None if baseline is None or other is None else _record(baseline, other, speakers, "baseline.txt"),
        seconds_trimmed=None if judging.trim is None else timed.seconds_trimmed,
        made_by=provenance(),
    )
    return evaluation, ClipCounts([clip.line for clip in clips], speakers, signatures, counts)


def recomputed(folder: Path) -> list[dict[ErrorRate, ErrorDifference]]:
    """The differences of an evaluation's systems, from its statistics file; settings are those of metrics.json."""
    paths = EvaluationFolder(folder)
    found, judging = ClipCounts.read(paths.statistics), SpeechEvaluation.read(paths.metrics).judging
    statistics = {
        label: {metric: ClipStatistics(np.array(rows, dtype=np.float64)) for metric, rows in metrics.items()}
        for label, metrics in found.systems.items()
    }
    baseline = statistics.pop("baseline", None)
    if baseline is None:
        return []
    return [
        {
            metric: compare_errors(metric, ours[metric], baseline[metric], found.speakers, judging)
            for metric in ERROR_RATES
        }
        for ours in statistics.values()
    ]


def _dial_row(keep: float, found: Transcribed, references: Sequence[str]) -> DialRow:
    assert found.sparsity is not None
    assert found.time is not None
    return DialRow(keep, found.sparsity, wer(found.texts, references), found.time.cpu_seconds)


class _Judged:
    """One system's transcripts with their scores and errors per clip."""

    def __init__(self, outputs: Transcribed, references: Sequence[str]) -> None:
        self.outputs = outputs
        self.scores: dict[ErrorRate, Score] = {
            "wer": wer(outputs.texts, references),
            "cer": cer(outputs.texts, references),
        }
        self.errors = {metric: clip_errors(outputs.texts, references, unit) for metric, unit in UNITS.items()}
        self.statistics = {metric: ClipStatistics.of(errors) for metric, errors in self.errors.items()}

    def counts(self) -> dict[ErrorRate, list[list[int]]]:
        return {metric: found.rows.astype(int).tolist() for metric, found in self.statistics.items()}

    def of_speaker(self, metric: ErrorRate, chosen: np.ndarray) -> float:
        sums = self.statistics[metric].rows[chosen].sum(0)
        return ClipStatistics.score_of(sums) if sums[3] else 0.0


def _record(system: System, ours: _Judged, speakers: Sequence[str], transcripts: str) -> SpeechSystem:
    labels = np.array(speakers)
    by_speaker = {}
    for speaker in dict.fromkeys(filter(None, speakers)):
        chosen = labels == speaker
        words = int(ours.statistics["wer"].rows[chosen, COLUMNS.index("length")].sum())
        rates = {metric: ours.of_speaker(metric, chosen) for metric in ERROR_RATES}
        by_speaker[speaker] = SpeakerErrors(int(chosen.sum()), words, **rates)
    found = ours.outputs
    return SpeechSystem(
        str(system.path),
        system.record().files,
        transcripts,
        ours.scores,
        by_speaker,
        sparsity=found.sparsity,
        sparsity_of_all=found.sparsity_of_all,
        time=found.time,
        decoding=found.decoding,
    )


def _compared(
    record: SpeechSystem, ours: _Judged, theirs: _Judged, clips: Sequence[SpokenClip], judging: SpeechJudging
) -> SpeechSystem:
    speakers = [clip.speaker for clip in clips]
    differences = {
        metric: compare_errors(metric, ours.statistics[metric], theirs.statistics[metric], speakers, judging)
        for metric in ERROR_RATES
    }
    texts = ours.outputs.texts, theirs.outputs.texts
    return replace(
        record,
        differences=differences,
        same_outputs=sum(one == other for one, other in zip(*texts, strict=True)),
        tail=speech_tail(clips, *texts, ours.errors["wer"], theirs.errors["wer"]),
        verdict=error_verdict(differences["wer"]),
    )


def _output_folder(first: System, output: Path | None) -> Path:
    if output is None and not first.path.is_dir():
        raise ValueError(f"`output` is needed: {first.path} is no folder to write to")
    folder = output or RunFolder(first.run or first.path).evaluation
    metrics = EvaluationFolder(folder).metrics
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`output` {folder}: is a file; name a folder")
    if metrics.exists() and kind_of(metrics) != SPEECH_EVALUATION:
        raise ValueError(
            f"`output` {folder}: its {metrics.name} is not from an evaluation of speech; name another folder"
        )
    return folder


def _write(folder: Path, evaluation: SpeechEvaluation, counts: ClipCounts, texts: dict[str, list[str]]) -> None:
    """Write the folder; metrics.json comes last, so if it exists, all files do."""
    paths = EvaluationFolder(folder)
    paths.metrics.unlink(missing_ok=True)
    for name, lines in texts.items():
        write_whole(folder / name, "".join(line + "\n" for line in lines))
    counts.write(paths.statistics)
    evaluation.write(paths.metrics)
