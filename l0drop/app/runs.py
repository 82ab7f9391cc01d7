"""`l0drop prepare` and `l0drop train`: a recipe in, a run folder out."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from l0drop.app.options import Overrides, RecipeFile, Runs, Threads
from l0drop.app.terminal import log, say

if TYPE_CHECKING:
    from l0drop.recipe import Recipe


def prepare(recipe: RecipeFile, set_: Overrides = None, runs: Runs = Path("runs")) -> None:
    """Prepare a recipe's text: train its tokenizer and write the tokenized corpora."""
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    from l0drop.training.run import prepare as prepare_run

    folder, _, corpora = prepare_run(loaded, runs, log)
    log.print(corpus_table(corpora))
    say(f"ready in {folder}")


def train(recipe: RecipeFile, set_: Overrides = None, runs: Runs = Path("runs"), threads: Threads = None) -> None:
    """Train a recipe, or resume an interrupted run."""
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    run(loaded, runs, threads)


def run(recipe: "Recipe", runs: Path, threads: int | None) -> dict[str, Any]:
    """Train, then print the scores."""
    import torch

    from l0drop.training.run import Interrupted
    from l0drop.training.run import train as train_run

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        metrics = train_run(recipe, runs, log)
    except Interrupted as stopped:
        say(str(stopped), style="yellow")
        raise typer.Exit(130) from None
    for split in ("valid", "test"):
        if split in metrics:
            _print_scores(split, metrics[split])
    if any("references" in metrics.get(split, {}) for split in ("valid", "test")):
        log.print(
            "A score against a model's outputs says how closely they are imitated (BLEU 100: every output is the "
            "same), not how good the translations are.",
            style="dim",
            highlight=False,
        )
    say(f"done: {runs / recipe.name}")
    return metrics


def _print_scores(split: str, found: dict[str, Any]) -> None:
    score = found["score"]
    sparsity = f", {found['sparsity']:.1%} of the encodings dropped" if "sparsity" in found else ""
    say(f"{split}: {score['name']} {score['value']:.2f}{sparsity}")
    if "references" in found:
        say(f"  against the {found['references']}")
    say(f"  {score['signature']}", style="dim")


def corpus_table(corpora: dict[str, Any]) -> Table:
    """The number of lines read, skipped and cut in each corpus."""
    table = Table()
    table.add_column("")
    for name in corpora:
        table.add_column(name, justify="right")
    rows = {
        "lines": "lines",
        "pairs": "pairs",
        "blank lines, skipped": "blank",
        "lines without source or target, skipped": "one_sided",
        "sources cut": "truncated_source",
        "targets cut": "truncated_target",
        "source tokens": "source_tokens",
        "target tokens": "target_tokens",
    }
    for row, field in rows.items():
        table.add_row(row, *(f"{getattr(corpus.summary, field):,}" for corpus in corpora.values()))
    return table
