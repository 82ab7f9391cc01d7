"""One way to print: results go to standard output, everything else to standard error.

Messages stay on one line each when they are copied or redirected; a terminal wraps them.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from l0drop.app.command import with_options

console = Console()
log = Console(stderr=True)
READING = "reading from the terminal; Ctrl-D ends the input"


def say(text: str, style: str | None = None) -> None:
    """Print a message."""
    log.print(text, style=style, soft_wrap=True, highlight=False, markup=False)


def warn(text: str) -> None:
    """Print a warning of the library, with the command's options for its arguments."""
    log.print(f"[yellow]warning:[/] {escape(with_options(text))}", highlight=False, soft_wrap=True)


def remark(text: str) -> None:
    """Print a remark of the library on a result, with the command's options for its arguments."""
    say(with_options(text), style="yellow")


def fail(text: str) -> None:
    """Print an error."""
    log.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)


def progress_bars() -> Progress:
    """Bars with a title, a count and the time."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=log
    )


@contextmanager
def stopped_by_user(note: str = "") -> Iterator[None]:
    """End with exit code 130 if the user presses Ctrl-C; print the library's message, or else this note.

    Also a decorator for commands.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        say(str(stop) or (f"stopped; {note}" if note else "stopped"), "yellow")
        raise typer.Exit(130) from None


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """A reader that closes the pipe ends the command without an error message."""
    try:
        yield
    except BrokenPipeError:
        # otherwise Python complains when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None
