"""`l0drop demo`: the five minutes in which a newcomer sees it work."""

import statistics
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from l0drop.app.pieces import Piece, is_styled, mark_dropped

console = Console()
log = Console(stderr=True)


class Task(StrEnum):
    translation = "translation"
    documents = "documents"


class GatingName(StrEnum):
    zero = "zero"
    mask = "mask"
    weight = "weight"


def demo(
    task: Annotated[Task, typer.Option(help="Short translation, or long documents to summarize.")] = Task.translation,
    gating: Annotated[GatingName, typer.Option(help="What a dropped encoding means to the decoder.")] = GatingName.zero,
    target: Annotated[
        float | None,
        typer.Option(help="Target sparsity; left out, 0.42 for translation, 0.7 for documents.", min=0.05, max=0.95),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of data and training.", min=0)] = 1,
    folder: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/demo"),
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 2,
) -> None:
    """Train a small model on a built-in corpus, fine-tune it with L0Drop, decode, and show what was dropped."""
    import torch

    from l0drop.app.demo_run import run_demo

    torch.set_num_threads(threads)
    metrics = run_demo(folder, task.value, gating.value, target, seed, log, lambda text: log.rule(text, align="left"))
    console.print()
    console.print(results_table(metrics))
    console.print(_dropped(metrics))
    for sentence in metrics["sentences"]:
        console.print(struck(sentence, is_styled(console)))
    console.print(
        f"\nLook at [bold]{folder / 'report.html'}[/]; beside it are metrics.json and a model folder per system."
    )


def results_table(metrics: dict[str, Any]) -> Table:
    """Quality, sparsity and decoding time of each system."""
    name = metrics["dense_score"]["name"]
    table = Table(title=f"{metrics['task']}, gating {metrics['gating']}, test set")
    for column in ("system", name, "sparsity", "decoding, CPU s"):
        table.add_column(column, justify="left" if column == "system" else "right")
    systems = metrics["systems"]
    seconds = {name: f"{statistics.median(rounds):.2f}" for name, rounds in metrics["decoding_cpu_seconds"].items()}
    table.add_row("the same output for every input", f"{metrics['blind_score']['value']:.2f}", "", "")
    table.add_row("baseline", f"{systems['baseline']['score']['value']:.2f}", "0", "")
    table.add_row("baseline, trained on as long", f"{systems['trained-on']['score']['value']:.2f}", "0", "")
    sparsity = f"{metrics['sparsity']:.1%}"
    table.add_row("sparse, dense memory", f"{metrics['dense_score']['value']:.2f}", sparsity, seconds["dense"])
    table.add_row("sparse, short memory", f"{systems['sparse']['score']['value']:.2f}", sparsity, seconds["short"])
    table.caption = (
        f"{metrics['difference_to_trained_on']:+.2f} {name} against the baseline trained on; short and dense agree on "
        f"{metrics['outputs_equal_short_and_dense']} of {systems['sparse']['sentences']} outputs. A short memory saves "
        "the more, the longer the inputs are; these are short."
    )
    return table


def _dropped(metrics: dict[str, Any]) -> Text:
    by_class = ", ".join(f"{name} {share:.0%}" for name, share in metrics["dropped_by_class"].items())
    words = ", ".join(f"{word} {share:.0%}" for word, share in metrics["most_dropped"].items())
    kept = ", ".join(f"{word} {share:.0%}" for word, share in metrics["least_dropped"].items())
    return Text.from_markup(
        f"\n[bold]Dropped, by kind of word:[/] {by_class}\n"
        f"[bold]Most dropped:[/] {words}\n[bold]Least dropped:[/] {kept}\n"
    )


def struck(sentence: list[dict[str, Any]], styled: bool = True) -> Text:
    """A sentence with its dropped pieces marked."""
    pieces: list[Piece] = []
    for word in sentence:
        pieces += [(" ", False)] if word["space_before"] and pieces else []
        pieces += [(piece, dropped) for piece, dropped in word["pieces"]]
    return mark_dropped(pieces, styled)
