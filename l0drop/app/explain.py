"""`l0drop explain`: the source tokens that a model drops, and its output."""

import json
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from l0drop.app.pieces import is_styled, mark_dropped, source_pieces
from l0drop.app.runs import Dtype
from l0drop.app.translate import (
    Device,
    DtypeOption,
    Keep,
    MaxMemory,
    MaxNewTokens,
    ModelName,
    Prefix,
    Shift,
    SourceLanguage,
    TargetLanguage,
    interruptible,
    log,
    quiet_pipe,
    warn,
)

if TYPE_CHECKING:
    from l0drop.decoding.results import Explained, Result
    from l0drop.decoding.text import TextModel


def explain(
    model: ModelName,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(metavar="SENTENCE", help="The texts to explain. Default: the lines of standard input."),
    ] = None,
    beams: Annotated[
        int | None,
        typer.Option(
            "--num-beams", "--beams", metavar="N", help="1 is greedy search. Default: the run's or the model's.", min=1
        ),
    ] = None,
    max_new_tokens: MaxNewTokens = None,
    keep: Keep = None,
    max_memory: MaxMemory = None,
    shift: Shift = None,
    dense: Annotated[
        bool, typer.Option("--dense", help="Show the output on the full gated memory as well, for comparison.")
    ] = False,
    source_lang: SourceLanguage = None,
    target_lang: TargetLanguage = None,
    prefix: Prefix = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object per text: tokens with gates, output, score.")
    ] = False,
    device: Device = None,
    dtype: DtypeOption = None,
) -> None:
    """Show the source with its dropped pieces struck out, the output, and the number of kept tokens.

    Without colour, for example in a pipe, dropped pieces are marked ~~like this~~.
    """
    settings = {
        "num_beams": beams, "max_new_tokens": max_new_tokens, "keep": keep, "max_memory": max_memory, "shift": shift,
        "source_lang": source_lang, "target_lang": target_lang,
    }  # fmt: skip
    given = {name: value for name, value in settings.items() if value is not None}
    for number, sentence in enumerate(sentences or [], 1):
        if not sentence.strip():
            raise ValueError(f"sentence {number} is blank; there is nothing to explain")
    with interruptible("stopped"), quiet_pipe():
        _explain(model, sentences or [], given, dense, prefix, as_json, device, dtype)


def _explain(
    name: str,
    sentences: list[str],
    settings: dict[str, Any],
    dense: bool,
    prefix: str | None,
    as_json: bool,
    device: str | None,
    dtype: Dtype | None,
) -> None:
    from l0drop.decoding.text import load
    from l0drop.models.quiet import quiet_libraries

    quiet_libraries()
    model = load(name, device, dtype)
    if not model.is_gated:
        disabled = hasattr(model.model.config, "l0drop")
        reason = "the gates of this model are disabled" if disabled else "this model has no gates"
        log.print(f"[yellow]{escape(name)}: {reason}, so it drops nothing[/]", highlight=False, soft_wrap=True)
    prefix = model.prefix if prefix is None else prefix
    console = Console()
    for number, sentence in enumerate(sentences or _standard_input(), 1):
        source = prefix + sentence  # as one text, so that tokens of the prefix have offsets too
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*too long for the model")  # reported below
            explained = model.explain(source, prefix="", **settings)
            full = model.generate([source], prefix="", **settings, dense=True)[0] if dense else None
        if explained.cut:
            warn(f"sentence {number}: too long for the model; cut to {len(explained.source)} tokens")
        if as_json:
            sys.stdout.write(json.dumps(_values(source, explained, full, model), ensure_ascii=False) + "\n")
            sys.stdout.flush()
            continue
        if number > 1:
            console.print()
        _show(console, source, explained, full, model.is_gated)


def _standard_input() -> Iterator[str]:
    from l0drop.decoding.lines import open_lines

    if sys.stdin.isatty():
        log.print("[dim]reading from the terminal; Ctrl-D ends the input[/]")
    with open_lines(None) as lines:
        found = False
        for line in lines:
            if line.strip():
                found = True
                yield line
    if not found:
        raise ValueError("no text: give sentences as arguments, or lines on standard input")


FULL = "full memory"
"""The same model on its full gated memory, not the model without gates."""


def _show(console: Console, source: str, explained: "Explained", full: "Result | None", gated: bool) -> None:
    styled = is_styled(console)
    read = source[: max((token.end or 0 for token in explained.source), default=0)] if explained.cut else source
    rows = [
        ("source", mark_dropped(source_pieces(read, explained.source, set(explained.kept)), styled and gated)),
        ("output", Text(explained.text)),
    ]
    if full is not None:
        rows.append((FULL, Text(full.text)))
    if console.is_terminal:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for row in rows:
            grid.add_row(*row)
        console.print(grid)
    else:  # one line each, for other programs
        width = max(len(label) for label, _ in rows) + 2
        for label, text in rows:
            console.print(Text(label.ljust(width)).append_text(text), soft_wrap=True)
    for line in _counts(explained, full, gated):
        console.print(line, highlight=False, soft_wrap=True)


def _counts(explained: "Explained", full: "Result | None", gated: bool) -> list[str]:
    kept, count = len(explained.kept), len(explained.source)
    share = f"{explained.sparsity:.1%} dropped" if gated else "no gates"
    lines = [f"kept {kept:,} of {count:,} tokens ({share}), score {explained.score:.3f}"]
    if full is not None:
        same = "the same output" if full.text == explained.text else "a different output"
        lines.append(f"{FULL}: {same}, score {full.score:.3f}")
    return lines


def _values(source: str, explained: "Explained", full: "Result | None", model: "TextModel") -> dict[str, Any]:
    kept = set(explained.kept)
    gates = [None] * len(explained.source) if explained.gates is None else explained.gates.tolist()
    values = {
        "source": source,
        "tokens": [
            {"text": token.text, "start": token.start, "end": token.end, "kept": i in kept, "gate": gate}
            for i, (token, gate) in enumerate(zip(explained.source, gates, strict=True))
        ],
        "gated": model.is_gated,
        "kept_tokens": len(kept),
        "source_tokens": len(explained.source),
        "cut": explained.cut,
        "text": explained.text,
        "score": explained.score,
    }
    return values if full is None else {**values, "dense": {"text": full.text, "score": full.score}}
