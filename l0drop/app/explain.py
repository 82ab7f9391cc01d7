"""`l0drop explain`: the source tokens that a model drops, and its output."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from l0drop.app.options import (
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
    given,
)
from l0drop.app.pieces import is_styled, mark_dropped, source_pieces
from l0drop.app.terminal import READING, console, quiet_pipe, say, stopped_by_user, warn

if TYPE_CHECKING:
    from l0drop.decoding.explanation import ExplainedText
    from l0drop.decoding.text import TextModel


def explain(
    model: ModelName,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(metavar="SENTENCE", help="The texts to explain. Default: the lines of standard input."),
    ] = None,
    num_beams: Annotated[
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
    for number, sentence in enumerate(sentences or [], 1):
        if not sentence.strip():
            raise ValueError(f"sentence {number} is blank; there is nothing to explain")
    settings = given(
        num_beams=num_beams, max_new_tokens=max_new_tokens, keep=keep, max_memory=max_memory, shift=shift,
        source_lang=source_lang, target_lang=target_lang,
    )  # fmt: skip
    with stopped_by_user(), quiet_pipe():
        from l0drop.decoding.explanation import explain_texts
        from l0drop.decoding.text import load
        from l0drop.models.quiet import quiet_libraries

        quiet_libraries()
        loaded = load(model, device, dtype)
        if not loaded.is_gated:
            say(_without_gates(loaded), "yellow")
        explanations = explain_texts(loaded, sentences or _standard_input(), settings, prefix=prefix, dense=dense)
        for number, explanation in enumerate(explanations, 1):
            if explanation.explained.cut:
                kept = len(explanation.explained.source)
                warn(f"sentence {number}: too long for the model; cut to {kept} tokens")
            if as_json:
                sys.stdout.write(json.dumps(explanation.as_json(), ensure_ascii=False) + "\n")
                sys.stdout.flush()
            else:
                show(explanation, gap=number > 1)


def _without_gates(model: "TextModel") -> str:
    disabled = hasattr(model.model.config, "l0drop")
    reason = "the gates of this model are disabled" if disabled else "this model has no gates"
    return f"{model.name}: {reason}, so it drops nothing"


def _standard_input() -> Iterator[str]:
    from l0drop.decoding.lines import TextInput

    if sys.stdin.isatty():
        say(READING, "dim")
    with TextInput().opened() as lines:
        found = False
        for line in lines:
            if line.strip():
                found = True
                yield line
    if not found:
        raise ValueError("no text: give sentences as arguments, or lines on standard input")


FULL = "full memory"
"""The same model on its full gated memory, not the model without gates."""


def show(explanation: "ExplainedText", gap: bool) -> None:
    """Print source, output and counts; gap: after a blank line."""
    explained, full = explanation.explained, explanation.full
    pieces = source_pieces(explanation.read, explained.source, set(explained.kept))
    rows = [
        ("source", mark_dropped(pieces, is_styled(console) and explanation.is_gated)),
        ("output", Text(explained.text)),
        *([] if full is None else [(FULL, Text(full.text))]),
    ]
    if gap:
        console.print()
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
    for line in _counts(explanation):
        console.print(line, highlight=False, soft_wrap=True)


def _counts(explanation: "ExplainedText") -> list[str]:
    explained, full = explanation.explained, explanation.full
    share = f"{explained.sparsity:.1%} dropped" if explanation.is_gated else "no gates"
    kept = f"kept {len(explained.kept):,} of {len(explained.source):,} tokens ({share})"
    lines = [f"{kept}, score {explained.score:.3f}"]
    if full is not None:
        same = "the same output" if full.text == explained.text else "a different output"
        lines.append(f"{FULL}: {same}, score {full.score:.3f}")
    return lines
