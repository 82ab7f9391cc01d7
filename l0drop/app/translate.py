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
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from l0drop.app.runs import Dtype

if TYPE_CHECKING:
    from l0drop.decoding.lines import Lines
    from l0drop.decoding.stream import Job, Totals
    from l0drop.decoding.text import TextModel

log = Console(stderr=True)


class Errors(StrEnum):
    STRICT = "strict"
    REPLACE = "replace"


def translate(
    model: Annotated[str, typer.Argument(help="A run folder, a model folder, or a name on the Hugging Face hub.")],
    input_: Annotated[Path | None, typer.Option("--input", "-i", help="Text, a line each; left out, stdin.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Left out, stdout.")] = None,
    jsonl: Annotated[
        bool | None, typer.Option("--jsonl/--no-jsonl", help="Input is JSON lines; as the file's ending says.")
    ] = None,
    field: Annotated[str, typer.Option(help="Where the text is in a JSON object.")] = "text",
    as_json: Annotated[
        bool | None,
        typer.Option(
            "--json/--no-json",
            help="Output is JSON lines: text, score, kept source tokens, timing; as the file's ending says.",
        ),
    ] = None,
    errors: Annotated[Errors, typer.Option(help="What is not UTF-8 is an error, or replaced.")] = Errors.STRICT,
    beams: Annotated[int | None, typer.Option(help="Left out, as the run or the model says.", min=1)] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Above 0 favours long outputs.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest output.", min=1)] = None,
    nbest: Annotated[int, typer.Option(help="Outputs per line; more than one with --json only.", min=1)] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any other generation setting: no_repeat_ngram_size=3", metavar="NAME=VALUE"),
    ] = None,
    keep: Annotated[float | None, typer.Option(help="The dial: the share of source tokens to keep.")] = None,
    max_memory: Annotated[int | None, typer.Option(help="The dial: the most memory rows.")] = None,
    shift: Annotated[float | None, typer.Option(help="The dial: added to log α.")] = None,
    dense: Annotated[bool, typer.Option("--dense", help="Decode on the full gated memory.")] = False,
    source_lang: Annotated[str | None, typer.Option(help="For multilingual models, as the tokenizer calls it.")] = None,
    target_lang: Annotated[str | None, typer.Option(help="For multilingual models, as the tokenizer calls it.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Put before every line, as T5 wants it.")] = None,
    max_source: Annotated[int | None, typer.Option(help="Longer lines are cut to so many tokens.", min=1)] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Padded source tokens decoded at once; fewer take less memory.", min=1)
    ] = None,
    window: Annotated[int | None, typer.Option(help="Lines read, sorted and written at a time.", min=1)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted --output.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away an interrupted --output.")] = False,
    summary: Annotated[Path | None, typer.Option(help="Write totals, settings and machine to this JSON file.")] = None,
    device: Annotated[str | None, typer.Option(help="Left out, a GPU if there is one.")] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Left out, as stored; int8 is for a CPU.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; left out, as many as torch takes.", min=1)] = None,
) -> None:
    """Decode text: one output line per input line, blank for blank, in order, whatever the length of the input."""
    as_json = _ends(output, ".jsonl") if as_json is None else as_json
    jsonl = _ends(input_, ".jsonl") if jsonl is None else jsonl
    if output is not None and output.is_symlink() and (output.is_file() or not output.exists()):
        output = output.resolve()  # what it points to is written, and the link stays
    _check(input_, output, summary, nbest=nbest, as_json=as_json, resume=resume, restart=restart)
    generation = {
        "num_beams": beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens, "keep": keep,
        "max_memory": max_memory, "shift": shift, "dense": dense or None,
        "num_return_sequences": nbest if nbest > 1 else None,
    }  # fmt: skip
    given = {name: value for name, value in generation.items() if value is not None} | _settings(set_ or [])

    import torch

    from l0drop.decoding.lines import open_lines
    from l0drop.decoding.partial import Stream, claimed, made_from, partial_file
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
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, and every batch has its own
    job = Job(
        given, source_lang, target_lang, prefix, max_source, batch_tokens or BATCH_TOKENS, window or WINDOW, as_json
    )
    if not processes.is_first:
        with _silent():
            decode_stream(load(model, device, dtype), job, None, None, processes=processes)
        return
    with ExitStack() as stack:
        if output is not None:
            stack.enter_context(claimed(output, resume=resume, restart=restart))
        lines = stack.enter_context(open_lines(input_, jsonl=jsonl, field=field, errors=errors.value))
        if input_ is None and sys.stdin.isatty():
            log.print("[dim]reading from the terminal; Ctrl-D ends it[/]")
        loaded = load(model, device, dtype)
        if not loaded.is_gated:
            log.print(f"[dim]{escape(model)} has no gate: decoding is dense[/]", highlight=False)
        then = made_from(output) if output is not None and resume else {}
        if "linears" in then:  # measured anew it might be another kind, and kinds round differently
            loaded.engine.linears = then["linears"]
        facts = _facts(loaded, job) | {"jsonl": jsonl, "field": field if jsonl else None, "errors": errors.value}
        progress = stack.enter_context(_bar(input_, lines))
        decode = partial(decode_stream, loaded, job, lines, processes=processes, warn=_warn, progress=progress)
        began, before = time.perf_counter(), 0
        with _interruptible(output), _quiet_pipe():
            if output is None:
                totals = decode(Stream(sys.stdout.buffer))
            else:
                with partial_file(output, facts, resume=resume) as file:
                    before = file.progress.lines
                    lines.skip(before, file.progress.digest)
                    totals = decode(file, start=file.progress)
        seconds = time.perf_counter() - began
    if summary is None and output is not None and as_json:
        summary = output.with_name(f"{output.name}.summary.json")
    if summary is not None:
        _summarize(summary, totals, facts, seconds, processes.count)
    log.print(_said(totals, before, seconds, loaded.is_gated), highlight=False)


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
    """What does not go together."""
    if nbest > 1 and not as_json:
        raise ValueError("--nbest: needs --json; plain output has one line per input line")
    if (resume or restart) and output is None:
        raise ValueError(f"--{'resume' if resume else 'restart'}: is for an interrupted --output; give that too")
    if resume and restart:
        raise ValueError("--resume and --restart: give one of them")
    if output is not None and output.suffix in (".gz", ".xz"):
        raise ValueError(
            f"--output: {output} would not be packed; leave --output out and pipe standard output to a packer"
        )
    if input_ is not None and output is not None and output.exists() and input_.exists() and output.samefile(input_):
        raise ValueError(f"--output: {output} is the input, which would be lost")
    for option, other in (("--output", output), ("--input", input_)):
        if summary is not None and other is not None and summary.resolve() == other.resolve():
            raise ValueError(f"--summary: {summary} is {option}, which would be lost")


def _settings(pairs: list[str]) -> dict[str, Any]:
    """Generation settings from NAME=VALUE; values are JSON, or else text."""
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


def _ends(path: Path | None, ending: str) -> bool:
    """Whether a file is of a kind, packed or not."""
    return path is not None and ending in path.suffixes[-2:]


def _facts(loaded: "TextModel", job: "Job") -> dict[str, Any]:
    """All that decides the output, beside the input."""
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


def _summarize(file: Path, totals: "Totals", facts: dict[str, Any], seconds: float, processes: int) -> None:
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


def _said(totals: "Totals", before: int, seconds: float, gated: bool) -> str:
    parts = [f"{totals.lines:,} lines, {before:,} of them before"] if before else []
    parts += [f"{totals.lines - before:,} lines in {seconds:.1f} s"]
    parts += [f"{totals.blank:,} blank"] if totals.blank else []
    parts += [f"{totals.cut:,} cut"] if totals.cut else []
    parts += [f"{totals.source_tokens:,} source tokens"]
    parts += [f"{totals.sparsity:.1%} dropped"] if gated and totals.sparsity is not None else []
    return ", ".join(parts)


def _warn(text: str) -> None:
    log.print(f"[yellow]warning:[/] {escape(text)}", highlight=False, soft_wrap=True)


@contextmanager
def _bar(input_: Path | None, lines: "Lines") -> Iterator[Callable[["Totals"], None]]:
    """Lines done, and how far in a file that is; on stderr, and only for somebody who looks at it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    plain = input_ is not None and input_.is_file() and input_.suffix not in (".gz", ".xz")
    total = input_.stat().st_size if input_ is not None and plain else None
    with Progress(*columns, console=log, transient=True, disable=not log.is_terminal) as bars:
        task = bars.add_task("0 lines", total=total)
        yield lambda totals: bars.update(task, completed=lines.bytes, description=f"{totals.lines:,} lines")


@contextmanager
def _interruptible(output: Path | None) -> Iterator[None]:
    """Ctrl-C is no accident: say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        how = "the same command with --resume goes on" if output is not None else "what was written stays"
        log.print(f"[yellow]stopped; {how}[/]")
        raise typer.Exit(130) from None


@contextmanager
def _quiet_pipe() -> Iterator[None]:
    """A reader that has seen enough closes the pipe; that is the end, and no error."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        raise typer.Exit(141) from None


@contextmanager
def _silent() -> Iterator[None]:
    """In all processes but the first: what went wrong in all of them is told once."""
    try:
        yield
    except (ValueError, OSError):
        raise typer.Exit(2) from None
