"""`l0drop sweep`: a recipe at several λ, target sparsities or rules, compared with the continued baseline."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from l0drop.app.numbers import listed
from l0drop.app.options import Overrides, RecipeFile, Runs, Threads
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

    loaded = load_recipe(recipe, set_ or [])
    import torch

    from l0drop.study.sweep import lambda_point, rule_point, target_point
    from l0drop.study.sweep import sweep as run_sweep

    points = [lambda_point(value) for value in listed(lambda_, "--lambda")] if lambda_ is not None else []
    points += [target_point(value) for value in listed(target, "--target")] if target is not None else []
    points += [rule_point(rule) for rule in rules.split(",")] if rules is not None else []
    if not points:
        raise ValueError("--lambda, --target or --rules: give at least one of them, such as --target 0.2,0.4,0.6")
    if threads is not None:
        torch.set_num_threads(threads)
    summary = run_sweep(
        loaded, points, runs, fine_tune=fine_tune or [], parallel=parallel, threads=threads, console=log
    )
    console.print(sweep_table(summary))
    folder = runs / summary["name"]
    say(f"done: {folder / 'sweep.json'}")
    say(f"verdicts: l0drop evaluate {folder}")


def sweep_table(summary: dict[str, Any]) -> Group:
    """Sparsity and quality of every point, on the test text if there is one."""
    from l0drop.study.sweep import continued_in

    continued = continued_in(summary)
    split = "test" if "test" in continued else "valid"
    score = continued.get(split, {}).get("score")
    name = score["name"] if score else "score"
    table = Table(title=f"{summary['name']}, {split} set")
    table.add_column("model", no_wrap=True)
    for column in ("sparsity", name, "difference"):
        table.add_column(column, justify="right")
    systems = {"dense, start": summary["baseline"], "dense, continued": continued}
    for label, entry in (*systems.items(), *((point["run"], point) for point in summary["points"])):
        value, difference = entry.get(split, {}).get("score"), entry.get("differences", {}).get(split)
        table.add_row(
            label,
            f"{entry['sparsity']:.1%}" if "sparsity" in entry else "",
            f"{value['value']:.2f}" if value else "",
            f"{difference:+.2f}" if difference is not None else "",
        )
    notes = [
        f"dense, start: {summary['baseline']['run']}",
        "difference: compared with dense, continued, which got the same number of extra steps without a gate",
    ]
    if score:
        references = continued[split].get("references")
        if references:
            notes.append(f"{name} is measured against {references}: agreement with that model, not quality")
        notes.append(score["signature"])
    return Group(table, *(Text(note, style="dim") for note in notes))
