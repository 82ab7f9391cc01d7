"""`l0drop prepare` and `l0drop train`: a recipe in, a run folder out."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from l0drop.app.options import Overrides, RecipeFile, Runs, Threads, use_threads
from l0drop.app.terminal import log, say, stopped_by_user

if TYPE_CHECKING:
    from l0drop.runs.run import Scored
    from l0drop.runs.table import Table
    from l0drop.training.examples import RunCorpus


def prepare(recipe: RecipeFile, set_: Overrides = None, runs: Runs = Path("runs")) -> None:
    """Prepare a recipe's text: train its tokenizer and write the tokenized corpora."""
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    from l0drop.runs.table import for_terminal
    from l0drop.training.run import prepare as prepare_run

    folder, _, corpora = prepare_run(loaded, runs, log)
    log.print(for_terminal(corpus_table(corpora)))
    say(f"ready in {folder}")


@stopped_by_user("the same command resumes")
def train(recipe: RecipeFile, set_: Overrides = None, runs: Runs = Path("runs"), threads: Threads = None) -> None:
    """Train a recipe, or resume an interrupted run."""
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    from l0drop.training.run import train as train_run

    use_threads(threads)
    metrics = train_run(loaded, runs, log)
    scored = {"valid": metrics.valid, "test": metrics.test}
    known = {split: found for split, found in scored.items() if found is not None}
    for split, found in known.items():
        _print_scores(split, found)
    if any(found.references is not None for found in known.values()):
        say(
            "A score against a model's outputs says how closely they are imitated (BLEU 100: every output is the "
            "same), not how good the translations are.",
            style="dim",
        )
    say(f"done: {runs / loaded.name}")


def _print_scores(split: str, found: "Scored") -> None:
    sparsity = "" if found.sparsity is None else f", {found.sparsity:.1%} of the encodings dropped"
    say(f"{split}: {found.score.name} {found.score.value:.2f}{sparsity}")
    if found.references is not None:
        say(f"  against the {found.references}")
    say(f"  {found.score.signature}", style="dim")


def corpus_table(corpora: "Mapping[str, RunCorpus]") -> "Table":
    """The number of lines read, skipped and cut in each corpus."""
    from l0drop.runs.table import Table

    fields = {
        "lines": "lines",
        "pairs": "pairs",
        "blank lines, skipped": "blank",
        "lines without source or target, skipped": "one_sided",
        "sources cut": "truncated_source",
        "targets cut": "truncated_target",
        "source tokens": "source_tokens",
        "target tokens": "target_tokens",
    }
    rows = [
        [label, *(f"{getattr(corpus.summary, field):,}" for corpus in corpora.values())]
        for label, field in fields.items()
    ]
    return Table(["", *corpora], rows)
