"""`l0drop report`: one page with the results of a run or a sweep."""

from pathlib import Path
from typing import Annotated

import typer

from l0drop.app.terminal import say


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN_OR_SWEEP", help="A run, a sweep, or the demo's folder.")],
    margin: Annotated[
        float | None, typer.Option(help="The largest loss to accept, in points. Default: that of the evaluation.")
    ] = None,
) -> None:
    """Write report.html and report.md from the files in a folder; nothing is measured."""
    from l0drop.app.demo_page import demo_in, write_page
    from l0drop.report import write_report

    demo = demo_in(folder)
    reported = [folder] if demo is None else [folder / task for task in demo.tasks]
    files = [file for part in reported for file in write_report(part, margin)]
    if demo is not None:
        files.append(write_page(folder))
    for file in files:
        say(f"wrote {file}")
