"""`l0drop prepare` and `l0drop train`: a recipe in, a run folder out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from l0drop.recipe import Recipe

log = Console(stderr=True)

RecipeFile = Annotated[Path, typer.Argument(help="A recipe: a YAML file that holds one experiment.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set a key of the recipe anew: --set train.steps=100", metavar="A.B=VALUE"),
]
Runs = Annotated[Path, typer.Option(help="Where run folders are.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; left out, as many as torch takes.", min=1)]


class Dtype(StrEnum):
    """What a model decodes in."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"
    int8 = "int8"


def prepare(recipe: RecipeFile, set_: Overrides = None, runs: Runs = Path("runs")) -> None:
    """Tokenize a recipe's text: train its tokenizer, write its corpora."""
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    from l0drop.training.run import prepare as prepare_run

    with counting() as progress:
        folder, _, corpora = prepare_run(loaded, runs, log, progress)
    log.print(corpus_table(corpora))
    log.print(f"ready in {folder}")


def train(recipe: RecipeFile, set_: Overrides = None, runs: Runs = Path("runs"), threads: Threads = None) -> None:
    """Train a recipe, or go on with a run that was interrupted."""
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    run(loaded, runs, threads)


def run(recipe: "Recipe", runs: Path, threads: int | None) -> dict[str, Any]:
    """Train and say how it ended."""
    import torch

    from l0drop.training.run import Interrupted
    from l0drop.training.run import train as train_run

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        metrics = train_run(recipe, runs, log)
    except Interrupted as stopped:
        log.print(f"[yellow]{stopped}[/]")
        raise typer.Exit(130) from None
    for split in ("valid", "test"):
        if split in metrics:
            found, score = metrics[split], metrics[split]["score"]
            against = f" against {escape(found['references'])}" if "references" in found else ""
            sparsity = f", sparsity {found['sparsity']:.1%}" if "sparsity" in found else ""
            log.print(f"{split}: {score['name']} {score['value']:.2f}{against}{sparsity}  [dim]{score['signature']}[/]")
    log.print(f"done: {runs / recipe.name}")
    return metrics


@contextmanager
def counting() -> Iterator[Callable[[str], Callable[[int], None]]]:
    """A counter of lines per corpus; how many there will be is not known before they are read."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=log) as bars:

        def start(split: str) -> Callable[[int], None]:
            task = bars.add_task(f"{split}: lines", total=None)
            return lambda lines: bars.update(task, completed=lines)

        yield start


def corpus_table(corpora: dict[str, Any]) -> Table:
    """What became of the lines: kept, skipped, cut."""
    table = Table()
    columns = {
        "lines": "lines",
        "pairs": "pairs",
        "blank": "blank",
        "one-sided": "one_sided",
        "source cut": "truncated_source",
        "target cut": "truncated_target",
        "source tokens": "source_tokens",
        "target tokens": "target_tokens",
    }
    table.add_column("corpus")
    for column in columns:
        table.add_column(column, justify="right")
    for name, corpus in corpora.items():
        table.add_row(name, *(f"{getattr(corpus.summary, field):,}" for field in columns.values()))
    return table
