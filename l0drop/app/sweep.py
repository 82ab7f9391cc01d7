"""`l0drop sweep`: a recipe at several λ or target sparsities, or with gates by rule, beside the baseline trained on."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from l0drop.app.runs import Overrides, RecipeFile, Runs, Threads

console = Console()
log = Console(stderr=True)


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
        typer.Option(help="Gates by rule beside them: pos,freq,inv_freq,group,random:0.45,norm:0.45", metavar="GATES"),
    ] = None,
    set_: Overrides = None,
    fine_tune: Annotated[
        list[str] | None,
        typer.Option(
            help="Set a key for what follows the baseline alone, where the recipe trains one: "
            "--fine-tune train.steps=100",
            metavar="A.B=VALUE",
        ),
    ] = None,
    parallel: Annotated[int, typer.Option(help="Runs at a time, each a process of its own.", min=1)] = 1,
    runs: Runs = Path("runs"),
    threads: Threads = None,
) -> None:
    """Fine-tune one baseline at several λ or target sparsities, and train it on without a gate; goes on if stopped."""
    from l0drop.recipe import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    import torch

    from l0drop.study.sweep import lambda_point, listed, rule_point, target_point
    from l0drop.study.sweep import sweep as run_sweep
    from l0drop.training.run import Interrupted

    points = [lambda_point(value) for value in listed(lambda_, "--lambda")] if lambda_ is not None else []
    points += [target_point(value) for value in listed(target, "--target")] if target is not None else []
    points += [rule_point(rule, "--rules") for rule in rules.split(",")] if rules is not None else []
    if not points:
        raise ValueError("--lambda, --target or --rules: one of them is needed, such as --target 0.2,0.4,0.6")
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        summary = run_sweep(
            loaded, points, runs, fine_tune=fine_tune or [], parallel=parallel, threads=threads, console=log
        )
    except Interrupted as stopped:
        log.print(f"[yellow]{stopped}[/]")
        raise typer.Exit(130) from None
    console.print(sweep_table(summary))
    log.print(f"done: {runs / summary['name'] / 'sweep.json'}")


def sweep_table(summary: dict[str, Any]) -> Table:
    """Sparsity and quality of every point, on the test text where there is one."""
    split = "test" if "test" in summary["reference"] else "valid"
    score = summary["reference"].get(split, {}).get("score")
    table = Table(title=f"{summary['name']}, {split} set")
    for column in ("run", "sparsity", "expected open rate", score["name"] if score else "score", "difference"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for entry in (summary["baseline"], summary["reference"], *summary["points"]):
        value, difference = entry.get(split, {}).get("score"), entry.get("differences", {}).get(split)
        table.add_row(
            entry["run"],
            f"{entry['sparsity']:.1%}" if "sparsity" in entry else "",
            f"{entry['expected_open_rate']:.1%}" if entry.get("expected_open_rate") is not None else "",
            f"{value['value']:.2f}" if value else "",
            f"{difference:+.2f}" if difference is not None else "",
        )
    table.caption = "differences to the reference: the baseline trained on for as long, without a gate"
    if score:
        references = summary["reference"][split].get("references")
        table.caption += f"; scores are against {references}" if references else ""
        table.caption += f"; {score['signature']}"
    return table
