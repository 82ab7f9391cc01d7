"""`l0drop report`: one page that says what a run or a sweep has shown."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

log = Console(stderr=True)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN_OR_SWEEP", help="A run, a sweep, or the demo's folder.")],
    margin: Annotated[
        float | None, typer.Option(help="The loss that is small enough to accept; left out, that of the evaluation.")
    ] = None,
) -> None:
    """Write report.html and report.md from the files of a folder; nothing is measured."""
    from l0drop.report import write_report

    for file in write_report(folder, margin):
        log.print(f"written: {file}", markup=False)
