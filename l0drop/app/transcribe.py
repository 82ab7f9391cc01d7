"""`l0drop transcribe`: audio files in, texts or subtitles out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from l0drop.app.options import (
    Dense,
    Device,
    DtypeOption,
    GenerationSettings,
    MaxMemory,
    ModelName,
    Restart,
    Resume,
    Shift,
    SummaryFile,
    Threads,
    given,
    named_settings,
    use_threads,
)
from l0drop.app.terminal import log, quiet_pipe, say, stopped_by_user, warn

if TYPE_CHECKING:
    from l0drop.decoding.recordings import DoneRecordings
    from l0drop.decoding.speech import SpeechModel
    from l0drop.runs.job import AudioTotals


class Form(StrEnum):
    txt = "txt"
    jsonl = "jsonl"
    srt = "srt"
    vtt = "vtt"


def transcribe(
    model: ModelName,
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Audio files: wav, flac, ogg, opus, mp3.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="A file with one line per audio file, or a FOLDER/ with a file for each. Default: standard output.",
        ),
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option("--format", metavar="NAME", help="txt, jsonl, srt or vtt. Default: by the output's name."),
    ] = None,
    language: Annotated[
        str | None, typer.Option(metavar="NAME", help="Spoken language, for a multilingual model. Default: detected.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="transcribe, or translate into English. Default: the model's.")
    ] = None,
    timestamps: Annotated[
        bool | None,
        typer.Option(
            "--timestamps/--no-timestamps",
            help="Segments with times. Default: for srt, vtt, and more than 30 seconds.",
        ),
    ] = None,
    num_beams: Annotated[
        int | None, typer.Option("--beams", metavar="N", help="1 is greedy search. Default: the model's.", min=1)
    ] = None,
    set_: GenerationSettings = None,
    keep: Annotated[float | None, typer.Option(metavar="SHARE", help="Dial: the share of rows to keep.")] = None,
    max_memory: MaxMemory = None,
    shift: Shift = None,
    dense: Dense = False,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Clips decoded at once. Default: 8.", min=1)
    ] = None,
    resume: Resume = False,
    restart: Restart = False,
    summary: SummaryFile = None,
    device: Device = None,
    dtype: DtypeOption = None,
    threads: Threads = None,
) -> None:
    """Transcribe audio files with a Whisper.

    A file that cannot be read is named, the others are transcribed, and the exit code is 1.
    """
    written = "the lines written so far are complete" if output is None else "to continue, add --resume to the command"
    with stopped_by_user(written), quiet_pipe():
        from l0drop.decoding.destination import Destination
        from l0drop.decoding.recordings import Recordings, transcribe_files
        from l0drop.decoding.speech import load_speech
        from l0drop.models.quiet import quiet_libraries

        target = None if output is None else Path(output)
        if output is not None and output.endswith("/"):
            Path(output).mkdir(parents=True, exist_ok=True)
        sizes = given(batch_size=batch_size)
        job = Recordings(
            tuple(files),
            Destination(target, form is Form.jsonl or None, summary, resume, restart),
            given(
                language=language, task=task, return_timestamps=timestamps, num_beams=num_beams, keep=keep,
                max_memory=max_memory, shift=shift, dense=dense or None,
            )
            | named_settings(set_ or []),
            None if form is None else form.value,
            **sizes,
        )  # fmt: skip
        quiet_libraries()
        use_threads(threads)
        with _bar(len(files)) as progress:
            done = transcribe_files(
                job, partial(load_speech, model, device, dtype), loaded=_greet, warn=warn, progress=progress
            )
        for line in summary_lines(done):
            say(line)
        if done.totals.failed:  # before an interruption too
            raise typer.Exit(1)


def _greet(model: "SpeechModel") -> None:
    if not model.is_gated:
        say(f"{model.name} has no gates: decoding is dense", "dim")


@contextmanager
def _bar(files: int) -> "Iterator[Callable[[AudioTotals], None]]":
    """A progress bar, on a terminal only."""
    columns: tuple[Any, ...] = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=log, transient=True, disable=not log.is_terminal) as shown:
        task = shown.add_task("0 files", total=files)
        yield lambda totals: shown.update(task, completed=totals.files, description=f"{totals.files:,} files")


def summary_lines(done: "DoneRecordings") -> list[str]:
    """The closing message, in lines of at most 80 columns."""
    totals, before = done.totals, done.before
    count = totals.files - before.files
    audio = totals.seconds - before.seconds
    parts = [f"{count:,} file{'' if count == 1 else 's'} in {done.seconds:,.1f} s", f"{audio:,.0f} s of audio"]
    parts += [f"{totals.silent:,} silent"] if totals.silent else []
    parts += [f"{totals.failed:,} failed"] if totals.failed else []
    lines = [", ".join(parts)]
    if done.is_gated and totals.sparsity is not None and totals.sparsity_of_all is not None:
        lines.append(
            f"{totals.sparsity:.1%} of the rows that audio covers dropped, {totals.sparsity_of_all:.1%} of all rows"
        )
    if before.files:
        lines.insert(0, f"{totals.files:,} files in all, {before.files:,} before the interruption")
    return lines
