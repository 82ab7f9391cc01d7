"""`l0drop bench`: measurements on this machine, as a table, and as JSON with what it takes to repeat them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

bench = typer.Typer(no_args_is_help=True, help="Measure on this machine.")
console = Console()
log = Console(stderr=True)

Rounds = Annotated[int, typer.Option(help="Interleaved rounds.", min=1)]
Threads = Annotated[int, typer.Option(help="CPU threads.", min=1)]
Output = Annotated[Path | None, typer.Option("--json", help="Write the result, with machine and commit, to this file.")]


def _report(result: dict[str, Any], table: Table, output: Path | None) -> None:
    console.print(table)
    console.print(
        f"{result['device']}, {result['threads']} thread(s), torch {result['torch']}, commit {result['commit']}"
    )
    if output is not None:
        from l0drop.data.whole import write_whole

        write_whole(output, json.dumps(result, indent=1) + "\n")


def _start(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


@bench.command()
def train(rounds: Rounds = 10, threads: Threads = 1, output: Output = None) -> None:
    """The gate's cost in training: one step of a Transformer base with and without it."""
    from l0drop.study.benchmark import gate_cost

    _start(threads)
    result = gate_cost(rounds, progress=log.print)
    table = Table(title="One training step, CPU seconds (median)")
    for column in ("system", "CPU s", "wall s"):
        table.add_column(column, justify="right")
    for name, seconds in result["seconds"].items():
        middle = len(seconds["cpu"]) // 2
        table.add_row(f"{name} gate", f"{sorted(seconds['cpu'])[middle]:.3f}", f"{sorted(seconds['wall'])[middle]:.3f}")
    table.caption = f"ratio of CPU time, median over {rounds} rounds: {result['ratio_cpu']:.3f}"
    _report(result, table, output)


@bench.command()
def layerwise(rounds: Rounds = 7, threads: Threads = 1, output: Output = None) -> None:
    """The encoder with gates between its layers: rows removed against rows masked."""
    from l0drop.study.benchmark import layerwise_encoder

    _start(threads)
    result = layerwise_encoder(rounds=rounds, progress=log.print)
    table = Table(title="Encoder of the layer-wise variant, CPU seconds (median)")
    for column in ("rows kept", "removed", "masked", "ratio"):
        table.add_column(column, justify="right")
    for row in result["rows"]:
        table.add_row(
            f"{row['kept']:.0%}",
            f"{row['cpu_seconds_removed']:.3f}",
            f"{row['cpu_seconds_masked']:.3f}",
            f"{row['ratio_cpu']:.2f}",
        )
    _report(result, table, output)


@bench.command()
def drift(threads: Threads = 1, output: Output = None) -> None:
    """Low precision: the short memory against the dense one, beside the dense one against float32."""
    from l0drop.study.benchmark import drift as measure

    _start(threads)
    result = measure(progress=log.print)
    table = Table(title="Mean difference of logits, relative to the mean logit")
    for column in ("family", "gating", "attention", "dtype", "short - dense", "dense - float32"):
        table.add_column(column)
    for row in result["rows"]:
        table.add_row(
            row["family"], row["gating"], row["attention"], row["dtype"],
            f"{row['short_against_dense']:.1e}", f"{row['dense_against_float32']:.1e}",
        )  # fmt: skip
    _report(result, table, output)
