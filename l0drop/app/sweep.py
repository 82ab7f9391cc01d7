"""`l0drop sweep`: a recipe at several λ, target sparsities or rules, compared with the continued baseline."""

from pathlib import Path
from typing import Annotated

import typer

from l0drop.app.numbers import listed
from l0drop.app.options import Overrides, RecipeFile, Runs, Threads, use_threads
from l0drop.app.terminal import console, log, say, stopped_by_user


@stopped_by_user("the same command resumes")
def sweep(
    recipe: RecipeFile,
    lambda_: Annotated[
        str | None, typer.Option("--lambda", help="Weights of the penalty: 0.1:1.5:0.1 or 0.2,0.5", metavar="VALUES")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Target sparsities: 0.2,0.4,0.6 or 0.1:0.9:0.1", metavar="VALUES")
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(help="Gates by rule: pos,random:0.45 (also freq, inv_freq, group, norm:0.45)", metavar="GATES"),
    ] = None,
    set_: Overrides = None,
    fine_tune: Annotated[
        list[str] | None,
        typer.Option(
            help="Set a key for the fine-tuned runs only, not for the baseline that the recipe trains first: "
            "--fine-tune train.steps=100",
            metavar="A.B=VALUE",
        ),
    ] = None,
    parallel: Annotated[
        int, typer.Option(help="Runs to train at a time, each in its own process.", min=1, metavar="N")
    ] = 1,
    runs: Runs = Path("runs"),
    threads: Threads = None,
) -> None:
    """Fine-tune one baseline at several λ, target sparsities or rules, and continue it without a gate.

    The same command resumes a sweep that was stopped.
    """
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or []).for_text()
    from l0drop.report.sweep import summary_table
    from l0drop.runs.sweep import SweepFolder
    from l0drop.runs.table import for_terminal
    from l0drop.study.sweep import lambda_point, rule_point, target_point
    from l0drop.study.sweep import sweep as run_sweep

    points = [lambda_point(value) for value in listed(lambda_, "--lambda")] if lambda_ is not None else []
    points += [target_point(value) for value in listed(target, "--target")] if target is not None else []
    points += [rule_point(rule) for rule in rules.split(",")] if rules is not None else []
    if not points:
        raise ValueError("--lambda, --target or --rules: give at least one of them, such as --target 0.2,0.4,0.6")
    use_threads(threads)
    summary = run_sweep(
        loaded, points, runs, fine_tune=fine_tune or [], parallel=parallel, threads=threads, console=log
    )
    table, notes = summary_table(summary)
    console.print(for_terminal(table, f"{summary.name}, {summary.split} set", compact=True))
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False)
    folder = runs / summary.name
    say(f"done: {SweepFolder(folder).summary}")
    say(f"verdicts: l0drop evaluate {folder}")
