"""`l0drop translate` and `l0drop summarize`: lines of text in, lines of text out."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from l0drop.app.options import (
    Dense,
    Device,
    DtypeOption,
    GenerationSettings,
    Keep,
    MaxMemory,
    MaxNewTokens,
    ModelName,
    Prefix,
    Restart,
    Resume,
    Shift,
    SourceLanguage,
    SummaryFile,
    TargetLanguage,
    Threads,
    given,
    named_settings,
    use_threads,
)
from l0drop.app.terminal import READING, log, quiet_pipe, say, stopped_by_user, warn

if TYPE_CHECKING:
    from l0drop.decoding.job import Done
    from l0drop.decoding.text import TextModel
    from l0drop.runs.job import LineTotals


class ErrorHandling(StrEnum):
    STRICT = "strict"
    REPLACE = "replace"


def translate(
    model: ModelName,
    input_: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="FILE", help="One text per line. Default: standard input."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: standard output.")
    ] = None,
    jsonl: Annotated[
        bool | None,
        typer.Option("--jsonl/--no-jsonl", help="Read JSON lines. Default: if the input's name ends in .jsonl."),
    ] = None,
    field: Annotated[
        str, typer.Option(metavar="NAME", help="The field of a JSON object that holds the text.")
    ] = "text",
    as_json: Annotated[
        bool | None,
        typer.Option(
            "--json/--no-json",
            help="Write JSON lines with text, score, kept source tokens and time. "
            "Default: if the output's name ends in .jsonl.",
        ),
    ] = None,
    errors: Annotated[
        ErrorHandling, typer.Option(help="Stop at invalid UTF-8, or replace it by U+FFFD.")
    ] = ErrorHandling.STRICT,
    num_beams: Annotated[
        int | None,
        typer.Option("--beams", metavar="N", help="1 is greedy search. Default: the run's or the model's.", min=1),
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Above 0 favours long outputs. Default: the run's or the model's.")
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    num_return_sequences: Annotated[
        int | None,
        typer.Option("--nbest", metavar="N", help="Outputs per line; more than one needs --json. Default: 1.", min=1),
    ] = None,
    set_: GenerationSettings = None,
    keep: Keep = None,
    max_memory: MaxMemory = None,
    shift: Shift = None,
    dense: Dense = False,
    source_lang: SourceLanguage = None,
    target_lang: TargetLanguage = None,
    prefix: Prefix = None,
    max_source: Annotated[
        int | None,
        typer.Option(metavar="N", help="Cut longer lines to N tokens. Default: the run's or the model's.", min=1),
    ] = None,
    split: Annotated[
        bool, typer.Option("--split", help="Decode lines that are too long in pieces instead of cutting them.")
    ] = False,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Padded source tokens per batch; fewer need less memory. Default: 8192, GPU: 131072.",
            min=1,
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Lines to read, sort by length and write at a time. Default: 2048, GPU: 16384.", min=1
        ),
    ] = None,
    resume: Resume = False,
    restart: Restart = False,
    summary: SummaryFile = None,
    device: Device = None,
    dtype: DtypeOption = None,
    threads: Threads = None,
) -> None:
    """Translate or summarize lines of text: one output line per input line, in order. Blank lines stay blank."""
    written = "the lines written so far are complete" if output is None else "to continue, add --resume to the command"
    with stopped_by_user(written), quiet_pipe(), _reported_once():
        from l0drop.decoding.bulk import Decoding
        from l0drop.decoding.destination import Destination
        from l0drop.decoding.job import Job, run
        from l0drop.decoding.lines import TextInput
        from l0drop.decoding.text import load
        from l0drop.models.quiet import quiet_libraries

        generation = given(
            num_beams=num_beams, length_penalty=length_penalty, max_new_tokens=max_new_tokens, keep=keep,
            max_memory=max_memory, shift=shift, dense=dense or None, num_return_sequences=num_return_sequences,
        )  # fmt: skip
        sizes = given(batch_tokens=batch_tokens, window=window)
        job = Job(
            TextInput(input_, jsonl, field, errors.value),
            Destination(output, as_json, summary, resume, restart),
            Decoding(
                generation | named_settings(set_ or []),
                source_lang,
                target_lang,
                prefix,
                max_source,
                split=split,
                **sizes,
            ),
        )
        quiet_libraries()
        use_threads(threads)
        with _bar(job.input.size) as progress:
            done = run(
                job, partial(load, model, device, dtype), loaded=partial(_greet, input_), warn=warn, progress=progress
            )
        for line in [] if done is None else summary_lines(done):
            say(line)


def _greet(input_: Path | None, model: "TextModel") -> None:
    """Say what the user might not expect, before the first line is read."""
    if not model.is_gated:
        say(f"{model.name} has no gates: decoding is dense", "dim")
    if input_ is None and sys.stdin.isatty():
        say(READING, "dim")


@contextmanager
def _bar(size: int | None) -> "Iterator[Callable[[LineTotals, int], None]]":
    """A progress bar with the number of lines, on a terminal only; `size`: bytes of the input, if known."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=log, transient=True, disable=not log.is_terminal) as shown:
        task = shown.add_task("0 lines", total=size)
        yield lambda totals, read: shown.update(task, completed=read, description=f"{totals.lines:,} lines")


def summary_lines(done: "Done") -> list[str]:
    """The closing message, in lines of at most 80 columns."""
    totals, before = done.totals, done.before
    count = totals.lines - before.lines
    lines = [f"{count:,} line{'' if count == 1 else 's'} in {done.seconds:,.1f} s"]
    lines += [f"{totals.blank:,} blank"] if totals.blank else []
    lines += [f"{totals.cut:,} cut"] if totals.cut else []
    speed = (totals.source_tokens - before.source_tokens) / max(done.seconds, 1e-9)
    tokens = [f"{totals.source_tokens:,} source tokens"]
    tokens += [f"{totals.sparsity:.1%} dropped"] if done.is_gated and totals.sparsity is not None else []
    tokens += [f"{speed:,.0f} source tokens/s"]
    said = [", ".join(lines), ", ".join(tokens)]
    return [f"{totals.lines:,} lines in all, {before.lines:,} before the interruption", *said] if before.lines else said


@contextmanager
def _reported_once() -> Iterator[None]:
    """Hide errors of all processes but the first, which reports them."""
    try:
        yield
    except (ValueError, OSError):
        if int(os.environ.get("RANK", 0)) == 0:
            raise
        raise typer.Exit(2) from None
