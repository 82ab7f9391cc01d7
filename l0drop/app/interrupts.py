"""Ctrl-C in a command: one line instead of a traceback or silence."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console


@contextmanager
def stopped_by_user(note: str) -> Iterator[None]:
    """End with exit code 130 and this note if the user presses Ctrl-C. Also a decorator for commands."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"[yellow]stopped; {note}[/]", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
