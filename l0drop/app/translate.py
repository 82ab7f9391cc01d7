"""`l0drop translate` and `l0drop summarize`: lines of text in, lines of text out."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from l0drop.app.command import with_options
from l0drop.app.runs import Dtype

if TYPE_CHECKING:
    from l0drop.decoding.lines import Lines
    from l0drop.decoding.stream import Job, Processes, Totals
    from l0drop.decoding.text import TextModel

log = Console(stderr=True)


class Errors(StrEnum):
    STRICT = "strict"
    REPLACE = "replace"


# options that `explain` has too; short metavars leave room for the help texts at 80 columns
ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run folder, a model folder, or a name on the Hugging Face hub.")
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help="Maximum output length. Default: the run's or the model's, else 256.", min=1),
]
Keep = Annotated[float | None, typer.Option(metavar="SHARE", help="Dial: the share of source tokens to keep.")]
MaxMemory = Annotated[int | None, typer.Option(metavar="N", help="Dial: the maximum number of memory rows.")]
Shift = Annotated[
    float | None, typer.Option(metavar="X", help="Dial: a number added to log α; above 0 keeps more tokens.")
]
SourceLanguage = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Source language of a multilingual model, as its tokenizer names it."),
]
TargetLanguage = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Target language of a multilingual model, as its tokenizer names it."),
]
Prefix = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Text put before every source, for models such as T5. Default: the run's."),
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="Such as cpu or cuda. Default: a GPU if there is one.")
]
DtypeOption = Annotated[
    Dtype | None,
    typer.Option(
        metavar="TYPE",
        help="float32, bfloat16, float16, float64, or on a CPU int8. Default: the type of the stored weights.",
    ),
]


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
    errors: Annotated[Errors, typer.Option(help="Stop at invalid UTF-8, or replace it by U+FFFD.")] = Errors.STRICT,
    beams: Annotated[
        int | None,
        typer.Option(metavar="N", help="1 is greedy search. Default: the run's or the model's.", min=1),
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Above 0 favours long outputs. Default: the run's or the model's.")
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    nbest: Annotated[int, typer.Option(metavar="N", help="Outputs per line; more than one needs --json.", min=1)] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other generation setting: no_repeat_ngram_size=3", metavar="NAME=VALUE"),
    ] = None,
    keep: Keep = None,
    max_memory: MaxMemory = None,
    shift: Shift = None,
    dense: Annotated[bool, typer.Option("--dense", help="Decode on the full gated memory.")] = False,
    source_lang: SourceLanguage = None,
    target_lang: TargetLanguage = None,
    prefix: Prefix = None,
    max_source: Annotated[
        int | None,
        typer.Option(metavar="N", help="Cut longer lines to N tokens. Default: the run's or the model's.", min=1),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Padded source tokens per batch; fewer need less memory. Default: 8192.", min=1),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(metavar="N", help="Lines to read, sort by length and write at a time. Default: 2048.", min=1),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted --output.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an interrupted --output.")] = False,
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write totals, settings and machine as JSON. Default: OUTPUT.summary.json if OUTPUT is JSON lines.",
        ),
    ] = None,
    device: Device = None,
    dtype: DtypeOption = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="CPU threads. Default: torch's choice.", min=1)
    ] = None,
) -> None:
    """Translate or summarize lines of text: one output line per input line, in order. Blank lines stay blank."""
    as_json = _has_suffix(output, ".jsonl") if as_json is None else as_json
    jsonl = _has_suffix(input_, ".jsonl") if jsonl is None else jsonl
    if output is not None and output.is_symlink() and (output.is_file() or not output.exists()):
        output = Path(os.path.realpath(output))  # write the link's target and keep the link
    if summary is None and output is not None and as_json:
        summary = output.with_name(f"{output.name}.summary.json")
    _check(input_, output, summary, nbest=nbest, as_json=as_json, resume=resume, restart=restart)
    generation = {
        "num_beams": beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens, "keep": keep,
        "max_memory": max_memory, "shift": shift, "dense": dense or None,
        "num_return_sequences": nbest if nbest > 1 else None,
    }  # fmt: skip
    given = {name: value for name, value in generation.items() if value is not None} | _settings(set_ or [])
    written = "the lines written so far are complete" if output is None else "to continue, add --resume to the command"
    with interruptible(f"stopped; {written}"):
        import torch

        from l0drop.decoding.stream import WINDOW, Job, Processes, decode_stream
        from l0drop.decoding.text import BATCH_TOKENS, load
        from l0drop.models.quiet import quiet_libraries

        quiet_libraries()
        processes = Processes()
        if threads is not None:
            torch.set_num_threads(threads)
        if device is None and torch.cuda.is_available():
            device = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
        if device is not None and device.startswith("cuda"):
            torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a new plan for every shape, thus for every batch
        job = Job(
            given, source_lang, target_lang, prefix, max_source, batch_tokens or BATCH_TOKENS, window or WINDOW, as_json
        )
        if not processes.is_first:
            with _silent():
                decode_stream(load(model, device, dtype), job, None, None, processes=processes)
            return
        reading = {"jsonl": jsonl, "field": field, "errors": errors.value}
        _translate(model, device, dtype, job, processes, input_, reading, output, summary, resume, restart)


def _translate(
    model: str,
    device: str | None,
    dtype: Dtype | None,
    job: "Job",
    processes: "Processes",
    input_: Path | None,
    reading: dict[str, Any],
    output: Path | None,
    summary: Path | None,
    resume: bool,
    restart: bool,
) -> None:
    """The work of the first process, which reads and writes."""
    from l0drop.decoding.lines import open_lines
    from l0drop.decoding.partial import Progress as Done
    from l0drop.decoding.partial import Stream, locked_output, partial_file, recorded_facts
    from l0drop.decoding.stream import Totals, decode_stream
    from l0drop.decoding.text import load

    with ExitStack() as stack:
        if output is not None:
            stack.enter_context(locked_output(output, resume=resume, restart=restart))
        lines = stack.enter_context(open_lines(input_, **reading))
        loaded = load(model, device, dtype)
        if not loaded.is_gated:
            log.print(f"[dim]{escape(model)} has no gates: decoding is dense[/]", highlight=False, soft_wrap=True)
        earlier = recorded_facts(output) if output is not None and resume else {}
        if "linears" in earlier:  # a new measurement might choose another kind, and kinds round differently
            loaded.engine.linears = earlier["linears"]
        field = reading["field"] if reading["jsonl"] else None
        facts = _facts(loaded, job) | {**reading, "field": field}
        if input_ is None and sys.stdin.isatty():
            log.print("[dim]reading from the terminal; Ctrl-D ends the input[/]")
        progress = stack.enter_context(_bar(input_, lines))
        decode = partial(decode_stream, loaded, job, lines, processes=processes, warn=warn, progress=progress)
        began, start = time.perf_counter(), Done()
        with quiet_pipe():
            if output is None:
                totals = decode(Stream(sys.stdout.buffer))
            else:
                with partial_file(output, facts, resume=resume) as file:
                    start = file.progress
                    lines.skip(start.lines, start.digest)
                    totals = decode(file, start=start)
        seconds = time.perf_counter() - began
    if summary is not None:
        _write_summary(summary, totals, facts, seconds, processes.count)
    for line in summary_lines(totals, Totals(**start.totals), seconds, loaded.is_gated):
        log.print(line, highlight=False, soft_wrap=True)


def _check(
    input_: Path | None,
    output: Path | None,
    summary: Path | None,
    *,
    nbest: int,
    as_json: bool,
    resume: bool,
    restart: bool,
) -> None:
    """Raise for options that contradict each other."""
    if nbest > 1 and not as_json:
        raise ValueError("--nbest: needs --json; plain output has one line per input line")
    if (resume or restart) and output is None:
        raise ValueError(f"--{'resume' if resume else 'restart'}: needs the --output of the interrupted run")
    if resume and restart:
        raise ValueError("--resume and --restart: give one of them")
    if output is not None and output.suffix in (".gz", ".xz"):
        raise ValueError(
            f"--output: {output} would not be compressed; omit --output and pipe standard output to gzip or xz"
        )
    from l0drop.decoding.partial import refuse_clashes

    refuse_clashes(_descriptor(sys.stdin) if input_ is None else input_, output, summary)
    if output is None and input_ is not None and _is_open_as(input_, sys.stdout):
        raise ValueError(f"--input: {input_} is also standard output, which would be appended to it")


def _descriptor(stream: IO[str]) -> int | None:
    """The file descriptor of a standard stream; None if it is closed or replaced."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _is_open_as(path: Path, stream: IO[str]) -> bool:
    """Whether a regular file is open as this stream."""
    descriptor = _descriptor(stream)
    return descriptor is not None and path.is_file() and os.path.samestat(path.stat(), os.fstat(descriptor))


def _settings(pairs: list[str]) -> dict[str, Any]:
    """Generation settings from NAME=VALUE pairs; a value that is not JSON is a string."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set: expected NAME=VALUE, got {pair!r}")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = {"True": True, "False": False}.get(value, value)
    return settings


def _has_suffix(path: Path | None, suffix: str) -> bool:
    """Whether a file name has this suffix, possibly before .gz or .xz."""
    return path is not None and suffix in path.suffixes[-2:]


def _facts(loaded: "TextModel", job: "Job") -> dict[str, Any]:
    """Everything that determines the output, apart from the input."""
    from l0drop.decoding.folder import fingerprint

    return {
        "model": fingerprint(loaded.name, loaded.model),
        "generation": loaded.settings(job.target_lang, job.generation),
        "source_lang": job.source_lang,
        "target_lang": job.target_lang,
        "prefix": loaded.prefix if job.prefix is None else job.prefix,
        "max_source": job.max_source or loaded.max_source,
        "batch_tokens": job.batch_tokens,
        "window": job.window,
        "json": job.as_json,
        "dtype": loaded.dtype,
        "linears": loaded.engine.linears,
        "device": loaded.model.device.type,
    }


def _write_summary(file: Path, totals: "Totals", facts: dict[str, Any], seconds: float, processes: int) -> None:
    from l0drop.data.whole import write_whole
    from l0drop.runs.provenance import provenance

    values = {
        **asdict(totals),
        "sparsity": totals.sparsity,
        "seconds": seconds,
        "processes": processes,
        "settings": facts,
        **provenance(facts["device"]),
    }
    write_whole(file, json.dumps(values, indent=1) + "\n")


def summary_lines(totals: "Totals", before: "Totals", seconds: float, gated: bool) -> list[str]:
    """The closing message, in lines of at most 80 columns; `before` are the totals of the interrupted run."""
    count = totals.lines - before.lines
    lines = [f"{count:,} line{'' if count == 1 else 's'} in {seconds:,.1f} s"]
    lines += [f"{totals.blank:,} blank"] if totals.blank else []
    lines += [f"{totals.cut:,} cut"] if totals.cut else []
    speed = (totals.source_tokens - before.source_tokens) / max(seconds, 1e-9)
    tokens = [f"{totals.source_tokens:,} source tokens"]
    tokens += [f"{totals.sparsity:.1%} dropped"] if gated and totals.sparsity is not None else []
    tokens += [f"{speed:,.0f} source tokens/s"]
    said = [", ".join(lines), ", ".join(tokens)]
    return [f"{totals.lines:,} lines in all, {before.lines:,} before the interruption", *said] if before.lines else said


def warn(text: str) -> None:
    log.print(f"[yellow]warning:[/] {escape(with_options(text))}", highlight=False, soft_wrap=True)


@contextmanager
def _bar(input_: Path | None, lines: "Lines") -> Iterator[Callable[["Totals"], None]]:
    """A progress bar with the number of lines, on a terminal only."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    plain = input_ is not None and input_.is_file() and input_.suffix not in (".gz", ".xz")
    total = input_.stat().st_size if input_ is not None and plain else None
    with Progress(*columns, console=log, transient=True, disable=not log.is_terminal) as bars:
        task = bars.add_task("0 lines", total=total)
        yield lambda totals: bars.update(task, completed=lines.bytes, description=f"{totals.lines:,} lines")


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ctrl-C ends the command with one line."""
    try:
        yield
    except KeyboardInterrupt:
        log.print(f"[yellow]{message}[/]", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """A reader that closes the pipe ends the command without an error message."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # otherwise Python complains when it flushes at exit
        raise typer.Exit(141) from None


@contextmanager
def _silent() -> Iterator[None]:
    """Hide errors of all processes but the first, which reports them."""
    try:
        yield
    except (ValueError, OSError):
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
