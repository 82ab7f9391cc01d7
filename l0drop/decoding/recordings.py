"""Many audio files to one file of texts, or to a folder with one file each; an interrupted job can be resumed.

A file that cannot be transcribed is named and does not stop the others. A resumed job tries it again.

    job = Recordings((Path("a.wav"), Path("b.mp3")), Destination(Path("texts.jsonl"), resume=True), {"num_beams": 5})
    done = transcribe_files(job, lambda: load_speech("whisper"))
    done.totals.files, done.failures
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from l0drop.core.values import count
from l0drop.data.audio import Audio, AudioError
from l0drop.data.text import one_line
from l0drop.data.whole import write_whole
from l0drop.decoding.destination import Destination
from l0drop.decoding.folder import fingerprint
from l0drop.decoding.partial import Position
from l0drop.decoding.speech import BATCH_CLIPS, ROW_SECONDS, SpeechModel, Transcript
from l0drop.runs.job import AudioTotals, SpeechSummary
from l0drop.runs.provenance import provenance

Format = Literal["txt", "jsonl", "srt", "vtt"]
FORMATS: tuple[str, ...] = get_args(Format)
ONE_LINE = ("txt", "jsonl")
"""Formats with one line per file, so that one output holds many."""
WINDOW_FILES = 64
WINDOW_SECONDS = 3600.0
"""Files, and seconds of audio unless one file is longer, that are read, decoded and written at a time."""


@dataclass(frozen=True)
class FileOutcome:
    """What became of one file: its transcript, or the reason why it has none."""

    file: Path
    transcript: Transcript | None = None
    error: str | None = None

    @property
    def totals(self) -> AudioTotals:
        """Of this file alone."""
        found = self.transcript
        if found is None:
            return AudioTotals(files=1, failed=1)
        return AudioTotals(
            files=1,
            silent=int(not found.rows),
            seconds=found.seconds,
            covered=found.covered,
            kept=len(found.kept),
            rows=found.rows,
            rows_kept=found.rows_kept,
        )


@dataclass(frozen=True)
class Recordings:
    """Audio files, where their transcripts go, and how to decode them.

    format: default: by the ending of the output's name, else txt. A folder as output gets one file per audio file.
    """

    files: tuple[Path, ...]
    output: Destination
    generation: Mapping[str, Any] = field(default_factory=dict)
    format: Format | None = None
    batch_size: int = BATCH_CLIPS

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("`files`: give at least one audio file")
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"`format`: expected one of {', '.join(FORMATS)}, got {self.format!r}")
        count("`batch_size`", self.batch_size)
        if self.folder is None and self.kind not in ONE_LINE and len(self.files) > 1:
            raise ValueError(
                f"`format`: {self.kind} holds one recording; give a folder as `output`, with a / at its end, for "
                f"{len(self.files)} files"
            )
        if self.folder is not None:
            self._refuse_equal_names()

    def _refuse_equal_names(self) -> None:
        seen: dict[Path, Path] = {}
        for file in self.files:
            own = self.file_of(file)
            if own in seen:
                raise ValueError(f"`output`: {seen[own]} and {file} would both be written to {own}; rename one of them")
            seen[own] = file

    @property
    def folder(self) -> Path | None:
        """The output, if it is a folder."""
        file = self.output.file
        return file if file is not None and file.is_dir() else None

    @property
    def kind(self) -> str:
        if self.format is not None:
            return self.format
        ending = "" if self.output.file is None else self.output.file.suffix.removeprefix(".").lower()
        return ending if ending in FORMATS else "txt"

    def file_of(self, audio: Path) -> Path:
        """The output of one audio file in the folder."""
        assert self.folder is not None
        return self.folder / f"{audio.stem}.{self.kind}"

    def settings(self, model: SpeechModel) -> dict[str, Any]:
        """Checked settings; subtitles have timestamps unless they are switched off."""
        times = {"return_timestamps": True} if self.kind in ("srt", "vtt") else {}
        return model.settings({**times, **self.generation})

    def facts(self, model: SpeechModel) -> dict[str, Any]:
        """Everything that determines the output, apart from the audio."""
        return {
            "model": fingerprint(model.name, model.model),
            "generation": {name: _plain(value) for name, value in self.settings(model).items()},
            "format": self.kind,
            "batch_size": self.batch_size,
            "files": hashlib.sha256("\n".join(map(str, self.files)).encode()).hexdigest(),
            "dtype": model.dtype,
            "linears": model.engine.linears,
            "device": model.model.device.type,
        }


@dataclass(frozen=True)
class DoneRecordings:
    """A finished job.

    totals: over the whole output. before: over the transcripts of an interrupted job. failures: of this job.
    """

    totals: AudioTotals
    before: AudioTotals
    seconds: float
    failures: tuple[FileOutcome, ...]
    is_gated: bool


def transcribe_files(
    job: Recordings,
    load: Callable[[], SpeechModel],
    *,
    loaded: Callable[[SpeechModel], None] = lambda model: None,
    warn: Callable[[str], None] = lambda text: None,
    progress: Callable[[AudioTotals], None] = lambda totals: None,
) -> DoneRecordings:
    """Run a job. warn: called with the reason for every file that fails. progress: called after every window."""
    if job.folder is not None:
        return _into_folder(job, job.folder, load, loaded, warn, progress)
    for file in job.files:
        job.output.refuse(file)
    with ExitStack() as stack:
        stack.enter_context(job.output.locked())
        model = load()
        loaded(model)
        model.engine.linears = job.output.earlier_facts.get("linears", model.engine.linears)
        facts = job.facts(model)
        began = time.perf_counter()
        output = stack.enter_context(job.output.opened(facts))
        progressed = _Progress.of(output.position, job.files)
        before, retried = progressed.done, tuple(progressed.failed)
        for outcomes in _windows(model, job, job.files[output.position.lines :]):
            for number, outcome in enumerate(outcomes, output.position.lines):
                progressed.add(number, outcome, warn)
                progressed.identify(outcome.file, outcome.error is not None)
            text = "".join(written(outcome, job.kind) for outcome in outcomes)
            output.append(text, progressed.position(output.position.lines + len(outcomes)))
            progress(progressed.totals)
        again = iter(retried)
        for outcomes in _windows(model, job, tuple(job.files[number] for number in retried)):
            lines = {number: outcome for outcome, number in zip(outcomes, again, strict=False)}
            for number, outcome in lines.items():
                progressed.add(number, outcome, warn)
            output.replace({number: written(outcome, job.kind) for number, outcome in lines.items()})
            progress(progressed.totals)
        seconds = time.perf_counter() - began
    if (summary := job.output.summary_file) is not None:
        _summary(progressed.totals, seconds, facts).write(summary)
    return DoneRecordings(progressed.totals, before, seconds, tuple(progressed.failures), model.is_gated)


@dataclass
class _Progress:
    """What has become of the files so far.

    done: totals over the files with a transcript. failed: the numbers of the others, counted from 0, which a resumed
    job tries again. failures: those of this job. digest: of the files read so far.
    """

    done: AudioTotals = field(default_factory=AudioTotals)
    failed: dict[int, None] = field(default_factory=dict)
    failures: list[FileOutcome] = field(default_factory=list)
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    @classmethod
    def of(cls, position: Position, files: tuple[Path, ...]) -> "_Progress":
        """That of an interrupted job, from its record; ValueError if it read other files."""
        totals = dict(position.totals)
        found = cls(failed=dict.fromkeys(totals.pop("failed_files", ())))
        found.done = AudioTotals(**totals)
        for number, file in enumerate(files[: position.lines]):
            found.identify(file, number in found.failed)
        if position.lines and position.digest != found.digest.hexdigest():
            raise ValueError("`resume`: audio files changed since the interrupted run; start again with `restart=True`")
        return found

    @property
    def totals(self) -> AudioTotals:
        return self.done.plus(AudioTotals(files=len(self.failed), failed=len(self.failed)))

    def position(self, read: int) -> Position:
        """The record after this number of files."""
        return Position(read, self.digest.hexdigest(), {**asdict(self.done), "failed_files": list(self.failed)})

    def identify(self, file: Path, failed: bool) -> None:
        """Note name, size and time of change of the next file; of one that failed the name, because it may change."""
        stat = None
        if not failed:
            with suppress(OSError):
                stat = file.stat()
        self.digest.update(repr((str(file), stat and stat.st_size, stat and stat.st_mtime_ns)).encode())

    def add(self, number: int, outcome: FileOutcome, warn: Callable[[str], None]) -> None:
        self.failed.pop(number, None)
        if outcome.error is None:
            self.done = self.done.plus(outcome.totals)
            return
        self.failed[number] = None
        self.failures.append(outcome)
        warn(outcome.error)


def _into_folder(
    job: Recordings,
    folder: Path,
    load: Callable[[], SpeechModel],
    loaded: Callable[[SpeechModel], None],
    warn: Callable[[str], None],
    progress: Callable[[AudioTotals], None],
) -> DoneRecordings:
    """One file per audio file. Files that are there already are an error, skipped, or written again."""
    there = [file for file in job.files if job.file_of(file).exists()]
    for file in job.files:
        if job.file_of(file).resolve() == file.resolve():
            raise ValueError(f"`output`: {file} is an audio file, which would be overwritten")
    if there and not job.output.resume and not job.output.restart:
        raise ValueError(
            f"{folder}: has {len(there)} of {len(job.files)} transcripts already, such as {job.file_of(there[0])}; use "
            "`resume=True` to keep them, or `restart=True` to write them again"
        )
    model = load()
    loaded(model)
    facts = job.facts(model)
    began = time.perf_counter()
    totals, failures = AudioTotals(), []
    left = tuple(file for file in job.files if job.output.restart or file not in set(there))
    for outcomes in _windows(model, job, left):
        for outcome in outcomes:
            totals = totals.plus(outcome.totals)
            if outcome.error is None:
                write_whole(job.file_of(outcome.file), written(outcome, job.kind))
            else:
                warn(outcome.error)
                failures.append(outcome)
        progress(totals)
    seconds = time.perf_counter() - began
    if job.output.summary is not None:
        _summary(totals, seconds, facts).write(job.output.summary)
    return DoneRecordings(totals, AudioTotals(), seconds, tuple(failures), model.is_gated)


def _windows(model: SpeechModel, job: Recordings, files: tuple[Path, ...]) -> Iterator[list[FileOutcome]]:
    """Outcomes of the files in order, some files at a time, which are decoded in batches of similar length."""
    settings = job.settings(model)
    clips: list[Audio | FileOutcome] = []
    seconds = 0.0
    for number, file in enumerate(files, 1):
        try:
            clips.append(model.read(file, str(file)))
            seconds += clips[-1].seconds  # type: ignore[union-attr]
        except AudioError as error:
            clips.append(FileOutcome(file, error=str(error)))
        if len(clips) == WINDOW_FILES or seconds >= WINDOW_SECONDS or number == len(files):
            start = number - len(clips)
            yield _decoded(model, job, settings, clips, files[start:number])
            clips, seconds = [], 0.0


def _decoded(
    model: SpeechModel,
    job: Recordings,
    settings: Mapping[str, Any],
    read: list[Audio | FileOutcome],
    files: tuple[Path, ...],
) -> list[FileOutcome]:
    outcomes = [
        one if isinstance(one, FileOutcome) else FileOutcome(file, Transcript("", seconds=one.seconds))
        for one, file in zip(read, files, strict=True)
    ]
    places = [index for index, one in enumerate(read) if isinstance(one, Audio)]
    clips = [one for one in read if isinstance(one, Audio)]
    for batch in model.batches(clips, job.batch_size):
        for index, found in zip(batch, model.decode([clips[i] for i in batch], settings), strict=True):
            outcomes[places[index]] = FileOutcome(files[places[index]], found)
    return outcomes


# --- formats -----------------------------------------------------------------------------------------------------


def written(outcome: FileOutcome, kind: str) -> str:
    """The text of one file in this format; of a file that failed, a blank line or its error."""
    found = outcome.transcript
    if kind == "jsonl":
        return json.dumps(_json(outcome), ensure_ascii=False) + "\n"
    if kind == "txt":
        return ("" if found is None else one_line(found.text)) + "\n"
    return subtitles(Transcript("") if found is None else found, kind)


def subtitles(transcript: Transcript, kind: str) -> str:
    """The segments as SubRip (srt) or WebVTT (vtt)."""
    mark = "," if kind == "srt" else "."
    parts = [] if kind == "srt" else ["WEBVTT\n"]
    shown = [segment for segment in transcript.segments if segment.text]
    for number, segment in enumerate(shown, 1):
        head = f"{number}\n" if kind == "srt" else ""
        text = one_line(segment.text.replace("-->", "->"))  # an arrow or a blank line would end the cue
        if kind == "vtt":
            text = text.replace("&", "&amp;").replace("<", "&lt;")  # they begin entities and tags
        end = max(segment.end, segment.start + ROW_SECONDS)  # a cue without duration is invalid, or never shown
        parts.append(f"{head}{_clock(segment.start, mark)} --> {_clock(end, mark)}\n{text}\n")
    return "\n".join(parts)


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(1000 * seconds)
    whole, rest = divmod(milliseconds, 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{mark}{rest:03d}"


def _json(outcome: FileOutcome) -> dict[str, Any]:
    found = outcome.transcript
    if found is None:
        return {"file": str(outcome.file), "error": outcome.error}
    return {
        "file": str(outcome.file),
        "text": found.text,
        "score": found.score,
        "segments": [asdict(segment) for segment in found.segments],
        "seconds": round(found.seconds, 3),
        "covered_rows": found.covered,
        "kept_rows": len(found.kept),
        "rows": found.rows,
        "sparsity": found.sparsity,
        "sparsity_of_all": found.sparsity_of_all,
    }


def _summary(totals: AudioTotals, seconds: float, facts: Mapping[str, Any]) -> SpeechSummary:
    return SpeechSummary(
        totals=totals,
        sparsity=totals.sparsity,
        sparsity_of_all=totals.sparsity_of_all,
        wall_seconds=seconds,
        settings=facts,
        made_by=provenance(facts["device"]),
    )


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
