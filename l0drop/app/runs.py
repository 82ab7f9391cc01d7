"""`l0drop prepare` and `l0drop train`: a recipe in, a run folder out."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from l0drop.app.options import Overrides, RecipeFile, Runs, Threads
from l0drop.app.terminal import log, say, stopped_by_user

if TYPE_CHECKING:
    pass


def prepare(recipe: RecipeFile, set_: Overrides = None, runs: Runs = Path("runs")) -> None:
    """Prepare a recipe's text: train its tokenizer and write the tokenized corpora."""
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    from l0drop.training.run import prepare as prepare_run

    folder, _, corpora = prepare_run(loaded, runs, log)
    log.print(corpus_table(corpora))
    say(f"ready in {folder}")


@stopped_by_user("the same command resumes")
def train(recipe: RecipeFile, set_: Overrides = None, runs: Runs = Path("runs"), threads: Threads = None) -> None:
    """Train a recipe, or resume an interrupted run."""
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    import torch

    from l0drop.training.run import train as train_run

    if threads is not None:
        torch.set_num_threads(threads)
    metrics = train_run(loaded, runs, log)
    for split in ("valid", "test"):
        if split in metrics:
            _print_scores(split, metrics[split])
    if any("references" in metrics.get(split, {}) for split in ("valid", "test")):
        say(
            "A score against a model's outputs says how closely they are imitated (BLEU 100: every output is the "
            "same), not how good the translations are.",
            style="dim",
        )
    say(f"done: {runs / loaded.name}")


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
