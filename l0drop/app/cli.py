"""The command line."""

import importlib
import os
import sys
from typing import Annotated

import typer

from l0drop import __version__
from l0drop.app import runs
from l0drop.app.analyze import analyze
from l0drop.app.bench import bench
from l0drop.app.command import Command, CommandGroup
from l0drop.app.demo import demo
from l0drop.app.evaluate import evaluate
from l0drop.app.explain import explain
from l0drop.app.report import report
from l0drop.app.serve.command import serve
from l0drop.app.sweep import sweep
from l0drop.app.terminal import fail
from l0drop.app.transcribe import transcribe
from l0drop.app.translate import translate
from l0drop.extras import MissingPackageError, needed_for

IMPORTS = "L0DROP_IMPORT"
DRAWING = ("demo", "report", "analyze")
"""Commands that draw figures."""
REMEDIES = {
    "import": "l0drop --import MODULE COMMAND ...",
    "transcribe": "l0drop transcribe MODEL FILE ...",
    "translate": "l0drop translate MODEL ...",
}
"""For each `remedy` of an error, how to do it on the command line."""

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"l0drop {__version__}")
        raise typer.Exit


def import_modules(names: list[str]) -> None:
    """Import the user's modules, such as those that register gates, from the working directory too.

    The names are passed on to processes that this one starts.
    """
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or (name != error.name and not name.startswith(f"{error.name}.")):
                raise
            raise ValueError(f"--import {name}: there is no such module in {os.getcwd()} or among packages") from error
    if names:
        os.environ[IMPORTS] = " ".join(names)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    modules: Annotated[
        list[str],
        typer.Option("--import", metavar="MODULE", envvar=IMPORTS, help="Import a module that registers custom gates."),
    ] = [],  # noqa: B006
) -> None:
    """Drop encoder outputs that a decoder does not need: train, decode, evaluate."""
    import_modules(modules)


app.command(cls=Command)(demo)
app.command(cls=Command)(runs.prepare)
app.command(cls=Command)(runs.train)
app.command(cls=Command)(sweep)
app.command(cls=Command)(translate)
app.command("summarize", cls=Command, help="An alias of translate.")(translate)
app.command(cls=Command)(transcribe)
app.command(cls=Command)(explain)
app.command(cls=Command)(serve)
app.command(cls=Command)(evaluate)
app.command(cls=Command)(report)
app.command(cls=Command)(analyze)
app.add_typer(bench, name="bench")


def main() -> None:
    """Run the command line. Errors that the user can fix are one message and exit code 2, without a traceback.

    L0DROP_TRACEBACK=1 shows the traceback.
    """
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    command = next((word for word in sys.argv[1:] if word in (*names, "bench")), "")
    try:
        with needed_for(f"l0drop {command}", study=command in DRAWING):
            app()
    except SystemExit as end:
        if not end.code:
            _leave_group()
        raise
    except (MissingPackageError, ValueError, OSError) as error:
        if os.environ.get("L0DROP_TRACEBACK"):
            raise
        remedy = REMEDIES.get(getattr(error, "remedy", ""))
        fail(str(error) if remedy is None else f"{error}; on the command line: {remedy}")
        sys.exit(2)


def _leave_group() -> None:
    """Leave the process group that `torchrun` made, while Python still runs.

    Its threads release their last tensors only then; released during interpreter shutdown, they abort the process.
    Not after an error, because leaving would wait for peers that may never come.
    """
    if "torch" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
